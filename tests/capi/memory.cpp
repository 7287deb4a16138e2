// Memory components by the C++ interface, against a running Sublet.
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sublet_memory.hpp>

#include "check.hpp"

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t MIB = 1 << 20;

sublet::memory_plan plan(const std::string &fabric) {
    sublet::memory_plan plan;
    plan.initial_bytes = plan.increment_bytes = MIB;
    plan.limit_bytes = 8 * MIB;
    plan.fabric = fabric;
    return plan;
}

void components_are_movable_and_not_copyable() {
    static_assert(!std::is_copy_constructible_v<sublet::memory> && !std::is_copy_assignable_v<sublet::memory>);
    static_assert(std::is_nothrow_move_constructible_v<sublet::memory>);
    static_assert(std::is_nothrow_move_assignable_v<sublet::memory>);
    sublet::invoker invoker;
    sublet::memory first(invoker, plan("")), second(invoker, plan(""));
    first.write(0, std::vector<int>{1, 2, 3});
    second = std::move(first);
    CHECK(second.read<int>(4, 1).front() == 2);
}

void elements_over(const std::string &fabric) {
    sublet::invoker invoker;
    sublet::memory memory(invoker, plan(fabric));
    std::vector<double> values(300'000);
    std::iota(values.begin(), values.end(), 0.5);
    memory.write(0, values);
    CHECK(memory.size_bytes() == 2'400'000 && memory.capacity_bytes() == 3 * MIB);
    memory.sync();
    memory.prefetch(8, 800);
    CHECK(memory.read<double>(8, 1000)[999] == 1000.5);
    std::vector<double> back(values.size());
    memory.read_async(0, back.data(), 150'000);
    memory.read_async(8 * 150'000, back.data() + 150'000, 150'000);
    memory.wait();
    CHECK(back == values);
    const float one = 1;
    memory.write_async(3 * MIB, &one, 1);
    memory.sync();
    CHECK(memory.read<float>(3 * MIB, 1).front() == 1);
    memory.renew(60s);
    memory.resize(16);
    CHECK((memory.read<double>(0, 2) == std::vector<double>{0.5, 1.5}) && memory.capacity_bytes() == MIB);
    CHECK(memory.release().allocated_ns > 0);
}

void what_is_mapped_is_written_in_place() {
    sublet::invoker invoker;
    sublet::memory memory(invoker, plan("shm"));
    memory.resize(4096 + 4 * sizeof(int));
    int *ints = memory.mapped<int>(4096, 4);
    std::iota(ints, ints + 4, 7);
    CHECK((memory.read<int>(4096, 4) == std::vector<int>{7, 8, 9, 10}));
}

void what_cannot_be_throws() {
    sublet::invoker invoker;
    sublet::memory memory(invoker, plan(""));
    for (auto [status, body] : std::vector<std::pair<sublet_status, void (*)(sublet::memory &)>>{
             {SUBLET_INVALID_ARGUMENT, [](sublet::memory &memory) { memory.read<int>(0, 1); }},
             {SUBLET_MEMORY_EXCEEDED, [](sublet::memory &memory) { memory.resize(9 * MIB); }},
             {SUBLET_MEMORY_EXCEEDED, [](sublet::memory &memory) { memory.write(UINT64_MAX, "ab", 2); }},
         }) {
        sublet_status found = SUBLET_OK;
        try {
            body(memory);
        } catch (const sublet::error &error) {
            found = error.status();
        }
        CHECK(found == status);
    }
}

void elements_are_as_they_were() { elements_over(""); }
void elements_over_tcp_are_as_they_were() { elements_over("tcp"); }

const test TESTS[] = {
    TEST(components_are_movable_and_not_copyable),
    TEST(elements_are_as_they_were),
    TEST(elements_over_tcp_are_as_they_were),
    TEST(what_is_mapped_is_written_in_place),
    TEST(what_cannot_be_throws),
};

} // namespace

int main() { return run_tests(TESTS); }
