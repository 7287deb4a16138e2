// Executes what callers ask for: loads a package's module, and calls its functions.
//
// A template executes this file with `adapter`, the library that waits for requests, and `require`, before it is forked; a
// Node.js of an image does so when it has started. It returns the modules that only programs of Sublet have, by their names.
'use strict';
const fs = require('fs');
const Module = require('module');
const { devNull } = require('os');
const path = require('path');
const { pathToFileURL } = require('url');
const { inspect, types } = require('util');

// Results of `adapter.next` that are not functions.
const LOAD = -1, EXECUTE = -2;
// The codes of `adapter.failed`.
const FUNCTION_FAILED = 0, INVALID_PACKAGE = 1;
const NOTHING = new Uint8Array(0);
// Classes of errors of faults in programs.
const FAULTS = new Set(['EvalError', 'RangeError', 'ReferenceError', 'SyntaxError', 'TypeError', 'URIError']);
// The name of this file in stacks.
const OWN = '(sublet_worker:';
// Most functions that an error names.
const MOST_NAMED = 8;

// The folder of the package.
let folder = '/';

const isThenable = (value) => value !== null && typeof value === 'object' && typeof value.then === 'function';

// The bytes of what a function has returned.
function bytesOf(value) {
  if (types.isUint8Array(value)) return value;
  if (typeof value === 'string') return Buffer.from(value);
  if (value === undefined) return NOTHING;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (types.isAnyArrayBuffer(value)) return new Uint8Array(value);
  return Buffer.from(jsonOf(value));
}

function jsonOf(value) {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`the function returned a ${typeof value}, which is neither bytes nor text nor JSON`);
  return text;
}

// A function of bytes that parses its input as JSON, and returns JSON. An empty input is undefined.
function json(called) {
  if (typeof called !== 'function') throw new TypeError('json takes a function');
  const encode = (value) => jsonOf(value ?? null);
  return (input) => {
    const returned = called(input.length > 0 ? JSON.parse(input.toString()) : undefined);
    return isThenable(returned) ? returned.then(encode) : encode(returned);
  };
}

// Paths of the package without its folder.
const within = (text) => text.replaceAll(pathToFileURL(folder + path.sep).href, '').replaceAll(folder + path.sep, '');

// An error in one line. An Error has the text that the function's author wrote, one of another class its class, too, and
// one of JavaScript's own classes also the place in the package where it was thrown.
function told(error) {
  if (!types.isNativeError(error)) return `threw ${inspect(error, { breakLength: Infinity, depth: 2 })}, which is no Error`;
  const message = String(error.message).split('\n', 1)[0];
  if (error.constructor === Error) return message;
  const said = `${error.name}: ${message}`;
  if (!FAULTS.has(error.name)) return said;
  const lines = String(error.stack ?? '').split('\n');
  // The stack of a syntax error begins with the place.
  const begins = /^(\S+:\d+)$/.exec(lines[0])?.[1];
  const place = begins ?? lines.find((line) => /^ +at /.test(line) && line.includes(folder + path.sep))?.trim();
  return place ? `${said} (${within(place)})` : said;
}

// Answers with an error, which the lease's log has with its stack and its causes.
function fail(code, error) {
  adapter.failed(code, told(error));
  try {
    const lines = within(inspect(error)).split('\n');
    fs.writeSync(2, lines.filter((line) => !line.includes(OWN)).join('\n') + '\n');
  } catch {
    // No one reads the log.
  }
}

async function loadModule(file) {
  try {
    return Module.createRequire(file)(file);
  } catch (error) {
    // A module of ECMAScript, of which later versions require those without a top-level await.
    if (error?.code !== 'ERR_REQUIRE_ESM' && error?.code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error;
  }
  return importFile(pathToFileURL(file).href);
}

// Imports a module of ECMAScript, which only a file may do: set by the worker's file.
let importFile;

// The function of a path of names in a module.
function find(exported, symbol) {
  const look = (from) => symbol.split('.').reduce((found, name) => found?.[name], from);
  const found = look(exported) ?? look(exported?.default);
  if (typeof found === 'function') return found;
  const names = Object.keys(exported ?? {}).filter((name) => typeof exported[name] === 'function');
  const others = names.length > 0 ? names.slice(0, MOST_NAMED).join(', ') : 'no function';
  throw new Error(`the module exports no function ${JSON.stringify(symbol)}, but ${others}`);
}

async function load() {
  const { folder: its, library, symbols, variables } = JSON.parse(adapter.described());
  folder = its;
  // The process has them already; V8 learns of another time zone only in this way.
  for (const [name, value] of variables) process.env[name] = value;
  const exported = await loadModule(path.join(folder, library));
  return symbols.map((symbol) => find(exported, symbol));
}

// Executes a program in place of functions. The process ends when no work is left.
function execute() {
  const { path: file, args, env } = JSON.parse(adapter.described());
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (const [name, value] of env) process.env[name] = value;
  process.argv = [process.execPath, file, ...args];
  Module.runMain();
}

// Gives up the promise that is awaited, if one is.
let giveUp;

async function settled(promise) {
  try {
    return await Promise.race([promise, new Promise((_, reject) => { giveUp = reject; })]);
  } finally {
    giveUp = undefined;
  }
}

// Executes requests until there are no more.
async function work(importer) {
  importFile = importer;
  process.on('beforeExit', () => {
    const given = giveUp;
    if (given) setImmediate(() => given(new Error('the promise is never settled: no work is left')));
  });
  let functions = [];
  for (;;) {
    const asked = adapter.next();
    if (asked >= 0) {
      try {
        let returned = functions[asked](adapter.input());
        if (isThenable(returned)) returned = await settled(returned);
        const accessed = component.idle();
        if (accessed) await settled(accessed);
        adapter.output(bytesOf(returned));
      } catch (error) {
        fail(FUNCTION_FAILED, error);
      }
    } else if (asked === LOAD) {
      try {
        functions = await settled(load());
      } catch (error) {
        fail(INVALID_PACKAGE, error);
      }
    } else if (asked === EXECUTE) {
      return execute();
    } else {
      process.reallyExit(adapter.status());
    }
  }
}

// Makes the process end after its exit listeners, without a cleanup of what it does not own: threads of the template, and the
// worker's loop, which is suspended.
function endAtOnce() {
  process.reallyExit = (code) => adapter.exit(code || 0);
  process.on('uncaughtExceptionMonitor', (error) => {
    if (process.listenerCount('uncaughtException') > 0) return;
    process._rawDebug(inspect(error));
  });
  const emit = process.emit;
  process.emit = function (event, ...words) {
    const told = Reflect.apply(emit, this, [event, ...words]);
    if (event === 'exit') adapter.exit(process.exitCode ?? words[0] ?? 0);
    return told;
  };
}

// Does ahead of time what a worker does first, without a package.
function rehearse() {
  Module.createRequire(devNull);
  JSON.parse(JSON.stringify({ folder, symbols: [] }));
  find({ f() {} }, 'f');
  bytesOf(json((input) => input)(Buffer.from('{}')));
}

// Executes a part of the interface for functions, which asks the library: `now` for an answer at once, and `wait` for one
// that may take a time.
function part(source, answer, answerLater) {
  const now = (request) => JSON.parse(answer(JSON.stringify(request)));
  const wait = async (request, timeoutMs, bytes) => {
    const [told, output] = await answerLater(JSON.stringify({ ...request, timeoutMs }), bytes);
    return { told: JSON.parse(told), output };
  };
  return new Function('now', 'wait', 'bytesOf', source)(now, wait, bytesOf);
}

const xpu = part(adapter.XPU, adapter.xpu, adapter.xpuWait);
const component = part(adapter.COMPONENT, adapter.component, adapter.componentWait);

// Modules that programs load by these names, without a file.
const own = {
  __proto__: null,
  sublet_template: { work, rehearse, endAtOnce },
  '@sublet/sublet': { json, xpu, ...component.exported },
};
const loadFile = Module._load;
Module._load = function (name, ...rest) {
  return own[name] ?? Reflect.apply(loadFile, this, [name, ...rest]);
};
return own;
//# sourceURL=sublet_worker
