// Kernels that answer as the functions of the other tests do, and some that go wrong.
#define KERNEL(name) \
    kernel void name(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written)

uchar helper(uchar x) { return x + 1; }

KERNEL(echo) {
    size_t at = get_global_id(0);
    if (at < size && at < capacity) output[at] = input[at];
    if (at == 0) *written = size;
}

// Each byte and 1.
KERNEL(main_kernel) {
    size_t at = get_global_id(0);
    if (at < size && at < capacity) output[at] = helper(input[at]);
    if (at == 0) *written = size;
}

KERNEL(refuse) {
    constant char *said = "not today";
    for (uint i = 0; i < 10; i++) output[i] = said[i];
    *written = 0xffffffff;
}

KERNEL(boast) { *written = capacity + 1; }

KERNEL(spin) { for (volatile uint i = 0; ; i++); }

// How many work-items there are, and how many of a group.
KERNEL(count) {
    global uint *counts = (global uint *)output;
    counts[0] = get_global_size(0);
    counts[1] = get_local_size(0);
    *written = 8;
}
