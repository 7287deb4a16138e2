! The functions that hello calls, in Fortran. The same functions are in hello.c, hello.rs, go/hello.go and nodejs/hello.js.
!
!     gfortran -O2 -frecursive -shared -fPIC -o libhello.so \
!         $(pkg-config --variable=includedir sublet)/sublet_function.f90 hello.f90

! Turns text into capitals.
function shout(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    character(:, c_char), pointer :: text, loud
    integer :: i

    if (sublet_size(bytes) > sublet_capacity(context)) then
        written = sublet_fail(context, 'the text does not fit the output')
        return
    end if
    call sublet_view(input, sublet_size(bytes), text)
    call sublet_view(output, sublet_size(bytes), loud)
    do i = 1, len(text)
        loud(i:i) = text(i:i)
        if (text(i:i) >= 'a' .and. text(i:i) <= 'z') loud(i:i) = achar(iachar(text(i:i)) - 32)
    end do
    written = bytes
end function

! Greets the name in its input, and fails without one.
function greet(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    character(:, c_char), pointer :: name, greeting

    if (bytes == 0) then
        written = sublet_fail(context, 'the name is empty')
        return
    end if
    call sublet_view(input, sublet_size(bytes), name)
    call sublet_view(output, sublet_capacity(context), greeting)
    if (len(name) + len('Hello, !') > len(greeting)) then
        written = sublet_fail(context, 'the greeting does not fit the output')
        return
    end if
    greeting = 'Hello, ' // name // '!'
    written = len(name) + len('Hello, !')
end function
