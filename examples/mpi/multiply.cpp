// Multiplies matrices in the ranks of an MPI program: each rank computes its rows of the product alone, then leaves half of
// them to a core that it leases. Both results are compared with the product as one process computes it. See README.md.
#include "kernels.h"
#include "ranks.hpp"

namespace {

const char *const USAGE = R"(usage: mpirun [-n RANKS] multiply [OPTION...]
  --size N       rows and columns of the matrices (1000)
  --repeat N     measure N times and take medians (11)
  --library FILE the shared object of the functions (./libkernels.so)
  --json         print one line of JSON
)";

std::vector<double> generate(row_range rows, std::size_t columns, std::size_t shift) {
    std::vector<double> matrix;
    matrix.reserve(rows.count * columns);
    for (std::size_t row = rows.first; row < rows.first + rows.count; row++) {
        for (std::size_t column = 0; column < columns; column++) {
            matrix.push_back(value_at(row + shift, column));
        }
    }
    return matrix;
}

// The upper half of a rank's rows on a leased core, the lower half on the rank.
class leased_product {
public:
    leased_product(const std::string &library, const std::vector<double> &a, const std::vector<double> &b, std::size_t size)
        : a_(a), b_(b), size_(size), rows_(a.size() / size), leased_rows_(rows_ / 2) {
        lease_core(invoker_, library, (b.size() + 2 * a.size()) * sizeof(double) + (64 << 20));
        auto alloc = invoker_.allocator<double>();
        const std::size_t leased_values = leased_rows_ * size;
        in_ = alloc.input(HEADER_VALUES + leased_values + b.size());
        out_ = alloc.output(std::max<std::size_t>(leased_values, 1));
        const double header[HEADER_VALUES] = {double(leased_rows_), double(size), double(size)};
        double *end = std::copy(header, header + HEADER_VALUES, in_.data());
        end = std::copy(a.begin(), a.begin() + leased_values, end);
        std::copy(b.begin(), b.end(), end);
    }

    void operator()(std::vector<double> &product) {
        const std::size_t leased_values = leased_rows_ * size_;
        sublet::future leased = invoker_.submit("multiply", in_, out_);
        multiply_rows(a_.data() + leased_values, b_.data(), product.data() + leased_values, rows_ - leased_rows_, size_, size_);
        leased.get();
        std::copy(out_.begin(), out_.begin() + leased_values, product.begin());
    }

private:
    const std::vector<double> &a_, &b_;
    const std::size_t size_, rows_, leased_rows_;
    sublet::invoker invoker_;
    sublet::buffer<double> in_, out_;
};

report work(const ranks &world, const options &given) {
    const std::size_t size = given.size;
    const row_range own = world.own_rows(size);
    const std::vector<double> a = generate(own, size, 0);
    std::vector<double> b(size * size);
    if (world.is_root()) {
        b = generate({0, size}, size, 1);
    }
    MPI_Bcast(b.data(), static_cast<int>(b.size()), MPI_DOUBLE, 0, MPI_COMM_WORLD);

    std::vector<double> local(own.count * size), leased(own.count * size);
    const double local_s = world.median_seconds(
        given.repeat, [&] { multiply_rows(a.data(), b.data(), local.data(), own.count, size, size); });
    leased_product multiply(given.library, a, b, size);
    const double leased_s = world.median_seconds(given.repeat, [&] { multiply(leased); });

    std::vector<double> product(size * size), expected(size * size);
    world.gather(leased.data(), product, size, size);
    const std::vector<double> whole = generate({0, size}, size, 0);
    multiply_rows(whole.data(), b.data(), expected.data(), size, size, size);
    return {local_s, leased_s, largest_difference(product, expected)};
}

} // namespace

int main(int argc, char **argv) { return run(argc, argv, USAGE, work); }
