/* A chain of functions, for `sublet bench chain`: each counts itself in what it is given and calls the next. Built by build.rs and carried
 * inside of the command. */
#include <stdint.h>
#include <string.h>

#include <sublet_function.h>

static const char* const NAMES[] = {"f1", "f2",  "f3",  "f4",  "f5",  "f6",  "f7",  "f8",
                                    "f9", "f10", "f11", "f12", "f13", "f14", "f15", "f16"};

/* The payload begins with how many functions there are, and how many were executed. */
SUBLET_FUNCTION uint32_t stage(void* in, uint32_t size, void* out, sublet_context* context) {
  uint32_t head[2], written;
  if (size < sizeof head || size > sublet_capacity(context)) return sublet_fail(context, "a payload of no use");
  memcpy(out, in, size);
  memcpy(head, in, sizeof head);
  head[1]++;
  memcpy(out, head, sizeof head);
  if (head[1] >= head[0] || head[1] >= sizeof NAMES / sizeof *NAMES) return size;
  if (sublet_call(context, NAMES[head[1]], out, size, out, sublet_capacity(context), &written))
    return sublet_fail(context, sublet_why(context));
  return written;
}
