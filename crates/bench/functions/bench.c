/* The functions that `sublet bench` calls. Built by build.rs and carried inside of the command. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Does nothing. */
uint32_t noop(void* in, uint32_t size, void* out) {
  (void)in, (void)size, (void)out;
  return 0;
}

/* Returns its input. */
uint32_t echo(void* in, uint32_t size, void* out) {
  memcpy(out, in, size);
  return size;
}

/* Returns the time of its first instruction, in nanoseconds of the machine's monotonic clock. */
uint32_t moment(void* in, uint32_t size, void* out) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  (void)in, (void)size;
  uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  memcpy(out, &ns, sizeof ns);
  return sizeof ns;
}

/* Sleeps for as many nanoseconds as its input says, and returns that. */
uint32_t nap(void* in, uint32_t size, void* out) {
  uint64_t ns;
  if (size != sizeof ns) return 0;
  memcpy(&ns, in, sizeof ns);
  struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  nanosleep(&time, NULL);
  memcpy(out, &ns, sizeof ns);
  return sizeof ns;
}

/* Returns as many bytes as it is given, whatever lies there: what is measured is their way. */
uint32_t exchange(void* in, uint32_t size, void* out) {
  (void)in, (void)out;
  return size;
}

/* The head of the input of `raw`: a page with parameters and two flags, each on cache lines of its own, followed by
 * the bytes that are copied. The output has a page ahead of its bytes as well. */
struct parameters {
  uint64_t rounds;
  uint32_t copy_bytes;
  uint32_t sleeps;
};
enum { REQUEST_OFFSET = 128, RESPONSE_OFFSET = 256, HEAD_BYTES = 4096 };

/* The limit that calls are measured against: answers a flag with a flag, `rounds` times, from the very thread that
 * executes functions. With `copy_bytes` it makes the one copy that `echo` makes; with `sleeps` it sleeps on the flag. */
uint32_t raw(void* in, uint32_t size, void* out) {
  const struct parameters parameters = *(const struct parameters*)in;
  const char* source = (const char*)in + HEAD_BYTES;
  char* target = (char*)out + HEAD_BYTES;
  _Atomic uint32_t* request = (_Atomic uint32_t*)((char*)in + REQUEST_OFFSET);
  _Atomic uint32_t* response = (_Atomic uint32_t*)((char*)in + RESPONSE_OFFSET);
  (void)size;
  for (uint32_t round = 1; round <= parameters.rounds; round++) {
    for (;;) {
      uint32_t seen = atomic_load_explicit(request, memory_order_acquire);
      if (seen == round) break;
      if (parameters.sleeps) syscall(SYS_futex, request, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
    if (parameters.copy_bytes) memcpy(target, source, parameters.copy_bytes);
    atomic_store_explicit(response, round, memory_order_release);
  }
  return 0;
}

/* The input of `raw_tcp`, as bench/raw/tcp.rs writes it. */
struct tcp_parameters {
  uint64_t rounds;
  uint32_t request_bytes;
  uint32_t response_bytes;
  uint32_t sleeps;
  uint32_t connection; /* another number than the last time: connect anew */
  uint32_t is_v6;
  uint32_t port;
  uint32_t scope; /* the interface of a link-local address */
  uint8_t address[16];
};

/* Kept from one call to the next: a new connection has a small window. */
static int tcp_socket = -1;
static uint32_t tcp_connection;

static int tcp_connect(const struct tcp_parameters* parameters) {
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)parameters->port)};
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)parameters->port)};
  memcpy(&v6.sin6_addr, parameters->address, sizeof v6.sin6_addr);
  v6.sin6_scope_id = parameters->scope;
  memcpy(&v4.sin_addr, parameters->address, sizeof v4.sin_addr);
  const struct sockaddr* to = parameters->is_v6 ? (const struct sockaddr*)&v6 : (const struct sockaddr*)&v4;
  int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (fd < 0) return -1;
  if (connect(fd, to, parameters->is_v6 ? sizeof v6 : sizeof v4) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Whether the socket is there. */
static int tcp_prepare(const struct tcp_parameters* parameters) {
  if (tcp_socket < 0 || tcp_connection != parameters->connection) {
    if (tcp_socket >= 0) close(tcp_socket);
    tcp_socket = tcp_connect(parameters), tcp_connection = parameters->connection;
  }
  return tcp_socket >= 0;
}

static int is_only_not_ready(ssize_t moved) {
  return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static int tcp_receive(char* into, size_t bytes, int flags) {
  for (size_t got = 0; got < bytes;) {
    ssize_t moved = recv(tcp_socket, into + got, bytes - got, flags);
    if (moved > 0) got += (size_t)moved;
    else if (!is_only_not_ready(moved)) return 0;
  }
  return 1;
}

static int tcp_send(const char* from, size_t bytes, int flags) {
  for (size_t sent = 0; sent < bytes;) {
    ssize_t moved = send(tcp_socket, from + sent, bytes - sent, flags | MSG_NOSIGNAL);
    if (moved > 0) sent += (size_t)moved;
    else if (!is_only_not_ready(moved)) return 0;
  }
  return 1;
}

/* The limit of calls over TCP: takes a request's bytes from a connection of its own and sends a response's, `rounds`
 * times, spinning, or with `sleeps` blocking. Nothing is copied: a request lies where a call's input would, and its bytes
 * are the response's. Ends early where the connection does; returns 1 byte if it could not connect. */
uint32_t raw_tcp(void* in, uint32_t size, void* out) {
  struct tcp_parameters parameters;
  char* bytes = (char*)in + HEAD_BYTES;
  if (size < sizeof parameters) return 0;
  memcpy(&parameters, in, sizeof parameters);
  if (!tcp_prepare(&parameters)) {
    *(char*)out = 1;
    return 1;
  }
  int flags = parameters.sleeps ? 0 : MSG_DONTWAIT;
  for (uint64_t round = 0; round < parameters.rounds; round++) {
    if (!tcp_receive(bytes, parameters.request_bytes, flags) || !tcp_send(bytes, parameters.response_bytes, flags)) {
      close(tcp_socket);
      tcp_socket = -1;
      break;
    }
  }
  return 0;
}
