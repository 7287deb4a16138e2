! Solves a system of linear equations by Jacobi's method, here and on leased cores, and compares the results.
!
!     ./jacobi ./libjacobi.so [CORES [UNKNOWNS [ITERATIONS]]]
!
! Each worker has a buffer with its rows of the matrix. The buffer is memory that client and worker share, so an iteration copies
! only the vector. rFaaS was measured with this method, too (IPDPS 2023, section V-G). The exit status is 1 if the results differ.
program jacobi
    use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
    use sublet
    use jacobi_rows
    implicit none

    ! The part of the system that one worker has.
    type :: part
        integer :: first = 0, last = 0
        real(real64), pointer :: input(:) => null(), x(:) => null(), improved(:) => null()
    end type

    character(4096) :: package
    integer :: cores, unknowns, iterations
    real(real64), allocatable :: a(:, :), b(:), local(:), leased(:)
    real(real64) :: difference

    call read_arguments()
    allocate (a(unknowns, unknowns), b(unknowns), local(unknowns), leased(unknowns))
    call random_init(repeatable=.true., image_distinct=.false.)
    call random_number(a)
    call random_number(b)
    call dominate_diagonal()

    call solve_here()
    call solve_leased()
    difference = maxval(abs(leased - local))
    print '(i0, " iterations of ", i0, " unknowns; residual ", es8.1)', iterations, unknowns, &
        maxval(abs(b - matmul(leased, a)))
    print '("largest difference: ", es8.1)', difference
    if (difference > 1e-12_real64 * maxval(abs(local))) then
        write (error_unit, '(a)') 'the results differ'
        stop 1, quiet=.true.
    end if

contains

    ! With a diagonal as large as the rest of its row, Jacobi's method converges.
    subroutine dominate_diagonal()
        integer :: i

        do i = 1, unknowns
            a(i, i) = unknowns
        end do
    end subroutine

    subroutine solve_here()
        real(real64), allocatable :: improved(:)
        integer :: i

        allocate (improved(unknowns))
        local = 0
        do i = 1, iterations
            call improve_rows(1, a, b, local, improved)
            local = improved
        end do
    end subroutine

    subroutine solve_leased()
        type(sublet_invoker) :: invoker
        type(sublet_procedure) :: improve
        type(sublet_invocation), allocatable :: calls(:)
        type(part), allocatable :: parts(:)
        integer :: i, worker

        call invoker%connect()
        call invoker%allocate(package, cores=cores, wait_ns=60 * 1000000000_int64)
        call invoker%find('improve', improve)
        allocate (calls(cores), parts(cores))
        do worker = 1, cores
            call fill(invoker, worker, parts(worker))
        end do

        leased = 0
        do i = 1, iterations
            do worker = 1, cores
                associate (own => parts(worker))
                    own%x = leased
                    call invoker%submit(improve, sublet_bytes(own%input), sublet_bytes(own%improved), calls(worker), &
                        worker=worker - 1)
                end associate
            end do
            do worker = 1, cores
                call calls(worker)%wait()
                leased(parts(worker)%first:parts(worker)%last) = parts(worker)%improved
            end do
        end do
        do worker = 1, cores
            call invoker%free(parts(worker)%input)
            call invoker%free(parts(worker)%improved)
        end do
        call invoker%close()
    end subroutine

    ! Puts the rows of one worker into memory that it shares.
    subroutine fill(invoker, worker, own)
        type(sublet_invoker), intent(in) :: invoker
        integer, intent(in) :: worker
        type(part), intent(inout) :: own
        integer :: rows, at

        own%first = (worker - 1) * unknowns / cores + 1
        own%last = worker * unknowns / cores
        rows = own%last - own%first + 1
        call invoker%buffer(own%input, header_values + unknowns + rows + unknowns * rows)
        call invoker%buffer(own%improved, rows)
        own%input(:header_values) = [real(real64) :: unknowns, rows, own%first]
        own%x => own%input(header_values + 1:header_values + unknowns)
        at = header_values + unknowns
        own%input(at + 1:at + rows) = b(own%first:own%last)
        own%input(at + rows + 1:) = reshape(a(:, own%first:own%last), [unknowns * rows])
    end subroutine

    subroutine read_arguments()
        package = './libjacobi.so'
        if (command_argument_count() > 0) call get_command_argument(1, package)
        cores = argument(2, 2)
        unknowns = argument(3, 1000)
        iterations = argument(4, 100)
        if (cores > unknowns) call refuse('there are more cores than unknowns')
    end subroutine

    ! A positive number among the program's arguments.
    integer function argument(position, default)
        integer, intent(in) :: position, default
        character(32) :: text
        integer :: status

        argument = default
        if (command_argument_count() < position) return
        call get_command_argument(position, text)
        read (text, *, iostat=status) argument
        if (status /= 0 .or. argument < 1) call refuse('not a positive number: ' // trim(text))
    end function

    subroutine refuse(message)
        character(*), intent(in) :: message

        write (error_unit, '(a, a)') 'jacobi: ', message
        stop 2, quiet=.true.
    end subroutine
end program
