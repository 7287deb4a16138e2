! Leases a core, calls two functions on it, and gives it back. The same program is in c/, cpp/, rust/, python/ and go/; the functions
! are in functions/. With `sublet up` running:
!
!     gfortran -O2 $(pkg-config --variable=includedir sublet)/sublet.f90 hello.f90 $(pkg-config --libs sublet) -o hello
!     ./hello ./libhello.so
program hello
    use, intrinsic :: iso_c_binding, only: c_char
    use, intrinsic :: iso_fortran_env, only: int64
    use sublet
    implicit none

    type(sublet_invoker) :: invoker
    type(sublet_bill) :: bill
    character(:, c_char), pointer :: input, greeting, loud
    character(256) :: message
    character(4096) :: package
    integer(int64) :: bytes
    integer :: status

    package = './libhello.so'
    if (command_argument_count() > 0) call get_command_argument(1, package)

    ! A lease of one core. It takes some milliseconds; calls take less than one thousandth of that.
    call invoker%connect()
    call invoker%allocate(package)

    ! Memory that the worker shares, so that nothing is copied.
    call invoker%buffer(input, 64)
    call invoker%buffer(greeting, 64)
    call invoker%buffer(loud, 64)
    input = 'world'

    call invoker%call('greet', sublet_bytes(input(:5)), sublet_bytes(greeting), bytes)
    print '(a)', greeting(:bytes)

    ! The output of one call is the input of the next.
    call invoker%call('shout', sublet_bytes(greeting(:bytes)), sublet_bytes(loud), bytes)
    print '(a)', loud(:bytes)

    ! A call that fails says why.
    call invoker%call('greet', sublet_bytes(), sublet_bytes(greeting), stat=status, errmsg=message)
    print '(a, ": ", a)', sublet_status_name(status), trim(message)

    call invoker%deallocate(bill)
    print '(i0, " calls, ", i0, " of them failed")', bill%calls, bill%failed_calls

    call invoker%free(input)
    call invoker%free(greeting)
    call invoker%free(loud)
    call invoker%close()
end program
