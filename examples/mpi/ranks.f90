! Common parts of the MPI programs in Fortran: options, the rows of a rank, times, and the report.
module ranks
    use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
    use mpi_f08
    use sublet
    implicit none
    private

    public :: begin_ranks, own_rows, part_of_rows, gather_rows, median_seconds, lease_core, finish
    public :: work_of_rank, package, matrix_size, iterations, repeat_count, rank_count, is_root

    ! Options of the program: see README.md.
    character(4096), protected :: package = './libkernels_fortran.so'
    integer, protected :: matrix_size = 1000, iterations = 100, repeat_count = 11
    logical :: prints_json = .false.
    integer, protected :: rank_count = 1
    logical, protected :: is_root = .true.
    integer :: own_rank = 0

    abstract interface
        subroutine work_of_rank()
        end subroutine
    end interface

contains

    ! Initializes MPI, and reads the program's options.
    subroutine begin_ranks()
        character(4096) :: name, value
        integer :: i

        call MPI_Init()
        call MPI_Comm_rank(MPI_COMM_WORLD, own_rank)
        call MPI_Comm_size(MPI_COMM_WORLD, rank_count)
        is_root = own_rank == 0
        i = 1
        do while (i <= command_argument_count())
            call get_command_argument(i, name)
            if (name == '--json') then
                prints_json = .true.
                i = i + 1
                cycle
            end if
            if (i == command_argument_count()) call refuse(trim(name) // ' is unknown or lacks its value')
            call get_command_argument(i + 1, value)
            select case (name)
            case ('--size')
                matrix_size = count_of(name, value)
            case ('--iterations')
                iterations = count_of(name, value)
            case ('--repeat')
                repeat_count = count_of(name, value)
            case ('--library')
                package = value
            case default
                call refuse(trim(name) // ' is unknown')
            end select
            i = i + 2
        end do
    end subroutine

    integer function count_of(name, value) result(count)
        character(*), intent(in) :: name, value
        integer :: status

        read (value, *, iostat=status) count
        if (status /= 0 .or. verify(trim(value), '0123456789') /= 0 .or. count < 1 .or. count > 1000000) &
            call refuse(trim(name) // ' must be a number from 1 to 1000000, not ' // trim(value))
    end function

    ! Ends all ranks with the status of a wrong command line.
    subroutine refuse(message)
        character(*), intent(in) :: message

        if (is_root) write (error_unit, '(a)') message
        call MPI_Abort(MPI_COMM_WORLD, 2)
    end subroutine

    ! The first and the last row of a rank, or of this one.
    subroutine own_rows(first, last, rank)
        integer, intent(out) :: first, last
        integer, intent(in), optional :: rank
        integer :: number

        number = own_rank
        if (present(rank)) number = rank
        call part_of_rows(matrix_size, number, rank_count, first, last)
    end subroutine

    ! The first and the last row of a part, counted from 0, of rows that are divided into `parts` parts.
    subroutine part_of_rows(rows, number, parts, first, last)
        integer, intent(in) :: rows, number, parts
        integer, intent(out) :: first, last

        first = int(int(rows, int64) * number / parts) + 1
        last = int(int(rows, int64) * (number + 1) / parts)
    end subroutine

    ! Gives every rank the rows of all ranks. Each row has `width` values.
    subroutine gather_rows(own, all, width)
        real(real64), intent(in), contiguous :: own(..)
        real(real64), intent(inout), contiguous :: all(..)
        integer, intent(in) :: width
        integer :: counts(rank_count), offsets(rank_count), rank, first, last

        do rank = 1, rank_count
            call own_rows(first, last, rank - 1)
            counts(rank) = (last - first + 1) * width
            offsets(rank) = (first - 1) * width
        end do
        call MPI_Allgatherv(own, counts(own_rank + 1), MPI_DOUBLE_PRECISION, all, counts, offsets, MPI_DOUBLE_PRECISION, &
            MPI_COMM_WORLD)
    end subroutine

    ! The median over several measurements of the seconds that the slowest rank takes. One more, before, is not measured.
    real(real64) function median_seconds(work) result(median)
        procedure(work_of_rank) :: work
        real(real64) :: seconds(repeat_count), begun
        integer :: i

        call work()
        do i = 1, repeat_count
            call MPI_Barrier(MPI_COMM_WORLD)
            begun = MPI_Wtime()
            call work()
            seconds(i) = MPI_Wtime() - begun
        end do
        call MPI_Allreduce(MPI_IN_PLACE, seconds, repeat_count, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD)
        median = seconds(1)
        do i = 1, repeat_count
            if (count(seconds < seconds(i)) <= repeat_count / 2 .and. count(seconds <= seconds(i)) > repeat_count / 2) &
                median = seconds(i)
        end do
    end function

    ! Leases a core on which calls take milliseconds, so that no core polls meanwhile.
    subroutine lease_core(invoker, memory_bytes)
        type(sublet_invoker), intent(inout) :: invoker
        integer(int64), intent(in) :: memory_bytes

        call invoker%connect()
        call invoker%allocate(package, memory_bytes=memory_bytes, hot_ns=SUBLET_ALWAYS_WARM, spin_ns=0_int64, &
            wait_ns=60 * 1000000000_int64)
    end subroutine

    ! Prints the report on one rank, and ends the program. `largest` is the largest difference between the results of the leased form
    ! and of one sequential computation, and `allowed` the one that another order of additions may cause.
    subroutine finish(local_s, leased_s, largest, allowed)
        real(real64), intent(in) :: local_s, leased_s, largest, allowed
        logical :: equal

        ! Not a number is not equal either.
        equal = largest <= allowed
        if (is_root .and. prints_json) then
            print '("{""ranks"": ", i0, ", ""local_s"": ", es13.6, ", ""leased_s"": ", es13.6, &
                &", ""largest_difference"": ", es9.2, ", ""equal"": ", a, "}")', &
                rank_count, local_s, leased_s, largest, trim(merge('true ', 'false', equal))
        else if (is_root) then
            print '("ranks ", i0, ", size ", i0, ", medians of ", i0)', rank_count, matrix_size, repeat_count
            print '("  by the ranks:                 ", f10.3, " ms")', 1e3_real64 * local_s
            print '("  and a leased core for each:   ", f10.3, " ms")', 1e3_real64 * leased_s
            print '("  largest difference:           ", es10.2)', largest
        end if
        call MPI_Finalize()
        if (.not. equal) stop 1, quiet=.true.
    end subroutine
end module
