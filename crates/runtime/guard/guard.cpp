// Calls a function and catches what it throws. Built as a shared object of its own, which a worker loads only when
// the package has brought in libstdc++: then both use the same one, and packages in plain C pay nothing.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cxxabi.h>
#include <exception>
#include <new>

using function = std::uint32_t (*)(void*, std::uint32_t, void*, void*);

enum outcome : int { returned = 0, out_of_memory = 1, threw = 2 };

extern "C" __attribute__((visibility("default"))) int sublet_guarded_call(
    function call, void* in, std::uint32_t size, void* out, void* context,
    std::uint32_t* written, char* message, std::size_t message_bytes) {
  auto say = [&](const char* text) {
    std::strncpy(message, text, message_bytes - 1);
    message[message_bytes - 1] = '\0';
  };
  try {
    *written = call(in, size, out, context);
    return returned;
  } catch (const std::bad_alloc& error) {
    say(error.what());
    return out_of_memory;
  } catch (const std::exception& error) {
    say(error.what());
    return threw;
  } catch (abi::__forced_unwind&) {
    throw;  // The thread is being cancelled: not ours to stop.
  } catch (...) {
    say("an exception that is not a std::exception");
    return threw;
  }
}
