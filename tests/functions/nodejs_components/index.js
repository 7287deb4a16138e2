// Components of graphs that share memory and messages. Numbers are 64-bit integers, as in components.c.
'use strict';
const sublet = require('@sublet/sublet');
const { channel, send, receive, instance, instances } = sublet;

const BYTES = 8;

const encode = (number) => { const bytes = Buffer.alloc(BYTES); bytes.writeBigUInt64LE(BigInt(number)); return bytes; };
const decode = (bytes) => Number(bytes.readBigUInt64LE(0));

// Writes 1, 2, ... up to its input into "numbers", without awaiting the writes; hands on how many there are.
exports.fill = (input) => {
  if (input.length !== BYTES) throw new Error('how many?');
  const count = decode(input), numbers = channel('numbers');
  for (let at = 0; at < count; at += 512) {
    const page = BigUint64Array.from({ length: Math.min(512, count - at) }, (_, i) => BigInt(at + i + 1));
    numbers.write(at * BYTES, page);
  }
  return encode(count);
};

// Adds the numbers of this instance, and writes the sum to its place in "sums".
exports.share = async (input) => {
  const count = decode(input), numbers = channel('numbers');
  if (!numbers.readonly || (await numbers.nbytes()) !== count * BYTES) throw new Error('these are not the numbers');
  const part = Math.ceil(count / instances()), begin = Math.min(count, instance() * part);
  const bytes = await numbers.read(begin * BYTES, Math.min(part, count - begin) * BYTES);
  let sum = 0;
  for (let at = 0; at < bytes.length; at += BYTES) sum += Number(bytes.readBigUInt64LE(at));
  await channel('sums').write(instance() * BYTES, encode(sum));
};

// The sum of the sums.
exports.total = async () => {
  const bytes = await channel('sums').read();
  let sum = 0;
  for (let at = 0; at < bytes.length; at += BYTES) sum += Number(bytes.readBigUInt64LE(at));
  return encode(sum);
};

exports.later = (input) => input;

// Asks "tell" for the squares of 1, 2, ... up to its input, with all questions at once; returns their sum.
exports.ask = async (input) => {
  const count = decode(input);
  const questions = Array.from({ length: count }, (_, i) => send('tell', encode(i + 1)));
  const asked = Promise.all([...questions, send('tell', '')]);
  let sum = 0;
  for (let number = 1; number <= count; number += 1) {
    const { message, instance: from } = await receive('tell');
    if (from !== 0 || decode(message) !== number * number) throw new Error(`${decode(message)} is not the square of ${number}`);
    sum += decode(message);
  }
  await asked;
  return encode(sum);
};

// Answers questions until one is empty; returns their number.
exports.tell = async () => {
  for (let count = 0; ; count += 1) {
    const { message } = await receive('ask', { timeoutMs: 60000 });
    if (message.length === 0) return encode(count);
    await send('ask', encode(decode(message) ** 2));
  }
};

// The channel of an earlier run.
let kept;

const abuses = {
  write: (numbers) => numbers.write(0, 'x'),
  writeAt: (numbers, at) => numbers.write(at, Buffer.alloc(BYTES)),
  grow: (numbers, at) => numbers.grow(at),
  resize: (numbers, at) => numbers.resize(at),
  read: (numbers, at) => numbers.read(at, BYTES),
  released: async (numbers) => { await numbers.release(); await numbers.nbytes(); },
  opened: async (numbers) => { await numbers.release(); channel('numbers'); },
  absent: () => channel('nothing'),
  message: () => send('missing', 'x'),
  longMessage: () => receive('missing', { timeoutMs: -1 }),
  kept: async (numbers) => { if (kept) await kept.nbytes(); kept = numbers; },
};

// Does what its input names, and returns the error's code and text.
exports.abuse = async (input) => {
  const [what, at] = input.toString().split(' ');
  try {
    await abuses[what](channel('numbers'), Number(at));
    return 'ok: ';
  } catch (error) {
    return `${error.code}: ${error.message}`;
  }
};

// Shows that what was read is a copy, and that all of a resized component is zero.
exports.keep = async () => {
  const numbers = channel('numbers');
  await numbers.write(0, 'before');
  const copy = await numbers.read();
  await numbers.write(0, 'after!');
  numbers.prefetch(0, 6);
  await numbers.sync();
  const now = String(await numbers.read(0, 6));
  await numbers.resize(2);
  await numbers.grow(8);
  return { copy: String(copy), now, end: [...(await numbers.read(2))], whole: String(await numbers.read(0, 2)) };
};

// The names that `@sublet/sublet` exports, and those of its objects.
exports.names = () => {
  const isPublic = (name) => name !== 'constructor' && !name.startsWith('_');
  const members = (of) => (of === null || of === Object.prototype ? [] : [...Object.getOwnPropertyNames(of).filter(isPublic), ...members(Object.getPrototypeOf(of))]);
  const classes = { Channel: sublet.Channel, Reader: sublet.xpu.Reader, Writer: sublet.xpu.Writer, Executor: sublet.xpu.Executor, Chain: sublet.xpu.Chain };
  const named = Object.entries(classes).map(([name, its]) => [name, members(its.prototype)]);
  return { '': Object.keys(sublet), xpu: Object.keys(sublet.xpu), ...Object.fromEntries(named) };
};
