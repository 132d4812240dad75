/* A receiving XRC QP that two contexts have open: either may close it, both get its events, and it
 * lives while one has it. */
#include <fcntl.h>
#include <poll.h>
#include "check.h"
#include "rc_loopback.h"

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_srq *srq;
static struct ibv_qp *sender;
static char buffer[2][64];

static struct ibv_qp *open_qp(struct ibv_context *ctx, struct ibv_xrcd *xrcd, uint32_t number, uint32_t mask)
{
	struct ibv_qp_open_attr attr = { .comp_mask = mask, .qp_num = number, .xrcd = xrcd, .qp_context = buffer,
		.qp_type = IBV_QPT_XRC_RECV };
	errno = 0;
	return ibv_open_qp(ctx, &attr);
}

static void message(const char *text)
{
	struct ibv_sge in = { (uintptr_t)buffer[1], sizeof(buffer[1]), mr->lkey };
	struct ibv_sge out = { (uintptr_t)buffer[0], sizeof(buffer[0]), mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;

	CHECK(!ibv_get_srq_num(srq, &send.qp_type.xrc.remote_srqn));
	memset(buffer, 0, sizeof(buffer));
	strcpy(buffer[0], text);
	CHECK(!ibv_post_srq_recv(srq, &recv, &bad_recv) && !ibv_post_send(sender, &send, &bad));
	CHECK(loop_poll(cq) == IBV_WC_SUCCESS && loop_poll(cq) == IBV_WC_SUCCESS);
	CHECK(!strcmp(buffer[1], text));
}

static void is_told(struct ibv_context *ctx, struct ibv_qp *qp)
{
	struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK(poll(&fd, 1, 10000) == 1);
	CHECK(!ibv_get_async_event(ctx, &event));
	CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == qp);
	ibv_ack_async_event(&event);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int file = open(argv[1], O_RDWR | O_CREAT, 0600);
	CHECK(file >= 0);
	struct ibv_context *one = loop_device(), *two = loop_device();
	CHECK(one && two);
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file,
		.oflags = O_CREAT };
	struct ibv_xrcd *first = ibv_open_xrcd(one, &domain), *second = ibv_open_xrcd(two, &domain);
	CHECK(first && second);
	domain.fd = -1;
	struct ibv_xrcd *other = ibv_open_xrcd(one, &domain);
	CHECK(other);
	CHECK((pd = ibv_alloc_pd(one)) && (cq = ibv_create_cq(one, 16, NULL, NULL, 0)));
	CHECK(mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE));
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 8, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD,
		.srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = first, .cq = cq };
	CHECK(srq = ibv_create_srq_ex(one, &queue));
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = first };
	struct ibv_qp *target = ibv_create_qp_ex(one, &init);
	CHECK(target);
	struct ibv_qp_init_attr send = { .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	CHECK(sender = ibv_create_qp(pd, &send));

	uint32_t all = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE;
	CHECK(!open_qp(two, second, sender->qp_num, all) && errno == EINVAL);
	CHECK(!open_qp(two, other, target->qp_num, all) && errno == EINVAL);
	CHECK(!open_qp(two, second, target->qp_num, IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD) && errno == EINVAL);
	struct ibv_qp *handle = open_qp(two, second, target->qp_num, all);
	CHECK(handle && handle->qp_num == target->qp_num && handle->context == two && handle->qp_context == buffer);

	/* It is one QP: each handle does a part of the connecting. */
	union ibv_gid gid;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_init_attr created;
	CHECK(!ibv_query_gid(one, 1, 0, &gid));
	CHECK(!ibv_modify_qp(target, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = sender->qp_num,
		.rq_psn = 7, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	CHECK(!ibv_modify_qp(handle, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.dest_qp_num = target->qp_num;
	CHECK(!ibv_modify_qp(sender, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_modify_qp(sender, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7 };
	CHECK(!ibv_modify_qp(sender, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_query_qp(target, &attr, IBV_QP_STATE, &created) && attr.qp_state == IBV_QPS_RTR);
	message("one");
	is_told(one, target);
	is_told(two, handle);

	CHECK(!ibv_destroy_qp(target));
	message("two");
	target = open_qp(one, first, handle->qp_num, all);
	CHECK(target && target->state == IBV_QPS_RTR);
	CHECK(!ibv_destroy_qp(target));
	message("three");
	uint32_t number = handle->qp_num;
	CHECK(!ibv_destroy_qp(handle));
	CHECK(!open_qp(two, second, number, all) && errno == EINVAL);

	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_srq(srq));
	CHECK(!ibv_close_xrcd(first) && !ibv_close_xrcd(second) && !ibv_close_xrcd(other));
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(one) && !ibv_close_device(two));
	printf("two handles, one QP\n");
	return 0;
}
