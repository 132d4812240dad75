/* The peer of a forger. Its QPs are connected to QPNs 0x1000, 0x1001, ... at the IPv4 address in
 * argv[1] and expect sequence number 100; each lets its peer WRITE, READ and do atomics in one
 * region of 4,096 bytes. Once everything is ready it prints, on a line each, "qp NUMBER" for every
 * QP and "mr RKEY ADDRESS". It counts received messages, and ends when one is the byte 'q'. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QPS 10
#define RECVS 32
#define RECV_SIZE 64
#define REGION 4096

static unsigned char region[REGION] __attribute__((aligned(4096)));
/* A slot for each receive: it is read with its completion, and others may have arrived by then. */
static unsigned char inbox[QPS * RECVS][RECV_SIZE] __attribute__((aligned(4096)));

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int post_recv(struct ibv_qp *qp, struct ibv_mr *mr, int place)
{
	struct ibv_sge sge = { .addr = (uintptr_t)inbox[place], .length = RECV_SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = place, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static struct ibv_qp *connected(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return NULL;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 100,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 64 } } };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return NULL;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 500,
		.max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC))
		return NULL;
	return qp;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	struct ibv_cq *cq = ctx ? ibv_create_cq(ctx, 1024, NULL, NULL, 0) : NULL;
	struct ibv_mr *target = NULL, *mr = NULL;
	struct ibv_qp *qps[QPS];
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	int messages = 0, done = 0;

	if (argc != 2 || inet_pton(AF_INET, argv[1], gid.raw + 12) != 1)
		return fail("usage: victim ADDRESS");
	if (pd)
		target = ibv_reg_mr(pd, region, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (target)
		mr = ibv_reg_mr(pd, inbox, sizeof(inbox), IBV_ACCESS_LOCAL_WRITE);
	if (!cq || !mr)
		return fail("device, PD, CQ or MR");
	for (int i = 0; i < QPS; i++) {
		qps[i] = connected(pd, cq, 0x1000 + i, &gid);
		if (!qps[i])
			return fail("QP");
		for (int n = 0; n < RECVS; n++)
			if (post_recv(qps[i], mr, i * RECVS + n))
				return fail("receive");
		printf("qp %u\n", qps[i]->qp_num);
	}
	printf("mr %u %llu\n", target->rkey, (unsigned long long)(uintptr_t)region);
	fflush(stdout);

	while (!done) {
		struct ibv_wc wc;

		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		if (wc.status == IBV_WC_SUCCESS) {
			messages++;
			done = inbox[wc.wr_id][0] == 'q';
			if (wc.qp_num == qps[0]->qp_num && post_recv(qps[0], mr, wc.wr_id))
				return fail("receive");
		} else if (wc.status != IBV_WC_WR_FLUSH_ERR) {
			printf("status %s\n", ibv_wc_status_str(wc.status));
		}
	}
	printf("%d messages\n", messages);
	for (int i = 0; i < QPS; i++)
		ibv_destroy_qp(qps[i]);
	if (ibv_dereg_mr(mr) || ibv_dereg_mr(target) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(ctx))
		return fail("close");
	ibv_free_device_list(list);
	return 0;
}
