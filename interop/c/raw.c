/* Raw packets: frames between QPs, rules, work queues and receive side scaling.
 *
 *   raw rules            what is refused, and with which errno; states of work queues
 *   raw denied           without CAP_NET_RAW
 *   raw loop             frames within one process, by every kind of rule
 *   raw kernel ADDRESS   a datagram of a socket, sent by the netdev with this address
 *   raw receive N [MAC]  N frames in order: to a group, or to MAC
 *   raw send N [MAC]     sends them
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define NOTHING(what, expected) CHECK_ERRNO(!(what), expected)

enum { FRAME = 512, SLOTS = 64, DEPTH = 32 };

static const uint8_t GROUP[6] = { 0x01, 0x00, 0x5e, 0x4d, 0x00, 0x01 };
static const uint8_t SENDER[6] = { 0x02, 0x11, 0x22, 0x33, 0x44, 0x55 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t memory[SLOTS][2 * FRAME];

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	CHECK((context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 4 * SLOTS, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
}

static struct ibv_qp *raw_qp(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RAW_PACKET,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = srq ? 0 : DEPTH, .max_send_sge = 2, .max_recv_sge = 2 } };

	return ibv_create_qp(pd, &init);
}

/* A QP that is ready. */
static struct ibv_qp *ready(struct ibv_srq *srq)
{
	struct ibv_qp *qp = raw_qp(srq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(qp && qp->state == IBV_QPS_RESET);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}

/* A rule, with room for its specs. */
struct rule {
	struct ibv_flow_attr attr;
	uint8_t specs[256];
};

static struct rule rule(enum ibv_flow_attr_type type, uint16_t priority)
{
	struct rule rule = { .attr = { .type = type, .size = sizeof(rule.attr), .priority = priority, .port = 1 } };

	return rule;
}

static void add(struct rule *rule, const void *spec, uint16_t size)
{
	memcpy(rule->specs + rule->attr.size - sizeof(rule->attr), spec, size);
	rule->attr.size += size;
	rule->attr.num_of_specs++;
}

static struct ibv_flow_spec_eth eth_to(const uint8_t *dst, uint16_t vlan)
{
	struct ibv_flow_spec_eth eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(eth) };

	memcpy(eth.val.dst_mac, dst, 6);
	memset(eth.mask.dst_mac, 0xff, 6);
	if (vlan) {
		eth.val.vlan_tag = htons(vlan);
		eth.mask.vlan_tag = htons(0xfff);
	}
	return eth;
}

static struct ibv_flow_spec_tcp_udp udp_to(uint16_t port)
{
	return (struct ibv_flow_spec_tcp_udp){ .type = IBV_FLOW_SPEC_UDP, .size = sizeof(struct ibv_flow_spec_tcp_udp),
		.val = { .dst_port = htons(port) }, .mask = { .dst_port = 0xffff } };
}

/* Frames to `dst`, or those of them to a port. */
static struct ibv_flow *steer(struct ibv_qp *qp, uint16_t priority, uint32_t flags, const uint8_t *dst, uint16_t vlan,
			      uint16_t port)
{
	struct rule r = rule(IBV_FLOW_ATTR_NORMAL, priority);
	struct ibv_flow_spec_eth eth = eth_to(dst, vlan);
	struct ibv_flow_spec_tcp_udp udp = udp_to(port);
	struct ibv_flow *flow;

	r.attr.flags = flags;
	add(&r, &eth, sizeof(eth));
	if (port)
		add(&r, &udp, sizeof(udp));
	CHECK((flow = ibv_create_flow(qp, &r.attr)));
	return flow;
}

/* A datagram to a port, in a frame; each byte of its payload depends on the frame and on its
 * place. */
static uint32_t build(uint8_t *at, const uint8_t *dst, uint16_t vlan, uint16_t port, uint32_t source, unsigned n)
{
	uint8_t *from = at;
	uint32_t length = FRAME - (n * 7) % 128;
	uint16_t ip_length;

	memcpy(at, dst, 6);
	memcpy(at + 6, SENDER, 6);
	at += 12;
	if (vlan) {
		memcpy(at, (uint8_t[]){ 0x81, 0x00, vlan >> 8, vlan & 0xff }, 4);
		at += 4;
	}
	memcpy(at, (uint8_t[]){ 0x08, 0x00 }, 2);
	at += 2;
	ip_length = htons(length - (at - from));
	memcpy(at, (uint8_t[]){ 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 0, 10, 2, 0, 2 }, 20);
	memcpy(at + 2, &ip_length, 2);
	source = htonl(source);
	memcpy(at + 12, &source, 4);
	at += 20;
	memcpy(at, (uint8_t[]){ 0x10, 0x00, port >> 8, port & 0xff, 0, 0, 0, 0 }, 8);
	at += 8;
	for (uint32_t i = at - from; i < length; i++)
		from[i] = n * 31 + i * 7 + (i >> 8);
	return length;
}

/* Posts a receive of `length` bytes, named after its place. */
static void post_recv(struct ibv_qp *qp, struct ibv_srq *srq, struct ibv_wq *wq, unsigned slot, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory[slot], .length = length, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(memory[slot], 0, sizeof(memory[slot]));
	CHECK(!(srq ? ibv_post_srq_recv(srq, &wr, &bad) : wq ? ibv_post_wq_recv(wq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)));
}

/* The next completion of a CQ. */
static struct ibv_wc next(struct ibv_cq *of)
{
	struct timespec now, end;
	struct ibv_wc wc = { 0 };
	int got = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	while (!got) {
		CHECK((got = ibv_poll_cq(of, 1, &wc)) >= 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
		CHECK(now.tv_sec < end.tv_sec + 30);
	}
	return wc;
}

/* Sends a frame from two pieces and waits until it is sent. */
static uint32_t send_from(struct ibv_qp *qp, const uint8_t *dst, uint16_t vlan, uint16_t port, uint32_t source, unsigned n)
{
	unsigned slot = SLOTS - 1;
	uint32_t length = build(memory[slot], dst, vlan, port, source, n);
	struct ibv_sge sge[2] = { { .addr = (uintptr_t)memory[slot], .length = 20, .lkey = mr->lkey },
		{ .addr = (uintptr_t)memory[slot] + 20, .length = length - 20, .lkey = mr->lkey } };
	struct ibv_send_wr wr = { .wr_id = 1000 + n, .sg_list = sge, .num_sge = 2, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_cq *mine = qp->send_cq;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	wc = next(mine);
	CHECK(wc.wr_id == 1000 + n && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.qp_num == qp->qp_num);
	return length;
}

/* Checks that the next completion of a CQ is a receive at this slot of this queue, with exactly
 * this frame. */
static void takes(struct ibv_cq *of, uint32_t number, unsigned slot, const uint8_t *dst, uint16_t vlan, uint16_t port,
		  uint32_t source, unsigned n)
{
	static uint8_t expected[2 * FRAME];
	uint32_t length = build(expected, dst, vlan, port, source, n);
	struct ibv_wc wc = next(of);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	CHECK(wc.wr_id == slot && wc.qp_num == number);
	CHECK(wc.byte_len == length && !(wc.wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM)));
	CHECK(!memcmp(memory[slot], expected, length));
	for (uint32_t i = length; i < sizeof(memory[slot]); i++)
		CHECK(memory[slot][i] == 0);
}

static struct ibv_wq *work_queue(struct ibv_cq *completions)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = pd, .cq = completions };

	return ibv_create_wq(context, &init);
}

static int move_wq(struct ibv_wq *wq, enum ibv_wq_state state)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };

	return ibv_modify_wq(wq, &attr);
}

static uint8_t key[40] = { 0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
	0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
	0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa };

static struct ibv_qp_init_attr_ex spreading(struct ibv_rwq_ind_table *table)
{
	return (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_RAW_PACKET, .pd = pd, .rwq_ind_tbl = table,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = sizeof(key),
			.rx_hash_key = key, .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 } };
}

static void bad_rules(struct ibv_qp *qp)
{
	struct ibv_flow_spec_eth eth = eth_to(GROUP, 0);
	struct ibv_flow_spec_tcp_udp udp = udp_to(1);
	struct ibv_flow_spec_ipv4_ext tcp_only = { .type = IBV_FLOW_SPEC_IPV4_EXT, .size = sizeof(tcp_only),
		.val = { .proto = 6 }, .mask = { .proto = 0xff } };
	struct ibv_flow_spec_tunnel vxlan = { .type = IBV_FLOW_SPEC_VXLAN_TUNNEL, .size = sizeof(vxlan) };
	struct ibv_flow_spec_action_tag tag = { .type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof(tag) };
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	struct ibv_qp *rc = ibv_create_qp(pd, &init);
	struct rule r;

	CHECK(rc);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), add(&r, &eth, sizeof(eth));
	NOTHING(ibv_create_flow(rc, &r.attr), EINVAL);
	CHECK(!ibv_destroy_qp(rc));
	r.attr.comp_mask = 1;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r.attr.comp_mask = 0, r.attr.flags = 1u << 7;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	NOTHING(ibv_create_flow(qp, &r.attr), EOPNOTSUPP);
	r.attr.flags = 0, r.attr.port = 2;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r.attr.port = 1, r.attr.type = 4;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r.attr.type = IBV_FLOW_ATTR_SNIFFER;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r.attr.type = IBV_FLOW_ATTR_NORMAL, r.attr.num_of_specs = 11;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), eth.size = 8, add(&r, &eth, sizeof(eth)), eth.size = sizeof(eth);
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), eth.type = 0x77, add(&r, &eth, sizeof(eth)), eth.type = IBV_FLOW_SPEC_ETH;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), eth.type |= IBV_FLOW_SPEC_INNER, add(&r, &eth, sizeof(eth));
	NOTHING(ibv_create_flow(qp, &r.attr), EOPNOTSUPP);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), add(&r, &vxlan, sizeof(vxlan));
	NOTHING(ibv_create_flow(qp, &r.attr), EOPNOTSUPP);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), add(&r, &tag, sizeof(tag));
	NOTHING(ibv_create_flow(qp, &r.attr), EOPNOTSUPP);
	r = rule(IBV_FLOW_ATTR_NORMAL, 0), add(&r, &tcp_only, sizeof(tcp_only)), add(&r, &udp, sizeof(udp));
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
	r = rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0), r.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	NOTHING(ibv_create_flow(qp, &r.attr), EINVAL);
}

static void bad_work_queues(void)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq_attr attr = { 0 };
	struct ibv_sge sge = { .addr = (uintptr_t)memory[0], .length = FRAME, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	struct ibv_wc wc;
	struct ibv_wq *wq;

	init.wq_type = 1;
	NOTHING(ibv_create_wq(context, &init), EINVAL);
	init.wq_type = IBV_WQT_RQ, init.comp_mask = IBV_WQ_INIT_ATTR_RESERVED;
	NOTHING(ibv_create_wq(context, &init), EINVAL);
	init.comp_mask = IBV_WQ_INIT_ATTR_FLAGS, init.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
	NOTHING(ibv_create_wq(context, &init), EOPNOTSUPP);
	init.comp_mask = 0, init.max_wr = 0;
	NOTHING(ibv_create_wq(context, &init), EINVAL);
	init.max_wr = UINT32_MAX;
	NOTHING(ibv_create_wq(context, &init), EINVAL);
	init.max_wr = 4, init.max_sge = UINT32_MAX;
	NOTHING(ibv_create_wq(context, &init), EINVAL);
	init.max_sge = 1;
	CHECK((wq = ibv_create_wq(context, &init)) && wq->state == IBV_WQS_RESET && wq->wq_num);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_post_wq_recv(wq, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(ibv_modify_wq(wq, &attr) == EINVAL);
	attr.attr_mask = IBV_WQ_ATTR_RESERVED;
	CHECK(ibv_modify_wq(wq, &attr) == EINVAL);
	attr.attr_mask = IBV_WQ_ATTR_FLAGS, attr.flags_mask = 1;
	CHECK(ibv_modify_wq(wq, &attr) == EOPNOTSUPP);
	CHECK(move_wq(wq, IBV_WQS_UNKNOWN) == EINVAL && move_wq(wq, IBV_WQS_ERR) == EINVAL);
	attr = (struct ibv_wq_attr){ .attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, .wq_state = IBV_WQS_RDY,
		.curr_wq_state = IBV_WQS_RDY };
	CHECK(ibv_modify_wq(wq, &attr) == EINVAL && wq->state == IBV_WQS_RESET);
	attr.curr_wq_state = IBV_WQS_RESET;
	CHECK(!ibv_modify_wq(wq, &attr) && wq->state == IBV_WQS_RDY);
	for (int i = 0; i < 4; i++)
		CHECK(!ibv_post_wq_recv(wq, &wr, &bad));
	CHECK(ibv_post_wq_recv(wq, &wr, &bad) == ENOMEM);
	/* Posted receives are flushed, and so are those posted from then on. */
	CHECK(!move_wq(wq, IBV_WQS_ERR) && wq->state == IBV_WQS_ERR);
	CHECK(!ibv_post_wq_recv(wq, &wr, &bad));
	for (int i = 0; i < 5; i++) {
		wc = next(cq);
		CHECK(wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == wq->wq_num);
	}
	CHECK(move_wq(wq, IBV_WQS_RDY) == EINVAL);
	CHECK(!move_wq(wq, IBV_WQS_RESET) && !move_wq(wq, IBV_WQS_RDY));
	/* Dropped requests do not complete. */
	CHECK(!ibv_post_wq_recv(wq, &wr, &bad) && !move_wq(wq, IBV_WQS_RESET) && !ibv_poll_cq(cq, 1, &wc));
	CHECK(!ibv_destroy_wq(wq) && ibv_destroy_wq(wq) == EINVAL);
}

static void bad_spreading(void)
{
	struct ibv_wq *queues[3] = { work_queue(cq), work_queue(cq), work_queue(cq) };
	struct ibv_rwq_ind_table_init_attr init = { .log_ind_tbl_size = 1, .ind_tbl = queues };
	struct ibv_device_attr_ex limits;
	struct ibv_rwq_ind_table *table;
	struct ibv_qp_init_attr_ex ex;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_init_attr asked;
	struct ibv_flow *flow;
	struct ibv_qp *qp;

	CHECK(!ibv_query_device_ex(context, NULL, &limits));
	CHECK(limits.rss_caps.supported_qpts == 1u << IBV_QPT_RAW_PACKET && limits.max_wq_type_rq);
	CHECK(limits.rss_caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ);
	CHECK(limits.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
	CHECK(limits.raw_packet_caps == IBV_RAW_PACKET_CAP_IP_CSUM);
	init.comp_mask = 1;
	NOTHING(ibv_create_rwq_ind_table(context, &init), EINVAL);
	init.comp_mask = 0, init.log_ind_tbl_size = 31;
	NOTHING(ibv_create_rwq_ind_table(context, &init), EINVAL);
	init.log_ind_tbl_size = 1;
	CHECK((table = ibv_create_rwq_ind_table(context, &init)));
	CHECK(ibv_destroy_wq(queues[0]) == EBUSY && !ibv_destroy_wq(queues[2]));

	ex = spreading(table), ex.comp_mask &= ~IBV_QP_INIT_ATTR_RX_HASH;
	NOTHING(ibv_create_qp_ex(context, &ex), EINVAL);
	ex = spreading(table), ex.qp_type = IBV_QPT_UD;
	NOTHING(ibv_create_qp_ex(context, &ex), EINVAL);
	ex = spreading(table), ex.cap.max_recv_wr = 1;
	NOTHING(ibv_create_qp_ex(context, &ex), EINVAL);
	ex = spreading(table), ex.rx_hash_conf.rx_hash_function = 2;
	NOTHING(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex = spreading(table), ex.rx_hash_conf.rx_hash_key_len = 16;
	NOTHING(ibv_create_qp_ex(context, &ex), EINVAL);
	ex = spreading(table), ex.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_INNER | IBV_RX_HASH_SRC_IPV4;
	NOTHING(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex = spreading(table), ex.rx_hash_conf.rx_hash_fields_mask |= IBV_RX_HASH_SRC_IPV6;
	NOTHING(ibv_create_qp_ex(context, &ex), EINVAL);
	ex = spreading(table);
	CHECK((qp = ibv_create_qp_ex(context, &ex)));
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EOPNOTSUPP);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &asked) == EOPNOTSUPP);
	flow = steer(qp, 0, 0, GROUP, 0, 0);
	CHECK(ibv_destroy_qp(qp) == EBUSY && ibv_destroy_rwq_ind_table(table) == EBUSY);
	CHECK(!ibv_destroy_flow(flow) && ibv_destroy_flow(flow) == EINVAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_rwq_ind_table(table));
	CHECK(!ibv_destroy_wq(queues[0]) && !ibv_destroy_wq(queues[1]));
}

/* Rate limits of a QP: within the device's limits, and only in RTS. */
static void limits(struct ibv_qp *qp)
{
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = 1000, .max_burst_sz = 4096, .typical_pkt_sz = 512 };
	struct ibv_qp *fresh = raw_qp(NULL);
	struct ibv_device_attr_ex ex = { 0 };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(fresh && !ibv_query_device_ex(context, NULL, &ex));
	CHECK(ex.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RAW_PACKET);
	CHECK(ibv_modify_qp_rate_limit(fresh, &limit) == EINVAL); /* it is in RESET */
	CHECK(!ibv_destroy_qp(fresh));
	CHECK(!ibv_modify_qp_rate_limit(qp, &limit));
	CHECK(!ibv_query_qp(qp, &attr, 0, &init) && attr.rate_limit == 1000);
	limit.comp_mask = 1;
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EOPNOTSUPP);
	limit.comp_mask = 0;
	limit.rate_limit = ex.packet_pacing_caps.qp_rate_limit_max + 1;
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EINVAL);
	attr.rate_limit = limit.rate_limit;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT) == EINVAL);
	limit.rate_limit = 0;
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EINVAL); /* bursts without a rate */
	CHECK(!ibv_query_qp(qp, &attr, 0, &init) && attr.rate_limit == 1000);
	limit.max_burst_sz = limit.typical_pkt_sz = 0;
	CHECK(!ibv_modify_qp_rate_limit(qp, &limit));
	CHECK(!ibv_query_qp(qp, &attr, 0, &init) && attr.rate_limit == 0);
}

static void rules(void)
{
	struct ibv_qp *qp = ready(NULL);
	struct ibv_sge sge = { .addr = (uintptr_t)memory[0], .length = 13, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };

	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	sge.length = 60, wr.opcode = IBV_WR_SEND_WITH_IMM;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	bad_rules(qp);
	limits(qp);
	CHECK(!ibv_destroy_qp(qp));
	bad_work_queues();
	bad_spreading();
	/* Nothing remains that would keep these busy. */
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("rules hold\n");
}

/* The first priority with a matching rule gets the frame. */
static void priorities(void)
{
	struct ibv_qp *from = ready(NULL), *low = ready(NULL), *high = ready(NULL), *rest = ready(NULL);
	struct rule all = rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0);
	struct ibv_flow *flows[3] = { steer(low, 9, 0, GROUP, 0, 0), steer(high, 3, 0, GROUP, 0, 4000),
		ibv_create_flow(rest, &all.attr) };

	CHECK(flows[2]);
	post_recv(low, NULL, NULL, 0, 2 * FRAME);
	post_recv(high, NULL, NULL, 1, 2 * FRAME);
	send_from(from, GROUP, 0, 4000, 0, 1);
	takes(cq, high->qp_num, 1, GROUP, 0, 4000, 0, 1);
	send_from(from, GROUP, 0, 4001, 0, 2);
	takes(cq, low->qp_num, 0, GROUP, 0, 4001, 0, 2);
	/* A frame that no other rule takes goes to the default rule. */
	post_recv(rest, NULL, NULL, 2, 2 * FRAME);
	send_from(from, (uint8_t[]){ 0x01, 0, 0x5e, 1, 1, 1 }, 0, 4001, 0, 3);
	takes(cq, rest->qp_num, 2, (uint8_t[]){ 0x01, 0, 0x5e, 1, 1, 1 }, 0, 4001, 0, 3);
	CHECK(ibv_destroy_qp(low) == EBUSY);
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_destroy_flow(flows[i]));
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(low) && !ibv_destroy_qp(high) && !ibv_destroy_qp(rest));
}

/* A "don't trap" rule passes the frame on to others, and a sniffer gets all frames. Their
 * completions come in this order. */
static void shared(void)
{
	struct ibv_qp *from = ready(NULL), *first = ready(NULL), *second = ready(NULL), *sniffer = ready(NULL);
	struct rule all = rule(IBV_FLOW_ATTR_SNIFFER, 0);
	struct ibv_flow *flows[3] = { steer(first, 1, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, GROUP, 0, 0),
		steer(second, 2, 0, GROUP, 0, 0), ibv_create_flow(sniffer, &all.attr) };

	CHECK(flows[2]);
	post_recv(first, NULL, NULL, 0, 2 * FRAME);
	post_recv(second, NULL, NULL, 1, 2 * FRAME);
	post_recv(sniffer, NULL, NULL, 2, 2 * FRAME);
	send_from(from, GROUP, 0, 4000, 0, 4);
	takes(cq, sniffer->qp_num, 2, GROUP, 0, 4000, 0, 4);
	takes(cq, first->qp_num, 0, GROUP, 0, 4000, 0, 4);
	takes(cq, second->qp_num, 1, GROUP, 0, 4000, 0, 4);
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_destroy_flow(flows[i]));
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(first) && !ibv_destroy_qp(second) && !ibv_destroy_qp(sniffer));
}

/* A VLAN tag is matched, and is in the received frame. */
static void tagged(void)
{
	struct ibv_qp *from = ready(NULL), *to = ready(NULL);
	struct ibv_flow *flow = steer(to, 0, 0, GROUP, 7, 0);

	post_recv(to, NULL, NULL, 0, 2 * FRAME);
	send_from(from, GROUP, 0, 4000, 0, 5);
	send_from(from, GROUP, 8, 4000, 0, 6);
	send_from(from, GROUP, 0xa007, 4000, 0, 7);
	takes(cq, to->qp_num, 0, GROUP, 0xa007, 4000, 0, 7);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(from) && !ibv_destroy_qp(to));
}

/* A shared receive queue, and a receive that is too short, which ends the QP. */
static void too_short(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_qp *from = ready(NULL), *shared = ready(srq), *to = ready(NULL);
	struct ibv_flow *flows[2] = { steer(shared, 0, 0, GROUP, 0, 4000), steer(to, 0, 0, GROUP, 0, 4001) };
	struct ibv_qp_init_attr asked;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	CHECK(srq);
	post_recv(NULL, srq, NULL, 0, 2 * FRAME);
	send_from(from, GROUP, 0, 4000, 0, 8);
	takes(cq, shared->qp_num, 0, GROUP, 0, 4000, 0, 8);
	post_recv(to, NULL, NULL, 1, 100);
	post_recv(to, NULL, NULL, 2, 2 * FRAME);
	send_from(from, GROUP, 0, 4001, 0, 9);
	wc = next(cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_LOC_LEN_ERR && wc.qp_num == to->qp_num);
	wc = next(cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_query_qp(to, &attr, IBV_QP_STATE, &asked) && attr.qp_state == IBV_QPS_ERR);
	CHECK(asked.qp_type == IBV_QPT_RAW_PACKET && asked.cap.max_recv_wr == DEPTH);
	CHECK(!ibv_destroy_flow(flows[0]) && !ibv_destroy_flow(flows[1]));
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(shared) && !ibv_destroy_qp(to) && !ibv_destroy_srq(srq));
}

/* The Toeplitz hash of two IPv4 addresses: for each bit that is set, XOR of the 32 bits of the key
 * from that bit on. */
static uint32_t hash(uint32_t src, uint32_t dst)
{
	uint64_t both = (uint64_t)src << 32 | dst;
	uint32_t sum = 0;

	for (int bit = 0; bit < 64; bit++) {
		uint32_t window = 0;

		for (int i = 0; i < 32; i++)
			window = window << 1 | (key[(bit + i) / 8] >> (7 - (bit + i) % 8) & 1);
		if (both >> (63 - bit) & 1)
			sum ^= window;
	}
	return sum;
}

/* Each frame goes to the queue that its hash names, and nowhere else. */
static void spread(void)
{
	struct ibv_cq *cqs[4];
	struct ibv_wq *queues[4];
	struct ibv_rwq_ind_table_init_attr init = { .log_ind_tbl_size = 2, .ind_tbl = queues };
	struct ibv_qp *from = ready(NULL), *qp;
	struct ibv_qp_init_attr_ex ex;
	struct ibv_rwq_ind_table *table;
	struct ibv_flow *flow;
	unsigned used = 0;

	for (int i = 0; i < 4; i++) {
		CHECK((cqs[i] = ibv_create_cq(context, DEPTH, NULL, NULL, 0)));
		CHECK((queues[i] = work_queue(cqs[i])) && !move_wq(queues[i], IBV_WQS_RDY));
	}
	CHECK((table = ibv_create_rwq_ind_table(context, &init)));
	ex = spreading(table);
	CHECK((qp = ibv_create_qp_ex(context, &ex)));
	flow = steer(qp, 0, 0, GROUP, 0, 0);
	for (unsigned n = 0; n < 32; n++) {
		uint32_t source = 0x0a010000 + n;
		unsigned place = hash(source, 0x0a020002) & 3;

		used |= 1u << place;
		post_recv(NULL, NULL, queues[place], n, 2 * FRAME);
		send_from(from, GROUP, 0, 4000, source, n);
		takes(cqs[place], queues[place]->wq_num, n, GROUP, 0, 4000, source, n);
	}
	CHECK(used == 15);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp) && !ibv_destroy_rwq_ind_table(table));
	for (int i = 0; i < 4; i++)
		CHECK(!ibv_destroy_wq(queues[i]) && !ibv_destroy_cq(cqs[i]));
	CHECK(!ibv_destroy_qp(from));
}

/* The sum of the 16-bit words; with a correct checksum it is 0xffff. */
static uint32_t sum_of(const uint8_t *at, uint32_t length, uint32_t sum)
{
	for (uint32_t i = 0; i < length; i++)
		sum += i % 2 ? at[i] : at[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Whether a frame with a datagram over IPv4 has both checksums, and they are correct. */
static int is_right(const uint8_t *frame)
{
	const uint8_t *ip = frame + 14, *udp = ip + 20;
	uint32_t length = udp[4] << 8 | udp[5];

	return (udp[6] || udp[7]) && sum_of(ip, 20, 0) == 0xffff &&
	       sum_of(udp, length, sum_of(ip + 12, 8, IPPROTO_UDP + length)) == 0xffff;
}

/* Checksums are filled in on request, and the receiver reports whether they are correct. */
static void checksums(void)
{
	struct ibv_qp *from = ready(NULL), *to = ready(NULL);
	struct ibv_flow *flow = steer(to, 0, 0, GROUP, 0, 4000);
	struct ibv_device_attr_ex ex = { 0 };

	CHECK(!ibv_query_device_ex(context, NULL, &ex));
	CHECK(ex.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM && ex.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM);
	for (int offloads = 0; offloads < 2; offloads++) {
		uint8_t *frame = memory[1];
		struct ibv_sge sge = { .addr = (uintptr_t)frame, .lkey = mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED | (offloads ? IBV_SEND_IP_CSUM : 0) }, *bad;
		struct ibv_wc wc;

		post_recv(to, NULL, NULL, 0, 2 * FRAME);
		sge.length = build(frame, GROUP, 0, 4000, 0, 3);
		frame[38] = (sge.length - 34) >> 8, frame[39] = (sge.length - 34) & 0xff;
		frame[41] = 0x77; /* a wrong one */
		CHECK(!ibv_post_send(from, &wr, &bad));
		CHECK(next(cq).status == IBV_WC_SUCCESS);
		wc = next(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		CHECK(!(wc.wc_flags & IBV_WC_IP_CSUM_OK) == !offloads && is_right(memory[0]) == offloads);
		/* The program's own bytes stay. */
		CHECK(frame[41] == 0x77 && !memcmp(memory[0] + 42, frame + 42, sge.length - 42));
	}
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(from) && !ibv_destroy_qp(to));
}

/* A datagram that a socket of this host sends to a group has checksums, although the kernel leaves
 * them to the netdev. */
static void from_the_kernel(const char *address)
{
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_port = htons(4000) };
	uint8_t mac[6] = { 0x01, 0x00, 0x5e, 77, 1, 2 };
	struct ibv_qp *qp = ready(NULL);
	struct ibv_flow *flow = steer(qp, 0, 0, mac, 0, 4000);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct in_addr from;
	struct ibv_wc wc;

	CHECK(fd >= 0 && inet_pton(AF_INET, address, &from) == 1 && inet_pton(AF_INET, "239.77.1.2", &group.sin_addr) == 1);
	CHECK(!setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &from, sizeof(from)));
	post_recv(qp, NULL, NULL, 0, 2 * FRAME);
	CHECK(sendto(fd, "hello", 5, 0, (struct sockaddr *)&group, sizeof(group)) == 5);
	wc = next(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_IP_CSUM_OK && is_right(memory[0]));
	CHECK(!memcmp(memory[0] + 42, "hello", 5) && !close(fd));
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp));
	printf("finished\n");
}

static void loop(void)
{
	checksums();
	priorities();
	shared();
	tagged();
	too_short();
	spread();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("every frame went where it should\n");
}

static void denied(void)
{
	NOTHING(raw_qp(NULL), EPERM);
	printf("denied\n");
}

static void receive(unsigned count, const uint8_t *dst)
{
	struct ibv_qp *qp = ready(NULL);
	struct ibv_flow *flow;

	for (unsigned slot = 0; slot < DEPTH; slot++)
		post_recv(qp, NULL, NULL, slot, 2 * FRAME);
	flow = steer(qp, 0, 0, dst, 0, 4000);
	printf("ready\n");
	fflush(stdout);
	for (unsigned n = 0; n < count; n++) {
		takes(cq, qp->qp_num, n % DEPTH, dst, 0, 4000, 0, n);
		post_recv(qp, NULL, NULL, n % DEPTH, 2 * FRAME);
	}
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp));
	printf("received %u\n", count);
}

static void send_all(unsigned count, const uint8_t *dst)
{
	struct ibv_qp *qp = ready(NULL);

	for (unsigned n = 0; n < count; n++)
		send_from(qp, dst, 0, 4000, 0, n);
	printf("sent %u\n", count);
}

int main(int argc, char **argv)
{
	uint8_t dst[6];
	unsigned count;

	CHECK(argc >= 2);
	open_device();
	if (!strcmp(argv[1], "rules"))
		return rules(), 0;
	if (!strcmp(argv[1], "denied"))
		return denied(), 0;
	if (!strcmp(argv[1], "loop"))
		return loop(), 0;
	CHECK(argc >= 3);
	if (!strcmp(argv[1], "kernel"))
		return from_the_kernel(argv[2]), 0;
	count = strtoul(argv[2], NULL, 10);
	memcpy(dst, GROUP, 6);
	if (argc > 3)
		CHECK(sscanf(argv[3], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", dst, dst + 1, dst + 2, dst + 3, dst + 4, dst + 5) == 6);
	if (!strcmp(argv[1], "receive"))
		return receive(count, dst), 0;
	CHECK(!strcmp(argv[1], "send"));
	return send_all(count, dst), 0;
}
