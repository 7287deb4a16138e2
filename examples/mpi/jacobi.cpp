// Solves a system of linear equations by Jacobi's method in the ranks of an MPI program. A rank has some rows of the matrix; in
// each iteration it computes its rows of the next vector, and all ranks exchange them. First each rank computes alone, then it
// leaves half of its rows to a core that it leases. The worker gets these rows once and keeps them: an iteration sends only
// the vector. Both results are compared with the solution as one process computes it. See README.md.
#include "kernels.h"
#include "ranks.hpp"

namespace {

const char *const USAGE = R"(usage: mpirun [-n RANKS] jacobi [OPTION...]
  --size N       unknowns, and equations (1000)
  --iterations N iterations (100)
  --repeat N     measure N times and take medians (11)
  --library FILE the shared object of the functions (./libkernels.so)
  --json         print one line of JSON
)";

// Rows of a system of equations. With a diagonal larger than the rest of its row, Jacobi's method converges.
struct equations {
    equations(row_range which, std::size_t unknowns) : rows(which), unknowns(unknowns) {
        for (std::size_t row = rows.first; row < rows.first + rows.count; row++) {
            right.push_back(value_at(row, unknowns));
            for (std::size_t column = 0; column < unknowns; column++) {
                matrix.push_back(row == column ? static_cast<double>(unknowns) : value_at(row, column));
            }
        }
    }

    // Computes the rows of the next vector, from one with this number on.
    void improve(const double *x, double *next, std::size_t from) const {
        improve_rows(matrix.data() + from * unknowns, right.data() + from, x, next, rows.first + from, rows.count - from,
                     unknowns);
    }

    row_range rows;
    std::size_t unknowns;
    std::vector<double> right, matrix;
};

// One rank's part of an iteration, with the upper half of its rows on a leased core.
class leased_rows {
public:
    leased_rows(const std::string &library, const equations &own) : own_(own), count_(own.rows.count / 2) {
        const std::size_t values = HEADER_VALUES + count_ + count_ * own.unknowns;
        lease_core(invoker_, library, values * sizeof(double) + (64 << 20));
        auto alloc = invoker_.allocator<double>();
        x_ = alloc.input(own.unknowns);
        next_ = alloc.output(std::max<std::size_t>(count_, 1));

        auto in = alloc.input(values);
        const double header[HEADER_VALUES] = {double(own.unknowns), double(count_), double(own.rows.first)};
        double *end = std::copy(header, header + HEADER_VALUES, in.data());
        end = std::copy(own.right.begin(), own.right.begin() + count_, end);
        std::copy(own.matrix.begin(), own.matrix.begin() + count_ * own.unknowns, end);
        invoker_.submit("keep", in, next_).get();
    }

    void improve(const std::vector<double> &x, double *next) {
        std::copy(x.begin(), x.end(), x_.begin());
        sublet::future leased = invoker_.submit("improve", x_, next_);
        own_.improve(x.data(), next + count_, count_);
        leased.get();
        std::copy(next_.begin(), next_.begin() + count_, next);
    }

private:
    const equations &own_;
    const std::size_t count_;
    sublet::invoker invoker_;
    sublet::buffer<double> x_, next_;
};

// Iterates from 0 on; `improve` computes this rank's rows of the next vector.
template <typename Improve>
void solve(const ranks &world, std::size_t iterations, std::size_t own_rows, std::vector<double> &x, Improve improve) {
    std::vector<double> next(own_rows);
    std::fill(x.begin(), x.end(), 0.0);
    for (std::size_t i = 0; i < iterations; i++) {
        improve(x, next.data());
        world.gather(next.data(), x, x.size(), 1);
    }
}

std::vector<double> solve_sequentially(std::size_t unknowns, std::size_t iterations) {
    const equations all({0, unknowns}, unknowns);
    std::vector<double> x(unknowns), next(unknowns);
    for (std::size_t i = 0; i < iterations; i++) {
        all.improve(x.data(), next.data(), 0);
        x.swap(next);
    }
    return x;
}

report work(const ranks &world, const options &given) {
    const row_range rows = world.own_rows(given.size);
    const equations own(rows, given.size);
    std::vector<double> local(given.size), leased(given.size);
    const double local_s = world.median_seconds(given.repeat, [&] {
        solve(world, given.iterations, rows.count, local,
              [&](const std::vector<double> &x, double *next) { own.improve(x.data(), next, 0); });
    });
    leased_rows half(given.library, own);
    const double leased_s = world.median_seconds(given.repeat, [&] {
        solve(world, given.iterations, rows.count, leased,
              [&](const std::vector<double> &x, double *next) { half.improve(x, next); });
    });
    return {local_s, leased_s, largest_difference(leased, solve_sequentially(given.size, given.iterations))};
}

} // namespace

int main(int argc, char **argv) { return run(argc, argv, USAGE, work); }
