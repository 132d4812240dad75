/* Windows, domains, imported objects and XRC within one process, with the errno of each wrong use.
 * It is compiled with the system's header and knows nothing about the library below it. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static char *buffer;
static struct ibv_mr *mr;
static struct ibv_cq *cq;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context && !ibv_query_gid(context, 1, 0, &gid));
	ibv_free_device_list(list);
	CHECK(!posix_memalign((void **)&buffer, 4096, 65536));
	memset(buffer, 0, 65536);
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, buffer, 65536, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
}

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void connect(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = to,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 1,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } },
	};
	int receives = qp->qp_type != IBV_QPT_XRC_SEND, sends = qp->qp_type != IBV_QPT_XRC_RECV;

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     (receives ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN |
				     (sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static enum ibv_wc_status status(uint64_t wr_id)
{
	struct ibv_wc wc;

	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.wr_id == wr_id);
	return wc.status;
}

static void windows(void)
{
	struct ibv_qp *qp = queue_pair();
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mw *foreign = ibv_alloc_mw(other, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 1,
				    .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = (uintptr_t)buffer + 4096, .length = 4096,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_send_wr wr_bind = { .wr_id = 3, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	uint32_t before;

	CHECK(one && two && foreign && one->rkey != two->rkey && one->type == IBV_MW_TYPE_1 && one->pd == pd);
	CHECK_ERRNO(!ibv_alloc_mw(pd, 3), EINVAL);
	CHECK(ibv_bind_mw(qp, two, &bind) == EINVAL && ibv_bind_mw(qp, foreign, &bind) == EPERM);
	connect(qp, qp->qp_num);

	/* Each bind of type 1 gives the next key; the old one is dead. */
	before = one->rkey;
	CHECK(!ibv_bind_mw(qp, one, &bind) && status(1) == IBV_WC_SUCCESS && one->rkey == ibv_inc_rkey(before));
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	strcpy(buffer, "window");
	wr.wr.rdma.rkey = one->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 8192 - 8;
	CHECK(!ibv_post_send(qp, &wr, &bad) && status(2) == IBV_WC_SUCCESS);
	CHECK(!strcmp(buffer + 8192 - 8, "window"));

	/* Type 2: only by a work request, only when free, and freed by invalidation. */
	wr_bind.bind_mw.mw = one;
	wr_bind.bind_mw.bind_info = bind.bind_info;
	CHECK(ibv_post_send(qp, &wr_bind, &bad) == EINVAL && bad == &wr_bind);
	wr_bind.bind_mw.mw = two;
	wr_bind.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	CHECK(!ibv_post_send(qp, &wr_bind, &bad) && status(3) == IBV_WC_SUCCESS);
	wr.wr.rdma.rkey = wr_bind.bind_mw.rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad) && status(2) == IBV_WC_SUCCESS);
	wr.opcode = IBV_WR_LOCAL_INV;
	wr.invalidate_rkey = wr_bind.bind_mw.rkey;
	wr.num_sge = 0;
	CHECK(!ibv_post_send(qp, &wr, &bad) && status(2) == IBV_WC_SUCCESS);
	CHECK(!ibv_post_send(qp, &wr_bind, &bad) && status(3) == IBV_WC_SUCCESS);
	CHECK(!ibv_post_send(qp, &wr_bind, &bad) && status(3) == IBV_WC_MW_BIND_ERR);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_dealloc_mw(one) && !ibv_dealloc_mw(two) && !ibv_dealloc_mw(foreign) && !ibv_dealloc_pd(other));
}

static void parent_domains(void)
{
	struct ibv_td_init_attr unknown = { .comp_mask = 1 }, none = { 0 };
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_cq_init_attr_ex in = { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	struct ibv_pd *whole = ibv_alloc_pd(context), *parent;
	struct ibv_cq_ex *inside;
	struct ibv_mr *region;
	struct ibv_td *td;

	CHECK_ERRNO(!ibv_alloc_td(context, &unknown), EINVAL);
	CHECK((td = ibv_alloc_td(context, &none)) && td->context == context);
	attr.pd = NULL;
	CHECK_ERRNO(!ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.pd = whole;
	attr.comp_mask = 1 << 9;
	CHECK_ERRNO(!ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 0;
	attr.td = td;
	CHECK((parent = ibv_alloc_parent_domain(context, &attr)) && parent->handle == whole->handle);
	CHECK(ibv_dealloc_pd(whole) == EBUSY && ibv_dealloc_td(td) == EBUSY);
	CHECK((region = ibv_reg_mr(parent, buffer, 4096, 0)) && region->pd == parent);
	CHECK_ERRNO(!ibv_create_cq_ex(context, &in), EINVAL);
	in.parent_domain = parent;
	CHECK((inside = ibv_create_cq_ex(context, &in)) && !ibv_destroy_cq(ibv_cq_ex_to_cq(inside)));
	CHECK(!ibv_dereg_mr(region) && !ibv_dealloc_pd(parent) && !ibv_dealloc_td(td) && !ibv_dealloc_pd(whole));
}

static void imports(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 128 };
	struct ibv_context *second;
	struct ibv_dm *dm, *same;
	struct ibv_mr *region;
	struct ibv_pd *domain;
	char word[8];

	CHECK_ERRNO(!ibv_import_device(-1), EINVAL);
	CHECK_ERRNO(!ibv_import_device(0), ENODEV);
	CHECK((second = ibv_import_device(dup(context->cmd_fd))) && second->device == context->device);
	CHECK_ERRNO(!ibv_import_pd(second, 1 << 20), ENOENT);
	CHECK((domain = ibv_import_pd(second, pd->handle)) && domain->context == second);
	CHECK_ERRNO(!ibv_import_mr(domain, 1 << 20), ENOENT);
	CHECK((region = ibv_import_mr(domain, mr->handle)) && region->rkey == mr->rkey && region->length == mr->length);
	CHECK(!region->addr);
	CHECK_ERRNO(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	/* Device memory: the same bytes, for as long as the first object has them. */
	CHECK((dm = ibv_alloc_dm(context, &attr)));
	CHECK_ERRNO(!ibv_import_dm(second, 1 << 20), ENOENT);
	CHECK((same = ibv_import_dm(second, dm->handle)) && same->context == second);
	CHECK(!ibv_memcpy_to_dm(dm, 64, "imported", 8) && !ibv_memcpy_from_dm(word, same, 64, 8));
	CHECK(!memcmp(word, "imported", 8));
	ibv_unimport_dm(same);
	CHECK(!ibv_memcpy_from_dm(word, dm, 64, 8) && !ibv_free_dm(dm));
	ibv_unimport_mr(region);
	ibv_unimport_pd(domain);
	CHECK(!ibv_close_device(second));
	/* The first context is as it was. */
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
}

static void extended_connections(void)
{
	struct ibv_xrcd_init_attr open = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_srq_init_attr_ex srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 },
						 .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							      IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
						 .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq };
	struct ibv_qp_init_attr_ex to = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	struct ibv_qp_init_attr_ex from = { .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
					    .send_cq = cq, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_sge into = { .addr = (uintptr_t)buffer + 4096, .length = 8, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &into, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr = { .wr_id = 4, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_srq_init_attr plain = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq, *basic;
	struct ibv_xrcd *domain;
	struct ibv_qp *sender, *receiver;
	uint32_t number;

	CHECK_ERRNO(!ibv_open_xrcd(context, &open), EINVAL);
	open.oflags = O_CREAT;
	CHECK((domain = ibv_open_xrcd(context, &open)));
	srq_attr.xrcd = to.xrcd = domain;
	CHECK((srq = ibv_create_srq_ex(context, &srq_attr)) && !ibv_get_srq_num(srq, &number));
	CHECK((basic = ibv_create_srq(pd, &plain)) && ibv_get_srq_num(basic, &number) == EINVAL);
	CHECK(!ibv_get_srq_num(srq, &number) && !ibv_destroy_srq(basic));
	CHECK_ERRNO(!ibv_create_qp_ex(context, &to), EINVAL);
	to.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	CHECK((receiver = ibv_create_qp_ex(context, &to)) && !receiver->pd && !receiver->recv_cq);
	CHECK((sender = ibv_create_qp_ex(context, &from)));
	CHECK(ibv_close_xrcd(domain) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	connect(sender, receiver->qp_num);
	connect(receiver, sender->qp_num);

	strcpy(buffer, "xrc");
	CHECK(!ibv_post_srq_recv(srq, &recv, &bad_recv));
	wr.qp_type.xrc.remote_srqn = number;
	CHECK(!ibv_post_send(sender, &wr, &bad) && status(5) == IBV_WC_SUCCESS && !strcmp(buffer + 4096, "xrc"));
	CHECK(ibv_post_send(receiver, &wr, &bad) == EINVAL && ibv_post_recv(sender, &recv, &bad_recv) == EINVAL);
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(domain));
}

/* Data sent from nowhere is zeros, and data received there is lost. */
static void null_region(void)
{
	struct ibv_qp *qp = queue_pair();
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_sge from[2] = { { .addr = (uintptr_t)buffer, .length = 8 }, { .addr = 12345, .length = 100000 } };
	struct ibv_sge to[2] = { { .addr = 1, .length = 99992 }, { .addr = (uintptr_t)buffer, .length = 16 } };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = to, .num_sge = 2 }, *bad_recv;
	struct ibv_send_wr wr = { .wr_id = 4, .opcode = IBV_WR_SEND, .sg_list = from, .num_sge = 2 }, *bad;

	CHECK(null && null->pd == pd && !null->addr && null->length == SIZE_MAX);
	from[0].lkey = to[1].lkey = mr->lkey;
	from[1].lkey = to[0].lkey = null->lkey;
	connect(qp, qp->qp_num);
	memset(buffer, 'x', 32);
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &wr, &bad) && status(5) == IBV_WC_SUCCESS);
	CHECK(!memcmp(buffer, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0x", 17));
	CHECK(!ibv_destroy_qp(qp) && ibv_dealloc_pd(pd) == EBUSY && !ibv_dereg_mr(null));
}

static void advice(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 4096, .lkey = mr->lkey };

	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0) == EINVAL);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 7, &sge, 1) == EINVAL);
	CHECK(ibv_advise_mr(pd, 77, 0, &sge, 1) == EOPNOTSUPP);
	/* A region that is not paged on demand has no pages to bring in. */
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);
}

int main(void)
{
	open_device();
	windows();
	parent_domains();
	imports();
	extended_connections();
	null_region();
	advice();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("every check passed\n");
	return 0;
}
