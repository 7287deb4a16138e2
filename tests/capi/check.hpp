// Helps the test programs in C++: a test is a function, and the first false condition ends it.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            throw std::logic_error(std::to_string(__LINE__) + ": " #condition);                                        \
        }                                                                                                              \
    } while (0)

struct test {
    const char *name;
    void (*run)();
};

#define TEST(name) test{#name, name}

// The name of the running test.
inline const char *running = "";

// Says that the running test checks nothing, since this machine lacks the device that it needs. A machine that has the device
// fails the test if CI is true.
inline void skip_without(const char *device, const char *why) {
    const char *ci = std::getenv("CI");
    std::FILE *file = std::fopen(device, "r+");
    const bool is_here = file != nullptr;
    if (is_here) {
        std::fclose(file);
    }
    CHECK(ci == nullptr || std::string_view(ci) != "true" || !is_here);
    std::printf("skipped: %s: %s\n", running, why);
}

// Runs each and says what became of it, as run.sh expects.
template <typename Tests>
int run_tests(const Tests &tests) {
    int failures = 0;
    for (const test &each : tests) {
        bool passed = true;
        running = each.name;
        try {
            each.run();
        } catch (const std::exception &error) {
            passed = false;
            failures++;
            std::printf("%s\n", error.what());
        }
        std::printf("test %s ... %s\n", each.name, passed ? "ok" : "FAILED");
        std::fflush(stdout);
    }
    return failures == 0 ? 0 : 1;
}

#endif // CHECK_HPP
