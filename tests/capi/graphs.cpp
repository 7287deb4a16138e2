// Graphs of components by the C++ interface, against a running Sublet that has the package of components.c.
#include <chrono>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sublet_graph.hpp>

#include "check.hpp"

namespace {

// Counts, and adds up by two instances.
const std::string COUNTED = R"({
    "version": 1, "name": "counted-in-cpp",
    "components": [
        { "type": "compute", "name": "count", "package": "libcomponents", "function": "count", "entry": true },
        { "type": "compute", "name": "add", "package": "libcomponents", "function": "add", "parallelism": 2 },
        { "type": "memory", "name": "numbers" } ],
    "edges": [
        { "type": "trigger", "from": "count", "to": "add" },
        { "type": "access", "from": "count", "to": "numbers", "rights": "write" },
        { "type": "access", "from": "add", "to": "numbers", "rights": "read" } ] })";

std::uint64_t sum_of(const sublet::outcome &outcome) {
    std::uint64_t sum = 0;
    for (const sublet::output &each : outcome.outputs) {
        CHECK(each.component == "add");
        sum += each.as<std::uint64_t>();
    }
    return sum;
}

void applications_are_movable_and_not_copyable() {
    static_assert(!std::is_copy_constructible_v<sublet::application> && !std::is_copy_assignable_v<sublet::application>);
    static_assert(std::is_nothrow_move_constructible_v<sublet::application>);
    sublet::invoker invoker;
    auto first = sublet::application::deploy(invoker, COUNTED);
    const sublet::application second = std::move(first);
    CHECK(second.digest().size() > 0);
}

void a_graph_is_run_and_says_what_it_had() {
    sublet::invoker invoker;
    const auto application = sublet::application::deploy(invoker, COUNTED);
    std::vector<std::string> heard;
    const sublet::outcome outcome = application.run(std::vector<std::uint64_t>{1000}, [&](const sublet::news &news) {
        if (news.event == SUBLET_BEGAN || news.event == SUBLET_ENDED) {
            heard.push_back(news.component);
        }
    });
    CHECK(sum_of(outcome) == 500500 && outcome.outputs.size() == 2 && outcome.outputs[1].instance == 1);
    CHECK((heard == std::vector<std::string>{"count", "count", "add", "add"}));
    CHECK(outcome.run.size() == 32 && outcome.components.size() == 3);
    CHECK(outcome.components[2].component == "numbers" && outcome.components[2].used_bytes == 8000);
    CHECK(outcome.channels.size() == 2 && outcome.channels[0].component == "count" && outcome.channels[0].memory == "numbers");
    CHECK(outcome.channels[0].written_bytes == 8000 && outcome.channels[1].read_bytes == 8000);
    sublet::run_options options;
    options.fabric = "tcp";
    const auto opened = sublet::application::open(invoker, application.digest(), options);
    CHECK(sum_of(opened.run(std::vector<std::uint64_t>{10})) == 55);
}

void a_result_in_memory_is_read_as_long_as_its_outcome_exists() {
    sublet::invoker invoker;
    std::string document = COUNTED;
    const std::string memory = R"("name": "numbers" })";
    document.replace(document.find(memory), memory.size(), R"("name": "numbers", "result": true })");
    const auto application = sublet::application::deploy(invoker, document);
    const sublet::outcome outcome = application.run(std::vector<std::uint64_t>{1000});
    CHECK(outcome.result() == "numbers" && outcome.result_bytes() == 8000);
    const sublet::outcome copy = outcome;
    std::uint64_t last = 0;
    copy.read_result(7992, &last, sizeof last);
    CHECK(last == 1000);
    try {
        copy.read_result(8000, &last, sizeof last);
        CHECK(false);
    } catch (const sublet::error &error) {
        CHECK(error.status() == SUBLET_INVALID_ARGUMENT);
    }
}

void what_a_listener_throws_gives_the_run_up_and_is_thrown() {
    sublet::invoker invoker;
    const auto application = sublet::application::deploy(invoker, COUNTED);
    std::string thrown;
    try {
        application.run(std::vector<std::uint64_t>{10}, [](const sublet::news &news) {
            throw std::runtime_error("enough of " + news.component);
        });
    } catch (const std::runtime_error &error) {
        thrown = error.what();
    }
    CHECK(thrown == "enough of count");
}

template <typename Body>
sublet_status status_of(const Body &body) {
    try {
        body();
    } catch (const sublet::error &error) {
        return error.status();
    }
    return SUBLET_OK;
}

void what_cannot_be_throws() {
    sublet::invoker invoker;
    const auto application = sublet::application::deploy(invoker, COUNTED);
    CHECK(status_of([&] { sublet::application::deploy(invoker, "{}"); }) == SUBLET_INVALID_GRAPH);
    CHECK(status_of([&] { sublet::application::open(invoker, "absent"); }) == SUBLET_UNKNOWN_GRAPH);
    CHECK(status_of([&] { application.run(); }) == SUBLET_FUNCTION_FAILED);
    CHECK(status_of([&] { application.resume(std::string(32, '0')); }) == SUBLET_UNKNOWN_RUN);
    bool is_refused = false;
    try {
        application.run(std::vector<std::uint64_t>{10}).outputs.front().as<char>();
    } catch (const std::length_error &) {
        is_refused = true;
    }
    CHECK(is_refused);
}

void a_detached_run_is_waited_for_by_its_identifier() {
    sublet::invoker invoker;
    const auto application = sublet::application::deploy(invoker, COUNTED);
    const auto begun = application.detach(std::vector<std::uint64_t>{10});
    const auto opened = sublet::detached_run::open(invoker, begun.id());
    const auto outcome = opened.wait();
    CHECK(outcome.run == begun.id() && sum_of(outcome) == 55);
    CHECK(status_of([&] { begun.cancel(); }) == SUBLET_UNKNOWN_RUN);
    const auto absent = sublet::detached_run::open(invoker, "absent");
    CHECK(status_of([&] { absent.wait(std::chrono::seconds(1)); }) == SUBLET_UNKNOWN_RUN);
}

const test TESTS[] = {
    TEST(applications_are_movable_and_not_copyable),
    TEST(a_graph_is_run_and_says_what_it_had),
    TEST(a_result_in_memory_is_read_as_long_as_its_outcome_exists),
    TEST(what_a_listener_throws_gives_the_run_up_and_is_thrown),
    TEST(a_detached_run_is_waited_for_by_its_identifier),
    TEST(what_cannot_be_throws),
};

} // namespace

int main() { return run_tests(TESTS); }
