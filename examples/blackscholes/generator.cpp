// Writes options in PARSEC's format: generator COUNT FILE.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "portfolio.hpp"

int main(int argc, char **argv) {
    char *end = nullptr;
    const unsigned long long count = argc == 3 ? std::strtoull(argv[1], &end, 10) : 0;
    if (count == 0 || *end != '\0') {
        std::fprintf(stderr, "usage: generator COUNT FILE\n");
        return 2;
    }
    try {
        write_portfolio(argv[2], count);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "generator: %s\n", error.what());
        return 1;
    }
}
