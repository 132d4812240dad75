/* Pages of regions paged on demand that the kernel took away: dropped, mapped anew, dropped after they were brought in
 * ahead. The counters in the library's log tell the rest. It is compiled with the system's header and knows nothing of
 * the library below it.
 *
 * odp_drop NIC: its name does not matter. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"

#define PAGE 4096u
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;
static struct ibv_mr *source;
static uint8_t *bytes;
static uint8_t round_of_bytes;

static uint8_t *pages(uint32_t count)
{
	void *at = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void connect(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 1;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.max_rd_atomic = 1;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
				     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY));
}

/* Writes so many pages, each byte another than before, and looks whether they came. */
static void write_all(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t count)
{
	struct ibv_sge from = { .addr = (uintptr_t)bytes, .length = count * PAGE, .lkey = source->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &from,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int n;

	round_of_bytes++;
	for (uint32_t at = 0; at < count * PAGE; at++)
		bytes[at] = (uint8_t)((at * 31) ^ (at >> 8) ^ round_of_bytes);
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(mr->addr, bytes, count * PAGE) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	uint8_t *eight = pages(8), *four = pages(4);
	struct ibv_mr *first, *second;
	struct ibv_qp *near, *far;
	struct ibv_sge sge;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context && !ibv_query_gid(context, 1, 0, &gid));
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(pd && cq);
	near = create();
	far = create();
	connect(near, far->qp_num);
	connect(far, near->qp_num);
	bytes = pages(8);
	source = ibv_reg_mr(pd, bytes, 8 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	first = ibv_reg_mr(pd, eight, 8 * PAGE, ALL | IBV_ACCESS_ON_DEMAND);
	second = ibv_reg_mr(pd, four, 4 * PAGE, ALL | IBV_ACCESS_ON_DEMAND);
	CHECK(source && first && second);

	/* Eight faults, and none the second time. */
	write_all(near, first, 8);
	write_all(near, first, 8);
	/* Three pages are dropped. */
	CHECK(!madvise(eight + 2 * PAGE, 3 * PAGE, MADV_DONTNEED));
	write_all(near, first, 8);
	/* Two are mapped anew. */
	CHECK(!munmap(eight + 6 * PAGE, 2 * PAGE));
	CHECK(mmap(eight + 6 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		   0) == eight + 6 * PAGE);
	write_all(near, first, 8);
	write_all(near, first, 8);
	/* Four are brought in ahead, and do not fault. Then two of them are dropped. */
	sge = (struct ibv_sge){ .addr = (uintptr_t)four, .length = 4 * PAGE, .lkey = second->lkey };
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	write_all(near, second, 4);
	CHECK(!madvise(four, 2 * PAGE, MADV_DONTNEED));
	write_all(near, second, 4);

	CHECK(!ibv_destroy_qp(near) && !ibv_destroy_qp(far));
	CHECK(!ibv_dereg_mr(first) && !ibv_dereg_mr(second) && !ibv_dereg_mr(source));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	ibv_free_device_list(list);
	puts("every check passed");
	return 0;
}
