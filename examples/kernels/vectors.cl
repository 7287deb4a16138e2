// Kernels that Sublet calls as functions: input, its size, output, how much of it there is, and how much was written.
//
// There may be more work-items than were asked for, up to a whole group: each looks whether its place is in the input.
// One of them says how many bytes of output there are; 0xffffffff says that the function failed, and why is the output.

kernel void scale(global const float *input, uint size, global float *output, uint capacity, global uint *written) {
    const size_t at = get_global_id(0);
    if (at < size / sizeof(float) && at < capacity / sizeof(float))
        output[at] = FACTOR * input[at];
    if (at == 0)
        *written = size;
}

void fail(global uchar *output, uint capacity, global uint *written, constant char *message) {
    for (uint at = 0; at < capacity; at++) {
        output[at] = message[at];
        if (message[at] == 0)
            break;
    }
    *written = 0xffffffff;
}

kernel void vector_lengths(global const float4 *input, uint size, global float *output, uint capacity, global uint *written) {
    const size_t at = get_global_id(0), count = size / sizeof(float4);
    if (size % sizeof(float4) != 0) {
        if (at == 0)
            fail((global uchar *)output, capacity, written, "the input is no whole number of vectors of four");
        return;
    }
    if (at < count && at < capacity / sizeof(float))
        output[at] = length(input[at]);
    if (at == 0)
        *written = count * sizeof(float);
}
