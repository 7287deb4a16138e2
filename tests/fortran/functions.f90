! Functions in Fortran that the tests call: of several types, and that fail in several ways.

! Doubles numbers of 32 bits.
function twice_real32(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    real(c_float), pointer :: x(:), y(:)

    call sublet_view(input, sublet_size(bytes), x)
    call sublet_view(output, sublet_capacity(context), y)
    y(:size(x)) = 2 * x
    written = bytes
end function

! Conjugates complex numbers.
function conjugate(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    complex(c_double_complex), pointer :: x(:), y(:)

    call sublet_view(input, sublet_size(bytes), x)
    call sublet_view(output, sublet_capacity(context), y)
    y(:size(x)) = conjg(x)
    written = bytes
end function

! Writes the sizes of its input and output, the number of its instance, and the number of instances.
function sizes(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    integer(c_int64_t), pointer :: found(:)

    call sublet_view(output, sublet_capacity(context), found)
    found(:4) = [sublet_size(bytes), sublet_capacity(context), int(sublet_instance(context), c_int64_t), &
        int(sublet_instances(context), c_int64_t)]
    written = 32
end function

! Fails with its input.
function refuse(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    character(:, c_char), pointer :: why

    call sublet_view(input, sublet_size(bytes), why)
    written = sublet_fail(context, why)
end function

! Returns more bytes than its output has, at least 2**31, which is negative as a signed number.
function boast(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written

    written = sublet_written(2147483648_c_int64_t + bytes)
end function

! Calls refuse with its input, and fails with what that says.
function delegate(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    integer(c_int64_t) :: size

    if (sublet_call(context, 'sizes', input, sublet_size(bytes), output, sublet_capacity(context), size) /= 0) then
        written = sublet_fail(context, 'sizes has failed: ' // sublet_why(context))
    else if (sublet_call(context, 'refuse', input, sublet_size(bytes), output, sublet_capacity(context), size) /= 0) then
        written = sublet_fail(context, sublet_why(context))
    else
        written = sublet_written(size)
    end if
end function

! Sleeps for as many milliseconds as its input says.
function nap(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    interface
        function usleep(microseconds) bind(c, name='usleep') result(status)
            import :: c_int32_t
            integer(c_int32_t), value :: microseconds
            integer(c_int32_t) :: status
        end function
    end interface
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    integer(c_int32_t), pointer :: milliseconds(:)
    integer :: i, status

    call sublet_view(input, sublet_size(bytes), milliseconds)
    do i = 1, milliseconds(1)
        status = usleep(1000)
    end do
    written = 0
end function

! Ends the process.
function give_up(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written

    written = 0
    error stop 'no further'
end function

! Reads beyond an array, which the compiler's library detects with -fcheck=bounds.
function beyond(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    integer(c_int8_t), pointer :: values(:)

    call sublet_view(input, sublet_size(bytes), values)
    written = values(size(values) + 1)
end function
