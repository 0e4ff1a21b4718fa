/* Collectives of two ranks over one blocking TCP connection: as little as there can be. Compiled
 * when `allhands bench --vs tcp` runs. Each function returns 0, or -1 with errno. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

int tcp_send(int fd, const char *data, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, data, count, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return -1;
        if (sent > 0) {
            data += sent;
            count -= (size_t)sent;
        }
    }
    return 0;
}

int tcp_receive(int fd, char *room, size_t count)
{
    while (count > 0) {
        ssize_t got = recv(fd, room, count, MSG_WAITALL);
        if (got == 0)
            errno = ECONNRESET;
        if (got == 0 || (got < 0 && errno != EINTR))
            return -1;
        if (got > 0) {
            room += got;
            count -= (size_t)got;
        }
    }
    return 0;
}

static int would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* Sends and receives `count` bytes at once: neither side may wait for the other to read first. */
int tcp_exchange(int fd, const char *data, char *room, size_t count)
{
    size_t sent = 0, got = 0;
    while (sent < count || got < count) {
        int moved = 0;
        if (sent < count) {
            ssize_t more = send(fd, data + sent, count - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (more < 0 && !would_block())
                return -1;
            if (more > 0) {
                sent += (size_t)more;
                moved = 1;
            }
        }
        if (sent == count)
            return tcp_receive(fd, room + got, count - got);
        if (got < count) {
            ssize_t more = recv(fd, room + got, count - got, MSG_DONTWAIT);
            if (more == 0)
                errno = ECONNRESET;
            if (more == 0 || (more < 0 && !would_block()))
                return -1;
            if (more > 0) {
                got += (size_t)more;
                moved = 1;
            }
        }
        if (!moved) {
            struct pollfd ready = { fd, POLLOUT | (got < count ? POLLIN : 0), 0 };
            if (poll(&ready, 1, -1) < 0 && errno != EINTR)
                return -1;
        }
    }
    return 0;
}

/* The all_reduce of two ranks: adds what the peer sends to `x`. */
int tcp_all_reduce(int fd, float *x, float *room, size_t elements)
{
    if (tcp_exchange(fd, (const char *)x, (char *)room, elements * sizeof *x) != 0)
        return -1;
    for (size_t i = 0; i < elements; i++)
        x[i] += room[i];
    return 0;
}
