/* The functions that hello calls, in C. The same functions are in hello.rs, hello.f90, go/hello.go and nodejs/hello.js.
 * They link with nothing of Sublet's:
 *
 *     cc -O2 -shared -fPIC -o libhello.so hello.c
 *
 * or, for every processor, as a WebAssembly module (with Debian's wasi-libc: and -nodefaultlibs -lc):
 *
 *     clang --target=wasm32-wasi -mexec-model=reactor -O2 -Wl,--export-dynamic -o hello.wasm hello.c
 */
#include <ctype.h>
#include <stdio.h>

#include <sublet_function.h>

/* Turns text into capitals. The short form of a function: the caller makes the output as large as the input. */
SUBLET_FUNCTION uint32_t shout(void *in, uint32_t size, void *out) {
    const unsigned char *text = in;
    unsigned char *loud = out;
    for (uint32_t i = 0; i < size; i++)
        loud[i] = (unsigned char)toupper(text[i]);
    return size;
}

/* Greets the name in its input. The long form: it knows how much it may write, and can say what is wrong. */
SUBLET_FUNCTION uint32_t greet(void *in, uint32_t size, void *out, sublet_context *context) {
    if (size == 0)
        return sublet_fail(context, "the name is empty");
    int written = snprintf(out, sublet_capacity(context), "Hello, %.*s!", (int)size, (const char *)in);
    if (written < 0 || (uint32_t)written >= sublet_capacity(context))
        return sublet_fail(context, "the greeting does not fit the output");
    return (uint32_t)written;
}
