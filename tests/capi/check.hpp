// Helps the test programs in C++: a test is a function, and the first false condition ends it.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

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

// Runs each and says what became of it, as run.sh expects.
template <typename Tests>
int run_tests(const Tests &tests) {
    int failures = 0;
    for (const test &each : tests) {
        bool passed = true;
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
