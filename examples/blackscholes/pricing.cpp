// Prices options on threads of this process, on leased workers, and on both at once.

#include "pricing.hpp"

#include <dlfcn.h>

#include <future>
#include <stdexcept>

namespace {

// Calls that a worker has before it: one that executes, and one so that it never waits for the client.
constexpr std::size_t IN_FLIGHT = 2;

} // namespace

std::vector<range> range::split(std::size_t parts) const {
    std::vector<range> result;
    for (std::size_t part = 0; part < parts; part++) {
        result.push_back({begin + count() * part / parts, begin + count() * (part + 1) / parts});
    }
    return result;
}

local_function::local_function(const std::string &library)
    : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), [](void *opened) { return opened ? dlclose(opened) : 0; }) {
    void *symbol = library_ ? dlsym(library_.get(), "price") : nullptr;
    if (symbol == nullptr) {
        throw std::runtime_error(dlerror());
    }
    function_ = reinterpret_cast<decltype(function_)>(symbol);
}

void local_function::operator()(const bs_option *options, std::size_t count, double *prices) const {
    // The interface of functions has no const; this one only reads its input.
    function_(const_cast<bs_option *>(options), static_cast<std::uint32_t>(count * sizeof *options), prices);
}

void pricing::on_this_thread(range which, double *prices) const {
    for (std::size_t run = 0; run < runs_; run++) {
        local_(options_ + which.begin, which.count(), prices + which.begin);
    }
}

void pricing::on_threads(range which, std::size_t threads, double *prices) const {
    const std::vector<range> parts = which.split(threads);
    std::vector<std::future<void>> others; // each joins its thread at the end
    for (std::size_t i = 1; i < parts.size(); i++) {
        others.push_back(std::async(std::launch::async, &pricing::on_this_thread, this, parts[i], prices));
    }
    on_this_thread(parts[0], prices);
}

sublet::future pricing::submit(range which, std::uint32_t worker, double *prices) const {
    sublet::call_options options;
    options.worker = worker;
    return invoker_.submit(price_, options_ + which.begin, which.count(), prices + which.begin, which.count(), options);
}

void pricing::on_workers(range which, std::size_t workers, double *prices) const {
    const std::vector<range> parts = which.split(workers);
    std::vector<sublet::future> calls(workers * IN_FLIGHT);
    for (std::size_t run = 0; run < runs_ + IN_FLIGHT; run++) {
        for (std::size_t worker = 0; worker < workers; worker++) {
            sublet::future &call = calls[run % IN_FLIGHT * workers + worker];
            if (call.valid()) {
                call.get();
            }
            if (run < runs_) {
                call = submit(parts[worker], static_cast<std::uint32_t>(worker), prices);
            }
        }
    }
}

void pricing::on_both(range which, std::size_t threads, std::size_t workers, double *prices) const {
    const std::size_t border = which.begin + which.count() * threads / (threads + workers);
    const range here{which.begin, border}, there{border, which.end};
    const auto local = std::async(std::launch::async, &pricing::on_threads, this, here, threads, prices);
    on_workers(there, workers, prices);
    local.wait();
}
