// sublet_memory.hpp: memory components from C++17, over the C interface of sublet_memory.h, whose rules hold.
//
//     sublet::memory_plan plan;
//     plan.limit_bytes = std::uint64_t(1) << 30;
//     sublet::memory memory(invoker, plan);
//     memory.write(0, values);                                   // grows as needed
//     std::vector<double> some = memory.read<double>(4096, 100); // 100 elements from byte 4096 on
//     sublet::bill bill = memory.release();
//
// Offsets, and sizes whose names end with _bytes, are in bytes; counts are numbers of elements.
#ifndef SUBLET_MEMORY_HPP
#define SUBLET_MEMORY_HPP

#include "sublet.hpp"
#include "sublet_memory.h"

namespace sublet {

// Properties of a new component, with the defaults of sublet_memory_plan_default.
struct memory_plan {
    std::uint64_t initial_bytes = defaults().initial_bytes;
    std::uint64_t increment_bytes = defaults().increment_bytes;
    std::uint64_t limit_bytes = defaults().limit_bytes;
    std::chrono::nanoseconds timeout{0};  // duration of each segment's lease; 0: the manager's default
    std::chrono::nanoseconds wait{0};     // maximum time in the manager's queue for each segment
    std::uint64_t cache_bytes = defaults().cache_bytes;
    std::uint64_t line_bytes = defaults().line_bytes;
    std::string near;                     // preferred nodes: names, separated by commas; empty: any
    std::string fabric;                   // fabric, as "tcp"; empty: shared memory on this machine, TCP elsewhere
    std::string pool;                     // use only nodes of this pool, as "memory"; empty: any

    static sublet_memory_plan defaults() noexcept { return sublet_memory_plan_default(); }

    // Returns the C structure, which is valid until this object changes or ends.
    sublet_memory_plan said() const {
        sublet_memory_plan said = defaults();
        said.initial_bytes = initial_bytes;
        said.increment_bytes = increment_bytes;
        said.limit_bytes = limit_bytes;
        said.timeout_ns = detail::nanoseconds_of(timeout);
        said.wait_ns = detail::nanoseconds_of(wait);
        said.cache_bytes = cache_bytes;
        said.line_bytes = line_bytes;
        said.near = detail::text_or_null(near);
        said.fabric = detail::text_or_null(fabric);
        said.pool = detail::text_or_null(pool);
        return said;
    }
};

// A memory component, which can be moved but not copied. Its destructor releases all segments.
class memory {
public:
    explicit memory(const invoker &client, const memory_plan &plan = {}) : handle_(create(client, plan)) {}

    // Return the size of the component, and of its leased memory.
    std::uint64_t size_bytes() const { return sizes().first; }
    std::uint64_t capacity_bytes() const { return sizes().second; }

    // Copies elements out.
    template <typename T>
    void read(std::uint64_t offset, T *into, std::size_t count) const {
        detail::require_plain_data<T>();
        detail::check(sublet_memory_read(handle_.get(), offset, into, detail::bytes_of<T>(count)));
    }
    template <typename T>
    std::vector<T> read(std::uint64_t offset, std::size_t count) const {
        std::vector<T> elements(count);
        read(offset, elements.data(), count);
        return elements;
    }

    // Copies elements in. The component grows for elements beyond its end.
    template <typename T>
    void write(std::uint64_t offset, const T *from, std::size_t count) {
        detail::require_plain_data<T>();
        detail::check(sublet_memory_write(handle_.get(), offset, from, detail::bytes_of<T>(count)));
    }
    // Copies in all elements of a vector, an array, or another type with data() and size().
    template <typename Container>
    void write(std::uint64_t offset, const Container &from) {
        write(offset, std::data(from), std::size(from));
    }

    // Starts to copy elements out. The copy is complete after wait() or sync(); until then `into` must not be used.
    template <typename T>
    void read_async(std::uint64_t offset, T *into, std::size_t count) const {
        detail::require_plain_data<T>();
        detail::check(sublet_memory_read_async(handle_.get(), offset, into, detail::bytes_of<T>(count)));
    }
    // Copies elements in without waiting until others can read them.
    template <typename T>
    void write_async(std::uint64_t offset, const T *from, std::size_t count) {
        detail::require_plain_data<T>();
        detail::check(sublet_memory_write_async(handle_.get(), offset, from, detail::bytes_of<T>(count)));
    }

    // Waits for reads that read_async has started.
    void wait() const { detail::check(sublet_memory_wait(handle_.get())); }
    // Waits as wait(), makes writes visible to others, and makes writes that others have synced visible here.
    void sync() const { detail::check(sublet_memory_sync(handle_.get())); }
    // Starts to fetch bytes that will be read soon.
    void prefetch(std::uint64_t offset, std::uint64_t len_bytes) const {
        detail::check(sublet_memory_prefetch(handle_.get(), offset, len_bytes));
    }

    // Returns the address of elements in this process, which is valid until the component is resized or released. The
    // address has the alignment of `offset`, up to a page.
    template <typename T>
    T *mapped(std::uint64_t offset, std::size_t count) {
        void *data = nullptr;
        detail::check(sublet_memory_mapped(handle_.get(), offset, detail::bytes_of<T>(count), &data));
        return static_cast<T *>(data);
    }

    // Resizes the component. New bytes are 0; segments beyond the new end are released.
    void resize(std::uint64_t len_bytes) { detail::check(sublet_memory_resize(handle_.get(), len_bytes)); }

    // Renews all segments to end this long from now.
    template <typename Rep, typename Period>
    void renew(std::chrono::duration<Rep, Period> time) const {
        detail::check(sublet_memory_renew(handle_.get(), detail::nanoseconds_of(time)));
    }

    // Releases all segments and returns their total bill. Afterwards the component may only be destroyed or assigned to.
    bill release() {
        bill used{};
        detail::check(sublet_memory_release(handle_.release(), &used));
        return used;
    }

private:
    struct give_back {
        void operator()(sublet_memory *memory) const noexcept { sublet_memory_release(memory, nullptr); }
    };

    static sublet_memory *create(const invoker &client, const memory_plan &plan) {
        const sublet_memory_plan said = plan.said();
        sublet_memory *handle = nullptr;
        detail::check(sublet_memory_create(client.get(), &said, &handle));
        return handle;
    }

    std::pair<std::uint64_t, std::uint64_t> sizes() const {
        std::uint64_t len_bytes = 0;
        std::uint64_t capacity_bytes = 0;
        detail::check(sublet_memory_size(handle_.get(), &len_bytes, &capacity_bytes));
        return {len_bytes, capacity_bytes};
    }

    std::unique_ptr<sublet_memory, give_back> handle_;
};

} // namespace sublet

#endif // SUBLET_MEMORY_HPP
