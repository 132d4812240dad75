/* What a fork does to open devices: the child holds husks, which can be destroyed and not used, and a device that it
 * opens anew is its own; the parent notices nothing. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[4096];
};

static void set_up(struct device *d)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(list && (d->context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((d->pd = ibv_alloc_pd(d->context)));
	CHECK((d->mr = ibv_reg_mr(d->pd, d->memory, sizeof(d->memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK((d->cq = ibv_create_cq(d->context, 8, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = d->cq;
	CHECK((d->qp = ibv_create_qp(d->pd, &init)));
	CHECK(!ibv_modify_qp(d->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = d->qp->qp_num;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	CHECK(!ibv_query_gid(d->context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(d->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	CHECK(!ibv_modify_qp(d->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static void tear_down(struct device *d)
{
	CHECK(!ibv_destroy_qp(d->qp) && !ibv_destroy_cq(d->cq) && !ibv_dereg_mr(d->mr));
	CHECK(!ibv_dealloc_pd(d->pd) && !ibv_close_device(d->context));
}

/* A message from the QP to itself. */
static int ping(struct device *d)
{
	struct ibv_sge from = { .addr = (uintptr_t)d->memory, .length = 8, .lkey = d->mr->lkey };
	struct ibv_sge to = { .addr = (uintptr_t)d->memory + 64, .length = 8, .lkey = d->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;
	struct ibv_wc wc;
	int error = ibv_post_recv(d->qp, &recv, &bad_recv);

	if (!error)
		error = ibv_post_send(d->qp, &send, &bad);
	for (int left = 2; !error && left; ) {
		int got = ibv_poll_cq(d->cq, 1, &wc);

		CHECK(got >= 0);
		if (got) {
			CHECK(!wc.status);
			left--;
		}
	}
	return error;
}

int main(void)
{
	static struct device inherited, own;
	uint32_t parents_qpn;
	int status;
	pid_t child;

	CHECK(!ibv_fork_init() && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	set_up(&inherited);
	CHECK(!ping(&inherited));
	parents_qpn = inherited.qp->qp_num;
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ping(&inherited) == EIO);
		tear_down(&inherited);
		set_up(&own);
		CHECK(own.qp->qp_num >> 14 != parents_qpn >> 14);
		CHECK(!ping(&own));
		tear_down(&own);
		_exit(0);
	}
	CHECK(!ping(&inherited));
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(!ping(&inherited));
	tear_down(&inherited);
	printf("every check passed\n");
	return 0;
}
