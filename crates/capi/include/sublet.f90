! sublet.f90: run functions on leased cores from Fortran.
!
!     use sublet
!     type(sublet_invoker) :: invoker
!     real(real64), pointer :: x(:), y(:)
!
!     call invoker%connect()
!     call invoker%allocate('./libfunctions.so', cores=4)
!     call invoker%buffer(x, 1000)
!     call invoker%buffer(y, 1000)
!     call invoker%call('twice', sublet_bytes(x), sublet_bytes(y))
!
! It is compiled like a file of the program, by the program's own compiler, since compiled modules (.mod) differ from compiler
! to compiler:
!
!     gfortran -O2 $(pkg-config --variable=includedir sublet)/sublet.f90 program.f90 $(pkg-config --libs sublet)
!
! Functions to be called are written with sublet_function.f90. The comments of sublet.h describe each operation in detail; the
! names here are the same where the languages allow it. Fortran 2018 is needed; gfortran 12 compiles it.
!
! Rules that hold everywhere:
!
! - Errors are reported as by Fortran's own statements. With `stat`, an operation returns the number of the error, SUBLET_OK if
!   there is none. With `errmsg`, a text of a fixed length, it assigns the message of an error; sublet_error_message returns the
!   whole message. Without `stat`, an error ends the program: the error's name and message go to standard error, and its number
!   is the exit status.
! - Outputs are set only if the operation has succeeded.
! - The end of a number's name is its unit: _bytes, _ns, _unix_ms (milliseconds since 1970), _nano (1e-9).
! - An array that is passed to `submit` is read and written until the call has ended, which the compiler cannot see. Buffers
!   are pointers, of which compilers expect that. Declare other arrays with the attribute `target`.
! - One invoker may be used by any number of threads at once to allocate buffers, find functions and submit calls. Leasing
!   (allocate, grow, deallocate) and closing must not overlap with anything else on the same invoker. gfortran needs -frecursive
!   or -fopenmp for programs with threads.
module sublet
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit, int64
    implicit none
    private

    public :: sublet_invoker, sublet_invocation, sublet_procedure, sublet_bytes, sublet_lease, sublet_bill, sublet_notice
    public :: sublet_status_name, sublet_error_message, sublet_version

    ! Status of an operation or a call: the numbers of sublet.h, which explains each.
    integer(c_int), parameter, public :: SUBLET_OK = 0
    integer(c_int), parameter, public :: SUBLET_INVALID_ARGUMENT = 10
    integer(c_int), parameter, public :: SUBLET_UNKNOWN_FUNCTION = 11
    integer(c_int), parameter, public :: SUBLET_UNKNOWN_PACKAGE = 12
    integer(c_int), parameter, public :: SUBLET_UNKNOWN_LEASE = 13
    integer(c_int), parameter, public :: SUBLET_INVALID_PACKAGE = 14
    integer(c_int), parameter, public :: SUBLET_WRONG_ARCHITECTURE = 15
    integer(c_int), parameter, public :: SUBLET_MISSING_SYMBOL = 16
    integer(c_int), parameter, public :: SUBLET_INPUT_TOO_LARGE = 17
    integer(c_int), parameter, public :: SUBLET_OUTPUT_TOO_LARGE = 18
    integer(c_int), parameter, public :: SUBLET_TOO_MANY_IN_FLIGHT = 19
    integer(c_int), parameter, public :: SUBLET_NOT_ALLOCATED = 20
    integer(c_int), parameter, public :: SUBLET_ALREADY_ALLOCATED = 21
    integer(c_int), parameter, public :: SUBLET_UNKNOWN_IMAGE = 22
    integer(c_int), parameter, public :: SUBLET_INVALID_IMAGE = 23
    integer(c_int), parameter, public :: SUBLET_INVALID_GRAPH = 24
    integer(c_int), parameter, public :: SUBLET_UNKNOWN_GRAPH = 25
    integer(c_int), parameter, public :: SUBLET_UNKNOWN_RUN = 26
    integer(c_int), parameter, public :: SUBLET_RUN_TAKEN = 27
    integer(c_int), parameter, public :: SUBLET_RUN_CANCELLED = 28
    integer(c_int), parameter, public :: SUBLET_INSUFFICIENT_RESOURCES = 30
    integer(c_int), parameter, public :: SUBLET_NO_CAPACITY = 31
    integer(c_int), parameter, public :: SUBLET_LEASE_EXPIRED = 32
    integer(c_int), parameter, public :: SUBLET_LEASE_ENDED = 33
    integer(c_int), parameter, public :: SUBLET_PERMISSION_DENIED = 34
    integer(c_int), parameter, public :: SUBLET_UNAUTHENTICATED = 35
    integer(c_int), parameter, public :: SUBLET_QUOTA_EXCEEDED = 36
    integer(c_int), parameter, public :: SUBLET_TRY_LATER = 37
    integer(c_int), parameter, public :: SUBLET_TICKET_SUPERSEDED = 38
    integer(c_int), parameter, public :: SUBLET_NODE_RECLAIMED = 39
    integer(c_int), parameter, public :: SUBLET_FUNCTION_FAILED = 40
    integer(c_int), parameter, public :: SUBLET_WORKER_DIED = 41
    integer(c_int), parameter, public :: SUBLET_DEADLINE_EXCEEDED = 42
    integer(c_int), parameter, public :: SUBLET_MEMORY_EXCEEDED = 43
    integer(c_int), parameter, public :: SUBLET_CORE_BUSY = 44
    integer(c_int), parameter, public :: SUBLET_MANAGER_UNREACHABLE = 50
    integer(c_int), parameter, public :: SUBLET_AGENT_UNREACHABLE = 51
    integer(c_int), parameter, public :: SUBLET_PROTOCOL = 52
    integer(c_int), parameter, public :: SUBLET_STORE_FULL = 53
    integer(c_int), parameter, public :: SUBLET_SYSTEM = 54
    integer(c_int), parameter, public :: SUBLET_ALREADY_RUNNING = 55
    integer(c_int), parameter, public :: SUBLET_STORE_UNREACHABLE = 56
    integer(c_int), parameter, public :: SUBLET_FABRIC_UNAVAILABLE = 57
    integer(c_int), parameter, public :: SUBLET_VERSION_MISMATCH = 58
    integer(c_int), parameter, public :: SUBLET_KEY_REFUSED = 59
    integer(c_int), parameter, public :: SUBLET_INTERNAL = 60
    integer(c_int), parameter, public :: SUBLET_LIMIT_TOO_LOW = 61
    integer(c_int), parameter, public :: SUBLET_REGISTRY_UNREACHABLE = 62
    integer(c_int), parameter, public :: SUBLET_STORE_DAMAGED = 63

    ! Values of `hot_ns` for workers that always poll, or sleep after every call.
    integer(int64), parameter, public :: SUBLET_ALWAYS_HOT = -1_int64
    integer(int64), parameter, public :: SUBLET_ALWAYS_WARM = 0_int64
    ! Value of `worker` for calls that any worker may execute: an idle one is preferred.
    integer, parameter, public :: SUBLET_ANY_WORKER = -1

    ! Memory of a variable: the input or output of a call. `sublet_bytes(x)` is the memory of a number or a text, or of a contiguous
    ! array of these; `sublet_bytes(address, size)` any memory, for instance of a derived type with bind(c); `sublet_bytes()` no
    ! memory. An array that is not contiguous ends the program.
    type :: sublet_bytes
        type(c_ptr) :: address = c_null_ptr
        integer(c_size_t) :: size = 0_c_size_t
    end type

    interface sublet_bytes
        module procedure bytes_of_text
        module procedure bytes_of_int8
        module procedure bytes_of_int16
        module procedure bytes_of_int32
        module procedure bytes_of_int64
        module procedure bytes_of_real32
        module procedure bytes_of_real64
        module procedure bytes_of_complex32
        module procedure bytes_of_complex64
    end interface

    ! A function of the leased package, valid until the lease is released. Finding it once is cheaper than by each call.
    type :: sublet_procedure
        private
        integer(c_int16_t) :: number = 0_c_int16_t
    end type

    ! The first lease, which has most of the workers.
    type :: sublet_lease
        character(:), allocatable :: id
        character(:), allocatable :: node
        character(:), allocatable :: package
        character(:), allocatable :: owner
        character(:), allocatable :: isolation
        integer(int64) :: memory_bytes = 0
        integer(int64) :: granted_unix_ms = 0
        integer(int64) :: expires_unix_ms = 0
        integer(int64) :: start_ns = 0
        integer :: workers = 0
        integer :: functions = 0
    end type

    ! Usage of a lease, and its costs in units of 1e-9 of the manager's currency.
    type, bind(c) :: sublet_bill
        integer(c_int64_t) :: allocated_ns = 0
        integer(c_int64_t) :: executing_ns = 0
        integer(c_int64_t) :: polling_ns = 0
        integer(c_int64_t) :: calls = 0
        integer(c_int64_t) :: failed_calls = 0
        integer(c_int64_t) :: allocation_nano = 0
        integer(c_int64_t) :: compute_nano = 0
        integer(c_int64_t) :: polling_nano = 0
        integer(c_int64_t) :: total_nano = 0
    end type

    ! Announcement that a lease will end, or has ended.
    type :: sublet_notice
        integer(int64) :: left_ns = 0
        integer :: status = SUBLET_OK
        character(:), allocatable :: lease
        character(:), allocatable :: message
    end type

    ! A client of the managers of one store. `close` frees it and releases its leases, and so does the end of its scope.
    type :: sublet_invoker
        private
        type(c_ptr) :: handle = c_null_ptr
    contains
        procedure :: connect
        procedure :: allocate => allocate_leases
        procedure :: grow
        procedure :: renew
        procedure :: lease
        procedure :: notices
        procedure :: deallocate => deallocate_leases
        procedure :: find
        procedure, private :: submit_named
        procedure, private :: submit_procedure
        generic :: submit => submit_named, submit_procedure
        procedure :: call => call_named
        procedure, private :: buffer_text
        procedure, private :: buffer_int8
        procedure, private :: buffer_int16
        procedure, private :: buffer_int32
        procedure, private :: buffer_int64
        procedure, private :: buffer_real32
        procedure, private :: buffer_real64
        procedure, private :: buffer_complex32
        procedure, private :: buffer_complex64
        generic :: buffer => buffer_text, buffer_int8, buffer_int16, buffer_int32, buffer_int64, &
            buffer_real32, buffer_real64, buffer_complex32, buffer_complex64
        procedure, private, nopass :: free_text
        procedure, private, nopass :: free_int8
        procedure, private, nopass :: free_int16
        procedure, private, nopass :: free_int32
        procedure, private, nopass :: free_int64
        procedure, private, nopass :: free_real32
        procedure, private, nopass :: free_real64
        procedure, private, nopass :: free_complex32
        procedure, private, nopass :: free_complex64
        generic :: free => free_text, free_int8, free_int16, free_int32, free_int64, &
            free_real32, free_real64, free_complex32, free_complex64
        procedure :: close => close_invoker
        procedure, private :: copy_invoker
        generic :: assignment(=) => copy_invoker
        final :: end_invoker
    end type

    ! A submitted call. It must be waited for or closed; the end of its scope closes it, which waits for the call.
    type :: sublet_invocation
        private
        integer(c_int64_t) :: opaque(32) = 0_c_int64_t
    contains
        procedure :: is_ready
        procedure :: wait => wait_for_end
        procedure :: wait_timeout
        procedure :: wait_deadline
        procedure :: close => close_invocation
        procedure, private :: copy_invocation
        generic :: assignment(=) => copy_invocation
        final :: end_invocation
    end type

    ! Structures of sublet.h.
    type, bind(c) :: c_access
        integer(c_int32_t) :: size_bytes
        type(c_ptr) :: managers
        type(c_ptr) :: ca_file
        type(c_ptr) :: token
        type(c_ptr) :: token_file
    end type

    type, bind(c) :: c_allocation
        integer(c_int32_t) :: size_bytes
        integer(c_int32_t) :: cores
        type(c_ptr) :: package
        integer(c_int64_t) :: memory_bytes
        integer(c_int64_t) :: timeout_ns
        integer(c_int64_t) :: slot_bytes
        integer(c_int64_t) :: hot_ns
        integer(c_int64_t) :: spin_ns
        integer(c_int32_t) :: slots
        integer(c_int32_t) :: max_nodes
        integer(c_int64_t) :: wait_ns
        integer(c_int64_t) :: idle_timeout_ns
        type(c_ptr) :: pu
        integer(c_int32_t) :: shared
        integer(c_int32_t) :: time_weight_permille
        type(c_ptr) :: fabric
        type(c_ptr) :: interface
        type(c_ptr) :: pool
        type(c_ptr) :: variables = c_null_ptr
        type(c_ptr) :: secrets = c_null_ptr
        type(c_ptr) :: folders = c_null_ptr
        integer(c_int64_t) :: temporary_bytes = 0
        type(c_ptr) :: isolation = c_null_ptr
        integer(c_int64_t) :: start_timeout_ns = 0
        type(c_funptr) :: on_step = c_null_funptr
        type(c_ptr) :: step_user = c_null_ptr
    end type

    type, bind(c) :: c_lease
        type(c_ptr) :: id
        type(c_ptr) :: node
        type(c_ptr) :: package
        type(c_ptr) :: owner
        type(c_ptr) :: isolation
        integer(c_int64_t) :: memory_bytes
        integer(c_int64_t) :: granted_unix_ms
        integer(c_int64_t) :: expires_unix_ms
        integer(c_int64_t) :: start_ns
        integer(c_int32_t) :: workers
        integer(c_int32_t) :: functions
    end type

    type, bind(c) :: c_notice
        integer(c_int64_t) :: left_ns
        integer(c_int) :: status
        character(kind=c_char) :: lease(36)
        character(kind=c_char) :: message(208)
    end type

    type, bind(c) :: c_call_options
        integer(c_int32_t) :: worker
        integer(c_int32_t) :: timed
        integer(c_int64_t) :: timeout_ns
        integer(c_int32_t) :: retries
    end type

    type, bind(c) :: c_call
        type(c_ptr) :: input
        integer(c_size_t) :: input_bytes
        type(c_ptr) :: output
        integer(c_size_t) :: output_bytes
        type(c_ptr) :: options
        integer(c_int16_t) :: function
    end type

    type, bind(c) :: c_completion
        integer(c_int64_t) :: output_bytes
        integer(c_int64_t) :: executing_ns
    end type

    ! Functions of libsublet.
    interface
        function c_status_name(status) bind(c, name='sublet_status_name') result(name)
            import :: c_int, c_ptr
            integer(c_int), value :: status
            type(c_ptr) :: name
        end function

        function c_error_message() bind(c, name='sublet_error_message') result(message)
            import :: c_ptr
            type(c_ptr) :: message
        end function

        function c_version() bind(c, name='sublet_version') result(version)
            import :: c_ptr
            type(c_ptr) :: version
        end function

        function c_connect_with(access, invoker) bind(c, name='sublet_invoker_connect_with') result(status)
            import :: c_int, c_ptr, c_access
            type(c_access), intent(in) :: access
            type(c_ptr), intent(inout) :: invoker
            integer(c_int) :: status
        end function

        subroutine c_invoker_free(invoker) bind(c, name='sublet_invoker_free')
            import :: c_ptr
            type(c_ptr), value :: invoker
        end subroutine

        function c_allocate(invoker, allocation) bind(c, name='sublet_invoker_allocate') result(status)
            import :: c_int, c_ptr, c_allocation
            type(c_ptr), value :: invoker
            type(c_allocation), intent(in) :: allocation
            integer(c_int) :: status
        end function

        function c_grow(invoker, cores) bind(c, name='sublet_invoker_grow') result(status)
            import :: c_int, c_int32_t, c_ptr
            type(c_ptr), value :: invoker
            integer(c_int32_t), value :: cores
            integer(c_int) :: status
        end function

        function c_renew(invoker, timeout_ns) bind(c, name='sublet_invoker_renew') result(status)
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: invoker
            integer(c_int64_t), value :: timeout_ns
            integer(c_int) :: status
        end function

        function c_notices(invoker, notices, capacity, count) bind(c, name='sublet_invoker_notices') result(status)
            import :: c_int, c_ptr, c_size_t, c_notice
            type(c_ptr), value :: invoker
            type(c_notice), intent(inout) :: notices(*)
            integer(c_size_t), value :: capacity
            integer(c_size_t), intent(inout) :: count
            integer(c_int) :: status
        end function

        function c_deallocate(invoker, bill) bind(c, name='sublet_invoker_deallocate') result(status)
            import :: c_int, c_ptr, sublet_bill
            type(c_ptr), value :: invoker
            type(sublet_bill), intent(inout) :: bill
            integer(c_int) :: status
        end function

        function c_invoker_lease(invoker, lease) bind(c, name='sublet_invoker_lease') result(status)
            import :: c_int, c_ptr, c_lease
            type(c_ptr), value :: invoker
            type(c_lease), intent(inout) :: lease
            integer(c_int) :: status
        end function

        function c_buffer_allocate(invoker, len_bytes, data) bind(c, name='sublet_buffer_allocate') result(status)
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: invoker
            integer(c_size_t), value :: len_bytes
            type(c_ptr), intent(inout) :: data
            integer(c_int) :: status
        end function

        function c_buffer_free(data) bind(c, name='sublet_buffer_free') result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: data
            integer(c_int) :: status
        end function

        function c_function(invoker, name, number) bind(c, name='sublet_invoker_function') result(status)
            import :: c_char, c_int, c_int16_t, c_ptr
            type(c_ptr), value :: invoker
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int16_t), intent(inout) :: number
            integer(c_int) :: status
        end function

        function c_submit(invoker, call, invocation) bind(c, name='sublet_invoker_submit') result(status)
            import :: c_int, c_int64_t, c_ptr, c_call
            type(c_ptr), value :: invoker
            type(c_call), intent(in) :: call
            integer(c_int64_t), intent(inout) :: invocation(32)
            integer(c_int) :: status
        end function

        function c_is_ready(invocation, ready) bind(c, name='sublet_invocation_is_ready') result(status)
            import :: c_bool, c_int, c_int64_t
            integer(c_int64_t), intent(inout) :: invocation(32)
            logical(c_bool), intent(inout) :: ready
            integer(c_int) :: status
        end function

        function c_wait(invocation, completion) bind(c, name='sublet_invocation_wait') result(status)
            import :: c_int, c_int64_t, c_completion
            integer(c_int64_t), intent(inout) :: invocation(32)
            type(c_completion), intent(inout) :: completion
            integer(c_int) :: status
        end function

        function c_wait_timeout(invocation, timeout_ns, ended) bind(c, name='sublet_invocation_wait_timeout') result(status)
            import :: c_bool, c_int, c_int64_t
            integer(c_int64_t), intent(inout) :: invocation(32)
            integer(c_int64_t), value :: timeout_ns
            logical(c_bool), intent(inout) :: ended
            integer(c_int) :: status
        end function

        function c_wait_deadline(invocation, timeout_ns, completion) bind(c, name='sublet_invocation_wait_deadline') &
            result(status)
            import :: c_int, c_int64_t, c_completion
            integer(c_int64_t), intent(inout) :: invocation(32)
            integer(c_int64_t), value :: timeout_ns
            type(c_completion), intent(inout) :: completion
            integer(c_int) :: status
        end function

        subroutine c_invocation_close(invocation) bind(c, name='sublet_invocation_close')
            import :: c_int64_t
            integer(c_int64_t), intent(inout) :: invocation(32)
        end subroutine

        function c_strlen(string) bind(c, name='strlen') result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: string
            integer(c_size_t) :: length
        end function
    end interface

contains

    ! Connects to managers at addresses such as "unix:/run/sublet/manager.sock" or "https://host:port", separated by commas. The
    ! environment provides absent arguments: $SUBLET_MANAGER, or this machine's own `sublet up`; $SUBLET_CA; $SUBLET_TOKEN or
    ! $SUBLET_TOKEN_FILE.
    subroutine connect(self, managers, ca_file, token, token_file, stat, errmsg)
        class(sublet_invoker), intent(inout) :: self
        character(*), intent(in), optional :: managers
        character(*), intent(in), optional :: ca_file
        character(*), intent(in), optional :: token
        character(*), intent(in), optional :: token_file
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        character(:, c_char), allocatable, target :: c_managers, c_ca_file, c_token, c_token_file
        type(c_access) :: access

        call self%close()
        access%size_bytes = int(c_sizeof(access), c_int32_t)
        access%managers = optional_string(managers, c_managers)
        access%ca_file = optional_string(ca_file, c_ca_file)
        access%token = optional_string(token, c_token)
        access%token_file = optional_string(token_file, c_token_file)
        call report(c_connect_with(access, self%handle), stat, errmsg)
    end subroutine

    ! Leases cores, on one or more nodes, and starts their workers. `package` is the name or digest of a deployed package, or the
    ! path of a folder or shared object, which is deployed first. Either all cores are leased, or none. The defaults are those of
    ! sublet_allocation in sublet.h.
    subroutine allocate_leases(self, package, cores, memory_bytes, timeout_ns, slot_bytes, hot_ns, spin_ns, slots, max_nodes, &
            wait_ns, idle_timeout_ns, pu, shared, time_weight_permille, fabric, interface, pool, isolation, &
            start_timeout_ns, stat, errmsg)
        class(sublet_invoker), intent(inout) :: self
        character(*), intent(in) :: package
        integer, intent(in), optional :: cores
        integer(int64), intent(in), optional :: memory_bytes
        integer(int64), intent(in), optional :: timeout_ns
        integer(int64), intent(in), optional :: slot_bytes
        integer(int64), intent(in), optional :: hot_ns
        integer(int64), intent(in), optional :: spin_ns
        integer, intent(in), optional :: slots
        integer, intent(in), optional :: max_nodes
        integer(int64), intent(in), optional :: wait_ns
        integer(int64), intent(in), optional :: idle_timeout_ns
        character(*), intent(in), optional :: pu
        logical, intent(in), optional :: shared
        integer, intent(in), optional :: time_weight_permille
        character(*), intent(in), optional :: fabric
        character(*), intent(in), optional :: interface
        character(*), intent(in), optional :: pool
        character(*), intent(in), optional :: isolation
        integer(int64), intent(in), optional :: start_timeout_ns
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        character(:, c_char), allocatable, target :: c_package, c_pu, c_fabric, c_interface, c_pool, c_isolation
        type(c_allocation) :: allocation

        allocation%size_bytes = int(c_sizeof(allocation), c_int32_t)
        allocation%cores = int(number(cores, 1), c_int32_t)
        allocation%package = optional_string(package, c_package)
        allocation%memory_bytes = long(memory_bytes, 0_int64)
        allocation%timeout_ns = long(timeout_ns, 0_int64)
        allocation%slot_bytes = long(slot_bytes, 65536_int64)
        allocation%hot_ns = long(hot_ns, 1000000_int64)
        allocation%spin_ns = long(spin_ns, 50000_int64)
        allocation%slots = int(number(slots, 8), c_int32_t)
        allocation%max_nodes = int(number(max_nodes, 0), c_int32_t)
        allocation%wait_ns = long(wait_ns, 0_int64)
        allocation%idle_timeout_ns = long(idle_timeout_ns, 0_int64)
        allocation%pu = optional_string(pu, c_pu)
        allocation%shared = 0
        if (present(shared)) allocation%shared = merge(1_c_int32_t, 0_c_int32_t, shared)
        allocation%time_weight_permille = int(number(time_weight_permille, 0), c_int32_t)
        allocation%fabric = optional_string(fabric, c_fabric)
        allocation%interface = optional_string(interface, c_interface)
        allocation%pool = optional_string(pool, c_pool)
        allocation%isolation = optional_string(isolation, c_isolation)
        allocation%start_timeout_ns = long(start_timeout_ns, 0_int64)
        call report(c_allocate(self%handle, allocation), stat, errmsg)
    end subroutine

    ! Leases more cores on the terms of the present leases; their workers get the next numbers.
    subroutine grow(self, cores, stat, errmsg)
        class(sublet_invoker), intent(inout) :: self
        integer, intent(in) :: cores
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call report(c_grow(self%handle, int(cores, c_int32_t)), stat, errmsg)
    end subroutine

    ! Renews all leases to end this long from now; 0: the manager's default.
    subroutine renew(self, timeout_ns, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        integer(int64), intent(in) :: timeout_ns
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call report(c_renew(self%handle, timeout_ns), stat, errmsg)
    end subroutine

    ! Describes the first lease.
    subroutine lease(self, description, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        type(sublet_lease), intent(inout) :: description
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_lease) :: found
        integer(c_int) :: status

        status = c_invoker_lease(self%handle, found)
        if (status == SUBLET_OK) then
            description%id = text_at(found%id)
            description%node = text_at(found%node)
            description%package = text_at(found%package)
            description%owner = text_at(found%owner)
            description%isolation = text_at(found%isolation)
            description%memory_bytes = found%memory_bytes
            description%granted_unix_ms = found%granted_unix_ms
            description%expires_unix_ms = found%expires_unix_ms
            description%start_ns = found%start_ns
            description%workers = int(found%workers)
            description%functions = int(found%functions)
        end if
        call report(status, stat, errmsg)
    end subroutine

    ! Returns the announcements of ends of leases. Sends no message, so it is cheap between calls.
    subroutine notices(self, announced, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        type(sublet_notice), allocatable, intent(inout) :: announced(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_notice), allocatable :: found(:)
        integer(c_size_t) :: count
        integer(c_int) :: status
        integer :: i

        allocate(found(0))
        do
            count = size(found, kind=c_size_t)
            status = c_notices(self%handle, found, size(found, kind=c_size_t), count)
            if (status /= SUBLET_OK .or. count <= size(found)) exit
            ! There are more than the array has space for.
            deallocate(found)
            allocate(found(count))
        end do
        if (status == SUBLET_OK) then
            if (allocated(announced)) deallocate(announced)
            allocate(announced(count))
            do i = 1, int(count)
                announced(i)%left_ns = found(i)%left_ns
                announced(i)%status = int(found(i)%status)
                announced(i)%lease = text_in(found(i)%lease)
                announced(i)%message = text_in(found(i)%message)
            end do
        end if
        call report(status, stat, errmsg)
    end subroutine

    ! Releases all leases. Calls that have not ended fail with SUBLET_LEASE_ENDED. `bill` is the sum over all leases.
    subroutine deallocate_leases(self, bill, stat, errmsg)
        class(sublet_invoker), intent(inout) :: self
        type(sublet_bill), intent(inout), optional :: bill
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(sublet_bill) :: total
        integer(c_int) :: status

        status = c_deallocate(self%handle, total)
        if (status == SUBLET_OK .and. present(bill)) bill = total
        call report(status, stat, errmsg)
    end subroutine

    ! Finds a function of the leased package by its name or as "package/function".
    subroutine find(self, name, procedure, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        character(*), intent(in) :: name
        type(sublet_procedure), intent(inout) :: procedure
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call report(c_function(self%handle, trim(name) // c_null_char, procedure%number), stat, errmsg)
    end subroutine

    ! Submits a call of a function by its name, and returns while the call is executed.
    subroutine submit_named(self, name, input, output, invocation, worker, timed, timeout_ns, retries, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        character(*), intent(in) :: name
        type(sublet_bytes), intent(in) :: input
        type(sublet_bytes), intent(in) :: output
        type(sublet_invocation), intent(inout) :: invocation
        integer, intent(in), optional :: worker
        logical, intent(in), optional :: timed
        integer(int64), intent(in), optional :: timeout_ns
        integer, intent(in), optional :: retries
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(sublet_procedure) :: procedure
        integer(c_int) :: status

        status = c_function(self%handle, trim(name) // c_null_char, procedure%number)
        if (status == SUBLET_OK) then
            call self%submit_procedure(procedure, input, output, invocation, worker, timed, timeout_ns, retries, stat, errmsg)
        else
            call report(status, stat, errmsg)
        end if
    end subroutine

    ! Submits a call of a function, and returns while the call is executed. Neither input nor output may be used until the call has
    ! ended. Memory of the invoker's buffers is used in place. Other input is copied once and must fit `slot_bytes`; other output is
    ! copied once by the wait for the call. Defaults: any worker, not timed, no timeout, no retries. An invocation that holds another
    ! call is closed first, which waits for that call.
    subroutine submit_procedure(self, procedure, input, output, invocation, worker, timed, timeout_ns, retries, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        type(sublet_procedure), intent(in) :: procedure
        type(sublet_bytes), intent(in) :: input
        type(sublet_bytes), intent(in) :: output
        type(sublet_invocation), intent(inout) :: invocation
        integer, intent(in), optional :: worker
        logical, intent(in), optional :: timed
        integer(int64), intent(in), optional :: timeout_ns
        integer, intent(in), optional :: retries
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_call_options), target :: options
        type(c_call) :: call

        options%worker = int(number(worker, SUBLET_ANY_WORKER), c_int32_t)
        options%timed = 0
        if (present(timed)) options%timed = merge(1_c_int32_t, 0_c_int32_t, timed)
        options%timeout_ns = long(timeout_ns, 0_int64)
        options%retries = int(number(retries, 0), c_int32_t)
        call%input = input%address
        call%input_bytes = input%size
        call%output = output%address
        call%output_bytes = output%size
        call%options = c_loc(options)
        call%function = procedure%number
        call c_invocation_close(invocation%opaque)
        call report(c_submit(self%handle, call, invocation%opaque), stat, errmsg)
    end subroutine

    ! Calls a function by its name, and waits for its end.
    subroutine call_named(self, name, input, output, output_bytes, executing_ns, worker, timeout_ns, retries, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        character(*), intent(in) :: name
        type(sublet_bytes), intent(in) :: input
        type(sublet_bytes), intent(in) :: output
        integer(int64), intent(inout), optional :: output_bytes
        integer(int64), intent(inout), optional :: executing_ns
        integer, intent(in), optional :: worker
        integer(int64), intent(in), optional :: timeout_ns
        integer, intent(in), optional :: retries
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(sublet_invocation) :: invocation
        logical :: timed

        timed = present(executing_ns)
        call self%submit_named(name, input, output, invocation, worker, timed, timeout_ns, retries, stat, errmsg)
        if (present(stat)) then
            if (stat /= SUBLET_OK) return
        end if
        call invocation%wait(output_bytes, executing_ns, stat, errmsg)
    end subroutine

    ! Frees the invoker and releases its leases. Its buffers stay until they are freed.
    subroutine close_invoker(self)
        class(sublet_invoker), intent(inout) :: self

        call c_invoker_free(self%handle)
        self%handle = c_null_ptr
    end subroutine

    impure elemental subroutine end_invoker(self)
        type(sublet_invoker), intent(inout) :: self

        call self%close()
    end subroutine

    subroutine copy_invoker(to, from)
        class(sublet_invoker), intent(inout) :: to
        class(sublet_invoker), intent(in) :: from

        if (c_associated(to%handle) .or. c_associated(from%handle)) error stop 'a sublet_invoker cannot be copied'
    end subroutine

    ! Reports whether the call has ended, in success or failure. Never blocks.
    logical function is_ready(self, stat, errmsg)
        class(sublet_invocation), intent(inout) :: self
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        logical(c_bool) :: ready

        ready = .false.
        call report(c_is_ready(self%opaque, ready), stat, errmsg)
        is_ready = ready
    end function

    ! Waits for the end of the call, collects the result, and closes the invocation, whether or not the call has succeeded.
    ! `output_bytes` is the function's return value. `executing_ns` is the time in the function; 0 if the call was not timed.
    subroutine wait_for_end(self, output_bytes, executing_ns, stat, errmsg)
        class(sublet_invocation), intent(inout) :: self
        integer(int64), intent(inout), optional :: output_bytes
        integer(int64), intent(inout), optional :: executing_ns
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_completion) :: completion
        integer(c_int) :: status

        status = c_wait(self%opaque, completion)
        call complete(status, completion, output_bytes, executing_ns)
        call report(status, stat, errmsg)
    end subroutine

    ! Waits for the end of the call, but at most this long from now. The result must be collected in either case.
    subroutine wait_timeout(self, timeout_ns, ended, stat, errmsg)
        class(sublet_invocation), intent(inout) :: self
        integer(int64), intent(in) :: timeout_ns
        logical, intent(inout) :: ended
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        logical(c_bool) :: has_ended
        integer(c_int) :: status

        has_ended = .false.
        status = c_wait_timeout(self%opaque, timeout_ns, has_ended)
        if (status == SUBLET_OK) ended = has_ended
        call report(status, stat, errmsg)
    end subroutine

    ! Waits as `wait`, but ends the call with SUBLET_DEADLINE_EXCEEDED if it has not ended within this time from now, by stopping
    ! its worker process.
    subroutine wait_deadline(self, timeout_ns, output_bytes, executing_ns, stat, errmsg)
        class(sublet_invocation), intent(inout) :: self
        integer(int64), intent(in) :: timeout_ns
        integer(int64), intent(inout), optional :: output_bytes
        integer(int64), intent(inout), optional :: executing_ns
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_completion) :: completion
        integer(c_int) :: status

        status = c_wait_deadline(self%opaque, timeout_ns, completion)
        call complete(status, completion, output_bytes, executing_ns)
        call report(status, stat, errmsg)
    end subroutine

    ! Waits for the end of the call and drops its result. Does nothing without a call.
    subroutine close_invocation(self)
        class(sublet_invocation), intent(inout) :: self

        call c_invocation_close(self%opaque)
    end subroutine

    impure elemental subroutine end_invocation(self)
        type(sublet_invocation), intent(inout) :: self

        call self%close()
    end subroutine

    subroutine copy_invocation(to, from)
        class(sublet_invocation), intent(inout) :: to
        class(sublet_invocation), intent(in) :: from

        ! The first word is 0 without a call.
        if (to%opaque(1) /= 0 .or. from%opaque(1) /= 0) error stop 'a sublet_invocation cannot be copied'
    end subroutine

    ! Returns the name of a status, as "worker_died".
    function sublet_status_name(status) result(name)
        integer, intent(in) :: status
        character(:), allocatable :: name

        name = text_at(c_status_name(int(status, c_int)))
    end function

    ! Returns the message of the latest failure on this thread; '' if there was none.
    function sublet_error_message() result(message)
        character(:), allocatable :: message

        message = text_at(c_error_message())
    end function

    ! Returns the version of the library, as "0.1.0".
    function sublet_version() result(version)
        character(:), allocatable :: version

        version = text_at(c_version())
    end function

    ! Buffers: memory that workers access without copying, of `count` values with unspecified contents. They outlive leases, and
    ! end with `free`, which also nullifies the pointer.

    subroutine buffer_text(self, text, length, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        character(:, c_char), pointer, intent(inout) :: text
        integer, intent(in) :: length
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        character(kind=c_char), pointer :: characters(:)
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(length, 1), data)
        if (status == SUBLET_OK) then
            call c_f_pointer(data, characters, [max(length, 1)])
            call point(characters, length, text)
        end if
        call report(status, stat, errmsg)
    contains
        ! Views an array of characters as a text.
        subroutine point(characters, length, text)
            integer, intent(in) :: length
            character(length, c_char), intent(in), target :: characters(*)
            character(:, c_char), pointer, intent(inout) :: text

            text => characters(1)
        end subroutine
    end subroutine

    subroutine free_text(text, stat, errmsg)
        character(:, c_char), pointer, intent(inout) :: text
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(text), stat, errmsg)
        nullify(text)
    end subroutine

    subroutine buffer_int8(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        integer(c_int8_t), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_int8(values, stat, errmsg)
        integer(c_int8_t), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_int16(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        integer(c_int16_t), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_int16(values, stat, errmsg)
        integer(c_int16_t), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_int32(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        integer(c_int32_t), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_int32(values, stat, errmsg)
        integer(c_int32_t), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_int64(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        integer(c_int64_t), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_int64(values, stat, errmsg)
        integer(c_int64_t), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_real32(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        real(c_float), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_real32(values, stat, errmsg)
        real(c_float), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_real64(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        real(c_double), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_real64(values, stat, errmsg)
        real(c_double), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_complex32(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        complex(c_float_complex), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_complex32(values, stat, errmsg)
        complex(c_float_complex), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    subroutine buffer_complex64(self, values, count, stat, errmsg)
        class(sublet_invoker), intent(in) :: self
        complex(c_double_complex), pointer, intent(inout) :: values(:)
        integer, intent(in) :: count
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg
        type(c_ptr) :: data
        integer(c_int) :: status

        status = c_buffer_allocate(self%handle, size_of(count, storage_size(values) / 8), data)
        if (status == SUBLET_OK) call c_f_pointer(data, values, [max(count, 0)])
        call report(status, stat, errmsg)
    end subroutine

    subroutine free_complex64(values, stat, errmsg)
        complex(c_double_complex), pointer, intent(inout) :: values(:)
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call free_at(c_loc(values), stat, errmsg)
        nullify(values)
    end subroutine

    ! The memory of variables, for `sublet_bytes`.

    function bytes_of_text(text) result(bytes)
        character(*, c_char), intent(in), target :: text(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(text)) call refuse_parts()
        if (size(text) > 0 .and. len(text) > 0) then
            bytes = sublet_bytes(c_loc(text), size(text, kind=c_size_t) * len(text, kind=c_size_t))
        end if
    end function

    function bytes_of_int8(values) result(bytes)
        integer(c_int8_t), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_int16(values) result(bytes)
        integer(c_int16_t), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_int32(values) result(bytes)
        integer(c_int32_t), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_int64(values) result(bytes)
        integer(c_int64_t), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_real32(values) result(bytes)
        real(c_float), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_real64(values) result(bytes)
        real(c_double), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_complex32(values) result(bytes)
        complex(c_float_complex), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    function bytes_of_complex64(values) result(bytes)
        complex(c_double_complex), intent(in), target :: values(..)
        type(sublet_bytes) :: bytes

        if (.not. is_contiguous(values)) call refuse_parts()
        if (size(values) > 0) bytes = sublet_bytes(c_loc(values), size(values, kind=c_size_t) * (storage_size(values) / 8))
    end function

    subroutine refuse_parts()
        error stop 'sublet_bytes: the array is not contiguous; pass a copy of it'
    end subroutine

    ! Size of `count` values of this size. A negative count becomes a size that no buffer has.
    pure function size_of(count, value_bytes) result(bytes)
        integer, intent(in) :: count
        integer, intent(in) :: value_bytes
        integer(c_size_t) :: bytes

        bytes = int(count, c_size_t) * value_bytes
    end function

    subroutine free_at(data, stat, errmsg)
        type(c_ptr), intent(in) :: data
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        call report(c_buffer_free(data), stat, errmsg)
    end subroutine

    subroutine complete(status, completion, output_bytes, executing_ns)
        integer(c_int), intent(in) :: status
        type(c_completion), intent(in) :: completion
        integer(int64), intent(inout), optional :: output_bytes
        integer(int64), intent(inout), optional :: executing_ns

        if (status /= SUBLET_OK) return
        if (present(output_bytes)) output_bytes = completion%output_bytes
        if (present(executing_ns)) executing_ns = completion%executing_ns
    end subroutine

    ! Reports the outcome of an operation, or ends the program if it has failed and the caller does not look.
    subroutine report(status, stat, errmsg)
        integer(c_int), intent(in) :: status
        integer, intent(out), optional :: stat
        character(*), intent(inout), optional :: errmsg

        if (present(stat)) stat = int(status)
        if (status == SUBLET_OK) return
        if (present(errmsg)) errmsg = text_at(c_error_message())
        if (present(stat)) return
        write (error_unit, '(a, ": ", a)') text_at(c_status_name(status)), text_at(c_error_message())
        stop int(status), quiet=.true.
    end subroutine

    pure integer function number(given, default)
        integer, intent(in), optional :: given
        integer, intent(in) :: default

        number = default
        if (present(given)) number = given
    end function

    pure integer(int64) function long(given, default)
        integer(int64), intent(in), optional :: given
        integer(int64), intent(in) :: default

        long = default
        if (present(given)) long = given
    end function

    ! Copies a text without its trailing blanks to `copy`, which ends with a zero byte, and returns its address; null without a
    ! text.
    function optional_string(text, copy) result(address)
        character(*), intent(in), optional :: text
        character(:, c_char), allocatable, target, intent(inout) :: copy
        type(c_ptr) :: address

        address = c_null_ptr
        if (.not. present(text)) return
        copy = trim(text) // c_null_char
        address = c_loc(copy)
    end function

    ! The text of a string of C that ends with a zero byte.
    function text_at(address) result(text)
        type(c_ptr), intent(in) :: address
        character(:), allocatable :: text
        character(kind=c_char), pointer :: characters(:)

        text = ''
        if (.not. c_associated(address)) return
        call c_f_pointer(address, characters, [c_strlen(address)])
        text = joined(characters)
    end function

    ! The text in an array, up to its first zero byte.
    pure function text_in(characters) result(text)
        character(kind=c_char), intent(in) :: characters(:)
        character(:), allocatable :: text
        integer :: length

        length = findloc(characters, c_null_char, dim=1) - 1
        if (length < 0) length = size(characters)
        text = joined(characters(:length))
    end function

    pure function joined(characters) result(text)
        character(kind=c_char), intent(in) :: characters(:)
        character(:), allocatable :: text
        integer :: i

        allocate(character(size(characters)) :: text)
        do i = 1, size(characters)
            text(i:i) = characters(i)
        end do
    end function
end module
