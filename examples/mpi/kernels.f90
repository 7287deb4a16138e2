! The kernels of the MPI programs in Fortran, which ranks and leased workers execute. A column of an array is a row of its matrix:
! so the rows of a rank are one piece of memory, stored as in C.
module kernels
    use, intrinsic :: iso_fortran_env, only: int64, real64
    implicit none
    private

    public :: multiply_rows, improve_rows, value_at, header_values

    ! Numbers before the matrices in the inputs of the functions.
    integer, parameter :: header_values = 3

contains

    ! Computes rows of the product of `a` and `b`.
    pure subroutine multiply_rows(a, b, product)
        real(real64), intent(in), contiguous :: a(:, :), b(:, :)
        real(real64), intent(out), contiguous :: product(:, :)

        ! The order is reversed, since the arrays are the transposed matrices.
        product = matmul(b, a)
    end subroutine

    ! Computes rows of the next vector, x + (b - A x) / diag(A), from row `first` on.
    pure subroutine improve_rows(first, a, b, x, next)
        integer, intent(in) :: first
        real(real64), intent(in), contiguous :: a(:, :), b(:), x(:)
        real(real64), intent(out), contiguous :: next(:)
        real(real64) :: total
        integer :: row, column

        do row = 1, size(b)
            total = 0
            ! The compiler may add in another order, and so several products at once.
            !$omp simd reduction(+:total)
            do column = 1, size(x)
                total = total + a(column, row) * x(column)
            end do
            next(row) = x(first + row - 1) + (b(row) - total) / a(first + row - 1, row)
        end do
    end subroutine

    ! A value of the matrices, which every rank computes for itself: between -1/2 and 1/2, and without a visible pattern.
    elemental real(real64) function value_at(row, column)
        integer, intent(in) :: row, column

        value_at = real(mod(row * 7919_int64 + column * 104729_int64 + row * int(column, int64) * 31, 2003_int64), real64) &
            / 2003 - 0.5_real64
    end function
end module
