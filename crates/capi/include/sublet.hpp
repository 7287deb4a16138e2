// sublet.hpp: run functions on leased cores from C++17. Headers only, over the C interface of sublet.h.
//
//     sublet::invoker invoker;
//     invoker.allocate("./libtask.so", size * sizeof(double), sublet::invoker::ALWAYS_WARM_INVOCATIONS);
//     auto alloc = invoker.allocator<double>();
//     sublet::buffer<double> in = alloc.input(2 * size);
//     sublet::buffer<double> out = alloc.output(2 * size);
//     auto f = invoker.submit("task", in, size, out);                   // one half there
//     local_task(in.data() + size, out.data() + size, size);            // one half here
//     f.get();
//     invoker.deallocate();
//
// This is the program of rFaaS IV-B, Listing 2. A complete one is examples/cpp/hello.cpp.
//
// - Failures throw sublet::error, which has a status and a message. Destructors never throw.
// - Owners (invoker, buffer, future) can be moved but not copied; after a move, the source may only be destroyed or
//   assigned to.
// - Counts are numbers of elements, as in the standard library; names of byte counts end with _bytes.
// - Threads: any number may allocate buffers, submit and wait at once; leasing must not overlap with that (see sublet.h).
#ifndef SUBLET_HPP
#define SUBLET_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sublet.h"

namespace sublet {

// Failure of an operation or a call: a status, and a message from what().
class error : public std::runtime_error {
public:
    error(sublet_status status, const std::string &message) : std::runtime_error(message), status_(status) {}

    sublet_status status() const noexcept { return status_; }
    // Name of the status, as "worker_died".
    const char *name() const noexcept { return sublet_status_name(status_); }

private:
    sublet_status status_;
};

namespace detail {

inline void check(sublet_status status) {
    if (status != SUBLET_OK) {
        throw error(status, sublet_error_message());
    }
}

// Converts a duration to nanoseconds, clamped to 0 and UINT64_MAX; UINT64_MAX means forever.
template <typename Rep, typename Period>
std::uint64_t nanoseconds_of(std::chrono::duration<Rep, Period> time) {
    using seconds = std::chrono::duration<double>;
    if (time <= time.zero()) {
        return 0;
    }
    if (seconds(time) >= seconds(std::chrono::nanoseconds::max())) {
        return UINT64_MAX;
    }
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

// Returns a null pointer for an empty string, which means an absent option.
inline const char *text_or_null(const std::string &text) noexcept { return text.empty() ? nullptr : text.c_str(); }

// Returns the pointers of a list of texts, and a null pointer after the last.
inline std::vector<const char *> list_of(const std::vector<std::string> &texts) {
    std::vector<const char *> list;
    list.reserve(texts.size() + 1);
    for (const std::string &text : texts) list.push_back(text.c_str());
    list.push_back(nullptr);
    return list;
}

// Element type of a contiguous container or array.
template <typename Container>
using element = std::remove_pointer_t<decltype(std::data(std::declval<Container &>()))>;

// Returns the product, or the maximum on overflow, which the library then rejects.
template <typename T>
std::size_t bytes_of(std::size_t count) noexcept {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    return count > most / sizeof(T) ? most : count * sizeof(T);
}

// Function of the caller that is called with each step of a start.
using step_function = std::function<void(const std::string &)>;

extern "C" inline void sublet_detail_tell_step(const char *step, void *user) noexcept {
    (*static_cast<step_function *>(user))(step);
}

template <typename T>
constexpr void require_plain_data() {
    static_assert(std::is_trivially_copyable_v<T>, "inputs and outputs are plain data, which may be copied as bytes");
}

} // namespace detail

// Usage and costs of a lease; see sublet.h.
using bill = sublet_bill;

// Result of a call: output_bytes and executing_ns.
using completion = sublet_completion;

// Time that workers poll after a call before they sleep.
class policy {
public:
    template <typename Rep, typename Period>
    policy(std::chrono::duration<Rep, Period> hot) : hot_ns_(detail::nanoseconds_of(hot)) {}

    static constexpr policy always_warm() noexcept { return policy(SUBLET_ALWAYS_WARM); }
    static constexpr policy always_hot() noexcept { return policy(SUBLET_ALWAYS_HOT); }

    constexpr std::uint64_t hot_ns() const noexcept { return hot_ns_; }

private:
    explicit constexpr policy(std::uint64_t hot_ns) noexcept : hot_ns_(hot_ns) {}

    std::uint64_t hot_ns_;
};

// Request for leases, with the defaults of sublet_allocation_default.
struct allocation {
    std::uint32_t cores = defaults().cores;                // number of cores, each with a worker
    std::uint64_t memory_bytes = defaults().memory_bytes;  // memory for all cores; 0: the manager's default
    std::chrono::nanoseconds timeout{0};                   // duration of the lease; 0: the manager's default
    std::uint32_t slots = defaults().slots;                // queued calls per worker besides the executing one
    std::uint64_t slot_bytes = defaults().slot_bytes;      // maximum size of inputs outside of buffers
    policy wait = std::chrono::nanoseconds(defaults().hot_ns);
    std::chrono::nanoseconds spin{defaults().spin_ns};     // time that a waiting client polls before it sleeps
    std::uint32_t max_nodes = defaults().max_nodes;        // maximum number of nodes; 0: no limit; 1 keeps all workers together
    bool shared = false;                                   // workers share their cores with other leases
    std::chrono::nanoseconds capacity_wait{0};             // maximum time to wait for capacity
    std::chrono::nanoseconds idle_timeout{0};              // time without a call after which a lease ends; 0: the node's default
    std::string pu;                                        // kind of processing unit; empty: the cheapest free one
    double time_weight = 0;                                // weight of time against price, from 0 (only price) to 1 (only time)
    std::string fabric;     // fabric for calls, as "shm" or "tcp"; empty: from the environment, or the best
    std::string interface;  // network interface for other machines; empty: from the environment, or any
    std::string pool;       // use only nodes of this pool: "compute", "memory" or "balanced"; empty: any
    std::vector<std::string> variables;  // environment variables of functions, as "NAME=VALUE"
    std::vector<std::string> secrets;    // secrets that functions get as variables, as "NAME" or "VARIABLE=NAME"
    std::vector<std::string> folders;    // folders that nodes lend, which functions see as /folders/NAME
    std::uint64_t temporary_bytes = defaults().temporary_bytes;  // temporary files of each worker process; 0: 64 MiB
    std::string isolation;  // isolation that functions must have, as "process" or "container"; empty: the package's, or any
    std::chrono::nanoseconds start_timeout{0};         // maximum time of a worker's start; 0: until the lease ends
    std::function<void(const std::string &)> on_step;  // called with each step of a start, on any thread; must not throw

    static sublet_allocation defaults() noexcept { return sublet_allocation_default(nullptr); }
};

// Access to the managers. Empty fields come from the environment; see sublet_access.
struct access {
    std::string managers;    // addresses, separated by commas
    std::string ca_file;     // PEM file of the only certificate authority that is trusted for managers
    std::string token;       // access token
    std::string token_file;  // file with the access token; must not be combined with token
};

// Announcement that a lease will end. Calls continue until then; new calls go to other leases, if there are any.
struct notice {
    std::string lease;              // 32 hexadecimal digits
    sublet_status status;           // reason, which calls will return
    std::string message;
    std::chrono::nanoseconds left;  // time until the end
};

// The first lease, which has most of the workers.
struct lease {
    std::string id;       // 32 hexadecimal digits
    std::string node;
    std::string package;
    std::string owner;  // the tenant that owns the package; empty if the manager does not report it
    std::string isolation;  // isolation of the workers, by its name; empty if the agent does not report it
    std::uint64_t memory_bytes;
    std::chrono::system_clock::time_point granted;
    std::chrono::system_clock::time_point expires;
    std::chrono::nanoseconds start;  // duration of the latest start of the workers
    std::uint32_t workers;           // workers of all leases, numbered from 0
    std::uint32_t functions;         // number of functions of the package
};

// Options of a call.
struct call_options {
    std::optional<std::uint32_t> worker;  // number of the worker; without it, an idle one is preferred
    std::chrono::nanoseconds timeout{0};  // time limit from submission, as by future::get_for; 0: none
    bool timed = false;                   // whether future::collect reports the execution time
    std::uint32_t retries = 0;            // maximum number of repetitions if the worker, lease or node ends
};

// A function of the leased package, found by invoker::find, valid until the lease is released.
class function {
public:
    explicit function(sublet_function found) noexcept : found_(found) {}
    sublet_function get() const noexcept { return found_; }

private:
    sublet_function found_;
};

// The future result of a submitted call. Its destructor waits for the end of the call, since the worker still writes to
// the output.
class future {
public:
    future() noexcept = default;
    future(future &&other) noexcept { take(other); }
    future &operator=(future &&other) noexcept {
        if (this != &other) {
            close();
            take(other);
        }
        return *this;
    }
    ~future() { close(); }

    // Returns whether the future holds a call whose result was not collected.
    bool valid() const noexcept { return valid_; }

    // Returns whether the call has ended, in success or failure. Never blocks.
    bool ready() const {
        bool ready = false;
        detail::check(sublet_invocation_is_ready(checked(), &ready));
        return ready;
    }

    // Sleeps until the call has ended. For the shortest latency use get, which polls first.
    void wait() { wait_ns(UINT64_MAX); }

    // Waits for the end of the call, for a limited time. A call that has not ended continues.
    template <typename Rep, typename Period>
    std::future_status wait_for(std::chrono::duration<Rep, Period> time) {
        return wait_ns(detail::nanoseconds_of(time)) ? std::future_status::ready : std::future_status::timeout;
    }
    template <typename Clock, typename Duration>
    std::future_status wait_until(std::chrono::time_point<Clock, Duration> time) {
        return wait_for(time - Clock::now());
    }

    // Waits for the end of the call and returns the number of BYTES that the function wrote to its output. Throws the
    // call's failure. The future is not valid afterwards.
    std::size_t get() { return static_cast<std::size_t>(collect().output_bytes); }

    // As get, but returns also the execution time, if the call was timed.
    completion collect() {
        completion done{};
        detail::check(sublet_invocation_wait(last(), &done));
        return done;
    }

    // As get, but ends a call that has not ended in time: its worker process is stopped, and the error has the status
    // SUBLET_DEADLINE_EXCEEDED.
    template <typename Rep, typename Period>
    std::size_t get_for(std::chrono::duration<Rep, Period> time) {
        completion done{};
        detail::check(sublet_invocation_wait_deadline(last(), detail::nanoseconds_of(time), &done));
        return static_cast<std::size_t>(done.output_bytes);
    }
    template <typename Clock, typename Duration>
    std::size_t get_until(std::chrono::time_point<Clock, Duration> time) {
        return get_for(time - Clock::now());
    }

    // Converts this future to a std::future, which a thread of the lease makes ready. This is slower: it allocates, and
    // the result passes through one more thread.
    std::future<std::size_t> to_std() &&;
    operator std::future<std::size_t>() && { return std::move(*this).to_std(); }

private:
    friend class invoker;

    const sublet_invocation *checked() const {
        if (!valid_) {
            throw error(SUBLET_INVALID_ARGUMENT, "the future has no result: never submitted, moved from, or collected");
        }
        return &invocation_;
    }

    sublet_invocation *checked() { return const_cast<sublet_invocation *>(std::as_const(*this).checked()); }

    // Marks the future as collected and returns its invocation.
    sublet_invocation *last() {
        sublet_invocation *invocation = checked();
        valid_ = false;
        return invocation;
    }

    void take(future &other) noexcept {
        if (std::exchange(other.valid_, false)) {
            invocation_ = other.invocation_;
            valid_ = true;
        }
    }

    bool wait_ns(std::uint64_t timeout_ns) {
        bool ended = false;
        detail::check(sublet_invocation_wait_timeout(checked(), timeout_ns, &ended));
        return ended;
    }

    void close() noexcept {
        if (std::exchange(valid_, false)) {
            sublet_invocation_close(&invocation_);
        }
    }

    bool valid_ = false;
    sublet_invocation invocation_; // holds a call if valid_ says so
};

// `count` elements in memory that workers access without copying. The contents of a new buffer are unspecified.
template <typename T>
class buffer {
public:
    using value_type = T;
    using iterator = T *;
    using const_iterator = const T *;

    buffer() noexcept = default;
    buffer(buffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    buffer &operator=(buffer &&other) noexcept {
        if (this != &other) {
            sublet_buffer_free(data_);
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    ~buffer() { sublet_buffer_free(data_); }

    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    bool empty() const noexcept { return size_ == 0; }

    T &operator[](std::size_t index) noexcept { return data_[index]; }
    const T &operator[](std::size_t index) const noexcept { return data_[index]; }

    iterator begin() noexcept { return data_; }
    iterator end() noexcept { return data_ + size_; }
    const_iterator begin() const noexcept { return data_; }
    const_iterator end() const noexcept { return data_ + size_; }

private:
    template <typename>
    friend class allocator;

    buffer(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// Allocates memory that workers access without copying: buffers, or as a standard allocator the elements of
// `std::vector<T, sublet::allocator<T>>`. Allocators of one invoker are equal. Their allocations may outlive the
// invoker.
template <typename T>
class allocator {
public:
    using value_type = T;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    template <typename U>
    allocator(const allocator<U> &other) noexcept : invoker_(other.invoker_) {}

    // Allocates a buffer of `count` elements. Inputs and outputs do not differ: a function may read the old contents of
    // its output, and a buffer may be one call's output and the next one's input.
    buffer<T> input(std::size_t count) { return make_buffer(count); }
    buffer<T> output(std::size_t count) { return make_buffer(count); }

    T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        void *data = nullptr;
        detail::check(sublet_buffer_allocate(invoker_.get(), count * sizeof(T), &data));
        return static_cast<T *>(data);
    }

    void deallocate(T *data, std::size_t) noexcept { sublet_buffer_free(data); }

    template <typename U>
    bool operator==(const allocator<U> &other) const noexcept {
        return invoker_ == other.invoker_;
    }
    template <typename U>
    bool operator!=(const allocator<U> &other) const noexcept {
        return invoker_ != other.invoker_;
    }

private:
    template <typename>
    friend class allocator;
    friend class invoker;

    explicit allocator(std::shared_ptr<sublet_invoker> invoker) noexcept : invoker_(std::move(invoker)) {}

    buffer<T> make_buffer(std::size_t count) {
        detail::require_plain_data<T>();
        return buffer<T>(allocate(count), count);
    }

    std::shared_ptr<sublet_invoker> invoker_;
};

// A client of the managers of one store. It provides allocators, holds the leases of one allocation and of its growth,
// and submits calls to their workers. Its destructor releases all leases.
class invoker {
public:
    // Workers that sleep after every call: no cost between calls, and a wake-up at each call.
    static constexpr policy ALWAYS_WARM_INVOCATIONS = policy::always_warm();
    // Workers that always poll: the shortest latency, and a cost all the time.
    static constexpr policy ALWAYS_HOT_INVOCATIONS = policy::always_hot();

    // Connects to the manager at $SUBLET_MANAGER, or to this machine's own `sublet up`.
    invoker() : handle_(connect(nullptr)) {}
    // Connects to a manager at an address such as "unix:/run/sublet/manager.sock".
    explicit invoker(const std::string &manager) : handle_(connect(manager.c_str())) {}
    // Connects with the given access.
    explicit invoker(const access &how) : handle_(connect(how)) {}

    invoker(invoker &&) noexcept = default;
    invoker &operator=(invoker &&other) noexcept {
        if (this != &other) {
            end_lease();
            handle_ = std::move(other.handle_);
            on_step_ = std::move(other.on_step_);
        }
        return *this;
    }
    ~invoker() { end_lease(); }

    // Leases one core for the functions of `package`: the name or digest of a deployed package, or the path of a folder
    // or shared object, which is deployed first. Inputs of up to `slot_bytes` bytes may lie outside of buffers.
    void allocate(const std::string &package, std::size_t slot_bytes, policy wait) {
        allocation wanted;
        wanted.slot_bytes = slot_bytes;
        wanted.wait = wait;
        allocate(package, wanted);
    }

    // Leases the requested cores and starts their workers. Blocks for some milliseconds.
    void allocate(const std::string &package, const allocation &wanted) {
        sublet_allocation request = sublet_allocation_default(package.c_str());
        request.cores = wanted.cores;
        request.memory_bytes = wanted.memory_bytes;
        request.timeout_ns = detail::nanoseconds_of(wanted.timeout);
        request.slots = wanted.slots;
        request.slot_bytes = wanted.slot_bytes;
        request.hot_ns = wanted.wait.hot_ns();
        request.spin_ns = wanted.spin == wanted.spin.max() ? UINT64_MAX : detail::nanoseconds_of(wanted.spin);
        request.max_nodes = wanted.max_nodes;
        request.shared = wanted.shared ? 1 : 0;
        request.wait_ns = detail::nanoseconds_of(wanted.capacity_wait);
        request.idle_timeout_ns = detail::nanoseconds_of(wanted.idle_timeout);
        request.pu = detail::text_or_null(wanted.pu);
        // The manager rejects invalid weights.
        const bool is_weight = wanted.time_weight >= 0 && wanted.time_weight <= 1;
        request.time_weight_permille = is_weight ? static_cast<std::uint32_t>(wanted.time_weight * 1000 + 0.5) : UINT32_MAX;
        request.fabric = detail::text_or_null(wanted.fabric);
        request.interface = detail::text_or_null(wanted.interface);
        request.pool = detail::text_or_null(wanted.pool);
        const auto variables = detail::list_of(wanted.variables);
        const auto secrets = detail::list_of(wanted.secrets);
        const auto folders = detail::list_of(wanted.folders);
        request.variables = variables.data();
        request.secrets = secrets.data();
        request.folders = folders.data();
        request.temporary_bytes = wanted.temporary_bytes;
        request.isolation = detail::text_or_null(wanted.isolation);
        request.start_timeout_ns = detail::nanoseconds_of(wanted.start_timeout);
        std::unique_ptr<detail::step_function> on_step;
        if (wanted.on_step) {
            on_step = std::make_unique<detail::step_function>(wanted.on_step);
            request.on_step = detail::sublet_detail_tell_step;
            request.step_user = on_step.get();
        }
        detail::check(sublet_invoker_allocate(handle_.get(), &request));
        on_step_ = std::move(on_step);
    }

    // Leases more cores on the terms of the present leases.
    void grow(std::uint32_t cores) { detail::check(sublet_invoker_grow(handle_.get(), cores)); }

    // Renews all leases to end this long from now. Other threads may submit and wait meanwhile.
    template <typename Rep, typename Period>
    void renew(std::chrono::duration<Rep, Period> time) const {
        detail::check(sublet_invoker_renew(handle_.get(), detail::nanoseconds_of(time)));
    }

    // Returns the announced ends of leases.
    std::vector<notice> notices() const {
        std::size_t count = 0;
        detail::check(sublet_invoker_notices(handle_.get(), nullptr, 0, &count));
        std::vector<sublet_notice> found(count);
        detail::check(sublet_invoker_notices(handle_.get(), found.data(), found.size(), &count));
        std::vector<notice> notices;
        for (std::size_t index = 0; index < found.size() && index < count; ++index) {
            const sublet_notice &one = found[index];
            notices.push_back({one.lease, one.status, one.message, std::chrono::nanoseconds(one.left_ns)});
        }
        return notices;
    }

    // Releases all leases and returns their total bill. Calls that have not ended fail with SUBLET_LEASE_ENDED.
    bill deallocate() {
        bill used{};
        detail::check(sublet_invoker_deallocate(handle_.get(), &used));
        return used;
    }

    // Describes the first lease.
    sublet::lease lease() const {
        using std::chrono::milliseconds;
        using time = std::chrono::system_clock::time_point;
        sublet_lease found{};
        detail::check(sublet_invoker_lease(handle_.get(), &found));
        return {found.id,
                found.node,
                found.package,
                found.owner,
                found.isolation,
                found.memory_bytes,
                time(milliseconds(found.granted_unix_ms)),
                time(milliseconds(found.expires_unix_ms)),
                std::chrono::nanoseconds(found.start_ns),
                found.workers,
                found.functions};
    }

    // Returns the C handle, which is valid as long as the invoker.
    const sublet_invoker *get() const noexcept { return handle_.get(); }

    // Returns an allocator of memory that this invoker's workers access without copying, now or in a later lease.
    template <typename T>
    sublet::allocator<T> allocator() const {
        return sublet::allocator<T>(handle_);
    }

    // Finds a function of the leased package once, so that calls need not look it up.
    sublet::function find(const char *name) const {
        sublet_function found{};
        detail::check(sublet_invoker_function(handle_.get(), name, &found));
        return sublet::function(found);
    }
    sublet::function find(const std::string &name) const { return find(name.c_str()); }

    // Submits a call of `what`, which is a name or a found function. The call reads the first `count` elements of `in`
    // and may write all of `out`: buffers, vectors, or other types with data() and size(). Buffers, and vectors of this
    // invoker's allocator, are used in place; other memory is copied once. Both must outlive the call, the input
    // unchanged.
    template <typename Function, typename In, typename Out>
    future submit(const Function &what, const In &in, std::size_t count, Out &out, const call_options &options = {}) const {
        if (count > std::size(in)) {
            throw error(SUBLET_INVALID_ARGUMENT, "the call reads " + std::to_string(count) + " elements of an input of " +
                                                     std::to_string(std::size(in)));
        }
        return submit(what, std::data(in), count, std::data(out), std::size(out), options);
    }

    // Submits a call with all of `in`.
    template <typename Function, typename In, typename Out>
    future submit(const Function &what, const In &in, Out &out, const call_options &options = {}) const {
        return submit(what, std::data(in), std::size(in), std::data(out), std::size(out), options);
    }

    // Submits a call with plain memory.
    template <typename Function, typename In, typename Out>
    future submit(const Function &what, const In *in, std::size_t in_count, Out *out, std::size_t out_count,
                  const call_options &options = {}) const {
        detail::require_plain_data<In>();
        detail::require_plain_data<Out>();
        static_assert(!std::is_const_v<Out>, "a function writes to its output");
        const sublet_call_options choices = {options.worker.value_or(SUBLET_ANY_WORKER),
                                             options.timed ? 1u : 0u, detail::nanoseconds_of(options.timeout),
                                             options.retries};
        const sublet_call call = {in,       detail::bytes_of<In>(in_count),   out, detail::bytes_of<Out>(out_count),
                                  &choices, resolve(what)};
        future result;
        detail::check(sublet_invoker_submit(handle_.get(), &call, &result.invocation_));
        result.valid_ = true;
        return result;
    }

private:
    static std::shared_ptr<sublet_invoker> connect(const char *manager) {
        sublet_invoker *handle = nullptr;
        detail::check(sublet_invoker_connect(manager, &handle));
        return {handle, sublet_invoker_free};
    }

    static std::shared_ptr<sublet_invoker> connect(const access &how) {
        sublet_access said = sublet_access_default();
        said.managers = detail::text_or_null(how.managers);
        said.ca_file = detail::text_or_null(how.ca_file);
        said.token = detail::text_or_null(how.token);
        said.token_file = detail::text_or_null(how.token_file);
        sublet_invoker *handle = nullptr;
        detail::check(sublet_invoker_connect_with(&said, &handle));
        return {handle, sublet_invoker_free};
    }

    // Shared with the allocators of this invoker.
    void end_lease() noexcept {
        if (handle_) {
            sublet_invoker_deallocate(handle_.get(), nullptr);
        }
    }

    sublet_function resolve(const sublet::function &found) const noexcept { return found.get(); }
    sublet_function resolve(const char *name) const { return find(name).get(); }
    sublet_function resolve(const std::string &name) const { return find(name).get(); }

    std::shared_ptr<sublet_invoker> handle_;
    std::unique_ptr<detail::step_function> on_step_;  // in use by the present leases
};

namespace detail {

// A call whose result a std::future will get.
struct promised {
    sublet_invocation invocation;
    std::promise<std::size_t> promise;
};

// Callback of a promise, called by the lease's thread or at once.
extern "C" inline void sublet_detail_keep_promise(sublet_invocation *invocation, void *user) noexcept {
    std::unique_ptr<promised> call(static_cast<promised *>(user));
    sublet_completion done{};
    const sublet_status status = sublet_invocation_wait(invocation, &done);
    if (status == SUBLET_OK) {
        call->promise.set_value(static_cast<std::size_t>(done.output_bytes));
    } else {
        call->promise.set_exception(std::make_exception_ptr(error(status, sublet_error_message())));
    }
}

} // namespace detail

inline std::future<std::size_t> future::to_std() && {
    auto call = std::make_unique<detail::promised>();
    std::future<std::size_t> result = call->promise.get_future();
    call->invocation = *last();
    detail::promised *kept = call.release();
    const sublet_status status =
        sublet_invocation_on_complete(&kept->invocation, detail::sublet_detail_keep_promise, kept);
    if (status != SUBLET_OK) {
        call.reset(kept);
        throw error(status, sublet_error_message());
    }
    return result;
}

} // namespace sublet

#endif // SUBLET_HPP
