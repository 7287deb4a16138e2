// A kernel and a helper that are called as those of another program of the same package.
uchar helper(uchar x) { return x * 2; }

kernel void main_kernel(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    size_t at = get_global_id(0);
    if (at < size && at < capacity) output[at] = helper(input[at]);
    if (at == 0) *written = size;
}
