/* A program with rsockets takes the library's descriptors away, and has files of its own at their
 * numbers: argv[2] says how (theft.h). Calls on the rsockets fail or do what they can; none of them
 * waits for ever, and the library does not write to, read from or close any file of the program.
 * Rsockets that are made afterwards work.
 *
 *     stolen_rsockets ADDRESS HOW
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>

#include "check.h"
#include "theft.h"

static struct sockaddr_in address;
/* Which numbers were open for longer than a moment. */
static char later[MOST];

static struct sockaddr *any(struct sockaddr_in *addr)
{
	return (struct sockaddr *)addr;
}

/* A bound rsocket, and its address. */
static int bound(int type, struct sockaddr_in *at)
{
	int fd = rsocket(AF_INET, type, 0);
	socklen_t len = sizeof(*at);

	CHECK(fd >= 0);
	*at = address;
	CHECK(rbind(fd, any(at), sizeof(*at)) == 0);
	if (type == SOCK_STREAM)
		CHECK(rlisten(fd, 8) == 0);
	CHECK(rgetsockname(fd, any(at), &len) == 0);
	return fd;
}

struct all {
	int listener;
	/* Connected to each other, and datagram rsockets that know each other's queue pairs. */
	int stream[2];
	int datagram[2];
	int set;
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

/* Waits for a while, by poll. */
static int waits(int fd, int timeout)
{
	struct pollfd fds = { .fd = fd, .events = POLLIN };

	return rpoll(&fds, 1, timeout);
}

static void talk(int from, int to)
{
	char bytes[64] = "from one to the other", there[64] = "";

	CHECK(rsend(from, bytes, sizeof(bytes), 0) == sizeof(bytes));
	CHECK(waits(to, 5000) == 1);
	CHECK(rrecv(to, there, sizeof(there), 0) == sizeof(there));
	CHECK(memcmp(bytes, there, sizeof(bytes)) == 0);
}

static void make(struct all *all)
{
	int (*create)(int) = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	struct connecting connecting;
	struct sockaddr_in at[2];
	pthread_t thread;
	int turn;

	all->listener = bound(SOCK_STREAM, &connecting.to);
	connecting.fd = all->stream[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(pthread_create(&thread, NULL, connect_there, &connecting) == 0);
	all->stream[1] = raccept(all->listener, NULL, NULL);
	CHECK(all->stream[1] >= 0);
	CHECK(pthread_join(thread, NULL) == 0);
	for (turn = 0; turn < 2; turn++)
		all->datagram[turn] = bound(SOCK_DGRAM, &at[turn]);
	for (turn = 0; turn < 2; turn++)
		CHECK(rconnect(all->datagram[turn], any(&at[!turn]), sizeof(at[0])) == 0);
	/* The first datagram goes by UDP. */
	for (turn = 0; turn < 8; turn++) {
		talk(all->stream[turn % 2], all->stream[!(turn % 2)]);
		talk(all->datagram[turn % 2], all->datagram[!(turn % 2)]);
	}
	CHECK(create);
	all->set = create(0);
	CHECK(all->set >= 0);
}

static void close_all(struct all *all)
{
	int fds[] = { all->listener, all->stream[0], all->stream[1], all->datagram[0], all->datagram[1], all->set };
	size_t turn;

	for (turn = 0; turn < sizeof(fds) / sizeof(*fds); turn++)
		rclose(fds[turn]);
}

/* Whatever the result. */
static void try_all(struct all *all)
{
	int fds[] = { all->stream[0], all->stream[1], all->datagram[0], all->datagram[1] };
	char bytes[3000] = "for the other side";
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	size_t turn;
	int on = 1;

	for (turn = 0; turn < sizeof(fds) / sizeof(*fds); turn++) {
		rsend(fds[turn], bytes, 100, MSG_DONTWAIT);
		rsend(fds[turn], bytes, 2000, MSG_DONTWAIT);
		waits(fds[turn], 20);
		rrecv(fds[turn], bytes, sizeof(bytes), MSG_DONTWAIT);
		rsetsockopt(fds[turn], SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
		rgetsockname(fds[turn], any(&at), &len);
		rgetpeername(fds[turn], any(&at), &len);
		rshutdown(fds[turn], SHUT_RDWR);
	}
	waits(all->listener, 20);
	rfcntl(all->listener, F_SETFL, O_NONBLOCK);
	raccept(all->listener, NULL, NULL);
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "";
	struct all all, fresh;
	int fd;

	alarm(60);
	signal(SIGPIPE, SIG_IGN);
	address.sin_family = AF_INET;
	CHECK(argc > 2 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	list(before);
	make(&all);
	list(ours);
	/* Once its threads sleep, no descriptor is used during the theft. */
	usleep(400000);
	list(later);
	for (fd = 0; fd < MOST; fd++)
		ours[fd] = ours[fd] && later[fd] && !before[fd];
	CHECK(steal(how) == 0);
	/* The device notices what it lost. */
	usleep(5000);
	try_all(&all);
	close_all(&all);
	CHECK(untouched() == 0);

	for (fd = 3; fd < MOST; fd++)
		if (ours[fd] || other[fd] > 0)
			close(fd);
	make(&fresh);
	close_all(&fresh);
	puts("ok");
	return 0;
}
