// sublet_graph.hpp: graphs of components from C++17, over the C interface of sublet_graph.h, whose rules hold.
//
//     auto application = sublet::application::deploy(invoker, json);
//     sublet::outcome outcome = application.run(std::vector<std::uint64_t>{1000});
//     auto sum = outcome.outputs.front().as<std::uint64_t>();
#ifndef SUBLET_GRAPH_HPP
#define SUBLET_GRAPH_HPP

#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sublet.hpp"
#include "sublet_graph.h"

namespace sublet {

// Options for runs, with the defaults of sublet_run_options_default.
struct run_options {
    std::uint32_t retries = defaults().retries;                   // maximum number of restarts of a lost component
    std::chrono::nanoseconds patience{defaults().patience_ns};    // maximum time that a component waits for cores or memory
    std::optional<std::chrono::nanoseconds> prewarm{std::chrono::nanoseconds(0)};  // nullopt: when components start
    std::chrono::nanoseconds keep_alive{0};                       // time that idle workers are kept for the next run
    std::chrono::nanoseconds hot_timeout{0};                      // time that workers poll after a call
    std::chrono::nanoseconds lease_timeout{defaults().lease_timeout_ns};
    std::string fabric;                                           // fabric, as "tcp"; empty: the best

    static sublet_run_options defaults() noexcept { return sublet_run_options_default(); }
};

// Event of a component.
struct news {
    sublet_event event;
    std::string component;
    std::uint32_t attempt;          // SUBLET_BEGAN: number of the attempt
    std::chrono::nanoseconds took;  // SUBLET_ENDED: duration
    sublet_status status;           // SUBLET_WAITS and SUBLET_LOST: reason
    std::string message;            // SUBLET_WAITS and SUBLET_LOST: reason for people
};

// Output of an instance of a component.
struct output {
    std::string component;
    std::uint32_t instance;
    std::vector<unsigned char> data;

    // Interprets the bytes as one value.
    template <typename T>
    T as() const {
        detail::require_plain_data<T>();
        if (data.size() != sizeof(T)) {
            throw std::length_error("an output of " + std::to_string(data.size()) + " bytes, and not " +
                                    std::to_string(sizeof(T)));
        }
        T value;
        std::memcpy(&value, data.data(), sizeof(T));
        return value;
    }
};

// Resources of a component; see sublet_component_use.
struct component_use {
    std::string component;
    std::uint32_t attempts;
    std::uint32_t instances;
    std::chrono::microseconds begin;  // time since the start of the run
    std::chrono::microseconds end;
    std::uint64_t allocated_bytes;
    std::uint64_t used_bytes;
    std::uint64_t allocated_byte_us;
    std::uint64_t used_byte_us;
    std::chrono::nanoseconds cpu;  // processor time of its workers
};

// Data that a compute component moved to and from a memory component; see sublet_channel_use.
struct channel_use {
    std::string component;
    std::string memory;
    std::uint64_t reads;
    std::uint64_t read_bytes;
    std::uint64_t writes;
    std::uint64_t written_bytes;
    std::uint64_t maps;
    std::uint64_t mapped_bytes;
};

// Outcome of a run.
struct outcome {
    std::string run;
    std::vector<output> outputs;  // outputs of the components that trigger no other
    std::vector<component_use> components;
    std::vector<channel_use> channels;
    // The handle that holds the result's memory, as long as any copy of this outcome.
    std::shared_ptr<const sublet_outcome> handle;

    // Returns the name of the memory component that is the result; empty without one.
    std::string result() const { return described().first; }

    // Returns the length of the result, in bytes; 0 without one.
    std::uint64_t result_bytes() const { return described().second; }

    // Copies bytes of the result; see sublet_outcome_read.
    void read_result(std::uint64_t offset, void *into, std::size_t bytes) const {
        detail::check(sublet_outcome_read(handle.get(), offset, into, bytes));
    }

private:
    std::pair<std::string, std::uint64_t> described() const {
        const char *component = nullptr;
        std::uint64_t bytes = 0;
        detail::check(sublet_outcome_result(handle.get(), &component, &bytes));
        return {component ? component : "", bytes};
    }
};

// A run that another process drives, which can be moved but not copied. Its end continues the run.
class detached_run {
public:
    // Opens a run of any program of the tenant by its identifier.
    static detached_run open(const invoker &client, const std::string &id) {
        sublet_run *handle = nullptr;
        detail::check(sublet_run_open(client.get(), id.c_str(), &handle));
        return detached_run(handle);
    }

    // Returns the run's identifier.
    std::string id() const {
        const char *id = nullptr;
        detail::check(sublet_run_id(handle_.get(), &id));
        return id;
    }

    // Waits until the run has ended, without a limit or for at most this time; see sublet_run_wait.
    outcome wait() const { return wait_for(UINT64_MAX); }
    outcome wait(std::chrono::nanoseconds timeout) const { return wait_for(detail::nanoseconds_of(timeout)); }

    // Ends the run before it is done.
    void cancel() const { detail::check(sublet_run_cancel(handle_.get())); }

private:
    friend class application;

    struct free_it {
        void operator()(sublet_run *run) const noexcept { sublet_run_free(run); }
    };

    explicit detached_run(sublet_run *handle) noexcept : handle_(handle) {}

    inline outcome wait_for(std::uint64_t timeout_ns) const;

    std::unique_ptr<sublet_run, free_it> handle_;
};

// A deployed graph, which can be moved but not copied.
class application {
public:
    // Callback for events of a run, on the thread that runs it. An exception abandons the run, and run() throws it again.
    using listener = std::function<void(const news &)>;

    // Deploys a document in JSON.
    static application deploy(const invoker &client, std::string_view document, const run_options &options = {}) {
        const sublet_run_options said = said_of(options);
        sublet_application *handle = nullptr;
        detail::check(
            sublet_application_deploy(client.get(), document.data(), document.size(), &said, &handle));
        return application(handle);
    }

    // Opens a deployed graph by its name or digest.
    static application open(const invoker &client, const std::string &name, const run_options &options = {}) {
        const sublet_run_options said = said_of(options);
        sublet_application *handle = nullptr;
        detail::check(sublet_application_open(client.get(), name.c_str(), &said, &handle));
        return application(handle);
    }

    // Returns the digest of the document.
    std::string digest() const {
        const char *digest = nullptr;
        detail::check(sublet_application_digest(handle_.get(), &digest));
        return digest;
    }

    // Runs the graph with this input for its entry: a vector, an array, a string, or another type with data() and size().
    template <typename Container>
    outcome run(const Container &input, const listener &hear = {}) const {
        detail::require_plain_data<std::remove_cv_t<detail::element<const Container>>>();
        const std::size_t bytes = detail::bytes_of<detail::element<const Container>>(std::size(input));
        return driven(hear, [&](sublet_news_callback news, void *user, sublet_outcome **handle) {
            return sublet_application_run(handle_.get(), std::data(input), bytes, news, user, handle);
        });
    }
    outcome run() const { return run(std::string_view()); }

    // Begins a run that a runner drives, and returns when it is stored.
    template <typename Container>
    detached_run detach(const Container &input) const {
        detail::require_plain_data<std::remove_cv_t<detail::element<const Container>>>();
        const std::size_t bytes = detail::bytes_of<detail::element<const Container>>(std::size(input));
        sublet_run *handle = nullptr;
        detail::check(sublet_application_detach(handle_.get(), std::data(input), bytes, &handle));
        return detached_run(handle);
    }

    // Continues a run whose program is gone.
    outcome resume(const std::string &run, const listener &hear = {}) const {
        return driven(hear, [&](sublet_news_callback news, void *user, sublet_outcome **handle) {
            return sublet_application_resume(handle_.get(), run.c_str(), news, user, handle);
        });
    }

private:
    friend class detached_run;

    struct free_it {
        void operator()(sublet_application *application) const noexcept { sublet_application_free(application); }
        void operator()(sublet_outcome *outcome) const noexcept { sublet_outcome_free(outcome); }
    };

    // Listener of a run, and the exception that it has thrown.
    struct hearing {
        const listener &hear;
        std::exception_ptr thrown;
    };

    explicit application(sublet_application *handle) noexcept : handle_(handle) {}

    static sublet_run_options said_of(const run_options &options) {
        sublet_run_options said = sublet_run_options_default();
        said.retries = options.retries;
        said.patience_ns = detail::nanoseconds_of(options.patience);
        said.prewarm_ns = options.prewarm ? detail::nanoseconds_of(*options.prewarm) : SUBLET_NO_PREWARM;
        said.keep_alive_ns = detail::nanoseconds_of(options.keep_alive);
        said.hot_timeout_ns = detail::nanoseconds_of(options.hot_timeout);
        said.lease_timeout_ns = detail::nanoseconds_of(options.lease_timeout);
        said.fabric = detail::text_or_null(options.fabric);
        return said;
    }

    static int tell(const sublet_news *told, void *user) noexcept {
        auto &listening = *static_cast<hearing *>(user);
        try {
            listening.hear(news{static_cast<sublet_event>(told->event), told->component, told->attempt,
                                std::chrono::nanoseconds(told->took_ns), told->status,
                                told->message == nullptr ? "" : told->message});
            return 0;
        } catch (...) {
            listening.thrown = std::current_exception();
            return 1;
        }
    }

    template <typename Run>
    static outcome driven(const listener &hear, const Run &run) {
        hearing listening{hear, nullptr};
        sublet_outcome *handle = nullptr;
        const sublet_status status = run(hear ? tell : nullptr, &listening, &handle);
        if (listening.thrown) {
            sublet_outcome_free(handle);
            std::rethrow_exception(listening.thrown);
        }
        detail::check(status);
        return copied(std::shared_ptr<const sublet_outcome>(handle, [](const sublet_outcome *each) {
            sublet_outcome_free(const_cast<sublet_outcome *>(each));
        }));
    }

    static outcome copied(std::shared_ptr<const sublet_outcome> held) {
        const sublet_outcome *told = held.get();
        const char *run = nullptr;
        detail::check(sublet_outcome_run(told, &run));
        outcome made;
        made.run = run;
        made.handle = std::move(held);
        for (const sublet_output &each : listed<sublet_output>(told, sublet_outcome_outputs)) {
            const auto *data = static_cast<const unsigned char *>(each.data);
            made.outputs.push_back({each.component, each.instance, {data, data + each.len_bytes}});
        }
        for (const sublet_component_use &each : listed<sublet_component_use>(told, sublet_outcome_components)) {
            made.components.push_back({each.component, each.attempts, each.instances,
                                       std::chrono::microseconds(each.begin_us), std::chrono::microseconds(each.end_us),
                                       each.allocated_bytes, each.used_bytes, each.allocated_byte_us, each.used_byte_us,
                                       std::chrono::nanoseconds(each.cpu_ns)});
        }
        for (const sublet_channel_use &each : listed<sublet_channel_use>(told, sublet_outcome_channels)) {
            made.channels.push_back({each.component, each.memory, each.reads, each.read_bytes, each.writes,
                                     each.written_bytes, each.maps, each.mapped_bytes});
        }
        return made;
    }

    template <typename T>
    static std::vector<T> listed(const sublet_outcome *told,
                                 sublet_status (*list)(const sublet_outcome *, T *, std::size_t, std::size_t *)) {
        std::size_t count = 0;
        detail::check(list(told, nullptr, 0, &count));
        std::vector<T> all(count);
        detail::check(list(told, all.data(), all.size(), &count));
        return all;
    }

    std::unique_ptr<sublet_application, free_it> handle_;
};

inline outcome detached_run::wait_for(std::uint64_t timeout_ns) const {
    return application::driven({}, [&](sublet_news_callback, void *, sublet_outcome **handle) {
        return sublet_run_wait(handle_.get(), timeout_ns, handle);
    });
}

} // namespace sublet

#endif // SUBLET_GRAPH_HPP
