! The functions of jacobi: the same module computes here and on leased cores.
!
! The functions' shared object contains this file and sublet_function.f90, the program this file as well.
module jacobi_rows
    use, intrinsic :: iso_fortran_env, only: real64
    implicit none
    private

    public :: improve_rows, header_values

    ! Values before the vector in the input of a call: the number of unknowns, of rows, and of the first row.
    integer, parameter :: header_values = 3

contains

    ! Computes a part of the next vector: x + (b - A x) / diag(A), for rows from `first` on. Each column of `a` is a row of the matrix,
    ! so that it lies in one piece of memory.
    pure subroutine improve_rows(first, a, b, x, improved)
        integer, intent(in) :: first
        real(real64), intent(in) :: a(:, :), b(:), x(:)
        real(real64), intent(out) :: improved(:)
        integer :: row

        do row = 1, size(b)
            improved(row) = x(first + row - 1) + (b(row) - dot_product(a(:, row), x)) / a(first + row - 1, row)
        end do
    end subroutine
end module

! Computes rows of the next vector. The input has the header, the vector, the rows of the right side, and the rows of the matrix.
function improve(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    use jacobi_rows
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    real(c_double), pointer :: values(:), x(:), b(:), a(:, :), improved(:)
    integer :: unknowns, rows, first, at
    character(96) :: message

    call sublet_view(input, sublet_size(bytes), values)
    call sublet_view(output, sublet_capacity(context), improved)
    if (size(values) < header_values) then
        written = sublet_fail(context, 'the input has no header')
        return
    end if
    unknowns = nint(values(1))
    rows = nint(values(2))
    first = nint(values(3))
    if (unknowns < 1 .or. rows < 1 .or. first < 1 .or. first + rows - 1 > unknowns .or. rows > size(improved) .or. &
        size(values, kind=c_int64_t) /= header_values + unknowns + rows + int(unknowns, c_int64_t) * rows) then
        write (message, '("rows ", i0, " to ", i0, " of ", i0, " do not fit the call")') first, first + rows - 1, unknowns
        written = sublet_fail(context, message)
        return
    end if
    at = header_values
    x => values(at + 1:at + unknowns)
    at = at + unknowns
    b => values(at + 1:at + rows)
    at = at + rows
    a(1:unknowns, 1:rows) => values(at + 1:)
    call improve_rows(first, a, b, x, improved(:rows))
    written = rows * 8
end function
