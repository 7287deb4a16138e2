! Multiplies matrices in the ranks of an MPI program: each rank computes its rows of the product alone, then leaves half of them to
! a core that it leases. The result is compared with the product as one process computes it. See README.md.
module multiply_on_ranks
    use, intrinsic :: iso_fortran_env, only: int64, real64
    use mpi_f08
    use sublet
    use kernels
    use ranks
    implicit none
    private

    public :: run

    type(sublet_invoker) :: invoker
    type(sublet_procedure) :: function
    real(real64), allocatable :: a(:, :), b(:, :), local(:, :), leased(:, :), whole(:, :)
    real(real64), pointer :: input(:), output(:)
    real(real64) :: local_s, leased_s
    integer :: first, last, rows, half

contains

    subroutine run()
        integer :: i, j

        call begin_ranks()
        call own_rows(first, last)
        rows = last - first + 1
        half = rows / 2
        allocate (a(matrix_size, rows), b(matrix_size, matrix_size))
        allocate (local(matrix_size, rows), leased(matrix_size, rows), whole(matrix_size, matrix_size))
        do concurrent (i = 1:rows, j = 1:matrix_size)
            a(j, i) = value_at(first + i - 1, j)
        end do
        b = 0
        if (is_root) then
            do concurrent (i = 1:matrix_size, j = 1:matrix_size)
                b(j, i) = value_at(i + 1, j)
            end do
        end if
        call MPI_Bcast(b, size(b), MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)

        local_s = median_seconds(multiply_alone)
        call prepare()
        leased_s = median_seconds(multiply_half)
        call invoker%free(input)
        call invoker%free(output)
        call invoker%close()
        call gather_rows(leased, whole, matrix_size)
        call finish(local_s, leased_s, difference(), 1e-12_real64 * matrix_size)
    end subroutine

    subroutine multiply_alone()
        call multiply_rows(a, b, local)
    end subroutine

    ! Leases a core, and puts the upper half of this rank's rows into memory for calls.
    subroutine prepare()
        integer :: at

        call lease_core(invoker, 8_int64 * (size(b) + 2 * size(a)) + 64 * 1048576_int64)
        call invoker%find('multiply', function)
        call invoker%buffer(input, header_values + matrix_size * (half + matrix_size))
        call invoker%buffer(output, max(matrix_size * half, 1))
        input(:header_values) = [real(real64) :: half, matrix_size, matrix_size]
        at = header_values + matrix_size * half
        input(header_values + 1:at) = reshape(a(:, :half), [matrix_size * half])
        input(at + 1:) = reshape(b, [size(b)])
    end subroutine

    subroutine multiply_half()
        type(sublet_invocation) :: invocation

        call invoker%submit(function, sublet_bytes(input), sublet_bytes(output), invocation)
        call multiply_rows(a(:, half + 1:), b, leased(:, half + 1:))
        call invocation%wait()
        leased(:, :half) = reshape(output(:matrix_size * half), [matrix_size, half])
    end subroutine

    real(real64) function difference()
        real(real64), allocatable :: all(:, :), expected(:, :)
        integer :: i, j

        allocate (all(matrix_size, matrix_size), expected(matrix_size, matrix_size))
        do concurrent (i = 1:matrix_size, j = 1:matrix_size)
            all(j, i) = value_at(i, j)
        end do
        call multiply_rows(all, b, expected)
        difference = maxval(abs(whole - expected))
    end function
end module

program multiply
    use multiply_on_ranks
    implicit none

    call run()
end program
