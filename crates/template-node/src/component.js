// Memory components and messages of a graph's run: `channel`, `send`, `receive`, `instance` and `instances` of
// `@sublet/sublet`.
//
// Bytes are copied: a Buffer of JavaScript is never memory that other processes write. A function that may wait returns a
// promise; the end of the component's function waits for operations on memory, also for those that it has not awaited.
// Bytes to write or send must not change until the promise is settled.
// Errors have a `code`, as 'permission_denied'.
'use strict';

// Operations on memory that have not ended, and the functions that wait for their end.
let begun = 0;
const waiting = [];

// Executes operations in their order.
class Sequence {
  #last = Promise.resolve();

  add(operation) {
    const done = this.#last.then(operation);
    this.#last = done.catch(() => {});
    return done;
  }
}

function wholeNumber(value, name) {
  if (Number.isSafeInteger(value) && value >= 0) return value;
  throw Object.assign(new RangeError(`${name} must be a whole number of 0 or more: ${String(value)}`), { code: 'invalid_argument' });
}

// An open memory component, until the run ends.
class Channel {
  // Name of the component.
  name;
  // Whether the edge is only for reading.
  readonly;
  #opened;
  #sequence = new Sequence();

  constructor(name, { run, readonly }) {
    this.name = name;
    this.readonly = readonly;
    this.#opened = { run, component: name };
  }

  // Size of the component: the end of the last byte that was written.
  async nbytes() { return (await this.#use({ op: 'nbytes' })).told; }

  // A copy of bytes from `offset` on; without `nbytes` all bytes to the end.
  async read(offset = 0, nbytes = undefined) {
    const length = nbytes === undefined ? undefined : wholeNumber(nbytes, 'nbytes');
    const { output } = await this.#use({ op: 'read', offset: wholeNumber(offset, 'offset'), nbytes: length });
    if (output === undefined) throw Object.assign(new Error('there is no memory for the bytes'), { code: 'memory_exceeded' });
    return output;
  }

  // Copies in bytes or text, or a value as JSON. The component grows for bytes beyond its end.
  async write(offset, data) { await this.#use({ op: 'write', offset: wholeNumber(offset, 'offset') }, bytesOf(data)); }

  // Grows the component to `nbytes` bytes, if it is smaller. New bytes are 0.
  async grow(nbytes) { await this.#use({ op: 'grow', nbytes: wholeNumber(nbytes, 'nbytes') }); }

  // Resizes the component. Shrinking requires that no other instance or component accesses it.
  async resize(nbytes) { await this.#use({ op: 'resize', nbytes: wholeNumber(nbytes, 'nbytes') }); }

  // Syncs the component and ends this function's access to it.
  async release() { await this.#use({ op: 'release' }); }

  // Makes this function's writes visible to others, and makes writes that they have synced visible here. The end of a
  // function does the same. Memory on one machine does not need it.
  async sync() { await this.#use({ op: 'sync' }); }

  // Starts to fetch bytes from other machines that will be read soon, without waiting for them.
  prefetch(offset, nbytes) {
    now({ op: 'prefetch', channel: this.#opened, offset: wholeNumber(offset, 'offset'), nbytes: wholeNumber(nbytes, 'nbytes') });
  }

  async #use(request, bytes) {
    begun += 1;
    try {
      return await this.#sequence.add(() => wait({ ...request, channel: this.#opened }, undefined, bytes));
    } finally {
      begun -= 1;
      if (begun === 0) for (const then of waiting.splice(0)) then();
    }
  }
}

// Opens a memory component by its name in the graph.
const channel = (component) => new Channel(String(component), now({ op: 'open', component: String(component) }));

// Messages to and from each component are sent and received in the order of the calls.
const sequences = new Map();

function sequenceOf(kind, component) {
  const key = `${kind} ${component}`;
  if (!sequences.has(key)) sequences.set(key, new Sequence());
  return sequences.get(key);
}

// Sends a message to an instance of another component, which runs at the same time. Waits for space in its queue, and not
// for the receiver.
async function send(component, data, { instance: to = 0, timeoutMs } = {}) {
  const request = { op: 'send', component: String(component), instance: wholeNumber(to, 'instance') };
  await sequenceOf('send', component).add(() => wait(request, timeoutMs, bytesOf(data)));
}

// The next message of any instance of another component, and the number of that instance: { message, instance }.
async function receive(component, { timeoutMs } = {}) {
  const request = { op: 'receive', component: String(component) };
  const { told, output } = await sequenceOf('receive', component).add(() => wait(request, timeoutMs));
  return { message: output, instance: told.instance };
}

// Number of this instance of its component, from 0; 0 outside of runs.
const instance = () => now({ op: 'instance' })[0];

// Number of instances of the component; 1 outside of runs.
const instances = () => now({ op: 'instance' })[1];

// Waits until no operation on memory is in progress; undefined if none is.
const idle = () => (begun === 0 ? undefined : new Promise((then) => { waiting.push(then); }));

return { idle, exported: { Channel, channel, send, receive, instance, instances } };
//# sourceURL=sublet_component
