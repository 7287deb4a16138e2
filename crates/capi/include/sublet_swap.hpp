// sublet_swap.hpp: swapped arrays from C++17, over the C interface of sublet_swap.h, whose rules hold.
//
//     sublet::swapped<double> values(invoker, 1'000'000'000, std::uint64_t(1) << 30); // 8 GB, of which 1 GiB is local
//     values[7] = 1.5;
//     std::iota(values.begin(), values.end(), 0.0);
#ifndef SUBLET_SWAP_HPP
#define SUBLET_SWAP_HPP

#include "sublet_memory.hpp"
#include "sublet_swap.h"

namespace sublet {

// Counters of an array; see sublet_swap.h.
using swap_statistics = sublet_swap_statistics;

// Threads that may touch an array.
enum class touching {
    any_threads,
    one_at_a_time,  // only one thread at a time, directly or by system calls
};

// An array of `count` zeroed elements, of which at most `local_bytes` bytes are on this machine. It can be moved but not copied.
template <typename T>
class swapped {
public:
    swapped(const invoker &client, std::size_t count, std::uint64_t local_bytes, const memory_plan &space = {},
            touching who = touching::any_threads)
        : handle_(create(client, count, local_bytes, space, who)), count_(count) {
        detail::require_plain_data<T>();
        void *data = nullptr;
        detail::check(sublet_swapped_data(handle_.get(), &data));
        data_ = static_cast<T *>(data);
    }

    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return count_; }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + count_; }
    const T *begin() const noexcept { return data_; }
    const T *end() const noexcept { return data_ + count_; }
    T &operator[](std::size_t at) noexcept { return data_[at]; }
    const T &operator[](std::size_t at) const noexcept { return data_[at]; }

    // Throws the reason if pages are lost.
    void check() const { detail::check(sublet_swapped_check(handle_.get())); }

    swap_statistics statistics() const {
        swap_statistics told{};
        detail::check(sublet_swapped_statistics(handle_.get(), &told));
        return told;
    }

private:
    struct free_it {
        void operator()(sublet_swapped *swapped) const noexcept { sublet_swapped_free(swapped); }
    };

    static sublet_swapped *create(const invoker &client, std::size_t count, std::uint64_t local_bytes,
                                  const memory_plan &space, touching who) {
        sublet_swap_plan plan = sublet_swap_plan_default(detail::bytes_of<T>(count), local_bytes);
        plan.one_at_a_time = who == touching::one_at_a_time ? 1 : 0;
        const sublet_memory_plan said = space.said();
        sublet_swapped *handle = nullptr;
        detail::check(sublet_swapped_create(client.get(), &plan, &said, &handle));
        return handle;
    }

    std::unique_ptr<sublet_swapped, free_it> handle_;
    T *data_ = nullptr;
    std::size_t count_ = 0;
};

} // namespace sublet

#endif // SUBLET_SWAP_HPP
