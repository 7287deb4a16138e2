// Generates options, and reads and writes them in the format of PARSEC's blackscholes.

#include "portfolio.hpp"

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace {

// SplitMix64, from 0 to 1: the same numbers on every machine.
double uniform(std::uint64_t seed) {
    std::uint64_t bits = (seed + 1) * 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53;
}

double exact_normal(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double exact_price(const bs_option &option) {
    const double deviation = option.volatility * std::sqrt(option.years);
    const double drift = (option.rate + 0.5 * option.volatility * option.volatility) * option.years;
    const double d1 = (std::log(option.spot / option.strike) + drift) / deviation;
    const double d2 = d1 - deviation;
    const double strike_now = option.strike * std::exp(-option.rate * option.years);
    if (option.is_put != 0) {
        return strike_now * exact_normal(-d2) - option.spot * exact_normal(-d1);
    }
    return option.spot * exact_normal(d1) - strike_now * exact_normal(d2);
}

// Two digits after the point, as prices have, so that a file keeps them exactly.
double cents(double value) { return std::round(value * 100.0) / 100.0; }

[[noreturn]] void fail_system(const std::string &path) {
    throw std::runtime_error(path + ": " + std::strerror(errno));
}

std::FILE *open(const std::string &path, const char *mode) {
    std::FILE *file = std::fopen(path.c_str(), mode);
    if (file == nullptr) {
        fail_system(path);
    }
    return file;
}

void close_written(std::FILE *file, const std::string &path) {
    const bool failed = std::ferror(file) != 0;
    if (std::fclose(file) != 0 || failed) {
        fail_system(path);
    }
}

// Takes a number off the front of `text`; false if there is none.
bool take(char *&text, double &number) {
    char *end = nullptr;
    number = std::strtod(text, &end);
    const bool found = end != text;
    text = end;
    return found;
}

} // namespace

quote generate(std::size_t index) {
    const auto draw = [index](std::uint64_t which) { return uniform(index * 8 + which); };
    bs_option option{};
    option.spot = cents(20.0 + 100.0 * draw(0));
    option.strike = cents(option.spot * (0.7 + 0.6 * draw(1)));
    option.rate = cents(0.01 + 0.09 * draw(2));
    option.volatility = cents(0.05 + 0.60 * draw(3));
    option.years = cents(0.10 + 1.90 * draw(4));
    option.is_put = draw(5) < 0.5 ? 1 : 0;
    return {option, exact_price(option)};
}

portfolio_reader::portfolio_reader(const std::string &path) : path_(path), file_(open(path, "r")) {
    try {
        read_line();
        char *end = nullptr;
        const unsigned long long count = std::strtoull(line_, &end, 10);
        if (end == line_ || count == 0) {
            fail("the first line is not the number of options");
        }
        count_ = count;
    } catch (...) {
        std::fclose(static_cast<std::FILE *>(file_));
        throw;
    }
}

portfolio_reader::~portfolio_reader() { std::fclose(static_cast<std::FILE *>(file_)); }

quote portfolio_reader::next() {
    read_line();
    char *text = line_;
    double dividend_rate = 0.0, dividends = 0.0;
    quote read{};
    bs_option &option = read.option;
    bool good = take(text, option.spot) && take(text, option.strike) && take(text, option.rate) &&
                take(text, dividend_rate) && take(text, option.volatility) && take(text, option.years);
    text += std::strspn(text, " \t");
    const char kind = *text;
    good = good && (kind == 'P' || kind == 'C');
    option.is_put = kind == 'P' ? 1 : 0;
    if (!good || !take(++text, dividends) || !take(text, read.reference)) {
        fail("not an option: spot strike rate dividend-rate volatility years P|C dividends reference");
    }
    return read;
}

void portfolio_reader::read_line() {
    line_number_++;
    if (std::fgets(line_, sizeof line_, static_cast<std::FILE *>(file_)) == nullptr) {
        fail("the file ends before its last option");
    }
}

void portfolio_reader::fail(const std::string &what) const {
    throw std::runtime_error(path_ + ":" + std::to_string(line_number_) + ": " + what);
}

void write_portfolio(const std::string &path, std::size_t count) {
    std::FILE *file = open(path, "w");
    std::fprintf(file, "%zu\n", count);
    for (std::size_t i = 0; i < count; i++) {
        const quote made = generate(i);
        const bs_option &option = made.option;
        std::fprintf(file, "%.2f %.2f %.2f 0.00 %.2f %.2f %c 0.00 %.17g\n", option.spot, option.strike, option.rate,
                     option.volatility, option.years, option.is_put != 0 ? 'P' : 'C', made.reference);
    }
    close_written(file, path);
}

void write_prices(const std::string &path, const double *prices, std::size_t count) {
    std::FILE *file = open(path, "w");
    std::fprintf(file, "%zu\n", count);
    for (std::size_t i = 0; i < count; i++) {
        std::fprintf(file, "%.18f\n", prices[i]);
    }
    close_written(file, path);
}
