/* The same function as chain.c has, in a server of its own: it gets the payload by HTTP and sends it to the next server, if there is one.
 * It says at which port it listens, and serves one connection after the other until its standard input ends. */
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
  size_t filled, body, size; /* of what was received; where the body begins, and how long it is */
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

/* Receives a request or an answer with a body of a said length. */
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

static int dial(const char* port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection, (struct sockaddr*)&to, sizeof to)) stop("connect");
  without_delay(connection);
  return connection;
}

/* The function: counts itself, and has the next one go on. */
static int stage(int following, message* request, message* answer, const char** out, size_t* size) {
  char* body = request->bytes + request->body;
  uint32_t head[2];
  if (request->size < sizeof head) return -1;
  memcpy(head, body, sizeof head);
  head[1]++;
  memcpy(body, head, sizeof head);
  *out = body, *size = request->size;
  if (following < 0 || head[1] >= head[0]) return 0;
  if (send_message(following, "POST / HTTP/1.1\r\nHost: localhost", body, request->size)) return -1;
  if (receive(following, answer)) return -1;
  *out = answer->bytes + answer->body, *size = answer->size;
  return 0;
}

int main(int count, char** words) {
  static message request, answer;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, (struct sockaddr*)&at, sizeof at) || listen(listener, 8)) stop("listen");
  getsockname(listener, (struct sockaddr*)&at, &size);
  const int following = count > 1 ? dial(words[1]) : -1;
  printf("%d\n", ntohs(at.sin_port));
  fflush(stdout);
  for (;;) {
    struct pollfd fds[2] = {{.fd = listener, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0) stop("poll");
    if (fds[1].revents) return 0;
    const int client = accept(listener, NULL, NULL);
    if (client < 0) continue;
    without_delay(client);
    const char* out;
    size_t len;
    while (!receive(client, &request) && !stage(following, &request, &answer, &out, &len) &&
           !send_message(client, "HTTP/1.1 200 OK", out, len)) {
    }
    close(client);
  }
}
