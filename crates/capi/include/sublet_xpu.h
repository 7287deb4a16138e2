/* sublet_xpu.h: processes of the processing units of one computer, and FIFOs between them (Molecule, Table 2:
 * XPUcalls).
 *
 *     uint32_t fd;
 *     if (sublet_xfifo_connect("frames", 1000, &fd)) return sublet_fail(context, sublet_xpu_why());
 *     sublet_xfifo_write(fd, frame, sizeof frame, UINT64_MAX);
 *     sublet_xfifo_close(fd);
 *
 * A function of native code that Sublet calls uses them as they are: its worker process has them, and a shared object
 * links with nothing. In WebAssembly, and outside of Sublet, there are none.
 *
 * Every worker process is a global process: its id says on which processing unit it is. What it may do with a FIFO
 * are its capabilities: to read, to write, to own, which is to grant and to revoke. Those of one tenant know each
 * other; nothing is granted to another tenant's. All functions return 0, or an error's number as in sublet.h, which
 * sublet_xpu_why says in words; outputs are written only on success. A descriptor is used by one thread at a time: a
 * second one waits.
 *
 * Within a processing unit a FIFO is memory that both processes share, and neither an agent nor the kernel stands
 * between processes that are awake; between two it is a connection of theirs, which a FIFO of the same shape the
 * other way uses, too, if its writer has read before it connects back. A message is written and read wholly. */
#ifndef SUBLET_XPU_H
#define SUBLET_XPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a process may do with a FIFO; any of them together. */
enum { SUBLET_CAP_READ = 1, SUBLET_CAP_WRITE = 2, SUBLET_CAP_OWN = 4 };

/* Global ids, of processes and of FIFOs: the processing unit's in the upper 32 bits, and a number there. */
typedef uint64_t sublet_xpu_pid;
typedef uint64_t sublet_xpu_object;

/* How large the rings of a FIFO are, of which each writer has one. */
typedef struct sublet_xfifo_shape {
    uint32_t lines;      /* messages that wait at most: a power of two, 4 to 1024 */
    uint32_t slot_bytes; /* whole pages of 4096 bytes; a message has at most three quarters of lines * slot_bytes */
} sublet_xfifo_shape;

/* Why the latest of these functions failed on this thread. */
const char *sublet_xpu_why(void);

/* The id of this process. */
uint32_t sublet_get_xpupid(sublet_xpu_pid *pid);

/* Grants rights to another process, and revokes them. Both hold when the function returns; connections that were made
 * by a right that is revoked are cut, and what was not read of them is not read any more. SUBLET_PERMISSION_DENIED to
 * who does not own the FIFO; SUBLET_INVALID_ARGUMENT if there is no such process or FIFO of the tenant;
 * SUBLET_AGENT_UNREACHABLE. */
uint32_t sublet_grant_cap(sublet_xpu_pid to, sublet_xpu_object object, uint32_t rights);
uint32_t sublet_revoke_cap(sublet_xpu_pid from, sublet_xpu_object object, uint32_t rights);

/* What this process may do with a FIFO. */
uint32_t sublet_cap_rights(sublet_xpu_object object, uint32_t *rights);

/* Makes a FIFO, which this process reads and owns. Its name is the tenant's in the whole computer; NULL or "" is
 * none. Without a shape it has 16 slots of 4096 bytes. It ends with this process, or when it is closed and nobody
 * else may read it. SUBLET_ALREADY_ALLOCATED if the name is taken, on whichever processing unit. */
uint32_t sublet_xfifo_init(const char *name, const sublet_xfifo_shape *shape, uint32_t *fd);

/* Connects to a FIFO to write to it, by its name or by its id; on whichever processing unit it is. While nobody reads
 * it, it waits, at most so long (UINT64_MAX: as long as it takes); where a node insists on encryption, until its
 * reader reads. SUBLET_PERMISSION_DENIED without the right; SUBLET_INVALID_ARGUMENT if there is no such FIFO;
 * SUBLET_DEADLINE_EXCEEDED. */
uint32_t sublet_xfifo_connect(const char *name, uint64_t timeout_ms, uint32_t *fd);
uint32_t sublet_xfifo_connect_to(sublet_xpu_object object, uint64_t timeout_ms, uint32_t *fd);

/* Connects to read a FIFO of the same processing unit that its reader has closed. */
uint32_t sublet_xfifo_connect_to_read(const char *name, uint64_t timeout_ms, uint32_t *fd);

/* Which FIFO a descriptor is of. */
uint32_t sublet_xfifo_object(uint32_t fd, sublet_xpu_object *object);

/* Reads the next message of any writer, and says how long it is and whose; both may be NULL. It waits at most so
 * long, 0: not at all. SUBLET_DEADLINE_EXCEEDED; SUBLET_OUTPUT_TOO_LARGE if there is not so much room: then the size
 * is said, and it stays; SUBLET_PERMISSION_DENIED after the right was revoked. */
uint32_t sublet_xfifo_read(uint32_t fd, void *into, uint64_t capacity, uint64_t timeout_ms, uint64_t *size,
                           sublet_xpu_pid *from);

/* Writes a message. It waits for room, at most so long, and not until it is read. SUBLET_DEADLINE_EXCEEDED while the
 * FIFO is full; SUBLET_PERMISSION_DENIED after the right was revoked; SUBLET_LEASE_ENDED when nobody reads any more. */
uint32_t sublet_xfifo_write(uint32_t fd, const void *from, uint64_t size, uint64_t timeout_ms);

/* Closes either end. A descriptor that is not open is SUBLET_INVALID_ARGUMENT. */
uint32_t sublet_xfifo_close(uint32_t fd);

/* A right that a program has from the beginning. */
typedef struct sublet_xpu_cap {
    sublet_xpu_object object;
    uint32_t rights;
} sublet_xpu_cap;

/* The processors of the computer, by number: 0 is this process's own, and from 1 on come those that are linked with
 * it now. The upper half of a process's id is such a number, too. SUBLET_INVALID_ARGUMENT beyond the last. */
uint32_t sublet_xpu_unit(uint32_t number, uint32_t *unit);

/* The device of this name, as "opencl0" or "cuda1", of the node of a processor: a processing unit, too, where
 * functions of this package are executed (sublet_executor_start) that has a build for such devices.
 * SUBLET_INVALID_ARGUMENT if that node has no such device. */
uint32_t sublet_xpu_device(uint32_t unit, const char *name, uint32_t *device);

/* A unit of this kind, as "dpu" or "opencl": of this process's own node if that has one, else of a linked one.
 * SUBLET_AGENT_UNREACHABLE if there is none. */
uint32_t sublet_xpu_find(const char *kind, uint32_t *unit);

/* Starts a program of this package on a processor. "{arch}" in the path stands for its architecture, as in
 * "bin/{arch}/stage"; in a package of Python it is a Python file. argv and envp end with NULL; without argv the
 * program is called by its path, and there are no variables but those of envp and SUBLET_XPU_FD; a Python file has
 * those of each worker, too. It has the rights of capv, and no others that this process has; this process must own
 * those FIFOs. It has a lease of its own, of one core and as much memory as this process has for each of its cores,
 * and ends with this process. A program links with libsublet, and finds its shim by itself. When the function returns
 * the program is being executed. SUBLET_INVALID_ARGUMENT for a path that is no program of the package;
 * SUBLET_PERMISSION_DENIED for a capability that this process cannot grant; SUBLET_AGENT_UNREACHABLE if there is no
 * such processor; SUBLET_NO_CAPACITY if it has no core left. */
uint32_t sublet_xspawn(uint32_t unit, const char *path, const char *const argv[], const char *const envp[],
                       const sublet_xpu_cap capv[], uint32_t caps, sublet_xpu_pid *pid);

/* Functions of this package on another processor, or on a device: an executor is a worker process of the package, in
 * a lease of its own as that of a program that is spawned. Its functions are those of the package by their names, in
 * whatever language its build for that unit is written; they execute one after another, in the order of their calls.
 * Inputs and outputs have at most max_bytes, 64 KiB for 0, 32 MiB at most. It ends when it is stopped, or with this
 * process.
 *
 *     uint32_t unit, dpu;
 *     if (sublet_xpu_unit(1, &unit) || sublet_executor_start(unit, 0, 10000, &dpu)) return sublet_fail(context, sublet_xpu_why());
 *     if (sublet_executor_call(dpu, "compress", image, size, out, sublet_capacity(context), UINT64_MAX, &written))
 *         return sublet_fail(context, sublet_xpu_why());
 *
 * What sublet_xspawn says; SUBLET_WORKER_DIED if the executor has ended; SUBLET_DEADLINE_EXCEEDED. */
uint32_t sublet_executor_start(uint32_t unit, uint64_t max_bytes, uint64_t timeout_ms, uint32_t *executor);

/* The same, of functions of another package that is deployed, by its name or digest. SUBLET_UNKNOWN_PACKAGE if there is none. */
uint32_t sublet_executor_start_of(const char *package, uint32_t unit, uint64_t max_bytes, uint64_t timeout_ms, uint32_t *executor);

/* The process that it is. */
uint32_t sublet_executor_process(uint32_t executor, sublet_xpu_pid *pid);

/* Calls a function, and says how long its output is; written may be NULL. Several functions with | between them, as
 * "resize|compress", follow each other there: the output of each, of at most max_bytes, is the input of the next, and
 * on a device it stays in its memory. What is to stay there for later calls has a name, with @ before it, and at most
 * 16 have one:
 *
 *     sublet_executor_call(gpu, "decode|@picture", jpeg, size, NULL, 0, ...)      the output stays, and the answer is empty
 *     sublet_executor_call(gpu, "@picture|resize", NULL, 0, out, capacity, ...)   it is the input, as often as it is called
 *     sublet_executor_call(gpu, "|@weights", weights, size, NULL, 0, ...)         the input stays; an empty one takes away what was there
 *     sublet_executor_call(gpu, "@picture", NULL, 0, out, capacity, ...)          is answered with what is there
 *
 * A call whose function fails before it leaves what was there. What a function has said when it failed comes with its
 * name before it, and so does every other error. SUBLET_OUTPUT_TOO_LARGE without room: then the length is said, and
 * the output is lost; SUBLET_DEADLINE_EXCEEDED: the call goes on, its answer is dropped, and what is called next
 * waits for its end. */
uint32_t sublet_executor_call(uint32_t executor, const char *function, const void *input, uint64_t size, void *output,
                              uint64_t capacity, uint64_t timeout_ms, uint64_t *written);

/* The two halves of a call: what is submitted to several executors goes on in all of them at once. At most 8 calls of
 * an executor are without an answer, and their inputs have about max_bytes together: what is more is
 * SUBLET_TOO_MANY_IN_FLIGHT. Results are taken in the order of the calls. */
uint32_t sublet_executor_submit(uint32_t executor, const char *function, const void *input, uint64_t size,
                                uint64_t timeout_ms);
uint32_t sublet_executor_result(uint32_t executor, void *output, uint64_t capacity, uint64_t timeout_ms,
                                uint64_t *written);

/* Ends it, when it has executed what was submitted. */
uint32_t sublet_executor_stop(uint32_t executor);

/* Functions that a graph connects, as docs/graphs.md says, on the units of this computer: each component of the
 * document has an executor on the unit of its kind ("resources": {"pu": "dpu"}), and without one on this process's
 * own. Components that follow each other there, and nobody else, are one call of several functions. Those that may be
 * executed at the same time have an executor each, as far as there are cores; a device has one, and an output that
 * several components read there, and nobody else, stays in its memory. The graph has compute components of one
 * instance and triggers alone, which may have conditions.
 *
 *     static const char graph[] = "{ \"version\": 1, \"name\": \"pictures\", \"components\": [ ... ], \"edges\": [ ... ] }";
 *     uint32_t pictures;
 *     if (sublet_chain_start(graph, sizeof graph - 1, 1 << 20, 10000, &pictures)) return sublet_fail(context, sublet_xpu_why());
 *     if (sublet_chain_call(pictures, image, size, out, sublet_capacity(context), UINT64_MAX, &written))
 *         return sublet_fail(context, sublet_xpu_why());
 *
 * SUBLET_INVALID_GRAPH, with all that is wrong with the document; SUBLET_AGENT_UNREACHABLE if there is no unit of a
 * kind; as sublet_executor_start_of. */
uint32_t sublet_chain_start(const char *graph, uint64_t size, uint64_t max_bytes, uint64_t timeout_ms, uint32_t *chain);

/* Calls it: the input is the entry's. The output is that of the components that trigger no other: one as it is, of
 * several each behind its length in 8 bytes, little endian, and followed by zeros up to a multiple of 8; so is the
 * input of a component that several trigger. The first function that fails ends the call, with its name. As
 * sublet_executor_call. */
uint32_t sublet_chain_call(uint32_t chain, const void *input, uint64_t size, void *output, uint64_t capacity,
                           uint64_t timeout_ms, uint64_t *written);

/* Ends its executors. */
uint32_t sublet_chain_stop(uint32_t chain);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_XPU_H */
