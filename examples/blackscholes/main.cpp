// Black-Scholes on leased cores: prices the same options on threads of this process, on as many leased workers, and half
// here and half there; compares results and times; shows the lease and the bill. See README.md.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <sublet.hpp>

#include "portfolio.hpp"
#include "pricing.hpp"

namespace {

// A call's sizes have 32 bits, and one call prices the options of a worker.
constexpr std::size_t MAX_OPTIONS = UINT32_MAX / sizeof(bs_option);
// How far a price may be from its reference: what PARSEC checks.
constexpr double MAX_ERROR = 1e-4;

struct arguments {
    std::string library = "./libblackscholes.so";
    std::string input;
    std::string output;
    std::size_t options = 1'000'000;
    std::size_t workers = 2;
    std::size_t threads = 0; // 0: the number of workers
    std::size_t runs = 20;
    std::size_t repeat = 5;
    bool json = false;
};

const char *const USAGE = R"(usage: blackscholes [OPTION...]
  --options N    price N generated options (1000000)
  --input FILE   price the options of a file in PARSEC's format instead
  --output FILE  write the prices as PARSEC does
  --workers N    leased cores (2)
  --threads N    threads that price all options without leased cores (the number of workers)
  --runs N       price each option N times, as PARSEC's NUM_RUNS (20)
  --repeat N     measure N times and take medians (5)
  --library FILE the shared object of the function (./libblackscholes.so)
  --json         print one line of JSON
)";

// A command line that cannot be understood.
struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

std::size_t parse_count(const std::string &name, const char *text) {
    char *end = nullptr;
    const unsigned long long number = std::strtoull(text, &end, 10);
    if (end == text || *end != '\0' || *text == '-' || number == 0) {
        throw usage_error(name + " takes a number from 1 on, not " + text);
    }
    return number;
}

arguments parse(int argc, char **argv) {
    arguments result;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--json") {
            result.json = true;
            continue;
        }
        if (i + 1 == argc) {
            throw usage_error(name + " is unknown or lacks its value");
        }
        const char *value = argv[++i];
        if (name == "--options") {
            result.options = parse_count(name, value);
        } else if (name == "--workers") {
            result.workers = parse_count(name, value);
        } else if (name == "--threads") {
            result.threads = parse_count(name, value);
        } else if (name == "--runs") {
            result.runs = parse_count(name, value);
        } else if (name == "--repeat") {
            result.repeat = parse_count(name, value);
        } else if (name == "--input") {
            result.input = value;
        } else if (name == "--output") {
            result.output = value;
        } else if (name == "--library") {
            result.library = value;
        } else {
            throw usage_error(name + " is unknown");
        }
    }
    return result;
}

// The options, in memory that the workers share, and what they should cost.
struct portfolio {
    sublet::buffer<bs_option> options;
    std::vector<double> references;
};

portfolio load(const sublet::invoker &invoker, std::size_t count, const std::function<quote(std::size_t)> &next) {
    if (count > MAX_OPTIONS) {
        throw std::runtime_error("at most " + std::to_string(MAX_OPTIONS) + " options fit a call");
    }
    portfolio result{invoker.allocator<bs_option>().input(count), std::vector<double>(count)};
    for (std::size_t i = 0; i < count; i++) {
        const quote made = next(i);
        result.options[i] = made.option;
        result.references[i] = made.reference;
    }
    return result;
}

portfolio load(const sublet::invoker &invoker, const arguments &given) {
    if (given.input.empty()) {
        return load(invoker, given.options, generate);
    }
    portfolio_reader reader(given.input);
    return load(invoker, reader.count(), [&reader](std::size_t) { return reader.next(); });
}

double largest_difference(const double *a, const double *b, std::size_t count) {
    double largest = 0.0;
    for (std::size_t i = 0; i < count; i++) {
        // Not a number differs from everything.
        const double difference = std::abs(a[i] - b[i]);
        largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
    }
    return largest;
}

// One way of pricing, its results and its times.
struct way {
    std::string name;
    std::function<void(double *)> price;
    sublet::buffer<double> prices;
    std::vector<double> seconds;

    void measure() {
        const auto start = std::chrono::steady_clock::now();
        price(prices.data());
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }

    double median() const {
        std::vector<double> sorted = seconds;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 2];
    }
};

std::string plural(std::size_t count, const char *what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// Every way once to touch all memory, then in turn, so that whatever slows the machine down slows each.
std::vector<way> measure(const pricing &work, const sublet::invoker &invoker, std::size_t count,
                         const arguments &given) {
    const range all{0, count};
    const std::size_t workers = given.workers, threads = given.threads == 0 ? workers : given.threads;
    const std::size_t here = (workers + 1) / 2, there = std::max<std::size_t>(workers / 2, 1);
    auto alloc = invoker.allocator<double>();
    std::vector<way> ways;
    ways.push_back({plural(threads, "thread"), [&, all, threads](double *out) { work.on_threads(all, threads, out); },
                    alloc.output(count), {}});
    ways.push_back({plural(workers, "leased worker"), [&, all](double *out) { work.on_workers(all, workers, out); },
                    alloc.output(count), {}});
    ways.push_back({plural(here, "thread") + " and " + plural(there, "leased worker"),
                    [&, all](double *out) { work.on_both(all, here, there, out); }, alloc.output(count), {}});
    for (way &each : ways) {
        each.measure();
        each.seconds.clear();
    }
    for (std::size_t i = 0; i < given.repeat; i++) {
        for (way &each : ways) {
            each.measure();
        }
    }
    return ways;
}

// The results that the program prints.
struct report {
    sublet::lease lease;
    sublet::bill bill;
    std::size_t options;
    std::size_t runs;
    std::size_t workers;
    std::vector<std::pair<std::string, double>> seconds; // by way: threads, workers, both
    double largest_difference;
    double largest_error;

    double ratio(std::size_t which) const { return seconds[0].second / seconds[which].second; }
    bool good() const { return largest_difference == 0.0 && largest_error <= MAX_ERROR; }
};

double seconds_of(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }
double milliseconds_of(std::chrono::nanoseconds time) {
    return std::chrono::duration<double, std::milli>(time).count();
}

void print(const report &told) {
    const sublet::lease &lease = told.lease;
    std::printf("lease    %s: %s of %s with %.1f MiB, started in %.2f ms\n", lease.id.c_str(),
                plural(lease.workers, "core").c_str(), lease.node.c_str(),
                static_cast<double>(lease.memory_bytes) / (1 << 20), milliseconds_of(lease.start));
    std::printf("options  %zu, each priced %zu times in double precision\n\n", told.options, told.runs);
    std::printf("%-32s %9s %14s %7s\n", "", "seconds", "options/s", "speed");
    const double priced = static_cast<double>(told.options) * static_cast<double>(told.runs);
    for (std::size_t i = 0; i < told.seconds.size(); i++) {
        const auto &[name, seconds] = told.seconds[i];
        std::printf("%-32s %9.3f %14.0f %7.3f\n", name.c_str(), seconds, priced / seconds, told.ratio(i));
    }
    std::printf("\nlargest difference between them      %g\n", told.largest_difference);
    std::printf("largest difference from references   %.2g\n", told.largest_error);
    const sublet::bill &bill = told.bill;
    std::printf("bill     %llu calls: %.3f s allocated, %.3f s executing, %.3f s polling: %.9f units\n",
                static_cast<unsigned long long>(bill.calls), seconds_of(bill.allocated_ns), seconds_of(bill.executing_ns),
                seconds_of(bill.polling_ns), seconds_of(bill.total_nano));
}

void print_json(const report &told) {
    const sublet::bill &bill = told.bill;
    std::printf("{\"bench\":\"blackscholes\",\"options\":%zu,\"runs\":%zu,\"workers\":%zu,", told.options, told.runs,
                told.workers);
    std::printf("\"local_s\":%.6f,\"offloaded_s\":%.6f,\"half_s\":%.6f,\"ratio\":%.4f,\"half_ratio\":%.4f,",
                told.seconds[0].second, told.seconds[1].second, told.seconds[2].second, told.ratio(1), told.ratio(2));
    std::printf("\"largest_difference\":%g,\"largest_error\":%g,\"lease\":\"%s\",\"start_ms\":%.3f,",
                told.largest_difference, told.largest_error, told.lease.id.c_str(), milliseconds_of(told.lease.start));
    std::printf("\"bill\":{\"calls\":%llu,\"allocated_ns\":%llu,\"executing_ns\":%llu,\"polling_ns\":%llu,"
                "\"total_nano\":%llu}}\n",
                static_cast<unsigned long long>(bill.calls), static_cast<unsigned long long>(bill.allocated_ns),
                static_cast<unsigned long long>(bill.executing_ns), static_cast<unsigned long long>(bill.polling_ns),
                static_cast<unsigned long long>(bill.total_nano));
}

report run(const arguments &given) {
    const local_function local(given.library);
    sublet::invoker invoker;
    sublet::allocation wanted;
    wanted.cores = static_cast<std::uint32_t>(given.workers);
    // A call takes milliseconds: neither side is worth a core that polls meanwhile.
    wanted.wait = sublet::invoker::ALWAYS_WARM_INVOCATIONS;
    wanted.spin = std::chrono::nanoseconds(0);
    invoker.allocate(given.library, wanted);
    const sublet::lease lease = invoker.lease();

    const portfolio book = load(invoker, given);
    const std::size_t count = book.options.size();
    const pricing work(local, invoker, book.options.data(), given.runs);
    const std::vector<way> ways = measure(work, invoker, count, given);

    report told{lease, invoker.deallocate(), count, given.runs, given.workers, {}, 0.0, 0.0};
    for (const way &each : ways) {
        told.seconds.emplace_back(each.name, each.median());
        told.largest_difference =
            std::max(told.largest_difference, largest_difference(ways[0].prices.data(), each.prices.data(), count));
    }
    told.largest_error = largest_difference(ways[1].prices.data(), book.references.data(), count);
    if (!given.output.empty()) {
        write_prices(given.output, ways[1].prices.data(), count);
    }
    return told;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        std::fputs(USAGE, stdout);
        return 0;
    }
    try {
        const arguments given = parse(argc, argv);
        const report told = run(given);
        given.json ? print_json(told) : print(told);
        if (!told.good()) {
            std::fprintf(stderr, "blackscholes: the results differ\n");
        }
        return told.good() ? 0 : 1;
    } catch (const usage_error &error) {
        std::fprintf(stderr, "blackscholes: %s\n%s", error.what(), USAGE);
        return 2;
    } catch (const sublet::error &error) {
        std::fprintf(stderr, "blackscholes: %s: %s\n", error.name(), error.what());
        return static_cast<int>(error.status());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "blackscholes: %s\n", error.what());
        return 1;
    }
}
