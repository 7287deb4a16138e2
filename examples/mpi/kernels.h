/* kernels.h: the kernels of the MPI programs, which ranks and leased workers execute. Matrices are stored by rows. */
#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers before the matrices in the inputs of the functions: see kernels.c. */
enum { HEADER_VALUES = 3 };

/* Computes rows of a product: `product` (rows x columns) = `a` (rows x inner) * `b` (inner x columns). */
void multiply_rows(const double *a, const double *b, double *product, size_t rows, size_t inner, size_t columns);

/* Computes rows from `first` on of the next vector of Jacobi's method, x + (right - matrix x) / diagonal. `matrix` and
 * `right` have these rows only, `x` has all unknowns. */
void improve_rows(const double *matrix, const double *right, const double *x, double *next, size_t first, size_t rows,
                  size_t unknowns);

#ifdef __cplusplus
}
#endif

#endif
