// Functions that throw. The exception ends the call, not the worker.
#include <cstddef>
#include <new>
#include <stdexcept>

#include <unistd.h>

#include "echo.h"

SUBLET_FUNCTION uint32_t throw_exception(void*, uint32_t, void*) { throw std::runtime_error("the ink is dry"); }

SUBLET_FUNCTION uint32_t throw_int(void*, uint32_t, void*) { throw 7; }

// Takes memory until there is no more, and leaves none behind.
SUBLET_FUNCTION uint32_t devour(void*, uint32_t, void*) {
  struct Piece {
    Piece* next;
    char bytes[1 << 20];
  };
  struct Pieces {
    Piece* first = nullptr;
    ~Pieces() {
      while (first != nullptr) {
        Piece* next = first->next;
        delete first;
        first = next;
      }
    }
  } pieces;
  for (;;) {
    Piece* piece = new Piece;
    piece->next = pieces.first;
    pieces.first = piece;
  }
}

SUBLET_FUNCTION uint32_t process(void*, uint32_t, void* out) {
  const uint32_t pid = static_cast<uint32_t>(getpid());
  memcpy(out, &pid, sizeof pid);
  return sizeof pid;
}
