/* An HTTP server with the function of chain.c, for `sublet bench chain`: counts itself in the payload, and answers with it. Prints its port,
 * and serves one connection after the other until its standard input ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 65536 };

typedef struct message {
  char bytes[ROOM];
  size_t filled, body, size; /* bytes received; offset and size of the body */
} message;

static void stop(const char* what) {
  perror(what);
  exit(1);
}

/* Sends all of it at once: head and body. */
static int send_all(int to, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(to, bytes, size, MSG_NOSIGNAL);
    if (sent <= 0) return -1;
    bytes += sent, size -= (size_t)sent;
  }
  return 0;
}

static int send_message(int to, const char* first, const char* body, size_t size) {
  char bytes[ROOM + 256];
  const int head = snprintf(bytes, 256, "%s\r\nContent-Length: %zu\r\n\r\n", first, size);
  memcpy(bytes + head, body, size);
  return send_all(to, bytes, (size_t)head + size);
}

/* Receives a request with a body of the length that its head states. */
static int receive(int from, message* into) {
  into->filled = into->body = 0;
  for (;;) {
    char* end = memmem(into->bytes, into->filled, "\r\n\r\n", 4);
    if (end != NULL) {
      *end = 0;
      const char* length = strcasestr(into->bytes, "\r\nContent-Length:");
      into->body = (size_t)(end - into->bytes) + 4;
      into->size = length == NULL ? 0 : strtoul(length + 17, NULL, 10);
      *end = '\r';
      if (into->size > ROOM - into->body) return -1;
      if (into->filled >= into->body + into->size) return 0;
    }
    const ssize_t got = recv(from, into->bytes + into->filled, ROOM - into->filled, 0);
    if (got <= 0) return -1;
    into->filled += (size_t)got;
  }
}

static void without_delay(int connection) {
  const int yes = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* The function: counts itself in the body of a request. */
static int stage(message* request) {
  char* body = request->bytes + request->body;
  uint32_t head[2];
  if (request->size < sizeof head) return -1;
  memcpy(head, body, sizeof head);
  head[1]++;
  memcpy(body, head, sizeof head);
  return 0;
}

int main(void) {
  static message request;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, (struct sockaddr*)&at, sizeof at) || listen(listener, 8)) stop("listen");
  getsockname(listener, (struct sockaddr*)&at, &size);
  printf("%d\n", ntohs(at.sin_port));
  fflush(stdout);
  for (;;) {
    struct pollfd fds[2] = {{.fd = listener, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0) stop("poll");
    if (fds[1].revents) return 0;
    const int client = accept(listener, NULL, NULL);
    if (client < 0) continue;
    without_delay(client);
    while (!receive(client, &request) && !stage(&request) &&
           !send_message(client, "HTTP/1.1 200 OK", request.bytes + request.body, request.size)) {
    }
    close(client);
  }
}
