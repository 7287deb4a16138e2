/* The stage compress of ../stages.c on a device: a work-item for each block of 4 by 4 pixels. */
kernel void compress(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {
    global const uint *shape = (global const uint *)input;
    if (size < 8 || shape[0] % 4 || shape[1] % 4 || (ulong)shape[0] * shape[1] + 8 != size || size / 4 + 6 > capacity) return;
    const uint width = shape[0], across = width / 4, blocks = across * (shape[1] / 4), number = get_global_id(0);
    if (number == 0) {
        ((global uint *)output)[0] = width;
        ((global uint *)output)[1] = shape[1];
        *written = 8 + 4 * blocks;
    }
    if (number >= blocks) return;
    global const uchar *corner = input + 8 + (number / across * 4) * width + number % across * 4;
    uint sum = 0, low = 0, high = 0, bits = 0, count = 0;
    for (uint at = 0; at < 16; at++) sum += corner[at / 4 * width + at % 4];
    for (uint at = 0; at < 16; at++) {
        const uint pixel = corner[at / 4 * width + at % 4];
        if (pixel * 16 >= sum) {
            high += pixel;
            count++;
            bits |= 1u << at;
        } else {
            low += pixel;
        }
    }
    global uchar *block = output + 8 + 4 * number;
    block[0] = count == 16 ? 0 : low / (16 - count);
    block[1] = high / count;
    block[2] = bits;
    block[3] = bits >> 8;
}
