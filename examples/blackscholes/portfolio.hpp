// Options to be priced: generated, or read from a file in the format of PARSEC's blackscholes.
//
// That is text: the number of options on the first line, then for each one
//
//     spot strike rate dividend-rate volatility years P|C dividends reference
//
// where the reference is the price that is expected. The dividends are read past: the formula has none.
#ifndef PORTFOLIO_HPP
#define PORTFOLIO_HPP

#include <cstddef>
#include <string>

#include "blackscholes.h"

struct quote {
    bs_option option;
    double reference; // the price, by a more exact formula than the one that is timed
};

// The `index`-th option of an endless, always equal sequence.
quote generate(std::size_t index);

// Reads options one after the other. Throws std::runtime_error that names the file and the line.
class portfolio_reader {
public:
    explicit portfolio_reader(const std::string &path);
    portfolio_reader(const portfolio_reader &) = delete;
    portfolio_reader &operator=(const portfolio_reader &) = delete;
    ~portfolio_reader();

    std::size_t count() const noexcept { return count_; }
    quote next();

private:
    void read_line();
    [[noreturn]] void fail(const std::string &what) const;

    std::string path_;
    void *file_;
    char line_[512];
    std::size_t line_number_ = 0;
    std::size_t count_ = 0;
};

// Writes `count` generated options.
void write_portfolio(const std::string &path, std::size_t count);

// Writes prices as PARSEC does: the number of them, then each on a line.
void write_prices(const std::string &path, const double *prices, std::size_t count);

#endif
