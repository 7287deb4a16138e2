// Kernels of which the second sees what the first has written and not told of: only if that never left the device.
kernel void mark(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    if (get_global_id(0) != 0 || size < 1 || capacity < 2) return;
    output[0] = input[0];
    output[1] = 77;
    *written = 1;
}

kernel void look(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    if (get_global_id(0) != 0 || size < 1 || capacity < 2) return;
    output[0] = input[0];
    output[1] = input[1];
    *written = 2;
}

// Reports one byte more than the output's capacity.
kernel void exceed(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    if (get_global_id(0) == 0) *written = capacity + 1;
}

kernel void spin(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    for (volatile uint turns = 0;; turns++);
}

kernel void echo(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    if (get_global_id(0) != 0 || size > capacity) return;
    for (uint at = 0; at < size; at++) output[at] = input[at];
    *written = size;
}

kernel void twice(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    if (get_global_id(0) != 0 || 2 * size > capacity) return;
    for (uint at = 0; at < size; at++) output[at] = output[size + at] = input[at];
    *written = 2 * size;
}
