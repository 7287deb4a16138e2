// Leases a core, calls two functions on it, and gives it back. The same program is in c/, rust/, python/,
// fortran/ and go/; the functions are in functions/. With `sublet up` running:
//
//     c++ -O2 -std=c++17 hello.cpp $(pkg-config --cflags --libs sublet) -o hello
//     ./hello ./libhello.so
#include <cstdio>
#include <cstring>

#include <sublet.hpp>

constexpr std::size_t OUTPUT_BYTES = 64;

static void run(const char *package) {
    // A lease of one core. It takes some milliseconds; calls take less than one thousandth of that.
    sublet::invoker invoker;
    invoker.allocate(package, sublet::allocation{});

    // Memory that the worker shares, so that nothing is copied.
    auto alloc = invoker.allocator<char>();
    auto input = alloc.input(OUTPUT_BYTES);
    auto greeting = alloc.output(OUTPUT_BYTES);
    auto loud = alloc.output(OUTPUT_BYTES);
    std::memcpy(input.data(), "world", 5);

    std::size_t size = invoker.submit("greet", input, 5, greeting).get();
    std::printf("%.*s\n", static_cast<int>(size), greeting.data());

    // The output of one call is the input of the next.
    size = invoker.submit("shout", greeting, size, loud).get();
    std::printf("%.*s\n", static_cast<int>(size), loud.data());

    // A call that fails says why.
    try {
        invoker.submit("greet", input, 0, greeting).get();
    } catch (const sublet::error &error) {
        std::printf("%s: %s\n", error.name(), error.what());
    }

    const sublet::bill bill = invoker.deallocate();
    std::printf("%llu calls, %llu of them failed\n", static_cast<unsigned long long>(bill.calls),
                static_cast<unsigned long long>(bill.failed_calls));
}

int main(int argc, char **argv) {
    try {
        run(argc > 1 ? argv[1] : "./libhello.so");
        return 0;
    } catch (const sublet::error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
        return static_cast<int>(error.status());
    }
}
