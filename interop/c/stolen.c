/* A program takes the library's descriptors away; argv[1] says how (theft.h). The device fails, and
 * reports that. The library does not write to, read from or close any file of the program, not even
 * when everything is destroyed; and a device that is opened afterwards works. */
#define _GNU_SOURCE
#include "rc_loopback.h"
#include "theft.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

struct address {
	uint32_t qpn, rkey;
	uint64_t addr;
};

static char later[MOST];

static void post(struct ibv_qp *qp, struct loop *l, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)l->buf, .length = 8, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey } }, *bad;

	/* This may be refused. */
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

/* The other process: it lives until the first one ends. */
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
	/* Once its threads sleep, no descriptor is used during the theft. Descriptors that were open only
	 * for a moment do not count. */
	usleep(400000);
	list(later);
	for (fd = 0; fd < MOST; fd++)
		ours[fd] = ours[fd] && later[fd] && !before[fd];
	if (steal(how))
		return 1;

	/* The descriptors by which it waits and receives are checked once per millisecond. */
	usleep(5000);
	/* Without a call, it may take a second to notice. */
	for (tries = 0; !ibv_req_notify_cq(cq, 0); tries++) {
		struct ibv_wc wc;

		if (tries > 500)
			return loop_fail("the device does not notice") != 0;
		post(l.qp[0], &l, theirs.addr, theirs.rkey);
		ibv_poll_cq(l.cq, 1, &wc);
		usleep(10000);
	}
	/* The descriptor for events is gone, and the read fails: it must not read from the program's
	 * file. */
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
