// Three ways of pricing the same options with the same machine code: on threads of this process, on leased workers, and
// on both at once.
#ifndef PRICING_HPP
#define PRICING_HPP

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <sublet.hpp>

#include "blackscholes.h"

// A stretch of the options.
struct range {
    std::size_t begin;
    std::size_t end;

    std::size_t count() const noexcept { return end - begin; }
    // Cuts it into parts that differ by one option at most.
    std::vector<range> split(std::size_t parts) const;
};

// The package's function `price` in this process: the very shared object that the workers load.
class local_function {
public:
    explicit local_function(const std::string &library);

    // Prices `count` options.
    void operator()(const bs_option *options, std::size_t count, double *prices) const;

private:
    std::unique_ptr<void, int (*)(void *)> library_;
    std::uint32_t (*function_)(void *in, std::uint32_t size, void *out);
};

// The work: each option is priced `runs` times, as PARSEC's NUM_RUNS.
class pricing {
public:
    pricing(const local_function &local, const sublet::invoker &invoker, const bs_option *options, std::size_t runs)
        : local_(local), invoker_(invoker), price_(invoker.find("price")), options_(options), runs_(runs) {}

    // Prices the options of `which` on `threads` threads.
    void on_threads(range which, std::size_t threads, double *prices) const;

    // Prices the options of `which` on the first `workers` workers. The calling thread sleeps meanwhile.
    void on_workers(range which, std::size_t workers, double *prices) const;

    // Prices some options on threads and the others on workers, at once, in proportion to the numbers of both.
    void on_both(range which, std::size_t threads, std::size_t workers, double *prices) const;

private:
    void on_this_thread(range which, double *prices) const;
    sublet::future submit(range which, std::uint32_t worker, double *prices) const;

    const local_function &local_;
    const sublet::invoker &invoker_;
    sublet::function price_;
    const bs_option *options_;
    std::size_t runs_;
};

#endif
