// The C++ interface against a running Sublet: calls PACKAGE THROWING, where these are the shared objects of functions.c
// and throwing.cpp.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <list>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <sublet.hpp>

#include "check.hpp"

using namespace std::chrono_literals;

namespace {

std::string package, throwing_package;

// The status of the error that this ends by; SUBLET_OK if by none.
template <typename Body>
sublet_status status_of(Body body) {
    try {
        body();
    } catch (const sublet::error &error) {
        return error.status();
    }
    return SUBLET_OK;
}

sublet::invoker leased(std::uint32_t cores = 1) {
    sublet::invoker invoker;
    sublet::allocation wanted;
    wanted.cores = cores;
    wanted.wait = sublet::invoker::ALWAYS_WARM_INVOCATIONS;
    invoker.allocate(package, wanted);
    return invoker;
}

// Sets the number that a call of `hold` reads meanwhile.
void tell(sublet::buffer<std::uint32_t> &told, std::uint32_t number) {
    *static_cast<volatile std::uint32_t *>(told.data()) = number;
}

const std::uint32_t LONG_NAP[1] = {60'000};
const std::uint32_t SHORT_NAP[1] = {100};
char nothing[1];

void owners_are_movable_and_not_copyable() {
    static_assert(!std::is_copy_constructible_v<sublet::invoker> && !std::is_copy_assignable_v<sublet::invoker>);
    static_assert(!std::is_copy_constructible_v<sublet::future> && !std::is_copy_assignable_v<sublet::future>);
    static_assert(!std::is_copy_constructible_v<sublet::buffer<int>>);
    static_assert(std::is_nothrow_move_constructible_v<sublet::invoker>);
    static_assert(std::is_nothrow_move_assignable_v<sublet::future>);
    static_assert(std::is_nothrow_move_assignable_v<sublet::buffer<int>>);
    sublet::invoker first = leased();
    sublet::invoker invoker = std::move(first);
    auto input = invoker.allocator<std::uint32_t>().input(1);
    auto moved_input = std::move(input);
    moved_input[0] = 10;
    CHECK(input.data() == nullptr && input.empty() && moved_input.size_bytes() == 4);
    sublet::future future = invoker.submit("nap", moved_input, nothing);
    sublet::future moved = std::move(future);
    CHECK(!future.valid() && moved.valid());
    CHECK(status_of([&] { future.get(); }) == SUBLET_INVALID_ARGUMENT);
    CHECK(moved.get() == 0 && !moved.valid());
    CHECK(status_of([&] { moved.get(); }) == SUBLET_INVALID_ARGUMENT);
    sublet::future none;
    none = std::move(moved);
    CHECK(!none.valid());
    first = leased();
    invoker = std::move(first);
    CHECK(invoker.lease().workers == 1);
}

void containers_arrays_and_pointers_are_inputs_and_outputs() {
    sublet::invoker invoker = leased();
    const std::vector<double> in{1.0, 2.0, 3.0};
    std::vector<double> out(3);
    CHECK(invoker.submit("task", in, out).get() == 3 * sizeof(double));
    CHECK((out == std::vector<double>{2.0, 4.0, 6.0}));
    double array[2] = {5.0, 6.0};
    CHECK(invoker.submit(std::string("task"), array, 1, out).get() == sizeof(double));
    CHECK(out[0] == 10.0 && out[1] == 4.0);
    const sublet::function task = invoker.find("libfunctions/task");
    CHECK(invoker.submit(task, in.data() + 1, 2, array, 2).get() == 2 * sizeof(double));
    CHECK(array[0] == 4.0 && array[1] == 6.0);
    std::string text(5, ' ');
    CHECK(invoker.submit("echo", std::string("hello"), text).get() == 5);
    CHECK(text == "hello");
    CHECK(status_of([&] { invoker.submit("task", in, 4, out); }) == SUBLET_INVALID_ARGUMENT);
    CHECK(invoker.submit("task", in, out).collect().output_bytes == 3 * sizeof(double));
}

void vectors_of_the_allocator_are_used_in_place() {
    sublet::invoker invoker;
    invoker.allocate(package, 64, 1ms); // so small a slot that nothing else could hold the input
    const sublet::allocator<double> alloc = invoker.allocator<double>();
    std::vector<double, sublet::allocator<double>> in(10'000, 0.0, alloc), out(alloc);
    std::iota(in.begin(), in.end(), 0.0);
    out.resize(in.size());
    CHECK(invoker.submit("task", in, out).get() == in.size() * sizeof(double));
    for (std::size_t i = 0; i < out.size(); i++) {
        CHECK(out[i] == 2.0 * static_cast<double>(i));
    }
    const std::vector<double> plain(10'000);
    CHECK(status_of([&] { invoker.submit("task", plain, out); }) == SUBLET_INPUT_TOO_LARGE);
}

void the_allocator_conforms_to_the_standard() {
    sublet::invoker invoker, other;
    sublet::allocator<int> ints = invoker.allocator<int>();
    const sublet::allocator<char> chars(ints);
    using traits = std::allocator_traits<sublet::allocator<int>>;
    static_assert(std::is_same_v<traits::rebind_alloc<char>, sublet::allocator<char>>);
    static_assert(!traits::is_always_equal::value && traits::propagate_on_container_swap::value);
    CHECK(ints == chars && !(ints != chars) && ints != other.allocator<int>());
    CHECK(sublet::allocator<int>(chars) == ints);
    int *three = traits::allocate(ints, 3);
    traits::deallocate(ints, three, 3);
    bool refused = false;
    try {
        (void)ints.allocate(SIZE_MAX / 2);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused);
    CHECK(status_of([&] { (void)ints.allocate(std::size_t{1} << 31); }) == SUBLET_INVALID_ARGUMENT);
    std::list<int, sublet::allocator<int>> nodes({1, 2, 3}, ints); // rebinds to its nodes
    std::vector<int, sublet::allocator<int>> first(5, 7, ints), second(other.allocator<int>());
    second = first;
    CHECK(second.get_allocator() == ints && second[4] == 7);
    second = std::move(first);
    CHECK(std::accumulate(nodes.begin(), nodes.end(), 0) == 6 && second.size() == 5);
}

void memory_outlives_its_invoker() {
    auto invoker = std::make_unique<sublet::invoker>(leased());
    sublet::buffer<int> buffer = invoker->allocator<int>().input(10);
    std::vector<int, sublet::allocator<int>> vector(10, 1, invoker->allocator<int>());
    invoker.reset();
    buffer[9] = 1;
    vector.resize(5'000, 2);
    CHECK(buffer[9] + vector[9] + vector[4'999] == 4);
    leased(2); // the lease went with the invoker, not with the memory: both cores are free
}

void a_future_becomes_a_standard_one() {
    sublet::invoker invoker = leased();
    std::uint32_t out = 0;
    auto told = invoker.allocator<std::uint32_t>().input(1);
    tell(told, 0);
    std::future<std::size_t> held = invoker.submit("hold", told, nothing);
    CHECK(held.wait_for(0s) == std::future_status::timeout);
    tell(told, 1);
    CHECK(held.get() == 0);
    CHECK(invoker.submit("capacity", nothing, 0, &out, 1).to_std().get() == sizeof out);
    CHECK(out == sizeof out);
    std::future<std::size_t> refusing = invoker.submit("refuse", nothing, nothing);
    CHECK(status_of([&] { refusing.get(); }) == SUBLET_FUNCTION_FAILED);
    CHECK(status_of([] { (void)sublet::future().to_std(); }) == SUBLET_INVALID_ARGUMENT);
    std::future<std::size_t> lost = invoker.submit("nap", LONG_NAP, nothing);
    invoker.deallocate();
    CHECK(status_of([&] { lost.get(); }) == SUBLET_LEASE_ENDED);
}

void standard_futures_of_many_calls_all_come_true() {
    sublet::invoker invoker = leased(2);
    const sublet::function echo = invoker.find("echo");
    std::vector<char> out(500);
    for (int round = 0; round < 20; round++) {
        std::vector<std::future<std::size_t>> results;
        for (char &place : out) {
            results.push_back(invoker.submit(echo, "x", 1, &place, 1));
        }
        for (auto &result : results) {
            CHECK(result.get() == 1);
        }
        CHECK(out == std::vector<char>(500, 'x'));
        out.assign(500, ' ');
    }
}

void waiting_has_every_form_of_the_standard() {
    sublet::invoker invoker = leased();
    auto told = invoker.allocator<std::uint32_t>().input(1);
    tell(told, 0);
    sublet::future held = invoker.submit("hold", told, nothing);
    CHECK(!held.ready() && held.wait_for(1ms) == std::future_status::timeout);
    CHECK(held.wait_until(std::chrono::system_clock::now() - 1h) == std::future_status::timeout);
    tell(told, 1);
    held.wait();
    CHECK(held.ready() && held.wait_for(0s) == std::future_status::ready);
    CHECK(held.wait_for(std::chrono::hours::max()) == std::future_status::ready);
    CHECK(held.get_for(1h) == 0);
    sublet::future endless = invoker.submit("nap", LONG_NAP, nothing);
    CHECK(status_of([&] { endless.get_until(std::chrono::steady_clock::now() + 20ms); }) == SUBLET_DEADLINE_EXCEEDED);
    sublet::call_options hurry;
    hurry.timeout = 20ms;
    sublet::future hurried = invoker.submit("nap", LONG_NAP, nothing, hurry);
    CHECK(status_of([&] { hurried.get(); }) == SUBLET_DEADLINE_EXCEEDED);
    CHECK(invoker.submit("echo", "x", 1, nothing).get() == 1);
}

void errors_have_status_name_and_message() {
    CHECK(status_of([] { sublet::invoker nobody("unix:/nowhere/manager.sock"); }) == SUBLET_MANAGER_UNREACHABLE);
    sublet::invoker invoker;
    CHECK(status_of([&] { invoker.submit("task", nothing, nothing); }) == SUBLET_NOT_ALLOCATED);
    CHECK(status_of([&] { invoker.lease(); }) == SUBLET_NOT_ALLOCATED);
    invoker.allocate(package, 64, sublet::invoker::ALWAYS_WARM_INVOCATIONS);
    CHECK(status_of([&] { invoker.allocate(package, sublet::allocation{}); }) == SUBLET_ALREADY_ALLOCATED);
    CHECK(status_of([&] { invoker.find("nonsense"); }) == SUBLET_UNKNOWN_FUNCTION);
    try {
        invoker.submit("refuse", nothing, nothing).get();
        CHECK(!"a refusal came back as a result");
    } catch (const sublet::error &error) {
        CHECK(std::string(error.name()) == "function_failed");
        CHECK(std::string(error.what()).find("I would rather not") != std::string::npos);
    }
}

void an_exception_of_a_function_is_an_error_of_its_call() {
    sublet::invoker invoker;
    invoker.allocate(throwing_package, sublet::allocation{});
    for (int i = 0; i < 3; i++) {
        try {
            invoker.submit("throwing", nothing, nothing).get();
            CHECK(!"an exception came back as a result");
        } catch (const sublet::error &error) {
            CHECK(error.status() == SUBLET_FUNCTION_FAILED);
            CHECK(std::string(error.what()).find("too hot to handle") != std::string::npos);
        }
    }
    CHECK(invoker.deallocate().failed_calls == 3);
}

void policies_say_how_long_workers_poll() {
    CHECK(sublet::invoker::ALWAYS_WARM_INVOCATIONS.hot_ns() == SUBLET_ALWAYS_WARM);
    CHECK(sublet::invoker::ALWAYS_HOT_INVOCATIONS.hot_ns() == SUBLET_ALWAYS_HOT);
    CHECK(sublet::policy(2us).hot_ns() == 2'000 && sublet::policy(-1s).hot_ns() == 0);
    CHECK(sublet::policy(std::chrono::hours::max()).hot_ns() == SUBLET_ALWAYS_HOT);
    const auto polled = [](sublet::policy wait, std::chrono::nanoseconds time) {
        sublet::invoker invoker;
        invoker.allocate(package, 64, wait);
        invoker.submit("echo", "x", 1, nothing).get();
        std::this_thread::sleep_for(time);
        return invoker.deallocate().polling_ns;
    };
    // A machine that stands still needs a longer time to tell the two apart.
    bool is_more = false;
    for (std::chrono::nanoseconds time = 100ms; !is_more && time < 180s; time *= 2) {
        const auto half = static_cast<std::uint64_t>(time.count()) / 2;
        is_more = polled(sublet::invoker::ALWAYS_HOT_INVOCATIONS, time) >
                  polled(sublet::invoker::ALWAYS_WARM_INVOCATIONS, time) + half;
    }
    CHECK(is_more);
}

void a_call_can_choose_its_worker() {
    sublet::invoker invoker = leased(2);
    CHECK(invoker.lease().workers == 2);
    sublet::call_options second, third;
    second.worker = 1;
    third.worker = 2;
    CHECK(invoker.submit("echo", "x", 1, nothing, second).get() == 1);
    CHECK(status_of([&] { invoker.submit("echo", "x", 1, nothing, third); }) == SUBLET_INVALID_ARGUMENT);
}

void an_invoker_grows_and_its_access_can_be_said() {
    sublet::invoker invoker{sublet::access{}};
    sublet::allocation wanted;
    wanted.max_nodes = 1;
    wanted.pu = "cpu";
    for (const double weight : {-1.0, 1.001, 1e300}) {
        wanted.time_weight = weight;
        CHECK(status_of([&] { invoker.allocate(package, wanted); }) == SUBLET_INVALID_ARGUMENT);
    }
    wanted.time_weight = 1;
    wanted.isolation = "weak";
    CHECK(status_of([&] { invoker.allocate(package, wanted); }) == SUBLET_INSUFFICIENT_RESOURCES);
    wanted.isolation = "process";
    wanted.start_timeout = 60s;
    wanted.on_step = [](const std::string &step) { CHECK(!step.empty()); };
    invoker.allocate(package, wanted);
    CHECK(invoker.lease().isolation == "process");
    invoker.grow(1);
    CHECK(invoker.lease().workers == 2);
    CHECK(invoker.notices().empty());
    sublet::call_options second;
    second.worker = 1;
    second.retries = 1;
    CHECK(invoker.submit("echo", "x", 1, nothing, second).get() == 1);
    CHECK(invoker.deallocate().calls == 1);
    CHECK(status_of([&] { invoker.renew(1s); }) == SUBLET_NOT_ALLOCATED);
    sublet::access broken;
    broken.ca_file = "/nonexistent";
    CHECK(status_of([&] { sublet::invoker{broken}; }) == SUBLET_INVALID_ARGUMENT);
}

void threads_share_an_invoker() {
    const sublet::invoker invoker = leased(2);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            auto numbers = invoker.allocator<double>().input(2);
            for (int round = 0; round < 1'000; round++) {
                numbers[0] = round;
                invoker.submit("task", &numbers[0], 1, &numbers[1], 1).get();
                wrong += numbers[1] != 2.0 * round;
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    CHECK(wrong == 0);
}

void a_dropped_future_has_left_its_output_alone() {
    sublet::invoker invoker = leased();
    const auto before = std::chrono::steady_clock::now();
    invoker.submit("nap", SHORT_NAP, nothing);
    CHECK(std::chrono::steady_clock::now() - before >= 50ms);
}

const test TESTS[] = {
    TEST(owners_are_movable_and_not_copyable),
    TEST(containers_arrays_and_pointers_are_inputs_and_outputs),
    TEST(vectors_of_the_allocator_are_used_in_place),
    TEST(the_allocator_conforms_to_the_standard),
    TEST(memory_outlives_its_invoker),
    TEST(a_future_becomes_a_standard_one),
    TEST(standard_futures_of_many_calls_all_come_true),
    TEST(waiting_has_every_form_of_the_standard),
    TEST(errors_have_status_name_and_message),
    TEST(an_exception_of_a_function_is_an_error_of_its_call),
    TEST(policies_say_how_long_workers_poll),
    TEST(a_call_can_choose_its_worker),
    TEST(an_invoker_grows_and_its_access_can_be_said),
    TEST(threads_share_an_invoker),
    TEST(a_dropped_future_has_left_its_output_alone),
};

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: calls PACKAGE THROWING\n");
        return 2;
    }
    package = argv[1];
    throwing_package = argv[2];
    return run_tests(TESTS);
}
