/* The promises of rsocket(7) and of the manual pages of sockets, call by call: two sides in one
 * process.
 *
 *     rsockets ADDRESS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"

/* The call must fail with this errno. */
#define FAILS(call, why) CHECK_ERRNO((call) == -1, why)

static struct sockaddr_in address;

/* repoll_create and related functions came with rdma-core 65, and the headers may be older. */
static int (*repoll_create_)(int flags);
static int (*repoll_ctl_)(int epfd, int op, int fd, struct epoll_event *event);
static int (*repoll_wait_)(int epfd, struct epoll_event *events, int most, int timeout);

static void *repoll(const char *name)
{
	void *found = dlvsym(RTLD_DEFAULT, name, "RDMACM_1.5");

	CHECK(found);
	return found;
}

static struct sockaddr *any(struct sockaddr_in *addr)
{
	return (struct sockaddr *)addr;
}

static short poll_one(int fd, short events, int timeout)
{
	struct pollfd fds = { .fd = fd, .events = events };
	int ready = rpoll(&fds, 1, timeout);

	CHECK(ready >= 0);
	CHECK((ready == 1) == (fds.revents != 0));
	return fds.revents;
}

/* A listener, and its address. */
static int listener(struct sockaddr_in *at)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*at);

	CHECK(fd >= 0);
	*at = address;
	CHECK(rbind(fd, any(at), sizeof(*at)) == 0);
	CHECK(rlisten(fd, 8) == 0);
	CHECK(rgetsockname(fd, any(at), &len) == 0);
	CHECK(len == sizeof(*at) && at->sin_port != 0);
	return fd;
}

struct pair {
	int left;
	int right;
};

struct connecting {
	int fd;
	struct sockaddr_in to;
};

static void *connect_there(void *arg)
{
	struct connecting *connecting = arg;

	CHECK(rconnect(connecting->fd, any(&connecting->to), sizeof(connecting->to)) == 0);
	return NULL;
}

static void set(int fd, int level, int name, int value)
{
	CHECK(rsetsockopt(fd, level, name, &value, sizeof(value)) == 0);
}

static int get(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	CHECK(rgetsockopt(fd, level, name, &value, &len) == 0);
	CHECK(len == sizeof(value));
	return value;
}

/* Two connected rsockets, which may map memory. */
static struct pair pair(void)
{
	struct connecting connecting;
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);
	struct pair pair;
	pthread_t thread;
	int from = listener(&connecting.to);

	set(from, SOL_RDMA, RDMA_IOMAPSIZE, 2);
	connecting.fd = pair.left = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	CHECK(pair.left >= 0);
	set(pair.left, SOL_RDMA, RDMA_IOMAPSIZE, 2);
	CHECK(pthread_create(&thread, NULL, connect_there, &connecting) == 0);
	pair.right = raccept(from, any(&peer), &len);
	CHECK(pair.right >= 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(len == sizeof(peer) && peer.sin_family == AF_INET);
	CHECK(peer.sin_addr.s_addr == address.sin_addr.s_addr);
	CHECK(rclose(from) == 0);
	return pair;
}

static void close_both(struct pair pair)
{
	CHECK(rclose(pair.left) == 0);
	CHECK(rclose(pair.right) == 0);
}

static void names_and_kinds(void)
{
	struct sockaddr_in own, peer;
	socklen_t len = sizeof(own);
	struct pair two = pair();
	int fd;

	CHECK(rgetsockname(two.left, any(&own), &len) == 0);
	len = sizeof(peer);
	CHECK(rgetpeername(two.right, any(&peer), &len) == 0);
	CHECK(own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr);
	/* With less room, the returned length is still the whole. */
	len = 4;
	CHECK(rgetpeername(two.right, any(&peer), &len) == 0 && len == sizeof(peer));
	FAILS(rconnect(two.left, any(&own), sizeof(own)), EISCONN);
	FAILS(rlisten(two.left, 1), EINVAL);
	close_both(two);

	FAILS(rclose(two.left), EBADF);
	FAILS(rsend(two.left, "x", 1, 0), EBADF);
	FAILS(rgetpeername(-1, any(&peer), &len), EBADF);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);

	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
	CHECK(rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	FAILS(rfcntl(fd, F_GETOWN), ENOTSUP);
	len = sizeof(peer);
	FAILS(rgetpeername(fd, any(&peer), &len), ENOTCONN);
	FAILS(rsend(fd, "x", 1, 0), ENOTCONN);
	FAILS(rrecv(fd, &own, 1, 0), ENOTCONN);
	FAILS(rshutdown(fd, SHUT_RDWR), ENOTCONN);
	FAILS(raccept(fd, NULL, NULL), EINVAL);
	FAILS(rbind(fd, any(&own), 3), EINVAL);
	FAILS(rbind(fd, NULL, sizeof(own)), EFAULT);
	CHECK(rclose(fd) == 0);
}

static void options(void)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 5 };
	struct tcp_info info;
	socklen_t len = sizeof(linger);
	struct pair two;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	CHECK(get(fd, SOL_SOCKET, SO_REUSEADDR) == 1);
	set(fd, SOL_SOCKET, SO_RCVBUF, 10000);
	CHECK(get(fd, SOL_SOCKET, SO_RCVBUF) == 20000);
	set(fd, SOL_SOCKET, SO_SNDBUF, 10000);
	CHECK(get(fd, SOL_SOCKET, SO_SNDBUF) == 20000);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	memset(&linger, 0, sizeof(linger));
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && linger.l_onoff == 1);
	CHECK(get(fd, SOL_SOCKET, SO_KEEPALIVE) == 0);
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	CHECK(get(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 3);
	CHECK(get(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 3);
	len = sizeof(int);
	FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 0 }, len), EINVAL);
	set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	CHECK(get(fd, IPPROTO_TCP, TCP_NODELAY) == 1);
	set(fd, SOL_SOCKET, SO_OOBINLINE, 1);
	CHECK(get(fd, SOL_SOCKET, SO_OOBINLINE) == 1);
	set(fd, IPPROTO_IP, IP_TOS, 0x10);
	CHECK(get(fd, IPPROTO_IP, IP_TOS) == 0x10);
	CHECK(get(fd, SOL_SOCKET, SO_ERROR) == 0);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &linger, sizeof(linger)), ENOTSUP);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &linger, 1), EINVAL);
	set(fd, SOL_RDMA, RDMA_SQSIZE, 100);
	CHECK(get(fd, SOL_RDMA, RDMA_SQSIZE) == 100);
	set(fd, SOL_RDMA, RDMA_RQSIZE, 100000);
	CHECK(get(fd, SOL_RDMA, RDMA_RQSIZE) == 0xfffe);
	set(fd, SOL_RDMA, RDMA_INLINE, 16);
	CHECK(get(fd, SOL_RDMA, RDMA_INLINE) == 16);
	set(fd, SOL_RDMA, RDMA_IOMAPSIZE, 300);
	CHECK(get(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 256);
	CHECK(rclose(fd) == 0);

	two = pair();
	FAILS(rsetsockopt(two.left, SOL_RDMA, RDMA_SQSIZE, &(int){ 9 }, len), EINVAL);
	len = sizeof(info);
	CHECK(rgetsockopt(two.left, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	CHECK(info.tcpi_state == 1 && info.tcpi_snd_cwnd == 384);
	CHECK(get(two.left, IPPROTO_TCP, TCP_MAXSEG) >= 256);
	/* Keepalive probes are not visible. */
	set(two.left, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	set(two.left, SOL_SOCKET, SO_KEEPALIVE, 1);
	CHECK(poll_one(two.right, POLLIN, 2500) == 0);
	CHECK(rsend(two.left, "x", 1, 0) == 1);
	CHECK(poll_one(two.right, POLLIN, -1) == POLLIN);
	close_both(two);
}

static void receiving(void)
{
	struct pair two = pair();
	char first[3], second[100], peeked[10];
	struct iovec out[] = { { "abc", 3 }, { NULL, 0 }, { "defgh", 5 } };
	struct iovec in[] = { { first, 3 }, { second, sizeof(second) } };
	struct msghdr msg = { .msg_iov = in, .msg_iovlen = 2 };
	char control[64];

	FAILS(rrecv(two.right, second, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(rwritev(two.left, out, 3) == 8);
	CHECK(poll_one(two.right, POLLIN, -1) == POLLIN);
	CHECK(rrecv(two.right, peeked, sizeof(peeked), MSG_PEEK) == 8);
	CHECK(memcmp(peeked, "abcdefgh", 8) == 0);
	CHECK(rrecv(two.right, peeked, 2, 0) == 2 && memcmp(peeked, "ab", 2) == 0);
	CHECK(rreadv(two.right, in, 2) == 6);
	CHECK(memcmp(first, "cde", 3) == 0 && memcmp(second, "fgh", 3) == 0);

	CHECK(rsend(two.left, "12345", 5, 0) == 5);
	CHECK(rsend(two.left, "67890", 5, 0) == 5);
	CHECK(rrecv(two.right, second, 10, MSG_WAITALL) == 10);
	CHECK(memcmp(second, "1234567890", 10) == 0);

	CHECK(rwrite(two.left, "message", 7) == 7);
	CHECK(rrecvmsg(two.right, &msg, 0) == 7 && memcmp(second, "sage", 4) == 0);
	msg.msg_control = control;
	msg.msg_controllen = sizeof(control);
	FAILS(rsendmsg(two.left, &msg, 0), ENOTSUP);
	FAILS(rsendto(two.left, "x", 1, 0, any(&address), sizeof(address)), EISCONN);
	CHECK(rsendto(two.left, "x", 1, 0, NULL, 0) == 1);
	CHECK(rread(two.right, second, 1) == 1);
	CHECK(rrecv(two.right, second, 0, 0) == 0);
	close_both(two);
}

static void ending(void)
{
	struct pair two = pair();
	char byte;

	/* One direction after the other. */
	CHECK(rsend(two.left, "x", 1, 0) == 1);
	CHECK(rshutdown(two.left, SHUT_WR) == 0);
	FAILS(rsend(two.left, "x", 1, 0), ECONNRESET);
	CHECK(rrecv(two.right, &byte, 1, 0) == 1);
	CHECK(rrecv(two.right, &byte, 1, 0) == 0);
	CHECK(poll_one(two.right, POLLIN, -1) == POLLIN);
	CHECK(rsend(two.right, "y", 1, 0) == 1);
	CHECK(rrecv(two.left, &byte, 1, 0) == 1 && byte == 'y');
	CHECK(poll_one(two.left, POLLIN, 0) == 0);
	CHECK(rshutdown(two.right, SHUT_RDWR) == 0);
	CHECK(rrecv(two.left, &byte, 1, 0) == 0);
	CHECK(poll_one(two.left, POLLIN | POLLOUT, -1) == (POLLIN | POLLOUT | POLLHUP));
	FAILS(rshutdown(two.left, 7), EINVAL);
	close_both(two);

	/* What was sent before the end arrives. */
	two = pair();
	CHECK(rsend(two.left, "last", 4, 0) == 4);
	CHECK(rclose(two.left) == 0);
	CHECK(poll_one(two.right, POLLIN, -1) & POLLIN);
	CHECK(rrecv(two.right, &byte, 1, 0) == 1 && byte == 'l');
	CHECK(rrecv(two.right, (char[8]){ 0 }, 8, 0) == 3);
	CHECK(rrecv(two.right, &byte, 1, 0) == 0);
	FAILS(rsend(two.right, "x", 1, 0), ECONNRESET);
	CHECK(rclose(two.right) == 0);
}

static void without_waiting(void)
{
	struct sockaddr_in at;
	char piece[4096] = { 0 };
	struct pair two;
	int from = listener(&at), fd, error;
	size_t sent = 0, received = 0;
	ssize_t count;

	CHECK(rfcntl(from, F_SETFL, O_NONBLOCK) == 0);
	FAILS(raccept(from, NULL, NULL), EAGAIN);
	CHECK(poll_one(from, POLLIN, 0) == 0);
	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(rconnect(fd, any(&at), sizeof(at)) == 0 || errno == EINPROGRESS);
	CHECK(poll_one(fd, POLLOUT, -1) == POLLOUT);
	CHECK(get(fd, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(poll_one(from, POLLIN, -1) == POLLIN);
	two.left = fd;
	two.right = raccept(from, NULL, NULL);
	CHECK(two.right >= 0);

	/* As much as there is room for, and no more. */
	while ((count = rsend(fd, piece, sizeof(piece), 0)) > 0)
		sent += count;
	CHECK(errno == EAGAIN && sent >= 1 << 16);
	CHECK(poll_one(fd, POLLOUT, 0) == 0);
	while (received < sent) {
		CHECK(poll_one(two.right, POLLIN, -1) == POLLIN);
		count = rrecv(two.right, piece, sizeof(piece), 0);
		CHECK(count > 0);
		received += count;
	}
	CHECK(poll_one(fd, POLLOUT, -1) == POLLOUT);
	close_both(two);
	CHECK(rclose(from) == 0);

	/* Nobody listens any more. */
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	FAILS(rconnect(fd, any(&at), sizeof(at)), ECONNREFUSED);
	CHECK(poll_one(fd, POLLOUT, 0) & POLLERR);
	FAILS(rsend(fd, "x", 1, 0), ENOTCONN);
	CHECK(rclose(fd) == 0);
	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(rconnect(fd, any(&at), sizeof(at)) == -1);
	error = errno;
	CHECK(error == EINPROGRESS || error == ECONNREFUSED);
	CHECK(poll_one(fd, POLLOUT, -1) & POLLERR);
	CHECK(get(fd, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
	CHECK(get(fd, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(rclose(fd) == 0);
}

static void *write_later(void *arg)
{
	uint64_t one = 1;

	usleep(100000);
	CHECK(write(*(int *)arg, &one, sizeof(one)) == sizeof(one));
	return NULL;
}

static void *send_later(void *arg)
{
	usleep(100000);
	CHECK(rsend(*(int *)arg, "x", 1, 0) == 1);
	return NULL;
}

static void with_others(void)
{
	struct pair two = pair();
	int event = eventfd(0, 0);
	struct pollfd fds[] = { { two.right, POLLIN, 0 }, { event, POLLIN, 0 }, { -1, POLLIN, 0 } };
	struct timeval short_while = { .tv_usec = 20000 };
	struct epoll_event wanted = { .events = EPOLLIN, .data.u64 = 77 }, events[4];
	pthread_t thread;
	fd_set in, out;
	uint64_t count;
	int epfd;

	CHECK(rpoll(fds, 3, 20) == 0);
	CHECK(pthread_create(&thread, NULL, write_later, &event) == 0);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[1].revents == POLLIN && fds[0].revents == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(read(event, &count, sizeof(count)) == sizeof(count));
	CHECK(pthread_create(&thread, NULL, send_later, &two.left) == 0);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[0].revents == POLLIN && fds[1].revents == 0);
	CHECK(pthread_join(thread, NULL) == 0);

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(two.right, &in);
	FD_SET(event, &in);
	FD_SET(two.left, &out);
	CHECK(rselect(FD_SETSIZE, &in, &out, NULL, NULL) == 2);
	CHECK(FD_ISSET(two.right, &in) && !FD_ISSET(event, &in) && FD_ISSET(two.left, &out));
	CHECK(rrecv(two.right, events, 1, 0) == 1);
	CHECK(rselect(FD_SETSIZE, &in, NULL, NULL, &short_while) == 0);
	CHECK(!FD_ISSET(two.right, &in));

	repoll_create_ = repoll("repoll_create");
	repoll_ctl_ = repoll("repoll_ctl");
	repoll_wait_ = repoll("repoll_wait");
	epfd = repoll_create_(0);
	CHECK(epfd >= 0);
	CHECK(repoll_ctl_(epfd, EPOLL_CTL_ADD, two.right, &wanted) == 0);
	FAILS(repoll_ctl_(epfd, EPOLL_CTL_ADD, two.right, &wanted), EEXIST);
	FAILS(repoll_ctl_(epfd, EPOLL_CTL_MOD, event, &wanted), ENOENT);
	CHECK(repoll_wait_(epfd, events, 4, 20) == 0);
	CHECK(pthread_create(&thread, NULL, send_later, &two.left) == 0);
	CHECK(repoll_wait_(epfd, events, 4, -1) == 1);
	CHECK(events[0].data.u64 == 77 && events[0].events == EPOLLIN);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(repoll_ctl_(epfd, EPOLL_CTL_DEL, two.right, NULL) == 0);
	CHECK(repoll_wait_(epfd, events, 4, 0) == 0);
	CHECK(rclose(epfd) == 0);
	close(event);
	close_both(two);
}

#define AMOUNT (8 << 20)

static void *send_much(void *arg)
{
	static __thread char piece[300000];
	size_t done = 0;

	/* No buffer has room for a part of a message: each send waits until all of it is sent. */
	while (done < AMOUNT) {
		size_t now = AMOUNT - done < sizeof(piece) ? AMOUNT - done : sizeof(piece);

		for (size_t i = 0; i < now; i++)
			piece[i] = (done + i) % 251;
		CHECK(rsend(*(int *)arg, piece, now, 0) == (ssize_t)now);
		done += now;
	}
	return NULL;
}

static void *receive_much(void *arg)
{
	static __thread char piece[7777];
	size_t done = 0;

	while (done < AMOUNT) {
		ssize_t now = rrecv(*(int *)arg, piece, sizeof(piece), 0);

		CHECK(now > 0);
		for (ssize_t i = 0; i < now; i++)
			CHECK(piece[i] == (char)((done + i) % 251));
		done += now;
	}
	return NULL;
}

/* Both directions at once, a thread for each end of each. */
static void both_ways(void)
{
	struct pair two = pair();
	pthread_t threads[4];

	CHECK(pthread_create(&threads[0], NULL, send_much, &two.left) == 0);
	CHECK(pthread_create(&threads[1], NULL, send_much, &two.right) == 0);
	CHECK(pthread_create(&threads[2], NULL, receive_much, &two.left) == 0);
	CHECK(pthread_create(&threads[3], NULL, receive_much, &two.right) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	close_both(two);
}

static void mapped(void)
{
	static char room[3][100000];
	struct pair two = pair();
	off_t offset;
	char byte;

	FAILS(riomap(two.right, room[0], sizeof(room[0]), PROT_READ, 0, 0), EINVAL);
	CHECK(riomap(two.right, room[0], sizeof(room[0]), PROT_WRITE, 0, 5000) == 5000);
	offset = riomap(two.right, room[1], sizeof(room[1]), PROT_WRITE, 0, -1);
	CHECK(offset == (off_t)(uintptr_t)room[1]);
	FAILS(riomap(two.right, room[2], sizeof(room[2]), PROT_WRITE, 0, 0), ENOMEM);
	CHECK(riomap(two.right, room[2], sizeof(room[2]), PROT_NONE, 0, 0) == 0);
	/* The peer knows of the mappings once it has received data that was sent later. */
	CHECK(rsend(two.right, "x", 1, 0) == 1);
	CHECK(rrecv(two.left, &byte, 1, 0) == 1);

	memset(room[2], 'z', sizeof(room[2]));
	CHECK(riowrite(two.left, room[2], 90000, 5000 + 10, 0) == 90000);
	CHECK(riowrite(two.left, "short", 5, offset, 0) == 5);
	/* As much as is mapped. */
	CHECK(riowrite(two.left, room[2], 100, 5000 + sizeof(room[0]) - 10, 0) == 10);
	CHECK(riowrite(two.left, room[2], 100, 4999, 0) == 0);
	CHECK(rsend(two.left, "y", 1, 0) == 1);
	CHECK(rrecv(two.right, &byte, 1, 0) == 1);
	CHECK(room[0][9] == 0 && room[0][10] == 'z' && room[0][90009] == 'z' && room[0][90010] == 0);
	CHECK(room[0][sizeof(room[0]) - 11] == 0 && room[0][sizeof(room[0]) - 1] == 'z');
	CHECK(memcmp(room[1], "short", 6) == 0);

	FAILS(riounmap(two.right, room[0], 7), EINVAL);
	CHECK(riounmap(two.right, room[0], sizeof(room[0])) == 0);
	CHECK(riounmap(two.right, room[2], sizeof(room[2])) == 0);
	/* There is room for one again. */
	CHECK(riomap(two.right, room[2], 100, PROT_WRITE, 0, 0) == 0);
	close_both(two);
}

static void datagrams(void)
{
	struct sockaddr_in at = address, from;
	socklen_t len = sizeof(at);
	char room[4096] = { 0 };
	struct iovec out[] = { { "ab", 2 }, { "cd", 2 } };
	struct msghdr msg = { .msg_name = &at, .msg_namelen = sizeof(at), .msg_iov = out, .msg_iovlen = 2 };
	int left = rsocket(AF_INET, SOCK_DGRAM, 0), right = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);

	CHECK(left >= 0 && right >= 0);
	CHECK(rbind(right, any(&at), sizeof(at)) == 0);
	CHECK(rgetsockname(right, any(&at), &len) == 0);
	FAILS(rrecv(right, room, sizeof(room), MSG_DONTWAIT), EAGAIN);
	FAILS(rsend(left, "x", 1, 0), EDESTADDRREQ);
	FAILS(rlisten(left, 1), EOPNOTSUPP);

	/* The first goes over UDP, later ones between queue pairs. */
	for (int i = 0; i < 100; i++) {
		int size = i * 20;

		memset(room, i, sizeof(room));
		CHECK(rsendto(left, room, size, 0, any(&at), sizeof(at)) == size);
		len = sizeof(from);
		CHECK(poll_one(right, POLLIN, -1) == POLLIN);
		memset(room, 0xff, sizeof(room));
		CHECK(rrecvfrom(right, room, sizeof(room), 0, any(&from), &len) == size);
		CHECK(len == sizeof(from) && from.sin_addr.s_addr == address.sin_addr.s_addr);
		CHECK(size == 0 || (room[0] == i && room[size - 1] == i));
		CHECK(rsendto(right, "pong", 4, 0, any(&from), len) == 4);
		CHECK(rrecv(left, room, 2, MSG_PEEK) == 2);
		CHECK(rrecv(left, room, sizeof(room), 0) == 4 && memcmp(room, "pong", 4) == 0);
	}
	CHECK(rsendmsg(left, &msg, 0) == 4);
	/* The part that does not fit is lost. */
	CHECK(rrecv(right, room, 3, 0) == 3 && memcmp(room, "abc", 3) == 0);
	FAILS(rsendto(left, room, 4000, 0, any(&at), sizeof(at)), EMSGSIZE);
	CHECK(rconnect(left, any(&at), sizeof(at)) == 0);
	CHECK(rgetpeername(left, any(&from), &len) == 0 && from.sin_port == at.sin_port);
	CHECK(rsend(left, "x", 1, 0) == 1);
	CHECK(rrecv(right, room, 3, 0) == 1);
	CHECK(poll_one(left, POLLOUT, 0) == POLLOUT);
	CHECK(rclose(left) == 0 && rclose(right) == 0);
}

int main(int argc, char **argv)
{
	if (argc != 2 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
		return 2;
	address.sin_family = AF_INET;
	names_and_kinds();
	options();
	receiving();
	ending();
	without_waiting();
	with_others();
	both_ways();
	mapped();
	datagrams();
	puts("ok");
	return 0;
}
