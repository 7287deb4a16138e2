/* Declares the data that the program and its function exchange. */
#ifndef BLACKSCHOLES_H
#define BLACKSCHOLES_H

#include <stdint.h>

/* A European option without dividends. All numbers are of double precision; PARSEC's default is single. */
typedef struct bs_option {
    double spot;       /* price of what the option is on */
    double strike;     /* price at which it may be bought or sold */
    double rate;       /* riskless interest, a year, as 0.05 */
    double volatility; /* a year, as 0.2 */
    double years;      /* until it expires */
    uint64_t is_put;   /* 0: may be bought (call), 1: may be sold (put) */
} bs_option;

#endif
