/* Two RC queue pairs of one process, connected to each other: the smallest program that moves data
 * by verbs. */
#ifndef RC_LOOPBACK_H
#define RC_LOOPBACK_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOP_SIZE 65536

struct loop {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[2];
	unsigned char *buf; /* source in the first half, target in the second */
};

static int loop_fail(const char *what)
{
	fprintf(stderr, "%d: %s: %s\n", (int)getpid(), what, strerror(errno));
	return -1;
}

static struct ibv_context *loop_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;

	if (list && list[0])
		ctx = ibv_open_device(list[0]);
	if (list)
		ibv_free_device_list(list);
	return ctx;
}

static int loop_connect(struct ibv_qp *qp, uint32_t to, const union ibv_gid *gid, unsigned timeout)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return loop_fail("INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to,
		.rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 64 } } };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return loop_fail("RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 7, .rnr_retry = 7,
		.sq_psn = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return loop_fail("RTS");
	return 0;
}

static inline int loop_open_on(struct loop *l, struct ibv_context *ctx)
{
	union ibv_gid gid;

	memset(l, 0, sizeof(*l));
	l->ctx = ctx;
	if (!l->ctx)
		return loop_fail("no device");
	l->pd = ibv_alloc_pd(l->ctx);
	l->cq = ibv_create_cq(l->ctx, 16, NULL, NULL, 0);
	if (!l->pd || !l->cq)
		return loop_fail("PD or CQ");
	if (posix_memalign((void **)&l->buf, 4096, 2 * LOOP_SIZE))
		return loop_fail("memory");
	memset(l->buf, 0, 2 * LOOP_SIZE);
	l->mr = ibv_reg_mr(l->pd, l->buf, 2 * LOOP_SIZE,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC);
	if (!l->mr)
		return loop_fail("MR");
	if (ibv_query_gid(l->ctx, 1, 0, &gid))
		return loop_fail("GID 0");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .send_cq = l->cq, .recv_cq = l->cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
		l->qp[i] = ibv_create_qp(l->pd, &init);
		if (!l->qp[i])
			return loop_fail("QP");
	}
	const char *asked = getenv("LOOP_TIMEOUT");
	unsigned timeout = asked ? (unsigned)atoi(asked) : 14;

	if (loop_connect(l->qp[0], l->qp[1]->qp_num, &gid, timeout) || loop_connect(l->qp[1], l->qp[0]->qp_num, &gid, timeout))
		return -1;
	return 0;
}

static inline int loop_open(struct loop *l)
{
	return loop_open_on(l, loop_device());
}

/* Polls one completion; its status, or -1 when none came within ten seconds. */
static int loop_poll(struct ibv_cq *cq)
{
	struct timespec now;
	struct ibv_wc wc;
	time_t end;

	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + 10;
	do {
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0)
			return loop_fail("poll");
		if (n == 1)
			return (int)wc.status;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end);
	fprintf(stderr, "%d: no completion within ten seconds\n", (int)getpid());
	return -1;
}

static inline int loop_post_write(struct loop *l, void *from, uint32_t len, uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = len, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { .remote_addr = to, .rkey = rkey } }, *bad;

	errno = ibv_post_send(l->qp[0], &wr, &bad);
	return errno ? loop_fail("post") : 0;
}

/* Writes a pattern made of `seed` from one half to the other, and checks every byte. */
static inline int loop_write(struct loop *l, unsigned seed)
{
	unsigned char *to = l->buf + LOOP_SIZE;
	int status;

	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
	if (loop_post_write(l, l->buf, LOOP_SIZE, (uintptr_t)to, l->mr->rkey))
		return -1;
	status = loop_poll(l->cq);
	if (status) {
		fprintf(stderr, "%d: WRITE: %s\n", (int)getpid(), status < 0 ? "nothing" : ibv_wc_status_str(status));
		return -1;
	}
	if (memcmp(l->buf, to, LOOP_SIZE)) {
		fprintf(stderr, "%d: the bytes differ\n", (int)getpid());
		return -1;
	}
	return 0;
}

/* Destroys everything; returns how many calls failed. */
static inline int loop_close(struct loop *l)
{
	int refused = 0;

	for (int i = 0; i < 2; i++)
		refused += l->qp[i] && ibv_destroy_qp(l->qp[i]) != 0;
	refused += l->mr && ibv_dereg_mr(l->mr) != 0;
	refused += l->cq && ibv_destroy_cq(l->cq) != 0;
	refused += l->pd && ibv_dealloc_pd(l->pd) != 0;
	refused += l->ctx && ibv_close_device(l->ctx) != 0;
	free(l->buf);
	return refused ? loop_fail("destroy") : 0;
}

#endif
