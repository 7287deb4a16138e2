// Implements the functions of neighbours.c in JavaScript: functions that are global processes.
'use strict';
const { json, xpu } = require('@sublet/sublet');

const ends = new Map();

function keep(end) {
  ends.set(ends.size, end);
  return ends.size - 1;
}

function word(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}

function half(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

const wordsOf = (input) => Array.from({ length: Math.floor(input.length / 8) }, (_, at) => input.readBigUInt64LE(8 * at));

exports.pid = () => word(xpu.pid());

exports.make = (input) => {
  const reader = xpu.fifo(input.toString());
  return Buffer.concat([word(reader.object), word(keep(reader))]);
};

exports.allow = (input) => {
  const [to, object, rights] = wordsOf(input);
  xpu.grant(to, object, Number(rights));
};

exports.forbid = (input) => {
  const [from, object, rights] = wordsOf(input);
  xpu.revoke(from, object, Number(rights));
};

exports.may = (input) => half(xpu.rights(input.readBigUInt64LE()));

exports.join = async (input) => half(keep(await xpu.connect(input.toString(), { timeoutMs: 5000 })));

exports.say = (input) => ends.get(input.readUInt32LE()).write(input.subarray(4), { timeoutMs: 5000 });

exports.hear = async (input) => {
  const { message, writer } = await ends.get(input.readUInt32LE()).read({ timeoutMs: input.readUInt32LE(4) });
  return Buffer.concat([word(writer), message]);
};

exports.unit = (input) => {
  const units = xpu.units(), number = input.readUInt32LE();
  if (number >= units.length) throw new RangeError(`there is no processor ${number}`);
  return half(units[number]);
};

// The processor, a FIFO and rights to it, if any; then the path and arguments, each ended by 0.
exports.spawn = (input) => {
  const [processor, fifo, rights] = wordsOf(input.subarray(0, 24));
  const [path, ...args] = input.subarray(24, -1).toString().split('\0');
  const capabilities = rights > 0 ? [[fifo, Number(rights)]] : [];
  return word(xpu.spawn(Number(processor), path, args, { env: { COLOUR: 'red' }, capabilities }));
};

exports.shut = (input) => ends.get(input.readUInt32LE()).close();

exports.die = () => process.exit(1);

// A processor, a function's name and its input: executed there.
exports.delegate = async (input) => {
  const processor = input.readUInt32LE();
  const [, name, data] = /^(\S+) (.*)$/s.exec(input.subarray(4).toString());
  const far = await xpu.executor(processor);
  const shouted = await far.call(name, data, { timeoutMs: 20_000 });
  // The second waits for its turn, and results come in the order of the calls.
  const [, , first, second] = await Promise.all([far.submit(name, data), far.submit(name, 'again'), far.result(), far.result()]);
  if (!first.equals(shouted) || second.equals(shouted)) throw new Error(`${first}, ${second}`);
  if (Number(far.pid >> 32n) !== processor) throw new Error(`${far.pid} is not on ${processor}`);
  far.close();
  return shouted;
};

// Its input in upper case, and the processor that executed it.
exports.shout = (input) => {
  const text = input.toString().trim();
  if (!text) throw new Error('nothing to shout');
  return `${text.toUpperCase()} ${(xpu.pid() >> 32n).toString(16)}`;
};

const codeOf = (promise) => promise.then(() => 'done', (error) => `${error.code}: ${error.message}`);

// Operations that wait beside one another, and beside timers.
exports.wait = json(async () => {
  const fifos = Array.from({ length: 9 }, () => xpu.fifo());
  // There are more that wait than threads for them.
  const waiting = fifos.map((fifo) => codeOf(fifo.read()));
  const late = await codeOf(xpu.fifo().read({ timeoutMs: 20 }));
  const before = Date.now();
  await new Promise((resolve) => setTimeout(resolve, 5));
  const file = (await require('fs').promises.readFile('/etc/passwd')).length > 0;
  const writers = await Promise.all(fifos.slice(1).map((fifo) => xpu.connect(fifo.object)));
  await Promise.all(writers.map((writer, number) => writer.write(`message ${number}`)));
  fifos[0].close();
  const outcomes = await Promise.all(waiting);
  // Messages stay in order although nothing awaits the first reads.
  const [reader] = fifos.slice(1), [writer] = writers, read = [];
  const reads = [reader.read(), reader.read(), reader.read()];
  for (const text of ['a', 'b', 'x'.repeat(9000)]) await writer.write(text);
  for (const { message, writer: from } of await Promise.all(reads)) read.push(message.length, from === xpu.pid());
  setTimeout(() => reader.close(), 10);
  await writer.write('last');
  const iterated = [];
  for await (const { message } of reader) iterated.push(message.toString());
  return {
    late, file, outcomes, read, iterated,
    timers: Date.now() >= before,
    closed: await codeOf(reader.read()),
    wrong: [await codeOf(xpu.connect('x', { timeoutMs: -1 })), await codeOf(xpu.connect(0n, { timeoutMs: 0 }))],
    full: await codeOf(xpu.fifo().read({ timeoutMs: 0 })),
  };
});
