/* The function: prices options by the formula of Black and Scholes, as PARSEC's benchmark of that name does. */
#include <math.h>
#include <stddef.h>

#include <sublet_function.h>

#include "blackscholes.h"

/* The cumulative normal distribution by five terms of a polynomial (Abramowitz and Stegun, 26.2.17), good to 7.5e-8. */
static double normal(double x) {
    const double inverse_sqrt_two_pi = 0.39894228040143270286;
    double k = 1.0 / (1.0 + 0.2316419 * fabs(x));
    double terms = 1.330274429;
    terms = terms * k - 1.821255978;
    terms = terms * k + 1.781477937;
    terms = terms * k - 0.356563782;
    terms = terms * k + 0.319381530;
    double tail = inverse_sqrt_two_pi * exp(-0.5 * x * x) * terms * k;
    return x < 0.0 ? tail : 1.0 - tail;
}

static double price_of(const bs_option *option) {
    double deviation = option->volatility * sqrt(option->years);
    double drift = (option->rate + 0.5 * option->volatility * option->volatility) * option->years;
    double d1 = (log(option->spot / option->strike) + drift) / deviation;
    double n1 = normal(d1);
    double n2 = normal(d1 - deviation);
    double strike_now = option->strike * exp(-option->rate * option->years);
    if (option->is_put)
        return strike_now * (1.0 - n2) - option->spot * (1.0 - n1);
    return option->spot * n1 - strike_now * n2;
}

/* Input: options. Output: the price of each. */
SUBLET_FUNCTION uint32_t price(void *in, uint32_t size, void *out) {
    const bs_option *options = in;
    double *prices = out;
    size_t count = size / sizeof *options;
    for (size_t i = 0; i < count; i++)
        prices[i] = price_of(&options[i]);
    return (uint32_t)(count * sizeof *prices);
}
