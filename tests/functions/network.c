/* Tries network operations as a function, and reports the results. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connects to a port of this machine. In: the port; out: 0, or the error of the call that failed. */
uint32_t dial(const uint16_t *port, uint32_t size, int32_t *error) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *error = fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) ? errno : 0;
    if (fd >= 0)
        close(fd);
    (void)size;
    return sizeof *error;
}
