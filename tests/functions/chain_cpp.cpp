// Functions in C++ that call each other in place: what one throws ends at the other.

#include <new>
#include <stdexcept>

#include "../../crates/capi/include/sublet_function.h"

SUBLET_FUNCTION uint32_t throws(void *, uint32_t, void *, sublet_context *) { throw std::runtime_error("thrown within"); }

SUBLET_FUNCTION uint32_t exhausts(void *, uint32_t, void *, sublet_context *) { throw std::bad_alloc(); }

// Answers 1 if the function failed as it was expected to, and is no worse for it.
SUBLET_FUNCTION uint32_t survives(void *, uint32_t, void *out, sublet_context *context) {
    *static_cast<char *>(out) = sublet_call(context, "throws", nullptr, 0, out, 1, nullptr) != 0;
    return 1;
}

SUBLET_FUNCTION uint32_t passes_on(void *in, uint32_t size, void *out, sublet_context *context) {
    const char *name = size > 0 && *static_cast<char *>(in) == 'e' ? "exhausts" : "throws";
    uint32_t written = 0;
    if (sublet_call(context, name, in, size, out, sublet_capacity(context), &written) != 0)
        return sublet_fail(context, sublet_why(context));
    return written;
}
