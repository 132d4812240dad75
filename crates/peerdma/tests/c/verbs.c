/* A program that uses every object of the verbs within one process, and checks what each call
 * returns, wrong uses included. It is compiled with the system's header and knows nothing about
 * the library below it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static char *buffer;
static struct ibv_mr *mr;

/* Newer than the header. */
static int ibv_dm_export_dmabuf_fd_by_name(struct ibv_dm *dm)
{
	int (*export)(struct ibv_dm *) = (int (*)(struct ibv_dm *))dlsym(RTLD_DEFAULT, "ibv_dm_export_dmabuf_fd");
	CHECK(export);
	return export(dm);
}

static void device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex attr_ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, entries[4];
	struct ibv_device own = { .name = "of the program's own" };
	uint16_t pkey;

	CHECK(list && count >= 1 && list[0] && !list[count]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), list[0]->name));
	CHECK(!strcmp(ibv_get_device_name(&own), own.name));
	CHECK(ibv_get_device_guid(list[0]));
	CHECK(ibv_get_device_index(list[0]) == 0);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);

	CHECK(!ibv_query_device(context, &attr) && attr.max_qp > 0 && attr.phys_port_cnt == 1);
	CHECK(!ibv_query_device_ex(context, NULL, &attr_ex) && attr_ex.orig_attr.max_qp == attr.max_qp);
	CHECK(attr_ex.completion_timestamp_mask && attr_ex.hca_core_clock);
	CHECK(ibv_query_port(context, 0, &port) == EINVAL);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && (port.flags & IBV_QPF_GRH_REQUIRED));

	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK_ERRNO(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1, EINVAL);
	CHECK_ERRNO(ibv_query_gid(context, 1, -1, &gid) == -1, EINVAL);
	CHECK(!ibv_query_gid_ex(context, 1, 0, &entry, 0) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(!memcmp(&entry.gid, &gid, sizeof(gid)) && entry.ndev_ifindex);
	CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 4, 0) >= 1);
	CHECK(!ibv_query_pkey(context, 1, 0, &pkey) && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1);
	CHECK(ibv_get_pkey_index(context, 1, pkey) == 0 && ibv_get_pkey_index(context, 1, 0x1234) == -1);
	CHECK(fcntl(context->cmd_fd, F_GETFD) >= 0);
}

static void memory(void)
{
	char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *other;
	struct ibv_pd *second;
	int pipes[2];

	buffer = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(hole != MAP_FAILED && constant != MAP_FAILED && buffer != MAP_FAILED);
	munmap(hole + 4096, 4096);
	pd = ibv_alloc_pd(context);
	second = ibv_alloc_pd(context);
	CHECK(pd && second && pd->context == context && pd->handle != second->handle);

	mr = ibv_reg_mr(pd, buffer, 1 << 16, ALL);
	CHECK(mr && mr->addr == buffer && mr->length == 1 << 16 && mr->pd == pd && mr->lkey && mr->rkey);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK_ERRNO(!ibv_reg_mr(pd, buffer, 0, 0), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, 8192, 0), EFAULT);
	CHECK_ERRNO(!ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	CHECK_ERRNO(!ibv_reg_mr_iova(pd, buffer, 64, 1, 0), EINVAL);
	other = ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK(other && !ibv_dereg_mr(other));

	other = ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(other);
	CHECK_ERRNO(ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT,
		    EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(other, 1 << 7, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	/* Memory that was registered read-only stays read-only. */
	struct ibv_mr *constant_mr = ibv_reg_mr(pd, buffer, 4096, 0);
	CHECK(constant_mr);
	CHECK_ERRNO(ibv_rereg_mr(constant_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) ==
		    IBV_REREG_MR_ERR_CMD, EACCES);
	CHECK(!ibv_dereg_mr(constant_mr));
	CHECK(!ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION, second, buffer, 8192, 0));
	CHECK(other->pd == second && other->length == 8192);
	CHECK(ibv_dealloc_pd(second) == EBUSY);
	CHECK(!ibv_dereg_mr(other));
	CHECK(!ibv_dealloc_pd(second));

	/* The probe by which programs learn that dma-bufs can be registered, and the order of the checks. */
	CHECK(!pipe(pipes));
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), EBADF);
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(pd, 0, 4096, 1, -1, 0), EINVAL);
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_ZERO_BASED), EINVAL);
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, pipes[0], 0), EINVAL);
	close(pipes[0]);
	close(pipes[1]);
	munmap(hole, 4096);
	munmap(constant, 4096);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 256 };
	struct ibv_alloc_dm_attr huge = { .length = (size_t)1 << 40 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	struct ibv_mr *region;
	char out[256], in[256];

	CHECK(dm);
	CHECK_ERRNO(!ibv_alloc_dm(context, &huge), EINVAL);
	for (int i = 0; i < 256; i++)
		out[i] = i;
	CHECK(!ibv_memcpy_to_dm(dm, 0, out, 256));
	CHECK(!ibv_memcpy_from_dm(in + 1, dm, 4, 252) && !memcmp(in + 1, out + 4, 252));
	CHECK(ibv_memcpy_to_dm(dm, 2, out, 4) == EINVAL && ibv_memcpy_to_dm(dm, 0, out, 3) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 252, out, 8) == EFAULT);
	CHECK_ERRNO(!ibv_reg_dm_mr(pd, dm, 0, 256, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	CHECK_ERRNO(!ibv_reg_dm_mr(pd, dm, 128, 256, IBV_ACCESS_ZERO_BASED), EINVAL);
	region = ibv_reg_dm_mr(pd, dm, 128, 128, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(region && !region->addr && region->length == 128);
	CHECK(ibv_free_dm(dm) == EBUSY);
	/* As a dma-buf: reached by this very device, taken away when the memory is freed. */
	int exported = ibv_dm_export_dmabuf_fd_by_name(dm);
	CHECK(exported >= 0);
	struct ibv_mr *imported = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, exported, IBV_ACCESS_LOCAL_WRITE);
	CHECK(imported);
	/* The library refuses to change such a region, whatever the change is, and leaves it as it is. */
	for (int flags = 1; flags < 8; flags++) {
		CHECK_ERRNO(ibv_rereg_mr(imported, flags, pd, in, 256, flags & IBV_REREG_MR_CHANGE_ACCESS ?
					 IBV_ACCESS_LOCAL_WRITE : 0) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	}
	CHECK(!ibv_dereg_mr(imported));
	/* Device memory cannot be mapped. Without the hooks of `peerdma run`, the kernel refuses it with
	 * its own errno. */
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, exported, 0) == MAP_FAILED);
	CHECK(errno == EACCES || errno == EINVAL);
	CHECK(!close(exported));
	CHECK(!ibv_dereg_mr(region) && !ibv_free_dm(dm));
}

static void connect(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL & ~IBV_ACCESS_LOCAL_WRITE
	};
	struct ibv_qp_attr asked;
	struct ibv_qp_init_attr init;

	/* No state can be skipped, and a missing attribute is noticed. */
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(qp->state == IBV_QPS_INIT);

	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = to;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_query_qp(qp, &asked, IBV_QP_STATE, &init));
	CHECK(asked.qp_state == IBV_QPS_RTS && asked.dest_qp_num == to && asked.timeout == 14);
	CHECK(init.send_cq == qp->send_cq && init.qp_type == IBV_QPT_RC && init.cap.max_send_wr == 16);
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_opcode opcode, struct ibv_wc *wc)
{
	int got;

	do
		got = ibv_poll_cq(cq, 1, wc);
	while (got == 0);
	CHECK(got == 1);
	if (wc->status)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc->status));
	CHECK(!wc->status && wc->wr_id == wr_id && wc->opcode == opcode);
}

static void traffic(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq, *cqs[2], *event_cq;
	struct ibv_qp *qps[2];
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey };
	struct ibv_sge to = { .addr = (uintptr_t)buffer + 4096, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 7, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1 }, second = wr, *bad;
	struct ibv_modify_cq_attr moderation = { .moderate = { .cq_count = 2 } };
	struct ibv_wc wc;
	struct pollfd pollfd;
	void *cookie;

	CHECK(channel && channel->context == context);
	CHECK_ERRNO(!ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	CHECK_ERRNO(!ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors), EINVAL);
	cqs[0] = ibv_create_cq(context, 32, NULL, NULL, 0);
	cqs[1] = cq = ibv_create_cq(context, 32, buffer, channel, 0);
	CHECK(cqs[0] && cq && cq->cqe >= 32 && channel->refcnt == 1);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(!ibv_resize_cq(cq, 64) && cq->cqe >= 64);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cqs[i],
			.recv_cq = cqs[i],
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
				 .max_inline_data = 128 },
			.qp_type = IBV_QPT_RC,
		};
		struct ibv_qp_init_attr huge = init;

		huge.cap.max_send_wr = 1 << 30;
		CHECK_ERRNO(!ibv_create_qp(pd, &huge), EINVAL);
		qps[i] = ibv_create_qp(pd, &init);
		CHECK(qps[i] && init.cap.max_inline_data >= 128 && qps[i]->state == IBV_QPS_RESET);
	}
	CHECK(!ibv_qp_to_qp_ex(qps[0]));
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_post_send(qps[0], &wr, &bad) == EINVAL && bad == &wr);
	connect(qps[0], qps[1]->qp_num);
	connect(qps[1], qps[0]->qp_num);

	/* SEND with immediate data, and an event for its receive. */
	strcpy(buffer, "across");
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv));
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.imm_data = 0x11223344;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	expect(cqs[0], 8, IBV_WC_SEND, &wc);
	CHECK(!ibv_get_cq_event(channel, &event_cq, &cookie) && event_cq == cq && cookie == buffer);
	expect(cq, 7, IBV_WC_RECV, &wc);
	CHECK(wc.byte_len == 64 && (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == 0x11223344);
	CHECK(wc.qp_num == qps[1]->qp_num && !strcmp(buffer + 4096, "across"));
	ibv_ack_cq_events(cq, 1);
	pollfd = (struct pollfd){ .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&pollfd, 1, 0) == 0);
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	CHECK_ERRNO(ibv_get_cq_event(channel, &event_cq, &cookie) == -1, EAGAIN);

	/* Moderated events: the first of two completions waits for the second, or for the end of the period. */
	CHECK(ibv_modify_cq(cq, &moderation) == EINVAL);
	moderation.attr_mask = IBV_CQ_ATTR_MODERATE | 2;
	CHECK(ibv_modify_cq(cq, &moderation) == EOPNOTSUPP);
	moderation.attr_mask = IBV_CQ_ATTR_MODERATE;
	moderation.moderate.cq_period = 4096;
	CHECK(ibv_modify_cq(cq, &moderation) == EINVAL);
	moderation.moderate.cq_period = 4095;
	CHECK(!ibv_modify_cq(cq, &moderation));
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv));
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	expect(cqs[0], 8, IBV_WC_SEND, &wc);
	expect(cq, 7, IBV_WC_RECV, &wc);
	/* Nothing else runs in this program: the device itself must see the end of the period. */
	CHECK(poll(&pollfd, 1, 60000) == 1);
	CHECK(!ibv_get_cq_event(channel, &event_cq, &cookie) && event_cq == cq);
	ibv_ack_cq_events(cq, 1);
	moderation.moderate.cq_period = 0;
	CHECK(!ibv_modify_cq(cq, &moderation));

	/* A list: the valid requests are sent, the invalid one is named. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 8192;
	wr.wr.rdma.rkey = mr->rkey;
	wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	wr.next = &second;
	second.opcode = IBV_WR_RDMA_WRITE;
	second.num_sge = 3;
	CHECK(ibv_post_send(qps[0], &wr, &bad) == EINVAL && bad == &second);
	expect(cqs[0], 8, IBV_WC_RDMA_WRITE, &wc);
	CHECK(!strcmp(buffer + 8192, "across"));

	wr.next = NULL;
	wr.opcode = IBV_WR_RDMA_READ;
	wr.send_flags = IBV_SEND_SIGNALED;
	sge.addr = (uintptr_t)buffer + 12288;
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	expect(cqs[0], 8, IBV_WC_RDMA_READ, &wc);
	CHECK(!strcmp(buffer + 12288, "across"));

	*(uint64_t *)(buffer + 16384) = 40;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = (uintptr_t)buffer + 16384;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 2;
	sge.length = 8;
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	expect(cqs[0], 8, IBV_WC_FETCH_ADD, &wc);
	CHECK(*(uint64_t *)(buffer + 16384) == 42 && *(uint64_t *)(buffer + 12288) == 40);

	/* A wrong key: an error at the requester, and an event about the responder's QP. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = mr->rkey ^ 0x5a;
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	while (!ibv_poll_cq(cqs[0], 1, &wc))
		;
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == qps[0]->qp_num);
	{
		struct ibv_async_event event;

		CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_QP_ACCESS_ERR);
		CHECK(event.element.qp == qps[1]);
		ibv_ack_async_event(&event);
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
	CHECK(!ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cq));
	CHECK(channel->refcnt == 0 && !ibv_destroy_comp_channel(channel));
}

static void extended(void)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16,
					       .wc_flags = IBV_WC_STANDARD_FLAGS |
							   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_init_attr_ex vlan = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_CVLAN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_qp_init_attr_ex init = {
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
	};
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;

	CHECK(cq && cq->start_poll);
	CHECK_ERRNO(!ibv_create_cq_ex(context, &vlan), EOPNOTSUPP);
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.pd = pd;
	init.send_ops_flags |= IBV_QP_EX_WITH_TSO;
	CHECK_ERRNO(!ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init.send_ops_flags &= ~IBV_QP_EX_WITH_TSO;
	qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex && &ex->qp_base == qp);
	connect(qp, qp->qp_num);

	memset(buffer, 0, 8192);
	ibv_wr_start(ex);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ex->wr_id = 21;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 4096);
	ibv_wr_set_inline_data(ex, "inline", 7);
	ex->wr_id = 22;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 4104);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer + 4096, 7);
	CHECK(!ibv_wr_complete(ex));
	while (ibv_start_poll(cq, &poll_attr))
		;
	CHECK(!cq->status && cq->wr_id == 21 && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
	CHECK(ibv_wc_read_completion_ts(cq) && ibv_wc_read_qp_num(cq) == qp->qp_num);
	while (ibv_next_poll(cq))
		;
	CHECK(cq->wr_id == 22);
	ibv_end_poll(cq);
	CHECK(!strcmp(buffer + 4104, "inline"));

	/* The last of three is refused, so none is posted. */
	memset(buffer, 0, 8192);
	ibv_wr_start(ex);
	for (ex->wr_id = 23; ex->wr_id < 26; ex->wr_id++) {
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 4096);
		ibv_wr_set_inline_data(ex, buffer, ex->wr_id < 25 ? 7 : 8192);
	}
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ex->wr_id = 26;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 4096);
	ibv_wr_set_inline_data(ex, "after", 6);
	CHECK(!ibv_wr_complete(ex));
	while (ibv_start_poll(cq, &poll_attr))
		;
	CHECK(!cq->status && cq->wr_id == 26);
	ibv_end_poll(cq);
	CHECK(!strcmp(buffer + 4096, "after"));
	CHECK(!ibv_query_rt_values_ex(context, &values) && (values.raw_clock.tv_nsec || values.raw_clock.tv_sec));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

static void shared_receives_and_addresses(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_srq_attr attr;
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_ah_attr ah_attr = { .port_num = 1 };
	struct ibv_ah *ah;

	CHECK(srq && !ibv_query_srq(srq, &attr) && attr.max_wr >= 8 && attr.srq_limit == 0);
	attr.srq_limit = 4;
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) && !ibv_query_srq(srq, &attr) && attr.srq_limit == 4);
	CHECK(ibv_modify_srq(srq, &attr, 1 << 5) == EINVAL);
	for (unsigned i = 0; i < attr.max_wr; i++)
		CHECK(!ibv_post_srq_recv(srq, &recv, &bad));
	CHECK(ibv_post_srq_recv(srq, &recv, &bad) == ENOMEM && bad == &recv);
	CHECK(!ibv_destroy_srq(srq));

	CHECK_ERRNO(!ibv_create_ah(pd, &ah_attr), EINVAL);
	ah_attr.is_global = 1;
	ah_attr.grh.dgid = gid;
	ah = ibv_create_ah(pd, &ah_attr);
	CHECK(ah && ah->pd == pd);
	CHECK(ibv_dealloc_pd(pd) == EBUSY || mr);
	CHECK(!ibv_destroy_ah(ah));
}

int main(void)
{
	device();
	memory();
	device_memory();
	traffic();
	extended();
	shared_receives_and_addresses();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("every check passed\n");
	return 0;
}
