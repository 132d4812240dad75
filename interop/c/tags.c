/*
 * Tag matching: `tags PACKETS`, where PACKETS is how many packets a message of 3000 bytes takes: 3
 * on a wire, where the match of the first is reported before the rest has arrived, and 1 within a
 * process.
 */
#include <endian.h>
#include <infiniband/tm_types.h>
#include "check.h"
#include "rc_loopback.h"

enum { SLOT = 8192, TAGGED = 0x1000, PLAIN = 0x2000, OP = 0x3000 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_cq *sent;
static struct ibv_srq *srq;
static struct ibv_qp *server, *client;
static struct ibv_mr *mr;
/* Buffers for sent messages, for tagged receives, for other receives, and for what the sender
 * receives. */
static unsigned char buffer[4][SLOT];
static struct ibv_tm_caps caps;

struct seen {
	uint64_t wr_id;
	enum ibv_wc_status status;
	uint32_t vendor_err;
	enum ibv_wc_opcode opcode;
	unsigned int flags;
	uint32_t bytes;
	struct ibv_wc_tm_info tm;
};

static struct seen take(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct timespec now;
	time_t end = 0;
	int err;

	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (!end)
			end = now.tv_sec + 20;
		err = ibv_start_poll(cq, &attr);
	} while (err == ENOENT && now.tv_sec < end);
	CHECK(!err);
	struct seen seen = { .wr_id = cq->wr_id, .status = cq->status, .vendor_err = ibv_wc_read_vendor_err(cq) };
	if (!seen.status) {
		seen.opcode = ibv_wc_read_opcode(cq);
		seen.flags = ibv_wc_read_wc_flags(cq);
		seen.bytes = ibv_wc_read_byte_len(cq);
		ibv_wc_read_tm_info(cq, &seen.tm);
	}
	ibv_end_poll(cq);
	return seen;
}

static void expect(uint64_t wr_id, enum ibv_wc_opcode opcode, unsigned int flags)
{
	struct seen seen = take();
	if (seen.status || seen.wr_id != wr_id || seen.opcode != opcode || seen.flags != flags) {
		printf("failed: wr_id %#llx, %s, opcode %d, flags %#x; wanted %#llx, %d, %#x\n",
		       (unsigned long long)seen.wr_id, ibv_wc_status_str(seen.status), seen.opcode, seen.flags,
		       (unsigned long long)wr_id, opcode, flags);
		exit(1);
	}
}

static struct ibv_sge at(int which, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)buffer[which], length, mr->lkey };
}

/* Posts one operation; returns its errno. */
static int op(struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad = NULL;
	int err = ibv_post_srq_ops(srq, wr, &bad);
	CHECK(err ? bad == wr : bad == NULL);
	return err;
}

static int add(uint64_t tag, uint64_t mask, uint32_t room, int flags, uint32_t count, uint32_t *handle)
{
	struct ibv_sge sge = at(1, room);
	struct ibv_ops_wr wr = { .wr_id = OP + tag, .opcode = IBV_WR_TAG_ADD, .flags = flags,
		.tm = { .unexpected_cnt = count, .add = { .recv_wr_id = TAGGED + tag, .sg_list = &sge, .num_sge = 1,
							  .tag = tag, .mask = mask } } };
	int err = op(&wr);
	if (handle)
		*handle = wr.tm.handle;
	return err;
}

static int del(uint32_t handle, int flags)
{
	struct ibv_ops_wr wr = { .wr_id = OP, .opcode = IBV_WR_TAG_DEL, .flags = flags, .tm = { .handle = handle } };
	return op(&wr);
}

static void sync_count(uint32_t count, unsigned int flags)
{
	struct ibv_ops_wr wr = { .wr_id = OP, .opcode = IBV_WR_TAG_SYNC,
		.flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, .tm = { .unexpected_cnt = count } };
	CHECK(!op(&wr));
	expect(OP, IBV_WC_TM_SYNC, flags);
}

static void post_plain(void)
{
	struct ibv_sge sge = at(2, SLOT);
	struct ibv_recv_wr wr = { .wr_id = PLAIN, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

/* Sends a message of `length` bytes that begins with a header, and waits until it was received. */
static void send_message(uint8_t opcode, uint64_t tag, uint32_t length, const struct ibv_rvh *rvh)
{
	struct ibv_tmh tmh = { .opcode = opcode, .app_ctx = htobe32(0xabcd0000 + (uint32_t)tag), .tag = htobe64(tag) };
	struct ibv_sge sge = at(0, length);
	struct ibv_send_wr wr = { .wr_id = tag, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;

	memset(buffer[1], 0, SLOT);
	memset(buffer[2], 0, SLOT);
	for (uint32_t i = 0; i < SLOT; i++)
		buffer[0][i] = (unsigned char)(i * 7 + (i >> 8) + tag);
	memcpy(buffer[0], &tmh, sizeof(tmh));
	if (rvh)
		memcpy(buffer[0] + sizeof(tmh), rvh, sizeof(*rvh));
	CHECK(!ibv_post_send(client, &wr, &bad));
	CHECK(loop_poll(sent) == IBV_WC_SUCCESS);
}

static void make_pair(void)
{
	struct ibv_qp_init_attr init = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq,
		.qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr other = { .send_cq = sent, .recv_cq = sent, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	union ibv_gid gid;

	CHECK((server = ibv_create_qp(pd, &init)) && (client = ibv_create_qp(pd, &other)));
	CHECK(!ibv_query_gid(ctx, 1, 0, &gid));
	CHECK(!loop_connect(server, client->qp_num, &gid, 14) && !loop_connect(client, server->qp_num, &gid, 14));
}

static void destroy_pair(void)
{
	CHECK(!ibv_destroy_qp(server) && !ibv_destroy_qp(client));
}

static struct ibv_srq *make_srq(uint32_t tags, uint32_t ops)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 64, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM, .pd = pd, .cq = ibv_cq_ex_to_cq(cq),
		.tm_cap = { .max_num_tags = tags, .max_ops = ops } };
	errno = 0;
	return ibv_create_srq_ex(ctx, &attr);
}

static void set_up(void)
{
	struct ibv_device_attr_ex device;
	struct ibv_cq_init_attr_ex init = { .cqe = 256,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO };

	CHECK(ctx = loop_device());
	CHECK(!ibv_query_device_ex(ctx, NULL, &device));
	caps = device.tm_caps;
	CHECK(caps.flags == IBV_TM_CAP_RC && caps.max_num_tags >= 64 && caps.max_ops && caps.max_sge);
	CHECK(caps.max_rndv_hdr_size >= sizeof(struct ibv_tmh) + sizeof(struct ibv_rvh));
	CHECK(pd = ibv_alloc_pd(ctx));
	CHECK(cq = ibv_create_cq_ex(ctx, &init));
	CHECK(sent = ibv_create_cq(ctx, 64, NULL, NULL, 0));
	CHECK(mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
}

static void refusals(void)
{
	struct ibv_qp_init_attr init = { .send_cq = sent, .recv_cq = sent, .qp_type = IBV_QPT_UD };
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_ops_wr wr = { .opcode = 3 };
	uint32_t handle;

	CHECK(!make_srq(0, 1) && errno == EINVAL);
	CHECK(!make_srq(caps.max_num_tags + 1, 1) && errno == EINVAL);
	CHECK(!make_srq(1, caps.max_ops + 1) && errno == EINVAL);
	CHECK(srq = ibv_create_srq(pd, &basic));
	CHECK(add(1, ~0ull, 64, 0, 0, NULL) == EINVAL);
	CHECK(!ibv_destroy_srq(srq));

	CHECK(srq = make_srq(2, 4));
	init.srq = srq;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = init.cap.max_send_sge = 1;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	CHECK(op(&wr) == EINVAL);
	wr.opcode = IBV_WR_TAG_SYNC;
	wr.flags = 4;
	CHECK(op(&wr) == EINVAL);
	CHECK(!add(1, ~0ull, 64, 0, 0, NULL) && !add(2, ~0ull, 64, IBV_OPS_SIGNALED, 0, &handle));
	expect(OP + 2, IBV_WC_TM_ADD, 0);
	CHECK(add(3, ~0ull, 64, 0, 0, NULL) == ENOMEM);
	/* No completion if it succeeds, but one if it fails. */
	CHECK(!del(handle, 0) && !del(handle, 0));
	struct seen seen = take();
	CHECK(seen.status == IBV_WC_TM_ERR && seen.wr_id == OP && seen.vendor_err == 16);
	CHECK(!add(3, ~0ull, 64, IBV_OPS_SIGNALED, 0, &handle));
	expect(OP + 3, IBV_WC_TM_ADD, 0);
	CHECK(!del(handle, IBV_OPS_SIGNALED));
	expect(OP, IBV_WC_TM_DEL, 0);
	CHECK(!ibv_destroy_srq(srq));
}

static void eager(int packets)
{
	struct ibv_tmh tmh;

	/* The first matching entry is taken, in list order. */
	CHECK(!add(0x10, 0xf0, SLOT, 0, 0, NULL) && !add(0x12, 0xff, SLOT, 0, 0, NULL));
	send_message(IBV_TMH_EAGER, 0x12, 100, NULL);
	struct seen seen = take();
	CHECK(seen.wr_id == TAGGED + 0x10 && seen.opcode == IBV_WC_TM_RECV);
	CHECK(seen.flags == (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID) && seen.bytes == 100 - sizeof(tmh));
	CHECK(seen.tm.tag == 0x12 && seen.tm.priv == 0xabcd0012);
	CHECK(!memcmp(buffer[1], buffer[0] + sizeof(tmh), 100 - sizeof(tmh)) && !buffer[1][100 - sizeof(tmh)]);

	send_message(IBV_TMH_EAGER, 0x12, 3000, NULL);
	if (packets > 1) {
		seen = take();
		CHECK(seen.wr_id == TAGGED + 0x12 && seen.opcode == IBV_WC_TM_RECV && seen.flags == IBV_WC_TM_MATCH);
		CHECK(seen.tm.tag == 0x12 && seen.tm.priv == 0xabcd0012);
		expect(TAGGED + 0x12, IBV_WC_TM_RECV, IBV_WC_TM_DATA_VALID);
	} else {
		expect(TAGGED + 0x12, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	}
	CHECK(!memcmp(buffer[1], buffer[0] + sizeof(tmh), 3000 - sizeof(tmh)) && !buffer[1][3000 - sizeof(tmh)]);

	/* Only the header; and no header at all. */
	CHECK(!add(0x13, ~0ull, 0, 0, 0, NULL));
	send_message(IBV_TMH_EAGER, 0x13, sizeof(tmh), NULL);
	expect(TAGGED + 0x13, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	for (uint32_t length = 0; length <= 15; length += 5) {
		post_plain();
		send_message(IBV_TMH_EAGER, 0, length, NULL);
		expect(PLAIN, IBV_WC_TM_NO_TAG, 0);
		CHECK(!memcmp(buffer[2], buffer[0], length));
	}
	CHECK(!add(0, 0, SLOT, 0, 0, NULL));
	post_plain();
	send_message(IBV_TMH_NO_TAG, 0, 3000, NULL);
	expect(PLAIN, IBV_WC_TM_NO_TAG, 0);
	CHECK(!memcmp(buffer[2], buffer[0], 3000));
	send_message(IBV_TMH_EAGER, 0x77, 40, NULL);
	expect(TAGGED, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
}

/* A receive that was added before the program knew of an unexpected message must not meet a later
 * one. */
static void out_of_step(void)
{
	CHECK(!add(0x21, ~0ull, SLOT, 0, 0, NULL));
	post_plain();
	send_message(IBV_TMH_EAGER, 0x20, 3000, NULL);
	expect(PLAIN, IBV_WC_TM_RECV, 0);
	CHECK(!memcmp(buffer[2], buffer[0], 3000));
	/* Added now, and the message is not seen yet. */
	CHECK(!add(0x20, ~0ull, SLOT, IBV_OPS_SIGNALED, 0, NULL));
	expect(OP + 0x20, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ);
	/* Entries that were there before still match. */
	send_message(IBV_TMH_EAGER, 0x21, 50, NULL);
	expect(TAGGED + 0x21, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	post_plain();
	send_message(IBV_TMH_EAGER, 0x20, 50, NULL);
	expect(PLAIN, IBV_WC_TM_RECV, 0);
	sync_count(1, IBV_WC_TM_SYNC_REQ);
	/* In sync, as reported with the operation. */
	CHECK(!add(0x22, ~0ull, SLOT, IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, 2, NULL));
	expect(OP + 0x22, IBV_WC_TM_ADD, 0);
	for (uint64_t tag = 0x20; tag <= 0x22; tag += 2) {
		send_message(IBV_TMH_EAGER, tag, 50, NULL);
		expect(TAGGED + tag, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	}
	sync_count(2, 0);
}

static void client_receives_fin(uint64_t tag, const struct ibv_rvh *rvh)
{
	struct ibv_tmh *tmh = (void *)buffer[3];
	CHECK(loop_poll(sent) == IBV_WC_SUCCESS);
	CHECK(tmh->opcode == IBV_TMH_FIN && be64toh(tmh->tag) == tag);
	CHECK(!memcmp(tmh + 1, rvh, sizeof(*rvh)));
}

static void rendezvous(void)
{
	struct ibv_sge sge = at(3, SLOT);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_rvh rvh = { .va = htobe64((uintptr_t)buffer[0] + 100), .rkey = htobe32(mr->rkey), .len = htobe32(5000) };

	for (int i = 0; i < 2; i++)
		CHECK(!ibv_post_recv(client, &wr, &bad));
	CHECK(!add(0x30, ~0ull, SLOT, 0, 0, NULL));
	send_message(IBV_TMH_RNDV, 0x30, caps.max_rndv_hdr_size, &rvh);
	struct seen seen = take();
	CHECK(seen.wr_id == TAGGED + 0x30 && seen.opcode == IBV_WC_TM_RECV && seen.flags == IBV_WC_TM_MATCH);
	CHECK(seen.tm.tag == 0x30 && seen.tm.priv == 0xabcd0030);
	client_receives_fin(0x30, &rvh);
	seen = take();
	CHECK(seen.wr_id == TAGGED + 0x30 && seen.opcode == IBV_WC_TM_RECV && seen.flags == IBV_WC_TM_DATA_VALID);
	CHECK(seen.bytes == 5000);
	CHECK(!memcmp(buffer[1], buffer[0] + 100, 5000) && !buffer[1][5000]);

	/* No room: the program gets the headers. */
	CHECK(!add(0x31, ~0ull, 4999, 0, 0, NULL));
	send_message(IBV_TMH_RNDV, 0x31, caps.max_rndv_hdr_size, &rvh);
	seen = take();
	CHECK(seen.status == IBV_WC_TM_RNDV_INCOMPLETE && seen.wr_id == TAGGED + 0x31 && seen.vendor_err == 17);
	CHECK(!memcmp(buffer[1], buffer[0], sizeof(struct ibv_tmh) + sizeof(rvh)));

	/* Unexpected: the whole message goes to the program. */
	post_plain();
	send_message(IBV_TMH_RNDV, 0x32, caps.max_rndv_hdr_size, &rvh);
	expect(PLAIN, IBV_WC_TM_RECV, 0);
	CHECK(!memcmp(buffer[2], buffer[0], caps.max_rndv_hdr_size));
	sync_count(3, 0);

	/* An invalid key ends the QP, and the receive's completion says why. */
	CHECK(!add(0x33, ~0ull, SLOT, 0, 0, NULL));
	rvh.rkey = htobe32(0xdead);
	send_message(IBV_TMH_RNDV, 0x33, 32, &rvh);
	expect(TAGGED + 0x33, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
	seen = take();
	CHECK(seen.status == IBV_WC_REM_ACCESS_ERR && seen.wr_id == TAGGED + 0x33);
}

static void too_long(void)
{
	struct ibv_sge sge = at(0, 200);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_tmh tmh = { .opcode = IBV_TMH_EAGER, .tag = htobe64(0x40) };

	CHECK(!add(0x40, ~0ull, 100, 0, 0, NULL));
	memcpy(buffer[0], &tmh, sizeof(tmh));
	CHECK(!ibv_post_send(client, &wr, &bad));
	CHECK(loop_poll(sent) == IBV_WC_REM_INV_REQ_ERR);
	struct seen seen = take();
	CHECK(seen.status == IBV_WC_LOC_LEN_ERR && seen.wr_id == TAGGED + 0x40);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	set_up();
	refusals();
	CHECK(srq = make_srq(64, 16));
	make_pair();
	eager(atoi(argv[1]));
	out_of_step();
	rendezvous();
	destroy_pair();
	make_pair();
	too_long();
	destroy_pair();
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == EBUSY);
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_destroy_cq(sent));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	printf("tags match\n");
	return 0;
}
