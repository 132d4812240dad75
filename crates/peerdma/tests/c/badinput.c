/* Every verb, called with each of its arguments wrong in turn: null, destroyed, of another kind.
 * None may crash, and each fails by its own convention with EINVAL. With a handle or a context
 * that is not the object's own, calls that would reach the kernel fail with ENOENT, as the kernel
 * does (rdma_lookup_get_uobject). A call that returns an errno also sets it. badrules.h has the
 * rules of the manual pages and the kernel for everything else: other contexts, overflows, unknown
 * bits.
 *
 * names.h lists the verbs of the library's own tables; one without a row here fails the test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wrong.h"

/* How a call fails. */
enum fails {
	ERRNO, /* returns the errno */
	NEGATIVE, /* returns the errno, negative */
	MINUS, /* returns -1 and sets errno */
	NIL, /* returns NULL and sets errno */
	NEVER, /* cannot fail: must return */
	PURE, /* takes numbers only, and none of them is wrong */
};

/* Where a verb is called through, if it has no symbol. */
enum base { NOWHERE, SYMBOL, OF_verbs_context, OF_ibv_context, OF_ibv_cq_ex, OF_ibv_qp_ex, OF_ibv_dm, OF_ibv_wq };

struct verb {
	const char *name;
	enum base base;
	size_t offset;
	/* It is a verb that uses no argument, and returns EOPNOTSUPP in this way. */
	int is_refused;
	enum fails refuses;
	/* The version of the symbol. */
	const char *node;
};

#define DONE 0, PURE
#define REFUSED(how) 1, how
#define VERB(name, node, answer) { name, SYMBOL, 0, answer, node },
#define ABSENT(name) { name, NOWHERE, 0, DONE },
#define INLINE(name, type, member, answer) { name, OF_##type, offsetof(struct type, member), answer },
static const struct verb verbs[] = {
#include "names.h"
};

/* Arguments: D device, X context, P domain, C channel (c: or none), Q CQ, K QP, S SRQ, M region, A handle, d device memory,
 * B buffer, V completion counter, T thread domain, W window, R XRC domain, q work queue, t indirection table, F rule;
 * a structure (s) or room for one (w) that must be there, one that need
 * not (.); a number (0 to 9, Z: the size of the room, N: the rights of device memory), an address that is mapped (b). */
struct row {
	const char *name;
	enum fails fails;
	const char *args;
};

static const struct row rows[] = {
	{ "_ibv_query_comp_cntr_caps", ERRNO, "XwZ" },
	{ "_ibv_query_gid_ex", ERRNO, "X10w04" },
	{ "_ibv_query_gid_table", NEGATIVE, "Xw904" },
	{ "ibv_ack_async_event", NEVER, "s" },
	{ "ibv_ack_cq_events", NEVER, "Q0" },
	{ "ibv_advise_mr", ERRNO, "P00s1" },
	{ "ibv_alloc_buf", NIL, "P4w" },
	{ "ibv_alloc_dm", NIL, "Xs" },
	{ "ibv_alloc_mw", NIL, "P1" },
	{ "ibv_alloc_null_mr", NIL, "P" },
	{ "ibv_alloc_parent_domain", NIL, "Xs" },
	{ "ibv_alloc_pd", NIL, "X" },
	{ "ibv_alloc_td", NIL, "Xs" },
	{ "ibv_attach_mcast", ERRNO, "Ks0" },
	{ "ibv_bind_mw", ERRNO, "KWs" },
	{ "ibv_close_device", MINUS, "X" },
	{ "ibv_close_xrcd", ERRNO, "R" },
	{ "ibv_create_ah", NIL, "Ps" },
	{ "ibv_create_ah_from_wc", NIL, "Ps.1" },
	{ "ibv_create_comp_channel", NIL, "X" },
	{ "ibv_create_comp_cntr", NIL, "Xs" },
	{ "ibv_create_cq", NIL, "X4.c0" },
	{ "ibv_create_cq_ex", NIL, "Xs" },
	{ "ibv_create_flow", NIL, "Ks" },
	{ "ibv_create_qp", NIL, "Ps" },
	{ "ibv_create_qp_ex", NIL, "Xs" },
	{ "ibv_create_rwq_ind_table", NIL, "Xs" },
	{ "ibv_create_srq", NIL, "Ps" },
	{ "ibv_create_srq_ex", NIL, "Xs" },
	{ "ibv_create_wq", NIL, "Xs" },
	{ "ibv_dealloc_mw", ERRNO, "W" },
	{ "ibv_dealloc_pd", ERRNO, "P" },
	{ "ibv_dealloc_td", ERRNO, "T" },
	{ "ibv_dereg_mr", ERRNO, "M" },
	{ "ibv_destroy_ah", ERRNO, "A" },
	{ "ibv_destroy_comp_channel", ERRNO, "C" },
	{ "ibv_destroy_comp_cntr", ERRNO, "V" },
	{ "ibv_destroy_cq", ERRNO, "Q" },
	{ "ibv_destroy_flow", ERRNO, "F" },
	{ "ibv_destroy_qp", ERRNO, "K" },
	{ "ibv_destroy_rwq_ind_table", ERRNO, "t" },
	{ "ibv_destroy_srq", ERRNO, "S" },
	{ "ibv_destroy_wq", ERRNO, "q" },
	{ "ibv_detach_mcast", ERRNO, "Ks0" },
	{ "ibv_dm_export_dmabuf_fd", MINUS, "d" },
	{ "ibv_dofork_range", PURE, "" },
	{ "ibv_dontfork_range", PURE, "" },
	{ "ibv_end_poll", NEVER, "Q" },
	{ "ibv_event_type_str", PURE, "" },
	{ "ibv_export_buf_dmabuf_fd", MINUS, "B" },
	{ "ibv_fork_init", PURE, "" },
	{ "ibv_free_buf", NEVER, "B" },
	{ "ibv_free_device_list", NEVER, "s" },
	{ "ibv_free_dm", ERRNO, "d" },
	{ "ibv_get_async_event", MINUS, "Xw" },
	{ "ibv_get_cq_event", MINUS, "Cww" },
	{ "ibv_get_device_guid", NEVER, "D" },
	{ "ibv_get_device_index", MINUS, "D" },
	{ "ibv_get_device_list", PURE, "" },
	{ "ibv_get_device_name", NIL, "D" },
	{ "ibv_get_pkey_index", MINUS, "X10" },
	{ "ibv_get_srq_num", ERRNO, "Sw" },
	{ "ibv_get_sysfs_path", PURE, "" },
	{ "ibv_import_device", PURE, "" },
	{ "ibv_import_dm", NIL, "X0" },
	{ "ibv_import_mr", NIL, "P0" },
	{ "ibv_import_pd", NIL, "X0" },
	{ "ibv_inc_comp_cntr", ERRNO, "V1" },
	{ "ibv_inc_err_comp_cntr", ERRNO, "V1" },
	{ "ibv_init_ah_from_wc", MINUS, "X1s.w" },
	{ "ibv_is_fork_initialized", PURE, "" },
	{ "ibv_memcpy_from_dm", ERRNO, "wd04" },
	{ "ibv_memcpy_to_dm", ERRNO, "d0w4" },
	{ "ibv_modify_cq", ERRNO, "Qs" },
	{ "ibv_modify_qp", ERRNO, "Ks1" },
	{ "ibv_modify_qp_rate_limit", ERRNO, "Ks" },
	{ "ibv_modify_srq", ERRNO, "Ss2" },
	{ "ibv_modify_wq", ERRNO, "qs" },
	{ "ibv_next_poll", ERRNO, "Q" },
	{ "ibv_node_type_str", PURE, "" },
	{ "ibv_open_device", NIL, "D" },
	{ "ibv_open_qp", NIL, "Xs" },
	{ "ibv_open_xrcd", NIL, "Xs" },
	{ "ibv_poll_cq", NEGATIVE, "Q1w" },
	{ "ibv_port_state_str", PURE, "" },
	{ "ibv_post_recv", ERRNO, "K.." },
	{ "ibv_post_send", ERRNO, "K.." },
	{ "ibv_post_srq_ops", ERRNO, "S.." },
	{ "ibv_post_srq_recv", ERRNO, "S.." },
	{ "ibv_post_wq_recv", ERRNO, "q.." },
	{ "ibv_qp_attach_comp_cntr", ERRNO, "KVs" },
	{ "ibv_qp_to_qp_ex", NIL, "K" },
	{ "ibv_query_device", ERRNO, "Xw" },
	{ "ibv_query_device_ex", ERRNO, "X.wZ" },
	{ "ibv_query_ece", ERRNO, "Kw" },
	{ "ibv_query_gid", MINUS, "X10w" },
	{ "ibv_query_pkey", MINUS, "X10w" },
	{ "ibv_query_port", ERRNO, "X1w" },
	{ "ibv_query_port_speed", ERRNO, "X1w" },
	{ "ibv_query_qp", ERRNO, "Kw0w" },
	{ "ibv_query_qp_data_in_order", NEVER, "K00" },
	{ "ibv_query_rt_values_ex", ERRNO, "Xw" },
	{ "ibv_query_srq", ERRNO, "Sw" },
	{ "ibv_rate_to_mbps", PURE, "" },
	{ "ibv_rate_to_mult", PURE, "" },
	{ "ibv_read_comp_cntr", ERRNO, "Vw" },
	{ "ibv_read_err_comp_cntr", ERRNO, "Vw" },
	{ "ibv_read_sysfs_file", MINUS, "ssw4" },
	{ "ibv_reg_buf_mr", NIL, "PB041" },
	{ "ibv_reg_dm_mr", NIL, "Pd04N" },
	{ "ibv_reg_dmabuf_mr", NIL, "P04001" },
	{ "ibv_reg_mr", NIL, "Pb41" },
	{ "ibv_reg_mr_ex", NIL, "Ps" },
	{ "ibv_reg_mr_iova", NIL, "Pb401" },
	{ "ibv_reg_mr_iova2", NIL, "Pb401" },
	{ "ibv_req_notify_cq", ERRNO, "Q0" },
	{ "ibv_rereg_mr", MINUS, "M4...1" },
	{ "ibv_resize_cq", ERRNO, "Q8" },
	{ "ibv_set_comp_cntr", ERRNO, "V1" },
	{ "ibv_set_ece", ERRNO, "Ks" },
	{ "ibv_set_err_comp_cntr", ERRNO, "V1" },
	{ "ibv_start_poll", ERRNO, "Q." },
	{ "ibv_unimport_dm", NEVER, "d" },
	{ "ibv_unimport_mr", NEVER, "M" },
	{ "ibv_unimport_pd", NEVER, "P" },
	{ "ibv_wc_read_byte_len", NEVER, "Q" },
	{ "ibv_wc_read_completion_ts", NEVER, "Q" },
	{ "ibv_wc_read_completion_wallclock_ns", NEVER, "Q" },
	{ "ibv_wc_read_dlid_path_bits", NEVER, "Q" },
	{ "ibv_wc_read_imm_data", NEVER, "Q" },
	{ "ibv_wc_read_invalidated_rkey", NEVER, "Q" },
	{ "ibv_wc_read_opcode", NEVER, "Q" },
	{ "ibv_wc_read_qp_num", NEVER, "Q" },
	{ "ibv_wc_read_sl", NEVER, "Q" },
	{ "ibv_wc_read_slid", NEVER, "Q" },
	{ "ibv_wc_read_src_qp", NEVER, "Q" },
	{ "ibv_wc_read_tm_info", NEVER, "Qw" },
	{ "ibv_wc_read_vendor_err", NEVER, "Q" },
	{ "ibv_wc_read_wc_flags", NEVER, "Q" },
	{ "ibv_wc_status_str", PURE, "" },
	{ "ibv_wr_abort", NEVER, "K" },
	{ "ibv_wr_atomic_cmp_swp", NEVER, "K0000" },
	{ "ibv_wr_atomic_fetch_add", NEVER, "K000" },
	{ "ibv_wr_atomic_write", NEVER, "K00s" },
	{ "ibv_wr_bind_mw", NEVER, "KW0s" },
	{ "ibv_wr_complete", ERRNO, "K" },
	{ "ibv_wr_flush", NEVER, "K00410" },
	{ "ibv_wr_local_inv", NEVER, "K0" },
	{ "ibv_wr_rdma_read", NEVER, "K00" },
	{ "ibv_wr_rdma_write", NEVER, "K00" },
	{ "ibv_wr_rdma_write_imm", NEVER, "K000" },
	{ "ibv_wr_send", NEVER, "K" },
	{ "ibv_wr_send_imm", NEVER, "K0" },
	{ "ibv_wr_send_inv", NEVER, "K0" },
	{ "ibv_wr_set_inline_data", NEVER, "Ks4" },
	{ "ibv_wr_set_inline_data_list", NEVER, "K1s" },
	{ "ibv_wr_set_sge", NEVER, "K000" },
	{ "ibv_wr_set_sge_list", NEVER, "K1s" },
	{ "ibv_wr_set_ud_addr", NEVER, "KA00" },
	{ "ibv_wr_set_xrc_srqn", NEVER, "K0" },
	{ "ibv_wr_start", NEVER, "K" },
	{ "mbps_to_ibv_rate", PURE, "" },
	{ "mult_to_ibv_rate", PURE, "" },
};

/* One object of each kind. */
struct set {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_td *td;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_dm *dm;
	struct ibv_mw *mw;
	struct ibv_xrcd *xrcd;
	struct ibv_wq *wq;
	struct ibv_rwq_ind_table *table;
	/* Only for programs that may use raw packets. */
	struct ibv_qp *raw;
	struct ibv_flow *flow;
	void *buf;
	void *cntr;
};

static char memory[8192] __attribute__((aligned(4096)));
static struct ibv_device **devices;
static union ibv_gid gid;

/* A verb that the header of this machine may be too old for. */
static void *symbol(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

/* Connects a QP to itself. */
static int connect_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return -1;
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 1;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	if (ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return -1;
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct set make(void)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_alloc_dm_attr dm = { .length = 4096 };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = 0100 /* O_CREAT */ };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };
	struct ibv_cq_init_attr_ex cq = { .cqe = 16 };
	struct set s = { .context = ibv_open_device(devices[0]) };
	struct ibv_qp_init_attr_ex qp = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE };
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = symbol("ibv_alloc_buf");
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1 };
	struct ibv_rwq_ind_table_init_attr table = { .ind_tbl = &s.wq };
	struct ibv_qp_init_attr raw = { .qp_type = IBV_QPT_RAW_PACKET, .cap = qp.cap };
	struct ibv_flow_attr flow = { .port = 1, .size = sizeof(flow) };
	void *(*create_cntr)(struct ibv_context *, void *) = symbol("ibv_create_comp_cntr");

	must(s.context != NULL, "a context");
	ibv_query_gid(s.context, 1, 0, &gid);
	ah.grh.dgid = gid;
	must((s.pd = ibv_alloc_pd(s.context)) != NULL, "a domain");
	must((s.td = ibv_alloc_td(s.context, &td)) != NULL, "a thread domain");
	must((s.channel = ibv_create_comp_channel(s.context)) != NULL, "a channel");
	must((s.cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(s.context, &cq))) != NULL, "a CQ");
	qp.send_cq = qp.recv_cq = s.cq;
	qp.pd = s.pd;
	must((s.qp = ibv_create_qp_ex(s.context, &qp)) != NULL, "a QP");
	must(!connect_qp(s.qp), "a connection");
	must((s.srq = ibv_create_srq(s.pd, &srq)) != NULL, "an SRQ");
	must((s.mr = ibv_reg_mr(s.pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)) != NULL, "a region");
	must((s.ah = ibv_create_ah(s.pd, &ah)) != NULL, "an address handle");
	must((s.dm = ibv_alloc_dm(s.context, &dm)) != NULL, "device memory");
	must((s.mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1)) != NULL, "a window");
	must((s.xrcd = ibv_open_xrcd(s.context, &xrcd)) != NULL, "an XRC domain");
	must(alloc_buf(s.pd, 4096, &s.buf) != NULL, "a buffer");
	wq.pd = s.pd;
	wq.cq = raw.send_cq = raw.recv_cq = s.cq;
	must((s.wq = ibv_create_wq(s.context, &wq)) != NULL, "a work queue");
	must((s.table = ibv_create_rwq_ind_table(s.context, &table)) != NULL, "an indirection table");
	must((s.raw = ibv_create_qp(s.pd, &raw)) != NULL || errno == EPERM, "a raw packet QP");
	must(!s.raw || (s.flow = ibv_create_flow(s.raw, &flow)) != NULL, "a rule");
	must((s.cntr = create_cntr(s.context, (uint32_t[3]){ 0 })) != NULL, "a completion counter");
	return s;
}

static void destroy(const struct set *s)
{
	void (*free_buf)(void *) = symbol("ibv_free_buf");
	int (*destroy_cntr)(void *) = symbol("ibv_destroy_comp_cntr");
	const char *left = NULL;

	free_buf(s->buf);
#define GONE(call) (left = left ? left : (call) ? #call : NULL)
	if (s->raw) {
		GONE(ibv_destroy_flow(s->flow));
		GONE(ibv_destroy_qp(s->raw));
	}
	GONE(ibv_destroy_rwq_ind_table(s->table));
	GONE(ibv_destroy_wq(s->wq));
	GONE(destroy_cntr(s->cntr));
	GONE(ibv_dealloc_mw(s->mw));
	GONE(ibv_free_dm(s->dm));
	GONE(ibv_destroy_ah(s->ah));
	GONE(ibv_dereg_mr(s->mr));
	GONE(ibv_destroy_srq(s->srq));
	GONE(ibv_destroy_qp(s->qp));
	GONE(ibv_destroy_cq(s->cq));
	GONE(ibv_destroy_comp_channel(s->channel));
	GONE(ibv_close_xrcd(s->xrcd));
	GONE(ibv_dealloc_td(s->td));
	GONE(ibv_dealloc_pd(s->pd));
	GONE(ibv_close_device(s->context));
	check(!left, left ? left : "");
}

static long object(const struct set *s, char kind)
{
	switch (kind) {
	case 'D':
		return (long)devices[0];
	case 'X':
		return (long)s->context;
	case 'P':
		return (long)s->pd;
	case 'C':
	case 'c':
		return (long)s->channel;
	case 'Q':
		return (long)s->cq;
	case 'K':
		return (long)s->qp;
	case 'S':
		return (long)s->srq;
	case 'M':
		return (long)s->mr;
	case 'A':
		return (long)s->ah;
	case 'd':
		return (long)s->dm;
	case 'B':
		return (long)s->buf;
	case 'V':
		return (long)s->cntr;
	case 'T':
		return (long)s->td;
	case 'W':
		return (long)s->mw;
	case 'R':
		return (long)s->xrcd;
	case 'q':
		return (long)s->wq;
	case 't':
		return (long)s->table;
	case 'F':
		return (long)s->flow;
	default:
		return 0;
	}
}

/* A structure with which the call would succeed, so that another argument is to blame. */
static void fill(const char *name, const struct set *s, void *in)
{
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };

	memset(in, 0, 512);
	if (!strcmp(name, "ibv_create_ah"))
		*(struct ibv_ah_attr *)in = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	else if (!strcmp(name, "ibv_create_qp"))
		*(struct ibv_qp_init_attr *)in =
			(struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .send_cq = s->cq, .recv_cq = s->cq, .cap = cap };
	else if (!strcmp(name, "ibv_create_qp_ex"))
		*(struct ibv_qp_init_attr_ex *)in = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_RC, .send_cq = s->cq,
			.recv_cq = s->cq, .cap = cap, .pd = s->pd, .comp_mask = IBV_QP_INIT_ATTR_PD };
	else if (!strcmp(name, "ibv_create_srq"))
		*(struct ibv_srq_init_attr *)in = (struct ibv_srq_init_attr){ .attr = { .max_wr = 4, .max_sge = 1 } };
	else if (!strcmp(name, "ibv_create_srq_ex"))
		*(struct ibv_srq_init_attr_ex *)in = (struct ibv_srq_init_attr_ex){ .attr = { .max_wr = 4, .max_sge = 1 },
			.pd = s->pd, .comp_mask = IBV_SRQ_INIT_ATTR_PD };
	else if (!strcmp(name, "ibv_create_cq_ex"))
		*(struct ibv_cq_init_attr_ex *)in = (struct ibv_cq_init_attr_ex){ .cqe = 4 };
	else if (!strcmp(name, "ibv_alloc_dm"))
		*(struct ibv_alloc_dm_attr *)in = (struct ibv_alloc_dm_attr){ .length = 64 };
	else if (!strcmp(name, "ibv_alloc_parent_domain"))
		*(struct ibv_parent_domain_init_attr *)in = (struct ibv_parent_domain_init_attr){ .pd = s->pd };
	else if (!strcmp(name, "ibv_open_xrcd"))
		*(struct ibv_xrcd_init_attr *)in = (struct ibv_xrcd_init_attr){ .fd = -1, .oflags = 0100,
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	else if (!strcmp(name, "ibv_open_qp"))
		*(struct ibv_qp_open_attr *)in = (struct ibv_qp_open_attr){ .comp_mask = IBV_QP_OPEN_ATTR_RESERVED - 1,
			.qp_num = s->qp->qp_num, .xrcd = s->xrcd, .qp_type = IBV_QPT_XRC_RECV };
	else if (!strcmp(name, "ibv_create_wq"))
		*(struct ibv_wq_init_attr *)in = (struct ibv_wq_init_attr){ .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1,
			.pd = s->pd, .cq = s->cq };
	else if (!strcmp(name, "ibv_modify_wq"))
		*(struct ibv_wq_attr *)in = (struct ibv_wq_attr){ .attr_mask = IBV_WQ_ATTR_STATE };
	else if (!strcmp(name, "ibv_create_flow"))
		((struct ibv_flow_attr *)in)->port = 1;
	else if (!strcmp(name, "ibv_modify_cq"))
		*(struct ibv_modify_cq_attr *)in = (struct ibv_modify_cq_attr){ .attr_mask = IBV_CQ_ATTR_MODERATE };
	else if (!strcmp(name, "ibv_modify_qp"))
		((struct ibv_qp_attr *)in)->qp_state = IBV_QPS_ERR;
	else if (!strcmp(name, "ibv_modify_srq"))
		((struct ibv_srq_attr *)in)->srq_limit = 1;
	else if (!strcmp(name, "ibv_advise_mr"))
		*(struct ibv_sge *)in = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = s->mr->lkey };
	else if (!strcmp(name, "ibv_reg_mr_ex"))
		/* struct ibv_mr_init_attr, which newer headers have: length, access, comp_mask (ADDR), iova, addr. */
		memcpy(in, (uint64_t[]){ 64, 1, 2, 0, (uintptr_t)memory }, 5 * sizeof(uint64_t));
	else if (!strcmp(name, "ibv_qp_attach_comp_cntr"))
		/* struct ibv_qp_attach_comp_cntr_attr: comp_mask, op_mask (SEND). */
		((uint32_t *)in)[1] = 1;
	else if (!strcmp(name, "ibv_ack_async_event"))
		((struct ibv_async_event *)in)->event_type = IBV_EVENT_PORT_ACTIVE;
}

static void *address(const struct verb *verb, const struct set *s)
{
	char *base = NULL;

	switch (verb->base) {
	case NOWHERE:
		return NULL;
	case SYMBOL:
		return dlvsym(RTLD_DEFAULT, verb->name, verb->node);
	case OF_verbs_context:
		base = (char *)verbs_get_ctx(s->context);
		break;
	case OF_ibv_context:
		base = (char *)s->context;
		break;
	case OF_ibv_cq_ex:
		base = (char *)s->cq;
		break;
	case OF_ibv_qp_ex:
		base = (char *)s->qp;
		break;
	case OF_ibv_dm:
		base = (char *)s->dm;
		break;
	case OF_ibv_wq:
		base = (char *)s->wq;
		break;
	}
	return *(void **)(base + verb->offset);
}

static void call(void *at, enum fails fails, const long *a, int number)
{
	long (*verb)(long, long, long, long, long, long);
	long answer;

	*(void **)&verb = at;
	errno = 0;
	answer = verb(a[0], a[1], a[2], a[3], a[4], a[5]);
	switch (fails) {
	case ERRNO:
		check(errno == number, "did not set errno");
		errno = (int)answer;
		check((int)answer == number, "did not return the errno expected");
		break;
	case NEGATIVE:
		check(errno == number, "did not set errno");
		errno = -(int)answer;
		check((int)answer == -number, "did not return the errno expected, negative");
		break;
	case MINUS:
		check((int)answer < 0 && errno == number, "did not fail with the errno expected");
		break;
	case NIL:
		check(!answer && errno == number, "did not return NULL with the errno expected");
		break;
	default:
		break;
	}
}

/* Where an object says its handle, and its context. The beginning of a counter is that of a domain. */
static uint32_t *handle_of(char kind, void *object)
{
	switch (kind) {
	case 'P':
	case 'V':
		return &((struct ibv_pd *)object)->handle;
	case 'Q':
		return &((struct ibv_cq *)object)->handle;
	case 'K':
		return &((struct ibv_qp *)object)->handle;
	case 'S':
		return &((struct ibv_srq *)object)->handle;
	case 'M':
		return &((struct ibv_mr *)object)->handle;
	case 'A':
		return &((struct ibv_ah *)object)->handle;
	case 'd':
		return &((struct ibv_dm *)object)->handle;
	case 'W':
		return &((struct ibv_mw *)object)->handle;
	case 'q':
		return &((struct ibv_wq *)object)->handle;
	case 't':
		return (uint32_t *)&((struct ibv_rwq_ind_table *)object)->ind_tbl_handle;
	case 'F':
		return &((struct ibv_flow *)object)->handle;
	default:
		return NULL;
	}
}

static struct ibv_context **context_of(char kind, void *object)
{
	if (kind == 'F')
		return &((struct ibv_flow *)object)->context;
	/* In all other objects it comes first. */
	return kind == 'R' || handle_of(kind, object) ? object : NULL;
}

/* Operations that a provider does in user space, without looking at handles. */
static int is_of_provider(const char *name)
{
	static const char *const names[] = { "ibv_post_", "ibv_poll_cq", "ibv_start_poll", "ibv_next_poll", "ibv_wr_",
		"ibv_bind_mw", "ibv_memcpy_", "ibv_get_srq_num", "ibv_qp_to_qp_ex", "ibv_read_", "ibv_inc_", "ibv_set_comp",
		"ibv_set_err" };

	for (size_t i = 0; i < COUNT(names); i++)
		if (!strncmp(name, names[i], strlen(names[i])))
			return 1;
	return 0;
}

/* Makes a call with an object whose handle is none, and one whose context is that of another
 * opening: the kernel finds nothing by them (uobj_get_obj_read and similar functions). */
static void unknown_to_the_kernel(const struct row *row, void *at, const long *a, size_t wrong, const struct set *foreign)
{
	char kind = row->args[wrong];
	void *object = (void *)a[wrong];
	uint32_t *handle = object ? handle_of(kind, object) : NULL;
	struct ibv_context **context = object ? context_of(kind, object) : NULL;

	if (row->fails == NEVER || is_of_provider(row->name))
		return;
	if (handle) {
		snprintf(what, sizeof(what), "%s: the handle of argument %zu is wrong", row->name, wrong + 1);
		*handle ^= 0xdeadbeef;
		call(at, row->fails, a, ENOENT);
		*handle ^= 0xdeadbeef;
	}
	if (context) {
		struct ibv_context *own = *context;

		snprintf(what, sizeof(what), "%s: the context of argument %zu is another", row->name, wrong + 1);
		*context = foreign->context;
		call(at, row->fails, a, ENOENT);
		*context = own;
	}
}

/* Calls between ibv_wr_start and ibv_wr_complete. */
static int is_collected(const char *name)
{
	return !strncmp(name, "ibv_wr_", 7) && strcmp(name, "ibv_wr_start") && strcmp(name, "ibv_wr_complete") &&
	       strcmp(name, "ibv_wr_abort");
}

static void each_argument(const struct verb *verb, const struct row *row, const struct set *good, const struct set *stale,
			  const struct set *foreign)
{
	static char in[512] __attribute__((aligned(64))), out[4096] __attribute__((aligned(64)));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(good->qp);
	void *at = address(verb, good);

	for (size_t wrong = 0; wrong < strlen(row->args); wrong++) {
		char kind = row->args[wrong];
		const char *ways[] = { "null", "destroyed", "of another kind" };

		if (!strchr("DXPCcQKSMAdBVTWRqtFsw", kind))
			continue;
		for (int way = 0; way < 3; way++) {
			long a[6] = { 0 };

			/* No channel is also valid. A device is never destroyed. */
			if ((kind == 'c' && way == 0) || (kind == 'D' && way == 1) || (strchr("sw", kind) && way > 0))
				continue;
			fill(row->name, good, in);
			memset(out, 0, sizeof(out));
			for (size_t i = 0; i < strlen(row->args); i++) {
				char k = row->args[i];

				a[i] = k == 's' ? (long)in : k == 'w' ? (long)out : k == 'b' ? (long)memory : k == 'Z' ? (long)sizeof(out) :
				       k == 'N' ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED :
				       k >= '0' && k <= '9' ? k - '0' : object(good, k);
			}
			if (way == 0)
				unknown_to_the_kernel(row, at, a, wrong, foreign);
			a[wrong] = way == 0 ? 0 : way == 1 ? object(stale, kind) : object(good, kind == 'P' ? 'M' : 'P');
			snprintf(what, sizeof(what), "%s: argument %zu is %s", row->name, wrong + 1, ways[way]);
			if (is_collected(row->name)) {
				ibv_wr_start(qp);
				ibv_wr_send(qp);
			}
			call(at, row->fails, a, EINVAL);
			if (is_collected(row->name) && kind != 'K')
				check(ibv_wr_complete(qp) == EINVAL, "the batch was posted");
			else if (is_collected(row->name))
				ibv_wr_abort(qp);
		}
	}
}

#include "badrules.h"

int main(void)
{
	struct set good, stale, foreign;
	size_t tested = 0;

	guard(120);
	devices = ibv_get_device_list(NULL);
	good = make();
	foreign = make();
	stale = make();
	destroy(&stale);
	for (size_t i = 0; i < COUNT(verbs); i++) {
		const struct verb *verb = &verbs[i];
		size_t row = 0;

		snprintf(what, sizeof(what), "%s", verb->name);
		if (verb->is_refused) {
			/* The header returns EOPNOTSUPP for a pointer that is missing. */
			if (verb->base == SYMBOL)
				call(address(verb, &good), verb->refuses, (long[6]){ 0 }, EOPNOTSUPP);
			else
				check(!address(verb, &good), "is refused, and has a pointer");
			continue;
		}
		while (row < COUNT(rows) && strcmp(rows[row].name, verb->name))
			row++;
		check(row < COUNT(rows), "has no row");
		check(verb->base == NOWHERE || address(verb, &good) != NULL, "has no address");
		if (row < COUNT(rows) && address(verb, &good))
			each_argument(verb, &rows[row], &good, &stale, &foreign);
		tested++;
	}
	/* ibv_query_port is there twice: with a symbol, and with a pointer. */
	snprintf(what, sizeof(what), "%zu verbs, %zu rows", tested, COUNT(rows));
	check(tested == COUNT(rows) + 1, "there are rows for no verb");
	rules(&good, &foreign, &stale);
	snprintf(what, sizeof(what), "the end");
	destroy(&good);
	destroy(&foreign);
	ibv_free_device_list(devices);
	/* Once is enough. */
	ibv_free_device_list(devices);
	return verdict();
}
