! sublet_function.f90: write functions that Sublet calls, in Fortran.
!
!     function twice(input, bytes, output, context) bind(c) result(written)
!         use sublet_function
!         type(c_ptr), value :: input, output, context
!         integer(c_int32_t), value :: bytes
!         integer(c_int32_t) :: written
!         real(c_double), pointer :: x(:), y(:)
!
!         if (sublet_size(bytes) > sublet_capacity(context)) then
!             written = sublet_fail(context, 'the output is too small')
!             return
!         end if
!         call sublet_view(input, sublet_size(bytes), x)
!         call sublet_view(output, sublet_size(bytes), y)
!         y = 2 * x
!         written = bytes
!     end function
!
!     gfortran -O2 -frecursive -shared -fPIC -o libfunctions.so \
!         $(pkg-config --variable=includedir sublet)/sublet_function.f90 functions.f90
!
! A shared object of functions needs no library of Sublet. A function has the interface of sublet_function.h, whose comments
! describe it. `input` has `bytes` bytes, and `output` sublet_capacity(context) bytes. The function returns the number of bytes
! that it has written. Sizes are unsigned numbers of 32 bits, which Fortran lacks: sublet_size makes a number of 64 bits of one,
! and sublet_written the reverse.
!
! Several threads, one for each leased core, may call functions of one shared object at once. Compile with -frecursive, or declare
! procedures `recursive`: otherwise gfortran puts large local arrays into memory that all threads share. Variables of modules
! are shared by these threads, too.
!
! `error stop`, `stop` and errors that the compiler's library detects, such as an index out of bounds with -fcheck=all, end the
! worker process. The caller gets SUBLET_WORKER_DIED, and the text is in the log of the lease. sublet_fail ends only the call.
module sublet_function
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int64
    implicit none
    private

    public :: c_ptr, c_int8_t, c_int16_t, c_int32_t, c_int64_t, c_float, c_double, c_float_complex, c_double_complex, c_char
    public :: sublet_size, sublet_written, sublet_capacity, sublet_fail, sublet_view, sublet_call, sublet_instance, &
        sublet_instances, sublet_why

    ! Associates a pointer with memory of this many bytes: an array of whole values, or a text. The memory is the client's and
    ! valid during the call.
    interface sublet_view
        module procedure view_text
        module procedure view_int8
        module procedure view_int16
        module procedure view_int32
        module procedure view_int64
        module procedure view_real32
        module procedure view_real64
        module procedure view_complex32
        module procedure view_complex64
    end interface

    ! Fronts of the structures of sublet_function.h.
    type, bind(c) :: context_front
        integer(c_int32_t) :: size_bytes
        integer(c_int32_t) :: capacity
        type(c_funptr) :: fail
        type(c_ptr) :: components
    end type

    type, bind(c) :: component_functions
        type(c_funptr) :: instance
        type(c_funptr) :: instances
        type(c_funptr) :: why
        type(c_funptr) :: others(14)
        type(c_funptr) :: call
    end type

    abstract interface
        subroutine c_fail(context, message) bind(c)
            import :: c_char, c_ptr
            type(c_ptr), value :: context
            character(kind=c_char), intent(in) :: message(*)
        end subroutine

        function c_number(context) bind(c) result(number)
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: context
            integer(c_int32_t) :: number
        end function

        function c_why(context) bind(c) result(message)
            import :: c_ptr
            type(c_ptr), value :: context
            type(c_ptr) :: message
        end function

        function c_call(context, name, input, bytes, output, capacity, written) bind(c) result(status)
            import :: c_char, c_int32_t, c_ptr
            type(c_ptr), value :: context
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: input
            integer(c_int32_t), value :: bytes
            type(c_ptr), value :: output
            integer(c_int32_t), value :: capacity
            integer(c_int32_t), intent(inout) :: written
            integer(c_int32_t) :: status
        end function
    end interface

contains

    ! The number of bytes that an unsigned number of 32 bits means.
    pure function sublet_size(bytes) result(size)
        integer(c_int32_t), intent(in) :: bytes
        integer(int64) :: size

        size = iand(int(bytes, int64), 4294967295_int64)
    end function

    ! The unsigned number of 32 bits that a function returns for this many bytes.
    pure function sublet_written(size) result(bytes)
        integer(int64), intent(in) :: size
        integer(c_int32_t) :: bytes

        bytes = int(ibits(size, 0, 31), c_int32_t)
        if (btest(size, 31)) bytes = ibset(bytes, 31)
    end function

    ! The size of the output in bytes.
    function sublet_capacity(context) result(capacity)
        type(c_ptr), intent(in) :: context
        integer(int64) :: capacity
        type(context_front), pointer :: front

        call c_f_pointer(context, front)
        capacity = sublet_size(front%capacity)
    end function

    ! Fails the call: whatever the function returns, its caller gets SUBLET_FUNCTION_FAILED with this message, which is truncated to
    ! 256 bytes. Only the first failure of a call counts. Returns 0, so that a function can return it.
    function sublet_fail(context, message) result(written)
        type(c_ptr), intent(in) :: context
        character(*), intent(in) :: message
        integer(c_int32_t) :: written
        type(context_front), pointer :: front
        procedure(c_fail), pointer :: fail

        call c_f_pointer(context, front)
        call c_f_procpointer(front%fail, fail)
        call fail(context, trim(message) // c_null_char)
        written = 0
    end function

    ! Calls another function of this package by its name, on this thread. The called function gets `input_bytes` bytes as its input
    ! and `output_bytes` as the size of its output; `written` becomes the number of bytes that it has written. Returns 0 or an
    ! error number of sublet.h, for which sublet_why returns a message that begins with the name of the failed function. Calls nest
    ! at most 64 deep.
    function sublet_call(context, name, input, input_bytes, output, output_bytes, written) result(status)
        type(c_ptr), intent(in) :: context
        character(*), intent(in) :: name
        type(c_ptr), intent(in) :: input
        integer(int64), intent(in) :: input_bytes
        type(c_ptr), intent(in) :: output
        integer(int64), intent(in) :: output_bytes
        integer(int64), intent(inout) :: written
        integer :: status
        type(component_functions), pointer :: functions
        procedure(c_call), pointer :: call
        integer(c_int32_t) :: bytes

        call find_functions(context, functions)
        call c_f_procpointer(functions%call, call)
        bytes = 0
        status = int(call(context, trim(name) // c_null_char, input, sublet_written(input_bytes), output, &
            sublet_written(output_bytes), bytes))
        if (status == 0) written = sublet_size(bytes)
    end function

    ! The message of the latest failure of sublet_call.
    function sublet_why(context) result(message)
        type(c_ptr), intent(in) :: context
        character(:), allocatable :: message
        type(component_functions), pointer :: functions
        procedure(c_why), pointer :: why
        character(kind=c_char), pointer :: characters(:)
        integer :: i

        call find_functions(context, functions)
        call c_f_procpointer(functions%why, why)
        ! The message has at most 256 bytes and ends with a zero byte.
        call c_f_pointer(why(context), characters, [257])
        message = ''
        do i = 1, size(characters)
            if (characters(i) == c_null_char) exit
            message = message // characters(i)
        end do
    end function

    ! The number of this instance of a graph's component, from 0; 0 outside of runs.
    function sublet_instance(context) result(instance)
        type(c_ptr), intent(in) :: context
        integer :: instance
        type(component_functions), pointer :: functions
        procedure(c_number), pointer :: number

        call find_functions(context, functions)
        call c_f_procpointer(functions%instance, number)
        instance = int(number(context))
    end function

    ! The number of instances of a graph's component; 1 outside of runs.
    function sublet_instances(context) result(instances)
        type(c_ptr), intent(in) :: context
        integer :: instances
        type(component_functions), pointer :: functions
        procedure(c_number), pointer :: number

        call find_functions(context, functions)
        call c_f_procpointer(functions%instances, number)
        instances = int(number(context))
    end function

    subroutine find_functions(context, functions)
        type(c_ptr), intent(in) :: context
        type(component_functions), pointer, intent(out) :: functions
        type(context_front), pointer :: front

        call c_f_pointer(context, front)
        call c_f_pointer(front%components, functions)
    end subroutine

    subroutine view_text(address, bytes, text)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        character(:, c_char), pointer, intent(out) :: text
        character(kind=c_char), pointer :: characters(:)

        call c_f_pointer(address, characters, [max(bytes, 1_int64)])
        call point(characters, bytes, text)
    contains
        ! Views an array of characters as a text.
        subroutine point(characters, length, text)
            integer(int64), intent(in) :: length
            character(length, c_char), intent(in), target :: characters(*)
            character(:, c_char), pointer, intent(out) :: text

            text => characters(1)
        end subroutine
    end subroutine

    subroutine view_int8(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        integer(c_int8_t), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_int16(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        integer(c_int16_t), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_int32(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        integer(c_int32_t), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_int64(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        integer(c_int64_t), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_real32(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        real(c_float), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_real64(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        real(c_double), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_complex32(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        complex(c_float_complex), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

    subroutine view_complex64(address, bytes, values)
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        complex(c_double_complex), pointer, intent(out) :: values(:)

        call c_f_pointer(address, values, [bytes / (storage_size(values) / 8)])
    end subroutine

end module
