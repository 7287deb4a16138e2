// ranks.hpp: common parts of the MPI programs in C++: options, the rows of a rank, times, and the report.
#ifndef RANKS_HPP
#define RANKS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <mpi.h>
#include <sublet.hpp>

// Options of a program, with the values of those that are not given.
struct options {
    std::string library = "./libkernels.so";
    std::size_t size = 1000;
    std::size_t iterations = 100;
    std::size_t repeat = 11;
    bool json = false;
};

// A command line that cannot be understood.
struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline std::size_t parse_count(const std::string &name, const char *text) {
    char *end = nullptr;
    const unsigned long long number = std::strtoull(text, &end, 10);
    if (end == text || *end != '\0' || *text == '-' || number == 0 || number > 1'000'000) {
        throw usage_error(name + " must be a number from 1 to 1000000, not " + text);
    }
    return number;
}

inline options parse(int argc, char **argv) {
    options result;
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
        if (name == "--size") {
            result.size = parse_count(name, value);
        } else if (name == "--iterations") {
            result.iterations = parse_count(name, value);
        } else if (name == "--repeat") {
            result.repeat = parse_count(name, value);
        } else if (name == "--library") {
            result.library = value;
        } else {
            throw usage_error(name + " is unknown");
        }
    }
    return result;
}

// A range of rows of a matrix.
struct row_range {
    std::size_t first, count;

    // The part with this number, if the rows are divided into `parts` parts.
    row_range part(std::size_t number, std::size_t parts) const {
        const std::size_t begin = count * number / parts;
        return {first + begin, count * (number + 1) / parts - begin};
    }
};

// The ranks of this program. MPI is initialized as long as it exists.
class ranks {
public:
    ranks(int *argc, char ***argv) {
        MPI_Init(argc, argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
    }
    ranks(const ranks &) = delete;
    ranks &operator=(const ranks &) = delete;
    ~ranks() { MPI_Finalize(); }

    bool is_root() const { return rank_ == 0; }
    int count() const { return size_; }
    row_range own_rows(std::size_t rows) const { return row_range{0, rows}.part(rank_, size_); }

    // Gives every rank the rows of all ranks. Each row has `width` values.
    void gather(const double *own, std::vector<double> &all, std::size_t rows, std::size_t width) const {
        std::vector<int> counts, offsets;
        for (int rank = 0; rank < size_; rank++) {
            const row_range part = row_range{0, rows}.part(rank, size_);
            counts.push_back(static_cast<int>(part.count * width));
            offsets.push_back(static_cast<int>(part.first * width));
        }
        MPI_Allgatherv(own, counts[rank_], MPI_DOUBLE, all.data(), counts.data(), offsets.data(), MPI_DOUBLE, MPI_COMM_WORLD);
    }

    // The median over `repeat` measurements of the seconds that the slowest rank takes. One more, before, is not measured.
    double median_seconds(std::size_t repeat, const std::function<void()> &work) const {
        std::vector<double> seconds;
        work();
        for (std::size_t i = 0; i < repeat; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            const double begun = MPI_Wtime();
            work();
            double taken = MPI_Wtime() - begun;
            MPI_Allreduce(MPI_IN_PLACE, &taken, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            seconds.push_back(taken);
        }
        std::sort(seconds.begin(), seconds.end());
        return seconds[seconds.size() / 2];
    }

private:
    int rank_ = 0, size_ = 1;
};

// A value of the matrices, which every rank computes for itself: between -1/2 and 1/2, and without a visible pattern.
inline double value_at(std::size_t row, std::size_t column) {
    return static_cast<double>((row * 7919 + column * 104729 + row * column * 31) % 2003) / 2003.0 - 0.5;
}

inline double largest_difference(const std::vector<double> &a, const std::vector<double> &b) {
    double largest = 0.0;
    for (std::size_t i = 0; i < a.size(); i++) {
        const double difference = std::abs(a[i] - b[i]);
        // Not a number differs from everything.
        largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(largest, difference);
    }
    return largest;
}

// Leases a core on which calls take milliseconds, so that no core polls meanwhile.
inline void lease_core(sublet::invoker &invoker, const std::string &library, std::size_t memory_bytes) {
    sublet::allocation wanted;
    wanted.memory_bytes = memory_bytes;
    wanted.wait = sublet::invoker::ALWAYS_WARM_INVOCATIONS;
    wanted.spin = std::chrono::nanoseconds(0);
    wanted.capacity_wait = std::chrono::seconds(60);
    invoker.allocate(library, wanted);
}

struct report {
    double local_s, leased_s;
    double largest_difference; // between the results of the leased form and of one sequential computation
};

// Prints the report on one rank. Returns the exit status of the program, which is the same on all ranks.
inline int print(const ranks &world, const options &given, const report &made) {
    const bool equal = made.largest_difference == 0.0;
    if (world.is_root() && given.json) {
        std::printf("{\"ranks\": %d, \"local_s\": %.6f, \"leased_s\": %.6f, \"largest_difference\": %g, \"equal\": %s}\n",
                    world.count(), made.local_s, made.leased_s, made.largest_difference, equal ? "true" : "false");
    } else if (world.is_root()) {
        std::printf("ranks %d, size %zu, medians of %zu\n", world.count(), given.size, given.repeat);
        std::printf("  by the ranks:                 %10.3f ms\n", 1e3 * made.local_s);
        std::printf("  and a leased core for each:   %10.3f ms\n", 1e3 * made.leased_s);
        std::printf("  largest difference:           %10g\n", made.largest_difference);
    }
    return equal ? 0 : 1;
}

// Runs a program. An error on one rank ends all of them.
inline int run(int argc, char **argv, const char *usage, report (*work)(const ranks &, const options &)) {
    ranks world(&argc, &argv);
    int status = 1;
    try {
        const options given = parse(argc, argv);
        return print(world, given, work(world, given));
    } catch (const usage_error &error) {
        std::fprintf(stderr, "%s: %s\n%s", argv[0], error.what(), usage);
        status = 2;
    } catch (const sublet::error &error) {
        std::fprintf(stderr, "%s: %s: %s\n", argv[0], error.name(), error.what());
        status = static_cast<int>(error.status());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    }
    MPI_Abort(MPI_COMM_WORLD, status);
    return status;
}

#endif
