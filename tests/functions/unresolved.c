/* A package that needs a symbol that nothing provides. */
#include "echo.h"

extern uint32_t nobody_provides_this(uint32_t size);

SUBLET_FUNCTION uint32_t wish(void *in, uint32_t size, void *out) {
    (void)in, (void)out;
    return nobody_provides_this(size);
}
