! The functions of the MPI programs in Fortran, which workers execute: those of kernels.c, with the same inputs and outputs.

! The part of a system of equations that the worker keeps between calls. Variables of a module are shared by all workers of a
! lease, so a lease has one core.
module kept
    use, intrinsic :: iso_fortran_env, only: real64
    implicit none
    public

    integer :: first = 0
    real(real64), allocatable :: matrix(:, :), right(:)
end module

! Input: rows, inner and columns; rows of a matrix; another matrix. Output: their product.
function multiply(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    use kernels
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    real(c_double), pointer :: values(:), found(:), a(:, :), b(:, :), product(:, :)
    integer(c_int64_t) :: rows, inner, columns, length

    call sublet_view(input, sublet_size(bytes), values)
    call sublet_view(output, sublet_capacity(context), found)
    if (size(values) < header_values) then
        written = sublet_fail(context, 'multiply: the input does not begin with the sizes of the matrices')
        return
    end if
    rows = nint(values(1), c_int64_t)
    inner = nint(values(2), c_int64_t)
    columns = nint(values(3), c_int64_t)
    if (min(rows, inner, columns) < 0 .or. max(rows, inner, columns) > 1000000) then
        written = sublet_fail(context, 'multiply: the sizes of the matrices are not from 0 to 1000000')
        return
    end if
    length = rows * columns
    if (size(values, kind=c_int64_t) /= header_values + rows * inner + inner * columns) then
        written = sublet_fail(context, 'multiply: the input does not have the matrices whose sizes it states')
        return
    end if
    if (length > size(found, kind=c_int64_t)) then
        written = sublet_fail(context, 'multiply: the output is too small for the product')
        return
    end if
    a(1:inner, 1:rows) => values(header_values + 1:)
    b(1:columns, 1:inner) => values(header_values + rows * inner + 1:)
    product(1:columns, 1:rows) => found
    call multiply_rows(a, b, product)
    written = sublet_written(8 * length)
end function

! Input: unknowns, rows and the first row, counted from 0; the rows of the right side; the rows of the matrix. The worker keeps a
! copy in place of an earlier one.
function keep(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    use kernels
    use kept
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    real(c_double), pointer :: values(:)
    integer(c_int64_t) :: unknowns, rows, at
    integer :: status

    written = 0
    call sublet_view(input, sublet_size(bytes), values)
    if (size(values) < header_values) then
        written = sublet_fail(context, 'keep: the input does not begin with the sizes of the matrix')
        return
    end if
    unknowns = nint(values(1), c_int64_t)
    rows = nint(values(2), c_int64_t)
    first = nint(values(3)) + 1
    if (min(unknowns, rows) < 0 .or. max(unknowns, rows) > 1000000 .or. first < 1 .or. first - 1 + rows > unknowns .or. &
        size(values, kind=c_int64_t) /= header_values + rows + rows * unknowns) then
        written = sublet_fail(context, 'keep: the input does not have the rows whose number it states')
        return
    end if
    if (allocated(matrix)) deallocate (matrix, right)
    allocate (matrix(unknowns, rows), right(rows), stat=status)
    if (status /= 0) then
        written = sublet_fail(context, 'keep: the lease has too little memory for the matrix')
        return
    end if
    at = header_values + rows
    right(:) = values(header_values + 1:at)
    matrix(:, :) = reshape(values(at + 1:), [unknowns, rows])
end function

! Input: the vector. Output: the rows of the next vector whose part of the matrix this worker keeps.
function improve(input, bytes, output, context) bind(c) result(written)
    use sublet_function
    use kernels
    use kept
    implicit none
    type(c_ptr), value :: input, output, context
    integer(c_int32_t), value :: bytes
    integer(c_int32_t) :: written
    real(c_double), pointer :: x(:), next(:)

    if (.not. allocated(matrix)) then
        written = sublet_fail(context, 'improve: this worker keeps no matrix; call keep first')
        return
    end if
    call sublet_view(input, sublet_size(bytes), x)
    call sublet_view(output, sublet_capacity(context), next)
    if (size(x) /= size(matrix, 1) .or. size(next) < size(right)) then
        written = sublet_fail(context, 'improve: the vectors do not fit the matrix that this worker keeps')
        return
    end if
    call improve_rows(first, matrix, right, x, next(:size(right)))
    written = 8 * size(right)
end function
