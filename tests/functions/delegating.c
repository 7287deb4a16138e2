/* A function that has its own kind executed on another processing unit: a kernel, where that is a device. */

#include <stdio.h>
#include <string.h>

#include "../../crates/capi/include/sublet_function.h"
#include "../../crates/capi/include/sublet_xpu.h"

/* A number, and bytes, which are doubled: by itself for 0, else by the first device of OpenCL beside the processor before that number. */
SUBLET_FUNCTION uint32_t twice(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t number = *(uint32_t *)in;
    const unsigned char *bytes = (unsigned char *)in + sizeof number;
    uint32_t unit, device, executor;
    uint64_t written;
    size -= sizeof number;
    if (!number) {
        for (uint32_t at = 0; at < size; at++) ((unsigned char *)out)[at] = (unsigned char)(bytes[at] * 2);
        return size;
    }
    if (sublet_xpu_unit(number - 1, &unit) || sublet_xpu_device(unit, "opencl0", &device)
        || sublet_executor_start(device, 0, 20000, &executor))
        return sublet_fail(context, sublet_xpu_why());
    const uint32_t failed =
        sublet_executor_call(executor, "twice", bytes, size, out, sublet_capacity(context), 20000, &written);
    sublet_executor_stop(executor);
    return failed ? sublet_fail(context, sublet_xpu_why()) : (uint32_t)written;
}

/* The names of a package, of a device or none, and of a function of the package, each ended by 0, and that one's input: executed on that
 * device of this process's node, or on its processor. */
SUBLET_FUNCTION uint32_t elsewhere(void *in, uint32_t size, void *out, sublet_context *context) {
    const char *package = in, *end = package + size;
    const char *device = package + strlen(package) + 1, *function = device + strlen(device) + 1;
    const char *input = function + strlen(function) + 1;
    uint32_t unit, executor;
    uint64_t written;
    if (sublet_xpu_unit(0, &unit) || (*device && sublet_xpu_device(unit, device, &unit))
        || sublet_executor_start_of(package, unit, 0, 20000, &executor))
        return sublet_fail(context, sublet_xpu_why());
    const uint32_t failed = sublet_executor_call(executor, function, input, (uint64_t)(end - input), out, sublet_capacity(context),
                                                 20000, &written);
    sublet_executor_stop(executor);
    return failed ? sublet_fail(context, sublet_xpu_why()) : (uint32_t)written;
}

/* The names of a package and of a device or none, and then functions and their inputs, each ended by 0: all called of one executor, with
 * what each answers on a line, or why it does not, after a "!". */
SUBLET_FUNCTION uint32_t several(void *in, uint32_t size, void *out, sublet_context *context) {
    const char *package = in, *end = package + size;
    const char *device = package + strlen(package) + 1, *function = device + strlen(device) + 1;
    char *answer = out, *most = answer + sublet_capacity(context);
    uint32_t unit, executor;
    if (sublet_xpu_unit(0, &unit) || (*device && sublet_xpu_device(unit, device, &unit))
        || sublet_executor_start_of(package, unit, 0, 20000, &executor))
        return sublet_fail(context, sublet_xpu_why());
    while (function < end) {
        const char *input = function + strlen(function) + 1;
        uint64_t written;
        if (!sublet_executor_call(executor, function, input, strlen(input), answer, (uint64_t)(most - answer - 1), 20000, &written))
            answer += written;
        else
            answer += snprintf(answer, (size_t)(most - answer - 1), "!%s", sublet_xpu_why());
        *answer++ = '\n';
        function = input + strlen(input) + 1;
    }
    sublet_executor_stop(executor);
    return (uint32_t)(answer - (char *)out);
}
