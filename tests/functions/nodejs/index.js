// Functions that tests/tests/nodejs.rs calls.
'use strict';
const fs = require('fs/promises');
const { setTimeout: sleep } = require('timers/promises');
const { json } = require('@sublet/sublet');
const { double } = require('./lib/double');

exports.echo = (input) => input;

// Returns a value of the kind that its input names.
exports.kinds = (input) => ({
  nothing: undefined,
  null: null,
  text: 'é',
  number: 1.5,
  object: { a: [1, 'b'] },
  words: new Uint16Array([1, 2]),
  buffer: new Uint8Array([7, 8]).buffer,
  view: new DataView(new Uint8Array([1, 2, 3]).buffer, 1),
  function: () => 1,
  cycle: (() => { const a = {}; a.a = a; return a; })(),
})[input];

exports.sum = json(async (numbers) => double(numbers.reduce((a, b) => a + b, 0)) / 2);

exports.later = async (input) => {
  await sleep(20);
  await new Promise((done) => process.nextTick(done));
  return input;
};

// Waits for what never comes.
exports.never = () => new Promise(() => {});

exports.refuse = () => { throw new Error('not today\nnor tomorrow'); };

class Missing extends Error {
  name = 'Missing';
}

exports.reject = async () => { await sleep(1); throw new Missing('no such thing'); };

exports.stumble = () => undefined.property;

exports.throw_text = () => { throw { reason: 'a text' }; };

// Takes memory until there is none.
exports.grow = () => {
  const kept = [];
  for (;;) kept.push(new Array(1 << 16).fill(kept.length));
};

let count = 0;
exports.remember = () => `${++count}`;

exports.tools = { deep: { nested: () => 'deep' } };

exports.read = async () => fs.readFile('/proc/self/comm');

exports.random = () => `${Math.random()}`;

// Leaves work behind that only a later wait does.
let late = 'not yet';
exports.loose = (input) => {
  if (input.length > 0) sleep(1).then(() => { late = 'done'; });
  return late;
};

exports.print = (input) => { console.log(`printed ${input}`); console.error('complained'); };

exports.large = (input) => Buffer.alloc(Number(input), 7);

// A promise fails that no function awaits.
exports.forget = async () => { Promise.reject(new Error('forgotten')); await sleep(50); };

exports.quit = () => process.exit(3);
