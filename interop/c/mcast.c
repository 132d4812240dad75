/*
 * Multicast: `mcast rules`, `mcast receive GROUP N`, `mcast send GROUP N ANSWERS`.
 *
 * A receiver attaches two QPs, prints "ready", and ends when both have received N messages, with
 * their GRH and in order. Each QP answers each message. The sender is a member, too: it receives
 * what it sends, and continues after ANSWERS answers. Datagrams may be lost by a socket whose
 * process got no CPU time for long: a message that is not answered within two seconds is sent
 * again, as another attempt, and no attempt may arrive twice.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { QPS = 2, SLOTS = 64, SLOT = 256, GRH = 40, QKEY = 0x11223344 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qps[QPS];
static uint8_t buffer[QPS + 2][SLOTS][SLOT];

/* The members that answered the last message. */
enum { ANSWERERS = 64 };
static uint32_t answerers[ANSWERERS];
static int answers;
static uint32_t awaited;

/* The address handle of the sender, once it is known. */
static struct ibv_ah *back;

struct message {
	uint32_t number;
	uint32_t attempt;
	uint32_t qpn;
	union ibv_gid from;
};

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void post_recv(int which, int slot)
{
	struct ibv_sge sge = { (uintptr_t)buffer[which][slot], SLOT, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = which * SLOTS + slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qps[which], &wr, &bad));
}

static void set_up(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4 * SLOTS, NULL, NULL, 0);
	CHECK(pd && cq);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	for (int i = 0; i < QPS; i++) {
		qps[i] = make_qp(IBV_QPT_UD);
		to_rts(qps[i]);
		for (int slot = 0; slot < SLOTS; slot++)
			post_recv(i, slot);
	}
}

static void tear_down(void)
{
	for (int i = 0; i < QPS; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
	if (back)
		CHECK(!ibv_destroy_ah(back));
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

static union ibv_gid group_of(const char *text)
{
	union ibv_gid gid = { { 0 } };
	if (inet_pton(AF_INET6, text, gid.raw) != 1) {
		gid.raw[10] = gid.raw[11] = 0xff;
		CHECK(inet_pton(AF_INET, text, gid.raw + 12) == 1);
	}
	return gid;
}

static int is_v4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

/* The first GID of the same family. */
static int own_gid(const union ibv_gid *peer)
{
	for (int index = 0; index < 16; index++) {
		union ibv_gid gid;
		CHECK(!ibv_query_gid(context, 1, index, &gid));
		if (is_v4(&gid) == is_v4(peer))
			return index;
	}
	CHECK(!"a GID of the family");
	return -1;
}

static struct ibv_ah *make_ah(const union ibv_gid *to)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = *to, .sgid_index = own_gid(to), .hop_limit = 4 },
	};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	return ah;
}

static void post_send(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, const struct message *message)
{
	static int at;
	uint8_t *place = buffer[QPS + 1][at++ % SLOTS];
	struct ibv_sge sge = { (uintptr_t)place, sizeof *message, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY },
	}, *bad;
	memcpy(place, message, sizeof *message);
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Takes one completion; for a receive, returns the QP and the message. */
static int take(int next[QPS], const union ibv_gid *group, int answer)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(cq, 1, &wc);
	CHECK(count >= 0);
	if (!count)
		return 0;
	CHECK(wc.status == IBV_WC_SUCCESS);
	if (wc.opcode != IBV_WC_RECV)
		return 1;
	int which = wc.wr_id / SLOTS, slot = wc.wr_id % SLOTS;
	uint8_t *grh = buffer[which][slot];
	struct message message;
	CHECK(wc.wc_flags & IBV_WC_GRH);
	CHECK(wc.byte_len == GRH + sizeof message);
	memcpy(&message, grh + GRH, sizeof message);
	/* The group is the destination in the GRH: a whole IPv6 header, or an IPv4 header at its end. */
	if (is_v4(group) ? memcmp(grh + 36, group->raw + 12, 4) : memcmp(grh + 24, group->raw, 16)) {
		int known = 0;
		for (int i = 0; i < answers; i++)
			known |= answerers[i] == wc.src_qp;
		if (message.number == awaited && !known && answers < ANSWERERS)
			answerers[answers++] = wc.src_qp;
	} else {
		static uint32_t attempt[QPS];
		int is_next = (int)message.number == next[which];
		CHECK(is_next || ((int)message.number == next[which] - 1 && message.attempt > attempt[which]));
		CHECK(message.qpn == wc.src_qp);
		next[which] += is_next;
		attempt[which] = message.attempt;
		if (answer) {
			if (!back)
				back = make_ah(&message.from);
			post_send(qps[which], back, wc.src_qp, &message);
		}
	}
	post_recv(which, slot);
	return 1;
}

static void receive(const char *text, int messages)
{
	union ibv_gid group = group_of(text);
	int next[QPS] = { 0 };
	for (int i = 0; i < QPS; i++)
		CHECK(!ibv_attach_mcast(qps[i], &group, 0));
	printf("ready\n");
	fflush(stdout);
	while (next[0] < messages || next[1] < messages)
		take(next, &group, 1);
	/* The last answer is a datagram, too: a sender that asks again after two seconds is answered
	 * again. */
	for (time_t last = time(NULL); time(NULL) - last < 4;)
		if (take(next, &group, 1))
			last = time(NULL);
	for (int i = 0; i < QPS; i++)
		CHECK(!ibv_detach_mcast(qps[i], &group, 0));
	printf("received %d and %d\n", next[0], next[1]);
}

static void send_all(const char *text, int messages, int wanted)
{
	union ibv_gid group = group_of(text);
	struct ibv_ah *ah = make_ah(&group);
	struct message message = { .qpn = qps[0]->qp_num };
	int next[QPS] = { 0 }, resent = 0;
	CHECK(!ibv_query_gid(context, 1, own_gid(&group), &message.from));
	CHECK(!ibv_attach_mcast(qps[1], &group, 0));
	for (int number = 0; number < messages; number++) {
		awaited = message.number = number;
		message.attempt = 0;
		answers = 0;
		while (next[1] <= number || answers < wanted) {
			time_t began = time(NULL);
			message.attempt++;
			post_send(qps[0], ah, 0xffffff, &message);
			while ((next[1] <= number || answers < wanted) && time(NULL) - began < 2)
				take(next, &group, 0);
		}
		resent += message.attempt - 1;
	}
	CHECK(next[0] == 0);
	CHECK(!ibv_detach_mcast(qps[1], &group, 0));
	CHECK(!ibv_destroy_ah(ah));
	printf("sent %d, of them %d again\n", messages, resent);
}

static void rules(void)
{
	union ibv_gid group = group_of("239.77.0.9"), unicast = group_of("10.77.0.1");
	struct ibv_device_attr attr;
	CHECK(!ibv_query_device(context, &attr));
	CHECK(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0 && attr.max_total_mcast_qp_attach > 0);
	struct ibv_qp *rc = make_qp(IBV_QPT_RC), *fresh = make_qp(IBV_QPT_UD);
	CHECK(ibv_attach_mcast(rc, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(qps[0], &unicast, 0) == EINVAL);
	CHECK(ibv_detach_mcast(qps[0], &group, 0) == EINVAL);
	/* In any state, and repeatedly. */
	CHECK(!ibv_attach_mcast(fresh, &group, 0) && !ibv_attach_mcast(fresh, &group, 0xc000));
	CHECK(ibv_destroy_qp(fresh) == EBUSY);
	CHECK(!ibv_detach_mcast(fresh, &group, 0));
	CHECK(ibv_detach_mcast(fresh, &group, 0) == EINVAL);
	CHECK(!ibv_destroy_qp(fresh) && !ibv_destroy_qp(rc));
	printf("rules hold\n");
}

int main(int argc, char **argv)
{
	set_up();
	if (argc == 2 && !strcmp(argv[1], "rules"))
		rules();
	else if (argc == 4 && !strcmp(argv[1], "receive"))
		receive(argv[2], atoi(argv[3]));
	else if (argc == 5 && !strcmp(argv[1], "send"))
		send_all(argv[2], atoi(argv[3]), atoi(argv[4]));
	else
		return 2;
	tear_down();
	return 0;
}
