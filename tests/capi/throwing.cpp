// A function that ends by an exception.
#include <stdexcept>

#include <sublet_function.h>

SUBLET_FUNCTION std::uint32_t throwing(void *, std::uint32_t, void *) { throw std::runtime_error("too hot to handle"); }
