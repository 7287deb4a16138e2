// A warm Node.js: it loads the modules in its arguments, waits to be forked, and is the program in each copy.
//
// The template executes this file with `adapter`, the library that forks, `require`, and the names of modules as
// arguments. The statements after `serve` run in a copy, in a sandbox: those before `program` ahead of time, while no program is
// known yet, and the others when a program is waited for. Nothing of the sandbox's files is there before `program`.
'use strict';
const Module = require('module');
const crypto = require('crypto');
const { devNull } = require('os');
// Modules that the first program would otherwise have to load.
for (const name of ['fs', 'path', 'util', 'events', 'stream', 'timers', 'url', 'vm']) require(name);
for (const name of process.argv.slice(1)) require(name);
// Modules that only programs here have.
const { sublet_template: worker } = new Function('adapter', 'require', adapter.WORKER)(adapter, require);
if (globalThis.gc) gc();

adapter.serve();

// Each copy has a context's random numbers; V8 would give all the same ones.
function randomNumbers() {
  const numbers = new BigUint64Array(512);
  let next = numbers.length;
  return () => {
    if (next === numbers.length) { crypto.getRandomValues(numbers); next = 0; }
    return Number(numbers[next++] >> 11n) / 2 ** 53;
  };
}
Object.defineProperty(Math, 'random', { value: randomNumbers(), writable: true, configurable: true });

const status = (name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(require('fs').readFileSync('/proc/self/status', 'utf8'))[1]);
Object.defineProperty(process, 'pid', { value: 2, enumerable: true, configurable: true });
Object.defineProperty(process, 'ppid', { get: () => status('PPid'), enumerable: true, configurable: true });

// Node.js would wait for threads that a copy does not have, and its own loop never ends.
worker.endAtOnce();
process.abort = () => process.kill(process.pid, 'SIGABRT');
adapter.atEnd(() => {
  // A listener may start more work: the event is emitted again when that work is done.
  process.emit('beforeExit', process.exitCode ?? 0);
  if (!adapter.isAlive()) process.emit('exit', process.exitCode ?? 0);
});

// Makes this a process that has just been started, with a program.
function enter({ path, args, env }) {
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (const variable of env) {
    const equals = variable.indexOf('=');
    process.env[variable.slice(0, equals)] = variable.slice(equals + 1);
  }
  process.argv = [process.execPath, path, ...args];
  process.execArgv = [];
}

// Does what each program needs with an empty one. The first use of a page of memory takes microseconds in a copy, which shares
// its memory with the template and has no page of the files of Node.js mapped: most of a start is that. No path is looked up
// that is another one in the sandbox, since Node.js would remember it.
function rehearse() {
  const env = Object.entries(process.env).map((pair) => pair.join('='));
  enter(JSON.parse(JSON.stringify({ path: devNull, args: [], env })));
  Module._load(devNull, null, false);
  delete Module._cache[devNull];
  worker.rehearse();
}

try {
  rehearse();
} catch {
  // In a version of Node.js where this is not possible, starts take longer and are otherwise the same.
}
enter(JSON.parse(adapter.program()));
Module.runMain();
