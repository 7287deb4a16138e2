! Tests the client in Fortran beside a running Sublet: client LIBRARY [MODE]. LIBRARY is the shared object of functions.f90. A
! mode has an error end the program.
program client
    use, intrinsic :: iso_fortran_env, only: error_unit, int8, int16, int32, int64, real32, real64
    use sublet
    implicit none

    character(4096) :: library
    character(32) :: mode
    integer :: failures = 0

    call get_command_argument(1, library)
    if (command_argument_count() > 1) then
        call get_command_argument(2, mode)
        call end_by_an_error()
        error stop 'the error has not ended the program'
    end if
    call test('operations_without_a_connection_fail', operations_without_a_connection_fail)
    call test('numbers_of_each_type_go_in_and_out', numbers_of_each_type_go_in_and_out)
    call test('buffers_of_each_type_are_shared', buffers_of_each_type_are_shared)
    call test('errors_of_functions_have_messages', errors_of_functions_have_messages)
    call test('calls_in_progress_are_waited_for', calls_in_progress_are_waited_for)
    call test('end_of_a_worker_is_an_error_of_the_call', end_of_a_worker_is_an_error_of_the_call)
    call test('sizes_are_checked', sizes_are_checked)
    call test('leases_grow_and_are_described', leases_grow_and_are_described)
    if (failures > 0) stop 1, quiet=.true.

contains

    subroutine test(name, body)
        character(*), intent(in) :: name
        interface
            subroutine body()
            end subroutine
        end interface
        integer :: before

        before = failures
        call body()
        if (failures == before) then
            print '("test ", a, " ... ok")', name
        else
            print '("test ", a, " ... FAILED")', name
        end if
    end subroutine

    subroutine expect(condition, what)
        logical, intent(in) :: condition
        character(*), intent(in) :: what

        if (condition) return
        failures = failures + 1
        print '("not so: ", a)', what
    end subroutine

    ! An operation has failed with this status, and a message with these words.
    subroutine expect_error(status, expected, message, words)
        integer, intent(in) :: status, expected
        character(*), intent(inout) :: message
        character(*), intent(in) :: words

        call expect(status == expected .and. index(message, words) > 0, &
            sublet_status_name(expected) // ', ' // words // '; it is ' // sublet_status_name(status) // ': ' // trim(message))
        message = ''
    end subroutine

    subroutine operations_without_a_connection_fail()
        type(sublet_invoker) :: invoker
        type(sublet_invocation) :: invocation
        type(sublet_lease) :: lease
        character(256) :: message
        integer :: status
        logical :: ready

        call invoker%connect(managers='unix:/nowhere/manager.sock', stat=status, errmsg=message)
        call expect_error(status, SUBLET_MANAGER_UNREACHABLE, message, '/nowhere/manager.sock')
        call invoker%connect(managers='nonsense', stat=status, errmsg=message)
        call expect_error(status, SUBLET_INVALID_ARGUMENT, message, 'nonsense')
        call invoker%allocate(library, stat=status, errmsg=message)
        call expect_error(status, SUBLET_INVALID_ARGUMENT, message, 'null')
        call invocation%wait(stat=status, errmsg=message)
        call expect_error(status, SUBLET_INVALID_ARGUMENT, message, '')
        ready = invocation%is_ready(stat=status)
        call expect(status == SUBLET_INVALID_ARGUMENT .and. .not. ready, 'no call is ready')
        call invoker%connect()
        call invoker%lease(lease, stat=status, errmsg=message)
        call expect_error(status, SUBLET_NOT_ALLOCATED, message, '')
        call invoker%allocate('no_such_package', stat=status, errmsg=message)
        call expect_error(status, SUBLET_UNKNOWN_PACKAGE, message, 'no_such_package')
        call invoker%allocate(library)
        call invoker%allocate(library, stat=status, errmsg=message)
        call expect_error(status, SUBLET_ALREADY_ALLOCATED, message, '')
        call expect(sublet_version() == '0.1.0', 'the version of the library')
    end subroutine

    subroutine numbers_of_each_type_go_in_and_out()
        type(sublet_invoker) :: invoker
        real(real32), target :: singles(2, 2), doubled(2, 2)
        complex(real64), target :: numbers(2), conjugates(2)
        integer(int64) :: bytes, executing_ns
        integer(int8), target :: tiny(3)
        integer(int16), target :: small(3)
        complex(real32), target :: pair
        character(5), target :: texts(2)

        call invoker%connect()
        call invoker%allocate(library)
        singles = reshape([1.0, 2.0, 3.0, 4.0], [2, 2])
        call invoker%call('twice_real32', sublet_bytes(singles), sublet_bytes(doubled), bytes, executing_ns)
        call expect(all(doubled == 2 * singles) .and. bytes == 16 .and. executing_ns > 0, 'doubled numbers')
        numbers = [(1.0_real64, 2.0_real64), (0.0_real64, -1.0_real64)]
        call invoker%call('conjugate', sublet_bytes(numbers), sublet_bytes(conjugates))
        call expect(all(conjugates == conjg(numbers)), 'conjugate numbers')
        call measure(invoker, sublet_bytes(tiny), 3)
        call measure(invoker, sublet_bytes(small), 6)
        call measure(invoker, sublet_bytes(pair), 8)
        call measure(invoker, sublet_bytes(texts), 10)
        call measure(invoker, sublet_bytes(texts(2)(2:3)), 2)
        call measure(invoker, sublet_bytes(singles(:, 2)), 8)
        call measure(invoker, sublet_bytes(), 0)
    end subroutine

    ! The function gets as many bytes of input as expected.
    subroutine measure(invoker, input, expected)
        type(sublet_invoker), intent(in) :: invoker
        type(sublet_bytes), intent(in) :: input
        integer, intent(in) :: expected
        integer(int64), target :: found(4)
        character(80) :: what

        call invoker%call('sizes', input, sublet_bytes(found))
        write (what, '("sizes ", 4(i0, " "), "for ", i0)') found, expected
        call expect(all(found == [expected, 32, 0, 1]), what)
    end subroutine

    subroutine buffers_of_each_type_are_shared()
        type(sublet_invoker) :: invoker
        real(real32), pointer :: singles(:), doubled(:)
        real(real64), pointer :: reals(:)
        integer(int8), pointer :: bytes(:)
        integer(int16), pointer :: small(:)
        integer(int32), pointer :: integers(:)
        integer(int64), pointer :: found(:)
        complex(real32), pointer :: pairs(:)
        complex(real64), pointer :: numbers(:), conjugates(:)
        character(:), pointer :: text
        character(256) :: message
        integer :: status

        call invoker%connect()
        call invoker%allocate(library)
        call invoker%buffer(singles, 100000)
        call invoker%buffer(doubled, 100000)
        singles = 1.5
        doubled = 0
        call invoker%call('twice_real32', sublet_bytes(singles), sublet_bytes(doubled))
        call expect(all(doubled == 3.0), 'buffers larger than a slot')
        call invoker%buffer(numbers, 1)
        call invoker%buffer(conjugates, 1)
        numbers = (1.0_real64, 2.0_real64)
        call invoker%call('conjugate', sublet_bytes(numbers), sublet_bytes(conjugates))
        call expect(conjugates(1) == (1.0_real64, -2.0_real64), 'a conjugate in a buffer')
        call invoker%buffer(reals, 3)
        call invoker%buffer(bytes, 4)
        call invoker%buffer(small, 5)
        call invoker%buffer(integers, 6)
        call invoker%buffer(found, 7)
        call invoker%buffer(pairs, 8)
        call invoker%buffer(text, 9)
        call expect(all([size(reals), size(bytes), size(small), size(integers), size(found), size(pairs), len(text)] == &
            [3, 4, 5, 6, 7, 8, 9]), 'sizes of buffers')
        text = 'nine char'
        call invoker%call('sizes', sublet_bytes(text), sublet_bytes(found))
        call expect(found(1) == 9 .and. found(2) == 56, 'a text in a buffer')
        call invoker%buffer(bytes, -1, stat=status, errmsg=message)
        call expect_error(status, SUBLET_INVALID_ARGUMENT, message, '')
        call invoker%buffer(found, 600000000, stat=status, errmsg=message)
        call expect_error(status, SUBLET_INVALID_ARGUMENT, message, '4800000000')
        call invoker%free(text)
        call expect(.not. associated(text), 'a freed text')
        call invoker%free(singles)
        call invoker%free(doubled)
        call invoker%free(numbers)
        call invoker%free(conjugates)
        call invoker%free(reals)
        call invoker%free(bytes)
        call invoker%free(small)
        call invoker%free(integers)
        call invoker%free(found)
        call invoker%free(pairs)
        call invoker%free(pairs, stat=status)
        call expect(status == SUBLET_OK .and. .not. associated(pairs), 'a buffer that was freed before is ignored')
    end subroutine

    subroutine errors_of_functions_have_messages()
        type(sublet_invoker) :: invoker
        character(256) :: message
        character(32), target :: output
        integer :: status

        call invoker%connect()
        call invoker%allocate(library)
        call invoker%call('refuse', sublet_bytes('I would rather not'), sublet_bytes(), stat=status, errmsg=message)
        call expect_error(status, SUBLET_FUNCTION_FAILED, message, 'libfunctions/refuse failed: I would rather not')
        call invoker%call('delegate', sublet_bytes('nor here'), sublet_bytes(output), stat=status, errmsg=message)
        call expect_error(status, SUBLET_FUNCTION_FAILED, message, 'delegate failed: refuse: nor here')
        call invoker%call('agree', sublet_bytes(), sublet_bytes(), stat=status, errmsg=message)
        call expect(sublet_error_message() == trim(message), 'the message of the thread')
        call expect_error(status, SUBLET_UNKNOWN_FUNCTION, message, 'agree')
        call invoker%call('boast', sublet_bytes(output), sublet_bytes(output), stat=status, errmsg=message)
        call expect_error(status, SUBLET_OUTPUT_TOO_LARGE, message, '2147483680')
    end subroutine

    subroutine calls_in_progress_are_waited_for()
        type(sublet_invoker) :: invoker
        type(sublet_procedure) :: nap
        type(sublet_invocation) :: calls(2)
        type(sublet_bill) :: bill
        character(256) :: message
        integer(int32), target :: milliseconds
        integer :: i, status
        logical :: ended, ready

        call invoker%connect()
        call invoker%allocate(library, hot_ns=SUBLET_ALWAYS_WARM)
        call invoker%find('nap', nap)
        milliseconds = 300
        do i = 1, size(calls)
            call invoker%submit(nap, sublet_bytes(milliseconds), sublet_bytes(), calls(i), worker=0)
        end do
        call expect(.not. calls(2)%is_ready(), 'the second call waits')
        call calls(2)%wait_timeout(1000000_int64, ended)
        call expect(.not. ended, 'a timeout that passes')
        call calls(2)%wait_timeout(60000000000_int64, ended)
        ready = calls(1)%is_ready()
        call expect(ended .and. ready, 'a timeout that does not pass')
        do i = 1, size(calls)
            call calls(i)%wait()
        end do
        milliseconds = 60000
        call invoker%submit('nap', sublet_bytes(milliseconds), sublet_bytes(), calls(1))
        call calls(1)%wait_deadline(1000000_int64, stat=status, errmsg=message)
        call expect_error(status, SUBLET_DEADLINE_EXCEEDED, message, '')
        call invoker%submit(nap, sublet_bytes(milliseconds), sublet_bytes(), calls(1), worker=7, stat=status, errmsg=message)
        call expect_error(status, SUBLET_INVALID_ARGUMENT, message, '7')
        call invoker%deallocate(bill)
        call expect(bill%calls >= 2 .and. bill%executing_ns >= 600000000, 'a bill of the calls')
    end subroutine

    subroutine end_of_a_worker_is_an_error_of_the_call()
        type(sublet_invoker) :: invoker
        character(256) :: message
        integer(int64), target :: found(4)
        integer :: status

        call invoker%connect()
        call invoker%allocate(library)
        call invoker%call('give_up', sublet_bytes(), sublet_bytes(), stat=status, errmsg=message)
        call expect_error(status, SUBLET_WORKER_DIED, message, 'status 1')
        call invoker%call('beyond', sublet_bytes('abc'), sublet_bytes(), stat=status, errmsg=message)
        call expect_error(status, SUBLET_WORKER_DIED, message, 'status 2')
        call invoker%call('sizes', sublet_bytes(), sublet_bytes(found))
        call expect(found(2) == 32, 'another worker executes the next call')
    end subroutine

    subroutine sizes_are_checked()
        type(sublet_invoker) :: invoker
        character(256) :: message
        real(real32), allocatable, target :: large(:)
        integer :: status

        call invoker%connect()
        call invoker%allocate(library, slot_bytes=4096_int64)
        allocate (large(2000))
        call invoker%call('twice_real32', sublet_bytes(large), sublet_bytes(large), stat=status, errmsg=message)
        call expect_error(status, SUBLET_INPUT_TOO_LARGE, message, '8000')
        call invoker%call('twice_real32', sublet_bytes(large(:1000)), sublet_bytes(large), stat=status)
        call expect(status == SUBLET_OK, 'input of the size of a slot')
    end subroutine

    subroutine leases_grow_and_are_described()
        type(sublet_invoker) :: invoker
        type(sublet_lease) :: before, after
        type(sublet_notice), allocatable :: notices(:)
        integer :: status

        call invoker%connect()
        call invoker%allocate(library, timeout_ns=60000000000_int64, shared=.false., pu='cpu', fabric='shm', max_nodes=1, &
            isolation='process')
        call invoker%lease(before)
        call expect(len(before%id) == 32 .and. before%package == 'libfunctions' .and. before%workers == 1, 'a lease')
        call expect(before%isolation == 'process', 'the isolation of a lease')
        call invoker%renew(600000000000_int64)
        call invoker%grow(1)
        call invoker%lease(after)
        call expect(after%expires_unix_ms > before%expires_unix_ms .and. after%workers == 2, 'a lease that was renewed')
        call invoker%notices(notices)
        call expect(size(notices) == 0, 'no lease is about to end')
        call invoker%deallocate()
        call invoker%allocate(library, fabric='pigeon', stat=status)
        call expect(status == SUBLET_INVALID_ARGUMENT, 'no such fabric')
        call invoker%allocate(library, isolation='weak', stat=status)
        call expect(status == SUBLET_INSUFFICIENT_RESOURCES, 'an isolation that the node does not offer')
        call invoker%allocate(library, cores=1000, stat=status)
        call expect(status == SUBLET_INSUFFICIENT_RESOURCES, 'no such machine')
    end subroutine

    subroutine end_by_an_error()
        type(sublet_invoker) :: invoker, copy
        type(sublet_invocation) :: call, other
        integer(int32), target :: matrix(2, 2)

        call invoker%connect()
        call invoker%allocate(library)
        matrix = 1
        select case (mode)
        case ('unhandled')
            call invoker%call('agree', sublet_bytes(), sublet_bytes())
        case ('parts')
            call invoker%call('sizes', sublet_bytes(matrix(1, :)), sublet_bytes())
        case ('copied_invoker')
            copy = invoker
        case ('copied_call')
            call invoker%submit('nap', sublet_bytes(matrix), sublet_bytes(), call)
            other = call
        end select
    end subroutine
end program
