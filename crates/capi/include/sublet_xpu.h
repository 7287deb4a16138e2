/* sublet_xpu.h: processes of the processing units of one computer, and FIFOs between them (Molecule, Table 2:
 * XPUcalls).
 *
 *     uint32_t fd;
 *     if (sublet_xfifo_connect("frames", 1000, &fd)) return sublet_fail(context, sublet_xpu_why());
 *     sublet_xfifo_write(fd, frame, sizeof frame, UINT64_MAX);
 *     sublet_xfifo_close(fd);
 *
 * Functions of native code that Sublet calls use these directly: the worker process provides them, and a shared object links
 * with nothing. They do not exist in WebAssembly and outside of Sublet.
 *
 * Every worker process is a global process, whose id contains its processing unit. The rights of a process to a FIFO are its
 * capabilities: to read, to write, and to own, which allows to grant and revoke. Rights can be granted only to processes of
 * the same tenant. All functions return 0 or an error number of sublet.h, for which sublet_xpu_why returns the message;
 * outputs are written only on success. Only one thread at a time uses a descriptor: a second one waits.
 *
 * Within a processing unit a FIFO is shared memory, without an agent or the kernel between processes that are awake. Between
 * two units it is a connection, which a FIFO of the same shape in the other direction shares if its writer has read before it
 * connects back. Messages are written and read as a whole. */
#ifndef SUBLET_XPU_H
#define SUBLET_XPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rights of a process to a FIFO, which can be combined. */
enum { SUBLET_CAP_READ = 1, SUBLET_CAP_WRITE = 2, SUBLET_CAP_OWN = 4 };

/* Global ids of processes and of FIFOs: the processing unit in the upper 32 bits, and a number within it. */
typedef uint64_t sublet_xpu_pid;
typedef uint64_t sublet_xpu_object;

/* Size of the rings of a FIFO, of which each writer has one. */
typedef struct sublet_xfifo_shape {
    uint32_t lines;      /* maximum number of waiting messages: a power of two, 4 to 1024 */
    uint32_t slot_bytes; /* a multiple of 4096; a message has at most three quarters of lines * slot_bytes */
} sublet_xfifo_shape;

/* Returns the message of the latest failure of these functions on this thread. */
const char *sublet_xpu_why(void);

/* Returns the id of this process. */
uint32_t sublet_get_xpupid(sublet_xpu_pid *pid);

/* Grants rights to another process, and revokes them. Both are effective when the function returns; connections that depend
 * on a revoked right are closed, and their unread messages are lost. SUBLET_PERMISSION_DENIED if this process does not own
 * the FIFO; SUBLET_INVALID_ARGUMENT if the tenant has no such process or FIFO; SUBLET_AGENT_UNREACHABLE. */
uint32_t sublet_grant_cap(sublet_xpu_pid to, sublet_xpu_object object, uint32_t rights);
uint32_t sublet_revoke_cap(sublet_xpu_pid from, sublet_xpu_object object, uint32_t rights);

/* Returns the rights of this process to a FIFO. */
uint32_t sublet_cap_rights(sublet_xpu_object object, uint32_t *rights);

/* Creates a FIFO, which this process reads and owns. Its name is unique for the tenant on the whole computer; NULL or "" means
 * no name. Without a shape it has 16 slots of 4096 bytes. It ends with this process, or when it is closed and no other
 * process may read it. SUBLET_ALREADY_ALLOCATED if the name is in use on any processing unit. */
uint32_t sublet_xfifo_init(const char *name, const sublet_xfifo_shape *shape, uint32_t *fd);

/* Connects to a FIFO on any processing unit, by its name or its id, to write to it. Waits for a reader, at most `timeout_ms`
 * (UINT64_MAX: no limit); if a node requires encryption, until the reader reads. SUBLET_PERMISSION_DENIED without the right; SUBLET_INVALID_ARGUMENT if there is no such FIFO;
 * SUBLET_DEADLINE_EXCEEDED. */
uint32_t sublet_xfifo_connect(const char *name, uint64_t timeout_ms, uint32_t *fd);
uint32_t sublet_xfifo_connect_to(sublet_xpu_object object, uint64_t timeout_ms, uint32_t *fd);

/* Connects to read a FIFO of the same processing unit that its reader has closed. */
uint32_t sublet_xfifo_connect_to_read(const char *name, uint64_t timeout_ms, uint32_t *fd);

/* Returns the FIFO of a descriptor. */
uint32_t sublet_xfifo_object(uint32_t fd, sublet_xpu_object *object);

/* Reads the next message of any writer, with its size and its writer, which may both be NULL. Waits at most `timeout_ms`; 0
 * does not wait. SUBLET_DEADLINE_EXCEEDED; SUBLET_OUTPUT_TOO_LARGE if the capacity is too small: `size` is then set, and the
 * message stays; SUBLET_PERMISSION_DENIED after the right was revoked. */
uint32_t sublet_xfifo_read(uint32_t fd, void *into, uint64_t capacity, uint64_t timeout_ms, uint64_t *size,
                           sublet_xpu_pid *from);

/* Writes a message. Waits for free space, at most `timeout_ms`, but not for the reader. SUBLET_DEADLINE_EXCEEDED while the
 * FIFO is full; SUBLET_PERMISSION_DENIED after the right was revoked; SUBLET_LEASE_ENDED when there is no reader any more. */
uint32_t sublet_xfifo_write(uint32_t fd, const void *from, uint64_t size, uint64_t timeout_ms);

/* Closes a descriptor. SUBLET_INVALID_ARGUMENT if it is not open. */
uint32_t sublet_xfifo_close(uint32_t fd);

/* A right that a spawned program gets. */
typedef struct sublet_xpu_cap {
    sublet_xpu_object object;
    uint32_t rights;
} sublet_xpu_cap;

/* Returns a processor of the computer by number: 0 is this process's own, and numbers from 1 are those that are linked with
 * it now. The upper half of a process's id is also such a unit. SUBLET_INVALID_ARGUMENT beyond the last. */
uint32_t sublet_xpu_unit(uint32_t number, uint32_t *unit);

/* Returns the device of this name, as "opencl0" or "cuda1", of a processor's node. It is a processing unit that can execute
 * functions (sublet_executor_start) if the package has a build for such devices.
 * SUBLET_INVALID_ARGUMENT if that node has no such device. */
uint32_t sublet_xpu_device(uint32_t unit, const char *name, uint32_t *device);

/* Finds a unit of this kind, as "dpu" or "opencl", on this process's own node or otherwise on a linked one.
 * SUBLET_AGENT_UNREACHABLE if there is none. */
uint32_t sublet_xpu_find(const char *kind, uint32_t *unit);

/* Starts a program of this package on a processor. "{arch}" in the path stands for its architecture, as in
 * "bin/{arch}/stage"; in a Python package the program is a Python file. argv and envp end with NULL. Without argv the program
 * gets its path as its only argument. Its environment is envp and SUBLET_XPU_FD; a Python file also gets the variables of
 * workers. It gets only the rights of capv, for FIFOs that this process must own. It has a lease of its own, with one core
 * and this process's memory per core, and ends with this process. Programs link with libsublet, which finds the shim. When
 * the function returns, the program is running. SUBLET_INVALID_ARGUMENT if the path is not a program of the package;
 * SUBLET_PERMISSION_DENIED for a capability that this process cannot grant; SUBLET_AGENT_UNREACHABLE if there is no such
 * processor; SUBLET_NO_CAPACITY if it has no free core. */
uint32_t sublet_xspawn(uint32_t unit, const char *path, const char *const argv[], const char *const envp[],
                       const sublet_xpu_cap capv[], uint32_t caps, sublet_xpu_pid *pid);

/* Starts an executor: a worker process of this package on another processor or a device, with a lease of its own as for
 * sublet_xspawn. It executes the functions of the package by their names, from the build for that unit, one after another in
 * the order of their calls. Inputs and outputs have at most max_bytes; 0 means 64 KiB, the maximum is 32 MiB. The executor
 * ends when it is stopped, or with this process.
 *
 *     uint32_t unit, dpu;
 *     if (sublet_xpu_unit(1, &unit) || sublet_executor_start(unit, 0, 10000, &dpu)) return sublet_fail(context, sublet_xpu_why());
 *     if (sublet_executor_call(dpu, "compress", image, size, out, sublet_capacity(context), UINT64_MAX, &written))
 *         return sublet_fail(context, sublet_xpu_why());
 *
 * Errors: those of sublet_xspawn; SUBLET_WORKER_DIED if the executor has ended; SUBLET_DEADLINE_EXCEEDED. */
uint32_t sublet_executor_start(uint32_t unit, uint64_t max_bytes, uint64_t timeout_ms, uint32_t *executor);

/* Starts an executor of another deployed package, by its name or digest. SUBLET_UNKNOWN_PACKAGE if there is none. */
uint32_t sublet_executor_start_of(const char *package, uint32_t unit, uint64_t max_bytes, uint64_t timeout_ms, uint32_t *executor);

/* Returns the process of an executor. */
uint32_t sublet_executor_process(uint32_t executor, sublet_xpu_pid *pid);

/* Calls a function and returns the size of its output; `written` may be NULL. Several functions separated by |, as
 * "resize|compress", run one after another: the output of each, of at most max_bytes, is the input of the next, and stays in
 * device memory on a device. Names with @ are buffers that stay there for later calls, at most 16:
 *
 *     sublet_executor_call(gpu, "decode|@picture", jpeg, size, NULL, 0, ...)      keeps the output; the reply is empty
 *     sublet_executor_call(gpu, "@picture|resize", NULL, 0, out, capacity, ...)   uses the buffer as input, any number of times
 *     sublet_executor_call(gpu, "|@weights", weights, size, NULL, 0, ...)         keeps the input; an empty input removes the buffer
 *     sublet_executor_call(gpu, "@picture", NULL, 0, out, capacity, ...)          returns the contents of the buffer
 *
 * A call that fails before it fills a buffer leaves the buffer unchanged. Messages of errors begin with the name of the
 * function. SUBLET_OUTPUT_TOO_LARGE if the capacity is too small: `written` is then set, and the output is lost;
 * SUBLET_DEADLINE_EXCEEDED: the call continues, its reply is dropped, and the next call waits for its end. */
uint32_t sublet_executor_call(uint32_t executor, const char *function, const void *input, uint64_t size, void *output,
                              uint64_t capacity, uint64_t timeout_ms, uint64_t *written);

/* Submit a call and collect its result. Calls to several executors run at the same time. Per executor at most 8 calls may
 * be in flight, with about max_bytes of input together; more fail with SUBLET_TOO_MANY_IN_FLIGHT. Results are collected in
 * the order of the calls. */
uint32_t sublet_executor_submit(uint32_t executor, const char *function, const void *input, uint64_t size,
                                uint64_t timeout_ms);
uint32_t sublet_executor_result(uint32_t executor, void *output, uint64_t capacity, uint64_t timeout_ms,
                                uint64_t *written);

/* Stops an executor after its submitted calls. */
uint32_t sublet_executor_stop(uint32_t executor);

/* Starts a chain: the functions of a graph (docs/graphs.md) on the units of this computer. Each component has an executor on
 * a unit of its kind ("resources": {"pu": "dpu"}), or otherwise on this process's own unit. Components that only follow each
 * other on one unit become one call of several functions. Components that may run at the same time have an executor each, as
 * far as there are cores. A device has one executor, and an output that only components on that device read stays in its
 * memory. The graph may only have compute components of one instance, and triggers with or without conditions.
 *
 *     static const char graph[] = "{ \"version\": 1, \"name\": \"pictures\", \"components\": [ ... ], \"edges\": [ ... ] }";
 *     uint32_t pictures;
 *     if (sublet_chain_start(graph, sizeof graph - 1, 1 << 20, 10000, &pictures)) return sublet_fail(context, sublet_xpu_why());
 *     if (sublet_chain_call(pictures, image, size, out, sublet_capacity(context), UINT64_MAX, &written))
 *         return sublet_fail(context, sublet_xpu_why());
 *
 * Errors: SUBLET_INVALID_GRAPH, with all errors of the document; SUBLET_AGENT_UNREACHABLE if there is no unit of a kind;
 * those of sublet_executor_start_of. */
uint32_t sublet_chain_start(const char *graph, uint64_t size, uint64_t max_bytes, uint64_t timeout_ms, uint32_t *chain);

/* Calls a chain with the input of its entry. The output comes from the components that trigger no other: a single output
 * unchanged; several outputs each after its length in 8 bytes, little endian, and padded with zeros to a multiple of 8. The
 * input of a component with several triggers has the same form. The first function that fails ends the call, with its name
 * in the message. Errors: those of sublet_executor_call. */
uint32_t sublet_chain_call(uint32_t chain, const void *input, uint64_t size, void *output, uint64_t capacity,
                           uint64_t timeout_ms, uint64_t *written);

/* Stops a chain and its executors. */
uint32_t sublet_chain_stop(uint32_t chain);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_XPU_H */
