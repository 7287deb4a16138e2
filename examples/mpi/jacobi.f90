! Solves a system of linear equations by Jacobi's method in the ranks of an MPI program. A rank has some rows of the matrix; in each
! iteration it computes its rows of the next vector, and all ranks exchange them. First each rank computes alone, then it leaves
! half of its rows to a core that it leases. The worker gets these rows once and keeps them: an iteration sends only the vector. The
! result is compared with the solution as one process computes it. See README.md.
module jacobi_on_ranks
    use, intrinsic :: iso_fortran_env, only: int64, real64
    use sublet
    use kernels
    use ranks
    implicit none
    private

    public :: run

    type(sublet_invoker) :: invoker
    type(sublet_procedure) :: function
    real(real64), allocatable :: a(:, :), b(:), x(:), next(:)
    real(real64), pointer :: sent(:), received(:)
    real(real64) :: local_s, leased_s
    integer :: first, last, rows, half

contains

    subroutine run()
        call begin_ranks()
        call own_rows(first, last)
        rows = last - first + 1
        half = rows / 2
        allocate (x(matrix_size), next(rows))
        call make_equations(first, last, a, b)

        local_s = median_seconds(solve_alone)
        call prepare()
        leased_s = median_seconds(solve_half)
        call invoker%free(sent)
        call invoker%free(received)
        call invoker%close()
        call compare()
    end subroutine

    ! Makes rows of the equations. With a diagonal larger than the rest of its row, Jacobi's method converges.
    subroutine make_equations(first, last, a, b)
        integer, intent(in) :: first, last
        real(real64), allocatable, intent(out) :: a(:, :), b(:)
        integer :: row, column

        allocate (a(matrix_size, last - first + 1), b(last - first + 1))
        do row = first, last
            a(:, row - first + 1) = [(value_at(row, column), column = 1, matrix_size)]
            a(row, row - first + 1) = matrix_size
            b(row - first + 1) = value_at(row, matrix_size + 1)
        end do
    end subroutine

    subroutine solve_alone()
        integer :: i

        x = 0
        do i = 1, iterations
            call improve_rows(first, a, b, x, next)
            call gather_rows(next, x, 1)
        end do
    end subroutine

    ! Leases a core, whose worker gets the upper half of this rank's rows.
    subroutine prepare()
        real(real64), pointer :: input(:)
        integer :: values
        type(sublet_invocation) :: invocation

        values = header_values + half + half * matrix_size
        call lease_core(invoker, 8_int64 * values + 64 * 1048576_int64)
        call invoker%find('improve', function)
        call invoker%buffer(sent, matrix_size)
        call invoker%buffer(received, max(half, 1))
        call invoker%buffer(input, values)
        input(:header_values) = [real(real64) :: matrix_size, half, first - 1]
        input(header_values + 1:header_values + half) = b(:half)
        input(header_values + half + 1:) = reshape(a(:, :half), [half * matrix_size])
        call invoker%submit('keep', sublet_bytes(input), sublet_bytes(received), invocation)
        call invocation%wait()
        call invoker%free(input)
    end subroutine

    subroutine solve_half()
        type(sublet_invocation) :: invocation
        integer :: i

        x = 0
        do i = 1, iterations
            sent = x
            call invoker%submit(function, sublet_bytes(sent), sublet_bytes(received), invocation)
            call improve_rows(first + half, a(:, half + 1:), b(half + 1:), x, next(half + 1:))
            call invocation%wait()
            next(:half) = received(:half)
            call gather_rows(next, x, 1)
        end do
    end subroutine

    ! Solves all equations in this process, and ends the program.
    subroutine compare()
        real(real64), allocatable :: all(:, :), right(:), solution(:), better(:)
        integer :: i

        call make_equations(1, matrix_size, all, right)
        allocate (solution(matrix_size), better(matrix_size))
        solution = 0
        do i = 1, iterations
            call improve_rows(1, all, right, solution, better)
            solution = better
        end do
        call finish(local_s, leased_s, maxval(abs(x - solution)), 1e-12_real64 * maxval(abs(solution)))
    end subroutine
end module

program jacobi
    use jacobi_on_ranks
    implicit none

    call run()
end program
