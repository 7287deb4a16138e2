// Types of the module `@sublet/sublet`, by which functions of Sublet in Node.js use Sublet.
//
// A function of a package has the type `SubletFunction`. The worker has the module; this package has its types.

/// <reference types="node" />

/** Bytes or text; another value is encoded as JSON. */
export type Data = string | NodeJS.ArrayBufferView | ArrayBufferLike | number | boolean | null | undefined | object;

/**
 * A function that callers of any language call: it gets a copy of the input, and returns the output, or a promise of it.
 * Bytes and text are returned as they are, `undefined` as no bytes, and other values as JSON.
 */
export type SubletFunction = (input: Buffer) => Data | PromiseLike<Data>;

/** An error of this module. */
export interface SubletError extends Error {
  /** Name of the error code, as 'permission_denied' or 'deadline_exceeded'. */
  code: string;
}

/** Limit of a wait. */
export interface Patience {
  /** Longest wait in milliseconds; 0 does not wait. Without it the wait has no limit. */
  timeoutMs?: number;
}

/**
 * Makes a function whose input and output are JSON. An empty input is `undefined`.
 *
 * @example
 * exports.add = json(({ a, b }: { a: number; b: number }) => a + b);
 */
export function json<Input = any, Output = unknown>(
  called: (input: Input) => PromiseLike<Output>,
): (input: Buffer) => Promise<string>;
export function json<Input = any, Output = unknown>(called: (input: Input) => Output): (input: Buffer) => string;

/** Number of this instance of its component in a graph, from 0; 0 outside of runs. */
export function instance(): number;

/** Number of instances of the component; 1 outside of runs. */
export function instances(): number;

/**
 * Opens a memory component by its name in the graph, until the run ends.
 *
 * @throws {SubletError} `invalid_argument` without an access edge to it, and outside of runs; `lease_ended` if this function
 * has released it.
 */
export function channel(component: string): Channel;

/**
 * Sends a message of at most 65536 bytes to an instance of another component that runs at the same time. Waits for space in
 * its queue, and not for the receiver. Messages keep their order.
 */
export function send(component: string, data: Data, options?: Patience & { instance?: number }): Promise<void>;

/** The next message of any instance of another component, and the number of that instance. */
export function receive(component: string, options?: Patience): Promise<{ message: Buffer; instance: number }>;

/**
 * An open memory component: an array of bytes that components of a graph share. Bytes are copied. Operations are executed in
 * their order. Data to write must not change until the promise is settled.
 */
export class Channel {
  private constructor();

  /** Name of the component. */
  readonly name: string;

  /** Whether the edge is only for reading. */
  readonly readonly: boolean;

  /** Size of the component: the end of the last byte that was written. */
  nbytes(): Promise<number>;

  /** A copy of bytes from `offset` (0) on; without `nbytes` all bytes to the end. */
  read(offset?: number, nbytes?: number): Promise<Buffer>;

  /** Copies data in. The component grows for bytes beyond its end. */
  write(offset: number, data: Data): Promise<void>;

  /** Grows the component to `nbytes` bytes, if it is smaller. New bytes are 0. */
  grow(nbytes: number): Promise<void>;

  /** Resizes the component. Shrinking requires that no other instance or component accesses it. */
  resize(nbytes: number): Promise<void>;

  /** Syncs the component and ends this function's access to it. */
  release(): Promise<void>;

  /** Makes this function's writes visible to others, and makes writes that they have synced visible here. */
  sync(): Promise<void>;

  /** Starts to fetch bytes from other machines that will be read soon, without waiting for them. */
  prefetch(offset: number, nbytes: number): void;
}

/** Processes, FIFOs between them, and executors on other processing units. */
export namespace xpu {
  /** Global id of a process or of a FIFO. */
  type GlobalId = bigint;

  /** Id of a processing unit. */
  type UnitId = number;

  /** A FIFO, by its id or by one of its ends. */
  type Fifo = GlobalId | Reader | Writer;

  /** Right to read a FIFO. */
  const READ: 1;
  /** Right to write to a FIFO. */
  const WRITE: 2;
  /** Right to grant and revoke rights to a FIFO. */
  const OWN: 4;

  /** A message and the process that has written it. */
  interface Message {
    message: Buffer;
    writer: GlobalId;
  }

  /** Limits of an executor or a chain. */
  interface ExecutorOptions extends Patience {
    /** Largest input and output in bytes; 65536 without it. */
    maxBytes?: number;
  }

  /** The reading end of a FIFO. Without it, and without another process that may read, the FIFO ends. */
  class Reader implements AsyncIterable<Message> {
    private constructor();

    /** Id of the FIFO. */
    readonly object: GlobalId;

    /** Whether it was closed. */
    readonly closed: boolean;

    /** Closes it. Operations that wait, and later ones, fail with 'invalid_argument'. */
    close(): void;

    /** The next message of any writer. */
    read(options?: Patience): Promise<Message>;

    /** All messages, until this end is closed. */
    [Symbol.asyncIterator](): AsyncGenerator<Message, void, unknown>;
  }

  /** The writing end of a FIFO. Messages that were written before it is closed still reach the reader. */
  class Writer {
    private constructor();

    /** Id of the FIFO. */
    readonly object: GlobalId;

    /** Whether it was closed. */
    readonly closed: boolean;

    /** Closes it. Operations that wait, and later ones, fail with 'invalid_argument'. */
    close(): void;

    /** Writes a message. Waits for space in the ring, and not for the reader. */
    write(message: Data, options?: Patience): Promise<void>;
  }

  /** A worker process of a package on another processor or a device, in a lease of its own. */
  class Executor {
    private constructor();

    /** Id of its process. */
    readonly pid: GlobalId;

    /** Whether it was closed. */
    readonly closed: boolean;

    /** Closes it. Operations that wait, and later ones, fail with 'invalid_argument'. */
    close(): void;

    /**
     * Calls a function by its name; returns its output. Functions in a list, as 'resize|compress', are executed one after the
     * other; '@picture' is a buffer that stays there.
     */
    call(name: string, data?: Data, options?: Patience): Promise<Buffer>;

    /** Submits a call without waiting for its output. */
    submit(name: string, data?: Data, options?: Patience): Promise<void>;

    /** The output of the oldest submitted call. */
    result(options?: Patience): Promise<Buffer>;
  }

  /** The functions of a graph on the units of this computer, called as one. */
  class Chain {
    private constructor();

    /** The processes that execute it, in the order of their calls. */
    readonly pids: GlobalId[];

    /** Whether it was closed. */
    readonly closed: boolean;

    /** Closes it. Operations that wait, and later ones, fail with 'invalid_argument'. */
    close(): void;

    /** Calls the chain with the input of its entry; returns the output of the components that trigger no other. */
    call(data?: Data, options?: Patience): Promise<Buffer>;
  }

  /** Id of this process, by which others grant it rights. */
  function pid(): GlobalId;

  /**
   * Makes a FIFO, which this process reads and owns. Without a name it has only its id. Each writer has a ring of `slots`
   * slots (16; a power of two from 4 to 1024) of `slotBytes` bytes (4096; a multiple of that). A message has at most three
   * quarters of the ring.
   */
  function fifo(name?: string, options?: { slots?: number; slotBytes?: number }): Reader;

  /** Connects to a FIFO by its name or its id, to write. */
  function connect(to: string | Fifo, options?: Patience): Promise<Writer>;

  /** Connects to read a FIFO of this unit, which its reader has closed. */
  function connectToRead(name: string, options?: Patience): Promise<Reader>;

  /** Grants a process rights to a FIFO, a sum of READ, WRITE and OWN. They are in effect when this returns. */
  function grant(to: GlobalId, object: Fifo, rights: number): void;

  /** Revokes rights of a process, and ends its connections that depend on them. */
  function revoke(from: GlobalId, object: Fifo, rights: number): void;

  /** The rights of this process to a FIFO. */
  function rights(object: Fifo): number;

  /** The processors of this computer: this process's own, then those that are linked with it now. */
  function units(): UnitId[];

  /** A device, as 'opencl0', of a processor's node; without `processor` of this process's own. */
  function device(name: string, processor?: UnitId): UnitId;

  /** A unit of a kind, as 'dpu', on this process's own node or on a linked one. */
  function find(kind: string): UnitId;

  /**
   * Starts a program of this function's package on a processor, in a lease of its own; returns its pid. It ends with this
   * process, and has only the rights of `capabilities`, pairs of a FIFO that this process owns and rights.
   */
  function spawn(
    unit: UnitId,
    path: string,
    args?: readonly (string | number)[],
    options?: { env?: Readonly<Record<string, string>>; capabilities?: readonly (readonly [Fifo, number])[] },
  ): GlobalId;

  /** Starts an executor on a processor or a device, of this package or of another one. `timeoutMs` is 30000 without it. */
  function executor(unit: UnitId, options?: ExecutorOptions & { package?: string }): Promise<Executor>;

  /**
   * Starts the executors of a graph's components: of a document as an object or as JSON. `timeoutMs` is 30000 without it.
   */
  function chain(graph: string | object, options?: ExecutorOptions): Promise<Chain>;
}
