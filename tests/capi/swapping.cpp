// Swapped arrays by the C++ interface, against a running Sublet.
#include <algorithm>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include <sublet_swap.hpp>

#include "check.hpp"

namespace {

constexpr std::size_t MIB = 1 << 20;

// Nothing where it is not permitted, so that there is nothing to be shown.
std::optional<sublet::swapped<float>> swapped(const sublet::invoker &invoker) {
    try {
        return sublet::swapped<float>(invoker, 12 * MIB, 16 * MIB, {}, sublet::touching::one_at_a_time);
    } catch (const sublet::error &error) {
        if (error.status() != SUBLET_LIMIT_TOO_LOW) {
            throw;
        }
        skip_without("/dev/userfaultfd", error.what());
        return std::nullopt;
    }
}

void an_array_is_larger_than_what_is_here() {
    static_assert(!std::is_copy_constructible_v<sublet::swapped<int>>);
    static_assert(std::is_nothrow_move_constructible_v<sublet::swapped<int>>);
    sublet::invoker invoker;
    auto made = swapped(invoker);
    if (!made) {
        return;
    }
    auto values = std::move(*made);
    std::fill(values.begin(), values.end(), 0.5F);
    values[values.size() - 1] = 1.5F;
    CHECK(std::accumulate(values.begin(), values.end(), 0.0) == 6 * MIB + 1);
    values.check();
    CHECK(values.statistics().resident_bytes <= 16 * MIB && values.statistics().written_bytes >= 32 * MIB);
}

void what_cannot_be_throws() {
    sublet::invoker invoker;
    sublet_status status = SUBLET_OK;
    try {
        sublet::swapped<float>(invoker, 0, 16 * MIB);
    } catch (const sublet::error &error) {
        status = error.status();
    }
    CHECK(status == SUBLET_INVALID_ARGUMENT);
}

const test TESTS[] = {
    TEST(an_array_is_larger_than_what_is_here),
    TEST(what_cannot_be_throws),
};

} // namespace

int main() { return run_tests(TESTS); }
