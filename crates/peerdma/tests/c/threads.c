/* Eight threads at once at what the manual calls safe for threads: every verb (rdma-core, Documentation/libibverbs.md).
 *
 * They post to one QP and poll one CQ, by both interfaces, while each makes, changes, asks about and destroys objects of
 * its own. Every request completes once and moved its bytes, and in the end nothing is in use. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define THREADS 8
#define ROUNDS 100
#define POSTS 4
#define TOTAL (THREADS * ROUNDS * POSTS)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static union ibv_gid gid;
/* For each thread: the words it writes, and their destination. */
static uint64_t words[THREADS][2][ROUNDS * POSTS];
static atomic_int seen[TOTAL];
static atomic_int completed;

static void connect_to_itself(struct ibv_qp *which)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	CHECK(!ibv_modify_qp(which, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = which->qp_num;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	CHECK(!ibv_modify_qp(which, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	CHECK(!ibv_modify_qp(which, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static void count(uint64_t wr_id, enum ibv_wc_status status)
{
	CHECK(status == IBV_WC_SUCCESS && wr_id < TOTAL);
	CHECK(atomic_fetch_add(&seen[wr_id], 1) == 0);
	atomic_fetch_add(&completed, 1);
}

/* Takes available completions, by either interface. */
static void take(int by_calls)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc[4];
	int n;

	if (by_calls) {
		if (ibv_start_poll(cq, &attr) == 0) {
			do {
				CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
				count(cq->wr_id, cq->status);
			} while (ibv_next_poll(cq) == 0);
			ibv_end_poll(cq);
		}
		return;
	}
	n = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 4, wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		count(wc[i].wr_id, wc[i].status);
}

static void post(int thread, int index)
{
	uint64_t *from = &words[thread][0][index], *to = &words[thread][1][index];
	uint64_t id = (uint64_t)(thread * ROUNDS * POSTS + index);
	int error;

	*from = id + 1;
	do {
		if (index % 2) {
			struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

			ibv_wr_start(ex);
			ex->wr_id = id;
			ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)to);
			ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)from, sizeof(*from));
			error = ibv_wr_complete(ex);
		} else {
			struct ibv_sge sge = { .addr = (uintptr_t)from, .length = sizeof(*from), .lkey = mr->lkey };
			struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)to, mr->rkey } }, *bad;

			error = ibv_post_send(qp, &wr, &bad);
		}
		CHECK(!error || error == ENOMEM);
		/* The queue was full. */
		if (error)
			take(index % 3 == 0);
	} while (error);
}

/* Objects of a thread's own, of every kind. */
static void live(void)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_srq_attr srq_attr = { .srq_limit = 1 };
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	union ibv_gid found;
	__be16 pkey;
	char memory[256];
	uint32_t word = 42, back = 0;

	CHECK(!ibv_query_device(context, &device) && !ibv_query_port(context, 1, &port));
	CHECK(!ibv_query_gid(context, 1, 0, &found) && !ibv_query_pkey(context, 1, 0, &pkey));
	struct ibv_pd *own = ibv_alloc_pd(context);
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr parent = { .pd = own, .td = td };
	struct ibv_pd *domain = ibv_alloc_parent_domain(context, &parent);
	struct ibv_mr *region = ibv_reg_mr(own, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_comp_channel *events = ibv_create_comp_channel(context);
	struct ibv_cq *queue = ibv_create_cq(context, 8, NULL, events, 0);
	struct ibv_srq *srq = ibv_create_srq(own, &srq_init);
	struct ibv_ah *ah = ibv_create_ah(own, &ah_attr);
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	struct ibv_mw *mw = ibv_alloc_mw(own, IBV_MW_TYPE_2);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = region ? region->lkey : 0 };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(own && td && domain && region && events && queue && srq && ah && dm && mw);
	init.send_cq = init.recv_cq = queue;
	struct ibv_qp *pair = ibv_create_qp(domain, &init);
	CHECK(pair);
	connect_to_itself(pair);
	CHECK(!ibv_query_qp(pair, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);
	CHECK(!ibv_post_recv(pair, &recv, &bad) && !ibv_post_srq_recv(srq, &recv, &bad));
	CHECK(!ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT) && !ibv_query_srq(srq, &srq_attr));
	CHECK(!ibv_req_notify_cq(queue, 0) && !ibv_resize_cq(queue, 16));
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	CHECK(!ibv_memcpy_to_dm(dm, 0, &word, 4) && !ibv_memcpy_from_dm(&back, dm, 0, 4) && back == word);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_free_dm(dm) && !ibv_destroy_ah(ah));
	CHECK(!ibv_destroy_qp(pair) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(queue));
	CHECK(!ibv_destroy_comp_channel(events) && !ibv_dereg_mr(region));
	CHECK(!ibv_dealloc_pd(domain) && !ibv_dealloc_td(td) && !ibv_dealloc_pd(own));
}

static void *hammer(void *argument)
{
	int thread = (int)(intptr_t)argument;
	struct ibv_async_event event;
	struct ibv_cq *which;
	void *ignored;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < POSTS; i++)
			post(thread, round * POSTS + i);
		live();
		take(round % 2);
		CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
		if (!ibv_get_cq_event(channel, &which, &ignored))
			ibv_ack_cq_events(which, 1);
		/* The limits of SRQs. */
		if (!ibv_get_async_event(context, &event))
			ibv_ack_async_event(&event);
	}
	return NULL;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 1024 };
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	pthread_t threads[THREADS];

	CHECK(list && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK(!ibv_query_gid(context, 1, 0, &gid) && (pd = ibv_alloc_pd(context)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
	cq_init.channel = channel;
	CHECK((cq = ibv_create_cq_ex(context, &cq_init)));
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.pd = pd;
	CHECK((qp = ibv_create_qp_ex(context, &init)));
	CHECK((mr = ibv_reg_mr(pd, words, sizeof(words), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	connect_to_itself(qp);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, hammer, (void *)(intptr_t)i));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	while (atomic_load(&completed) < TOTAL)
		take(1);
	for (int thread = 0; thread < THREADS; thread++)
		for (int i = 0; i < ROUNDS * POSTS; i++)
			CHECK(words[thread][1][i] == (uint64_t)(thread * ROUNDS * POSTS + i) + 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("every check passed\n");
	return 0;
}
