/* A peer that is killed midway. argv[1] says what this side does meanwhile: it polls ("poll"),
 * sleeps in ibv_get_cq_event ("events"), has filled its ring to a stopped peer ("full"), or gets
 * RNR NAKs because the peer has no receive ("rnr"). The first request fails because the peer is
 * gone, all others are flushed, everything can be destroyed, and the device is usable
 * afterwards. */
#include "rc_loopback.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#define SENDS 32
#define RECVS 4
#define SIZE 60000

struct end {
	union ibv_gid gid;
	uint32_t qpn;
};

struct side {
	struct ibv_context *ctx;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	unsigned char *buf;
};

static int side_open(struct side *s, struct end *own)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = SENDS + 1, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 } };

	memset(s, 0, sizeof(*s));
	s->ctx = loop_device();
	if (!s->ctx)
		return loop_fail("no device");
	s->buf = calloc(1, SIZE);
	s->pd = ibv_alloc_pd(s->ctx);
	s->channel = ibv_create_comp_channel(s->ctx);
	s->cq = ibv_create_cq(s->ctx, 512, NULL, s->channel, 0);
	if (!s->buf || !s->pd || !s->channel || !s->cq)
		return loop_fail("PD, channel or CQ");
	s->mr = ibv_reg_mr(s->pd, s->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	init.send_cq = init.recv_cq = s->cq;
	s->qp = s->mr ? ibv_create_qp(s->pd, &init) : NULL;
	if (!s->qp || ibv_query_gid(s->ctx, 1, 0, &own->gid))
		return loop_fail("QP or GID");
	own->qpn = s->qp->qp_num;
	return 0;
}

static int side_close(struct side *s)
{
	int refused = ibv_destroy_qp(s->qp) != 0;

	refused += ibv_dereg_mr(s->mr) != 0;
	refused += ibv_destroy_cq(s->cq) != 0;
	refused += ibv_destroy_comp_channel(s->channel) != 0;
	refused += ibv_dealloc_pd(s->pd) != 0;
	refused += ibv_close_device(s->ctx) != 0;
	free(s->buf);
	return refused ? loop_fail("destroy") : 0;
}

static int post_recv(struct side *s)
{
	struct ibv_sge sge = { .addr = (uintptr_t)s->buf, .length = SIZE, .lkey = s->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1000, .sg_list = &sge, .num_sge = 1 }, *bad;

	errno = ibv_post_recv(s->qp, &wr, &bad);
	return errno ? loop_fail("receive") : 0;
}

static int post_send(struct side *s, uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)s->buf, .length = SIZE, .lkey = s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	errno = ibv_post_send(s->qp, &wr, &bad);
	return errno ? loop_fail("send") : 0;
}

/* One completion, or -1 after 20 seconds; with `sleeps`, only by events. */
static int next(struct side *s, int sleeps, struct ibv_wc *wc)
{
	struct pollfd fd = { .fd = s->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	time_t end = time(NULL) + 20;
	void *cookie;
	int n;

	while ((n = ibv_poll_cq(s->cq, 1, wc)) == 0) {
		if (time(NULL) > end)
			break;
		if (!sleeps)
			continue;
		errno = ibv_req_notify_cq(s->cq, 0);
		if (errno)
			return loop_fail("req_notify_cq");
		if ((n = ibv_poll_cq(s->cq, 1, wc)) != 0)
			break;
		if (poll(&fd, 1, 20000) != 1 || ibv_get_cq_event(s->channel, &cq, &cookie))
			return loop_fail("no event");
		ibv_ack_cq_events(cq, 1);
	}
	if (n != 1)
		fprintf(stderr, "no completion within 20 seconds\n");
	return n == 1 ? 0 : -1;
}

/* The peer: receives what arrives (or nothing, with `rnr`) until it is killed. */
static int peer(int in, int out, int rnr)
{
	struct side s;
	struct end own, other;
	struct ibv_wc wc;
	char ready = 'r';

	if (side_open(&s, &own) || write(out, &own, sizeof(own)) != sizeof(own) ||
	    read(in, &other, sizeof(other)) != sizeof(other) || loop_connect(s.qp, other.qpn, &other.gid, 14))
		return 1;
	for (int i = 0; i < 128 && !rnr; i++)
		if (post_recv(&s))
			return 1;
	if (write(out, &ready, 1) != 1)
		return 1;
	for (;;)
		if (ibv_poll_cq(s.cq, 1, &wc) == 1 && (wc.status || post_recv(&s)))
			return 1;
}

/* All requests complete, in order. Returns the status of the first that failed. */
static int drained(struct side *s, int sleeps, int sends, int *first)
{
	int left = sends + RECVS;

	for (*first = 0; left > 0; left--) {
		struct ibv_wc wc;
		if (next(s, sleeps, &wc))
			return -1;
		if (*first == 0 && wc.status && wc.wr_id != 1000)
			*first = (int)wc.status;
		else if (wc.status && wc.status != IBV_WC_WR_FLUSH_ERR)
			return fprintf(stderr, "then %s\n", ibv_wc_status_str(wc.status)), -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int full = !strcmp(what, "full"), rnr = !strcmp(what, "rnr"), sleeps = !strcmp(what, "events");
	int to[2], from[2], first, sends = 0;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct end own, other;
	struct side s;
	struct loop l;
	char ready;
	pid_t child;

	if (pipe(to) || pipe(from))
		return loop_fail("pipe") != 0;
	child = fork();
	if (child == 0)
		_exit(peer(to[0], from[1], rnr));
	if (side_open(&s, &own) || read(from[0], &other, sizeof(other)) != sizeof(other) ||
	    write(to[1], &own, sizeof(own)) != sizeof(own) || loop_connect(s.qp, other.qpn, &other.gid, 14) ||
	    read(from[0], &ready, 1) != 1)
		return 1;
	for (int i = 0; i < RECVS; i++)
		if (post_recv(&s))
			return 1;
	if (!rnr) {
		struct ibv_wc wc;
		if (post_send(&s, 1) || next(&s, sleeps, &wc) || wc.status)
			return loop_fail("the first message") != 0;
	}
	/* The signal may still be pending when kill returns: a child that keeps running takes what is sent
	 * next. */
	if ((full || sleeps) && (kill(child, SIGSTOP) || waitpid(child, NULL, WUNTRACED) != child))
		return loop_fail("stop") != 0;
	while (sends < SENDS)
		if (post_send(&s, (uint64_t)++sends))
			return 1;
	if (rnr || full) {
		/* Time for an RNR NAK, or to run into the full ring. A stopped peer is not dead. */
		struct ibv_wc wc;
		time_t end = time(NULL) + 2;
		while (time(NULL) < end)
			if (ibv_poll_cq(s.cq, 1, &wc) == 1) {
				sends--;
				if (wc.status)
					return loop_fail("a failure before the peer was killed") != 0;
			}
	}
	if (kill(child, SIGKILL) || waitpid(child, NULL, 0) != child)
		return loop_fail("kill") != 0;
	/* A peer that was not stopped may have taken all of them before it died, but it cannot take
	 * this one. */
	if (!full && !rnr && !sleeps && post_send(&s, (uint64_t)++sends))
		return 1;
	if (drained(&s, sleeps, sends, &first))
		return 1;
	if (first != IBV_WC_RETRY_EXC_ERR && first != IBV_WC_RNR_RETRY_EXC_ERR) {
		fprintf(stderr, "the first failure is %s\n", ibv_wc_status_str((enum ibv_wc_status)first));
		return 1;
	}
	if (ibv_query_qp(s.qp, &attr, IBV_QP_STATE, &init) || attr.qp_state != IBV_QPS_ERR) {
		fprintf(stderr, "the QP is not in the error state\n");
		return 1;
	}
	if (side_close(&s) || loop_open(&l) || loop_write(&l, 3) || loop_close(&l))
		return 1;
	puts("ok");
	return 0;
}
