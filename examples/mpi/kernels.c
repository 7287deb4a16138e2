/* The kernels, and the functions that execute them on leased cores. A function gets an array of doubles. */
#include "kernels.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sublet_function.h>

/* A part of `b` with this many rows and columns stays in a core's second-level cache. */
enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 256 };

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

void multiply_rows(const double *a, const double *b, double *product, size_t rows, size_t inner, size_t columns) {
    memset(product, 0, rows * columns * sizeof *product);
    for (size_t left = 0; left < columns; left += BLOCK_COLUMNS) {
        const size_t width = smaller(BLOCK_COLUMNS, columns - left);
        for (size_t top = 0; top < inner; top += BLOCK_ROWS) {
            const size_t bottom = smaller(top + BLOCK_ROWS, inner);
            for (size_t row = 0; row < rows; row++) {
                double *restrict sums = product + row * columns + left;
                for (size_t k = top; k < bottom; k++) {
                    const double factor = a[row * inner + k];
                    const double *restrict values = b + k * columns + left;
                    for (size_t column = 0; column < width; column++) {
                        sums[column] += factor * values[column];
                    }
                }
            }
        }
    }
}

void improve_rows(const double *matrix, const double *right, const double *x, double *next, size_t first, size_t rows,
                  size_t unknowns) {
    for (size_t row = 0; row < rows; row++) {
        const double *coefficients = matrix + row * unknowns;
        double sum = 0.0;
        /* The compiler may add in another order, and so several products at once. */
#pragma omp simd reduction(+ : sum)
        for (size_t column = 0; column < unknowns; column++) {
            sum += coefficients[column] * x[column];
        }
        next[row] = x[first + row] + (right[row] - sum) / coefficients[first + row];
    }
}

/* Whether `values` doubles are this header, and matrices of these sizes. Sizes are limited so that no product overflows. */
static int has_header(const double *in, size_t values) {
    if (values < HEADER_VALUES) {
        return 0;
    }
    for (size_t i = 0; i < HEADER_VALUES; i++) {
        if (!(in[i] >= 0.0 && in[i] <= 1e6)) {
            return 0;
        }
    }
    return 1;
}

/* Input: rows, inner and columns; `a`; `b`. Output: their product. */
SUBLET_FUNCTION uint32_t multiply(void *in, uint32_t size, void *out, sublet_context *context) {
    const double *header = in;
    const size_t values = size / sizeof(double);
    if (!has_header(header, values)) {
        return sublet_fail(context, "multiply: the input does not begin with the sizes of the matrices");
    }
    const size_t rows = (size_t)header[0], inner = (size_t)header[1], columns = (size_t)header[2];
    const size_t bytes = rows * columns * sizeof(double);
    if (values != HEADER_VALUES + rows * inner + inner * columns) {
        return sublet_fail(context, "multiply: the input does not have the matrices whose sizes it states");
    }
    if (bytes > sublet_capacity(context)) {
        return sublet_fail(context, "multiply: the output is too small for the product");
    }
    const double *a = header + HEADER_VALUES;
    multiply_rows(a, a + rows * inner, out, rows, inner, columns);
    return (uint32_t)bytes;
}

/* The part of a system of equations that a worker keeps between calls. Each worker of a lease is a thread. */
static _Thread_local struct {
    size_t unknowns, rows, first;
    double *right; /* followed by the matrix, in the same allocation */
} kept;

/* Input: unknowns, rows and the first row; the rows of the right side; the rows of the matrix. The worker keeps a copy in
 * place of an earlier one. */
SUBLET_FUNCTION uint32_t keep(void *in, uint32_t size, void *out, sublet_context *context) {
    const double *header = in;
    const size_t values = size / sizeof(double);
    (void)out;
    if (!has_header(header, values)) {
        return sublet_fail(context, "keep: the input does not begin with the sizes of the matrix");
    }
    const size_t unknowns = (size_t)header[0], rows = (size_t)header[1], first = (size_t)header[2];
    if (values != HEADER_VALUES + rows + rows * unknowns || first + rows > unknowns) {
        return sublet_fail(context, "keep: the input does not have the rows whose number it states");
    }
    const size_t bytes = (values - HEADER_VALUES) * sizeof(double);
    double *copy = malloc(bytes ? bytes : 1);
    if (copy == NULL) {
        return sublet_fail(context, "keep: the lease has too little memory for the matrix");
    }
    memcpy(copy, header + HEADER_VALUES, bytes);
    free(kept.right);
    kept.right = copy;
    kept.unknowns = unknowns;
    kept.rows = rows;
    kept.first = first;
    return 0;
}

/* Input: the vector. Output: the rows of the next vector whose part of the matrix this worker keeps. */
SUBLET_FUNCTION uint32_t improve(void *in, uint32_t size, void *out, sublet_context *context) {
    if (kept.right == NULL) {
        return sublet_fail(context, "improve: this worker keeps no matrix; call keep first");
    }
    if (size != kept.unknowns * sizeof(double) || sublet_capacity(context) < kept.rows * sizeof(double)) {
        return sublet_fail(context, "improve: the vectors do not fit the matrix that this worker keeps");
    }
    improve_rows(kept.right + kept.rows, kept.right, in, out, kept.first, kept.rows, kept.unknowns);
    return (uint32_t)(kept.rows * sizeof(double));
}
