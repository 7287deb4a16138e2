// FIFOs between worker processes, rights to them, and executors on other processing units: `xpu` of `@sublet/sublet`.
//
// The worker's process is a global process, whose id contains its processing unit. Ids are BigInts, and units numbers.
// A function that may wait returns a promise, and takes `timeoutMs`: without it, it waits without limit, and 0 does not
// wait.
// Errors have a `code`, as 'permission_denied'.
'use strict';
// Rights of a process to a FIFO, which can be combined.
const READ = 1, WRITE = 2, OWN = 4;

// Closes what JavaScript no longer refers to.
const unreferenced = new FinalizationRegistry((end) => now({ op: 'close', end }));

// An object of this process, until it is closed. Its operations are executed one after the other.
class Owned {
  #end;
  #last = Promise.resolve();
  #isClosed = false;

  constructor({ end }) {
    this.#end = end;
    unreferenced.register(this, end, this);
  }

  // Whether it was closed.
  get closed() { return this.#isClosed; }

  // Closes it. A second call does nothing; operations that wait, and later ones, fail with 'invalid_argument'.
  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    unreferenced.unregister(this);
    now({ op: 'close', end: this.#end });
  }

  _now(op) { return now({ op, end: this.#end }); }

  _use(request, timeoutMs, bytes) {
    const used = this.#last.then(() => wait({ ...request, end: this.#end }, timeoutMs, bytes));
    this.#last = used.catch(() => {});
    return used;
  }
}

class End extends Owned {
  // Id of the FIFO.
  object;

  constructor(made) {
    super(made);
    this.object = BigInt(made.id);
  }
}

// The reading end of a FIFO. Without it, and without another process that may read, the FIFO ends.
class Reader extends End {
  // The next message of any writer, and its writer's pid: { message, writer }.
  async read({ timeoutMs } = {}) {
    const { told, output } = await this._use({ op: 'read' }, timeoutMs);
    return { message: output, writer: BigInt(told.writer) };
  }

  // All messages, until this end is closed.
  async *[Symbol.asyncIterator]() {
    while (!this.closed) {
      try {
        yield await this.read();
      } catch (error) {
        if (!this.closed) throw error;
      }
    }
  }
}

// The writing end of a FIFO. Messages that were written before it is closed still reach the reader.
class Writer extends End {
  // Writes a message: bytes or text, or a value as JSON. Waits for space in the ring, and not for the reader.
  async write(message, { timeoutMs } = {}) {
    await this._use({ op: 'write' }, timeoutMs, bytesOf(message));
  }
}

// A worker process of a package on another processor or a device, in a lease of its own.
class Executor extends Owned {
  // Id of its process.
  pid;

  constructor(made) {
    super(made);
    this.pid = BigInt(made.id);
  }

  // Calls a function by its name; returns its output. Functions in a list, as 'resize|compress', are executed one after
  // the other; '@picture' is a buffer that stays there.
  async call(name, data, { timeoutMs } = {}) {
    return (await this._use({ op: 'call', function: name }, timeoutMs, bytesOf(data))).output;
  }

  // Submits a call without waiting for its output.
  async submit(name, data, { timeoutMs } = {}) {
    await this._use({ op: 'submit', function: name }, timeoutMs, bytesOf(data));
  }

  // The output of the oldest submitted call.
  async result({ timeoutMs } = {}) {
    return (await this._use({ op: 'result' }, timeoutMs)).output;
  }
}

// The functions of a graph on the units of this computer, called as one.
class Chain extends Owned {
  // The processes that execute it, in the order of their calls.
  get pids() { return this._now('pids').map(BigInt); }

  // Calls the chain with the input of its entry; returns the output of the components that trigger no other.
  async call(data, { timeoutMs } = {}) {
    return (await this._use({ op: 'callChain' }, timeoutMs, bytesOf(data))).output;
  }
}

// Id of a FIFO, by itself or by one of its ends.
const idOf = (object) => String(object instanceof End ? object.object : object);

// Id of this process, by which others grant it rights.
const pid = () => BigInt(now({ op: 'pid' }));

// Makes a FIFO, which this process reads and owns. Without a name it has only its id. Each writer has a ring of `slots`
// slots, a power of two from 4 to 1024, of `slotBytes` bytes, a multiple of 4096; a message has at most three quarters
// of the ring.
const fifo = (name = '', { slots = 16, slotBytes = 4096 } = {}) => new Reader(now({ op: 'fifo', name, slots, slotBytes }));

// Connects to a FIFO by its name or its id, to write.
async function connect(to, { timeoutMs } = {}) {
  const request = typeof to === 'string' ? { op: 'connect', name: to } : { op: 'connectTo', object: idOf(to) };
  return new Writer((await wait(request, timeoutMs)).told);
}

// Connects to read a FIFO of this unit, which its reader has closed.
async function connectToRead(name, { timeoutMs } = {}) {
  return new Reader((await wait({ op: 'connectToRead', name }, timeoutMs)).told);
}

// Grants a process rights to a FIFO. They are in effect when this returns.
const grant = (to, object, rights) => { now({ op: 'grant', to: String(to), object: idOf(object), rights }); };

// Revokes rights of a process, and ends its connections that depend on them.
const revoke = (from, object, rights) => { now({ op: 'revoke', from: String(from), object: idOf(object), rights }); };

// The rights of this process to a FIFO.
const rights = (object) => now({ op: 'rights', object: idOf(object) });

// The processors of this computer: this process's own, then those that are linked with it now.
function units() {
  const found = [];
  for (;;) {
    try {
      found.push(now({ op: 'unit', number: found.length }));
    } catch (error) {
      if (found.length === 0 || error.code !== 'invalid_argument') throw error;
      return found;
    }
  }
}

// A device, as 'opencl0', of a processor's node.
const device = (name, processor = now({ op: 'unit', number: 0 })) => now({ op: 'device', processor, name });

// A unit of a kind, as 'dpu', on this process's own node or on a linked one.
const find = (kind) => now({ op: 'find', kind });

// Starts a program of this function's package on a processor, in a lease of its own; returns its pid. It ends with this
// process, and has only the rights of `capabilities`, pairs of a FIFO that this process owns and rights.
function spawn(unit, path, args = [], { env = {}, capabilities = [] } = {}) {
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  const granted = capabilities.map(([object, its]) => [idOf(object), its]);
  return BigInt(now({ op: 'spawn', unit, path, args: [path, ...args.map(String)], env: variables, capabilities: granted }));
}

// Starts an executor on a processor or a device, of this package or of another one.
async function executor(unit, { maxBytes = 65536, timeoutMs = 30000, package: named = '' } = {}) {
  return new Executor((await wait({ op: 'startExecutor', unit, maxBytes, package: named }, timeoutMs)).told);
}

// Starts the executors of a graph's components: of a document as an object or as JSON.
async function chain(graph, { maxBytes = 65536, timeoutMs = 30000 } = {}) {
  const document = typeof graph === 'string' ? graph : JSON.stringify(graph);
  return new Chain((await wait({ op: 'startChain', graph: document, maxBytes }, timeoutMs)).told);
}

return {
  READ, WRITE, OWN, Reader, Writer, Executor, Chain,
  pid, fifo, connect, connectToRead, grant, revoke, rights, units, device, find, spawn, executor, chain,
};
//# sourceURL=sublet_xpu
