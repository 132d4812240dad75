/* A program takes the descriptors of the library away, and has files of its own at their numbers. argv[1] says how:
 *
 *   closed    it closes everything from 3 on, as daemons do, and opens files until all the numbers are taken again
 *   files     it puts a file in the place of each (dup2)
 *   sockets   it puts a connected socket in the place of each
 *   kinds     it puts what has no inode of its own in the place of each: eventfds, timers
 *
 * The device fails, and says so. Nothing of the program's is written to, read from or closed by it, not even when everything is
 * destroyed; and a device that is opened then works. */
#define _GNU_SOURCE
#include "rc_loopback.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#define MOST 1024
#define WORDS "the program's own words"

struct address {
	uint32_t qpn, rkey;
	uint64_t addr;
};

static char before[MOST], ours[MOST], later[MOST];
/* What the program has in the place of each: the other end, if it is a socket, and the file that it is. */
static int other[MOST];
static struct stat now_is[MOST];

/* Which numbers are open. */
static void list(char *open)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	memset(open, 0, MOST);
	while (dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && fd != dirfd(dir) && fd < MOST)
			open[fd] = 1;
	}
	if (dir)
		closedir(dir);
}

static int file(void)
{
	int fd = memfd_create("of the program", 0);

	if (fd < 0 || write(fd, WORDS, sizeof(WORDS)) != sizeof(WORDS))
		return loop_fail("a file");
	return fd;
}

static int put(int fd, const char *how, int turn)
{
	int pair[2], mine;

	other[fd] = -1;
	if (!strcmp(how, "files")) {
		mine = file();
	} else if (!strcmp(how, "sockets")) {
		if (socketpair(AF_UNIX, turn % 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, pair))
			return loop_fail("socketpair");
		mine = pair[0];
		other[fd] = fcntl(pair[1], F_DUPFD, 3);
		close(pair[1]);
		/* What the library must not take. */
		if (send(other[fd], WORDS, sizeof(WORDS), 0) < 0)
			return loop_fail("send");
	} else {
		mine = turn % 2 ? eventfd(0, 0) : timerfd_create(CLOCK_MONOTONIC, 0);
	}
	if (mine < 0 || dup2(mine, fd) != fd)
		return loop_fail("dup2");
	if (mine != fd)
		close(mine);
	return 0;
}

static int steal(const char *how)
{
	int fd, highest = 0, turn = 0;

	for (fd = 3; fd < MOST; fd++)
		if (ours[fd])
			highest = fd;
	if (!strcmp(how, "closed")) {
		if (syscall(SYS_close_range, 3, ~0u, 0))
			return loop_fail("close_range");
		do {
			fd = file();
			if (fd < 0)
				return -1;
			ours[fd] = 1;
			other[fd] = -1;
		} while (fd < highest);
	} else {
		for (fd = 3; fd <= highest; fd++)
			if (ours[fd] && put(fd, how, turn++))
				return -1;
	}
	for (fd = 3; fd < MOST; fd++)
		if (ours[fd] && fstat(fd, &now_is[fd]))
			return loop_fail("fstat");
	return 0;
}

static int untouched(void)
{
	char words[2 * sizeof(WORDS)];
	int fd, bad = 0;

	for (fd = 3; fd < MOST; fd++) {
		struct stat is;

		if (!ours[fd])
			continue;
		if (fstat(fd, &is) || is.st_ino != now_is[fd].st_ino || is.st_dev != now_is[fd].st_dev) {
			fprintf(stderr, "%d was closed\n", fd);
			bad = -1;
		} else if (S_ISREG(is.st_mode) &&
			   (is.st_size != sizeof(WORDS) || lseek(fd, 0, SEEK_CUR) != sizeof(WORDS) ||
			    pread(fd, words, sizeof(words), 0) != sizeof(WORDS) || strcmp(words, WORDS))) {
			fprintf(stderr, "%d was read or written to\n", fd);
			bad = -1;
		} else if (other[fd] >= 0 && recv(fd, words, sizeof(words), MSG_DONTWAIT) != sizeof(WORDS)) {
			fprintf(stderr, "%d had a message taken\n", fd);
			bad = -1;
		} else if (other[fd] >= 0 && (recv(other[fd], words, sizeof(words), MSG_DONTWAIT) != -1 || errno != EAGAIN)) {
			fprintf(stderr, "%d had a message sent, or was shut down\n", fd);
			bad = -1;
		}
	}
	return bad;
}

static void post(struct ibv_qp *qp, struct loop *l, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)l->buf, .length = 8, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey } }, *bad;

	/* It may be refused. */
	ibv_post_send(qp, &wr, &bad);
}

static int done(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	return n == 1 && wc.status == IBV_WC_SUCCESS ? 0 : loop_fail("a completion");
}

/* Connects the first QP to that of the other process. */
static int meet(struct loop *l, int to, int from, struct address *peer)
{
	struct address own = { l->qp[0]->qp_num, l->mr->rkey, (uintptr_t)l->buf };
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	union ibv_gid gid;

	if (write(to, &own, sizeof(own)) != sizeof(own) || read(from, peer, sizeof(*peer)) != sizeof(*peer))
		return loop_fail("meeting");
	if (ibv_query_gid(l->ctx, 1, 0, &gid) || ibv_modify_qp(l->qp[0], &reset, IBV_QP_STATE))
		return loop_fail("RESET");
	return loop_connect(l->qp[0], peer->qpn, &gid, 14);
}

static int receives(struct ibv_qp *qp, int count)
{
	struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;

	while (count--)
		if (ibv_post_recv(qp, &wr, &bad))
			return loop_fail("a receive");
	return 0;
}

/* The other process: there until the first one ends. */
static int peer(int to, int from)
{
	struct address theirs;
	struct loop l;
	char byte;

	if (loop_open(&l) || meet(&l, to, from, &theirs) || receives(l.qp[0], 8))
		return 1;
	if (write(to, "r", 1) != 1 || done(l.cq))
		return 1;
	while (read(from, &byte, 1) > 0)
		;
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	struct ibv_comp_channel *channel;
	int to[2], from[2], tries, fd;
	struct ibv_async_event event;
	struct address theirs;
	struct ibv_cq *cq;
	struct loop l;
	pid_t child;
	char byte;

	alarm(60);
	signal(SIGPIPE, SIG_IGN);
	if (pipe(to) || pipe(from))
		return 1;
	child = fork();
	if (child == 0) {
		close(to[1]);
		close(from[0]);
		_exit(peer(from[1], to[0]));
	}
	close(to[0]);
	close(from[1]);
	list(before);
	if (loop_open(&l) || meet(&l, to[1], from[0], &theirs) || read(from[0], &byte, 1) != 1)
		return 1;
	channel = ibv_create_comp_channel(l.ctx);
	cq = channel ? ibv_create_cq(l.ctx, 16, NULL, channel, 0) : NULL;
	if (!cq || ibv_req_notify_cq(cq, 0))
		return loop_fail("CQ") != 0;
	post(l.qp[0], &l, theirs.addr, theirs.rkey);
	if (done(l.cq))
		return 1;
	list(ours);
	/* Once it sleeps, nothing is taken in the middle of the theft. What it had open for a moment is none of it. */
	usleep(400000);
	list(later);
	for (fd = 0; fd < MOST; fd++)
		ours[fd] = ours[fd] && later[fd] && !before[fd];
	if (steal(how))
		return 1;

	/* What it waits on and receives by is looked at once in a millisecond. */
	usleep(5000);
	/* Without a call it may take a second to notice. */
	for (tries = 0; !ibv_req_notify_cq(cq, 0); tries++) {
		struct ibv_wc wc;

		if (tries > 500)
			return loop_fail("the device does not notice") != 0;
		post(l.qp[0], &l, theirs.addr, theirs.rkey);
		ibv_poll_cq(l.cq, 1, &wc);
		usleep(10000);
	}
	/* The descriptor for events is gone, and the read fails: it is not to be of the program's. */
	if (!strcmp(how, "closed"))
		ibv_get_async_event(l.ctx, &event);
	if (ibv_destroy_cq(cq) || ibv_destroy_comp_channel(channel) || loop_close(&l))
		return loop_fail("destroying") != 0;
	if (untouched())
		return 1;

	for (fd = 3; fd < MOST; fd++)
		if (ours[fd] || other[fd] > 0)
			close(fd);
	if (loop_open(&l) || loop_write(&l, 1) || loop_close(&l))
		return loop_fail("a device opened anew") != 0;
	if (strcmp(how, "closed")) {
		close(to[1]);
		close(from[0]);
	}
	if (waitpid(child, NULL, 0) != child)
		return loop_fail("wait") != 0;
	puts("ok");
	return 0;
}
