/* One end of an RC connection whose other end may die, come back, or move. Nothing is exchanged
 * beforehand: the client's QP has number 0x1000 and the server's 0x1001 on their devices (a program
 * makes QPs until it gets the number that it wants), and LIFE says where in the PSN space they
 * begin.
 *
 *   returning serve PEER LIFE [deaf]     receives the messages of that life, and checks every byte;
 *                                        deaf: its QP is never connected
 *   returning send PEER LIFE DIR NEW     sends messages until one fails, or DIR has a file "enough"
 *                                        and the last one arrived. If it fails and DIR has a file
 *                                        "again", another connection is made, of the next life.
 *                                        When DIR has a file "moved", PEER has the address NEW
 *                                        (SQD, the address, RTS).
 *
 * Both print the number of messages after the first one, and once there are enough for the
 * connection to be established.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 3000u
#define RECVS 32
#define CLIENT 0x1000u
#define SERVER 0x1001u
#define ESTABLISHED 50u

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char buf[RECVS][SIZE] __attribute__((aligned(4096)));

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint32_t first_psn(unsigned life) { return (100 + life * (1u << 20)) & 0xffffff; }

static unsigned char pattern(unsigned life, uint32_t number, uint32_t at)
{
	return (unsigned char)(life * 101 + number * 31 + at * 7 + (at >> 8));
}

static struct ibv_ah_attr way_to(const char *address)
{
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1,
		.grh = { .hop_limit = 64, .dgid = { .raw = { [10] = 0xff, [11] = 0xff } } } };

	if (inet_pton(AF_INET, address, way.grh.dgid.raw + 12) != 1)
		die(address);
	return way;
}

static struct ibv_qp *numbered(uint32_t wanted)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1 } };

	for (int tries = 0; tries < 1 << 15; tries++) {
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		if (!qp)
			die("create_qp");
		if (qp->qp_num == wanted)
			return qp;
		if (ibv_destroy_qp(qp))
			die("destroy_qp");
	}
	die("there is no such number");
	return NULL;
}

static void receive(struct ibv_qp *qp, unsigned place)
{
	struct ibv_sge sge = { (uintptr_t)buf[place], SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = place, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		die("post_recv");
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer, const char *address, unsigned life)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.rq_psn = first_psn(life), .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = way_to(address) };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	/* 268 ms, 7 s in all: a peer that comes back within six seconds still gets a retry. */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7,
		.sq_psn = first_psn(life), .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

static struct ibv_qp *initialised(uint32_t number)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = numbered(number);

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	return qp;
}

static void progress(unsigned life, uint32_t count)
{
	if (count == 1 || count == ESTABLISHED)
		printf("life %u: %u messages\n", life, count);
}

static void serve(const char *peer, unsigned life, int deaf)
{
	struct ibv_qp *qp = initialised(SERVER);
	uint32_t count = 0;
	int done = 0;

	for (unsigned place = 0; place < RECVS; place++)
		receive(qp, place);
	if (!deaf)
		connect_qp(qp, CLIENT, peer, life);
	printf("life %u: ready\n", life);
	while (!done) {
		struct ibv_wc wc;
		const unsigned char *message;

		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		if (wc.status || wc.byte_len != SIZE)
			die(ibv_wc_status_str(wc.status));
		message = buf[wc.wr_id];
		done = !!(wc.wc_flags & IBV_WC_WITH_IMM);
		for (uint32_t at = 0; at < SIZE; at++)
			if (message[at] != pattern(life, count, at))
				die("a message of another life, or wrong bytes");
		receive(qp, wc.wr_id);
		progress(life, ++count);
	}
	printf("life %u: ended with %u messages\n", life, count);
	if (ibv_destroy_qp(qp))
		die("destroy_qp");
}

static void follow(struct ibv_qp *qp, const char *address)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		die("SQD");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD, .ah_attr = way_to(address) };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV))
		die("the new address");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		die("RTS again");
	puts("followed");
}

static int is_there(const char *dir, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return !access(path, F_OK);
}

/* Sends messages of a life until one fails (then false) or the last one arrived. */
static int send_life(const char *peer, unsigned life, const char *dir, const char *new)
{
	struct ibv_qp *qp = initialised(CLIENT);
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int followed = 0, last = 0;

	connect_qp(qp, SERVER, peer, life);
	for (uint32_t count = 0; !wc.status && !last;) {
		struct ibv_sge sge = { (uintptr_t)buf[0], SIZE, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

		last = count >= ESTABLISHED && is_there(dir, "enough");
		if (last)
			wr.opcode = IBV_WR_SEND_WITH_IMM;
		for (uint32_t at = 0; at < SIZE; at++)
			buf[0][at] = pattern(life, count, at);
		if (ibv_post_send(qp, &wr, &bad))
			die("post_send");
		while (!ibv_poll_cq(cq, 1, &wc))
			if (!followed && is_there(dir, "moved")) {
				follow(qp, new);
				followed = 1;
			}
		if (!wc.status)
			progress(life, ++count);
	}
	if (wc.status)
		printf("life %u: %s\n", life, ibv_wc_status_str(wc.status));
	if (ibv_destroy_qp(qp))
		die("destroy_qp");
	return !wc.status;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (argc < 4)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	cq = pd ? ibv_create_cq(ctx, 2 * RECVS, NULL, NULL, 0) : NULL;
	mr = cq ? ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!mr)
		die("device, PD, CQ or MR");
	unsigned life = atoi(argv[3]);
	if (!strcmp(argv[1], "serve"))
		serve(argv[2], life, argc > 4);
	else if (argc == 6)
		while (!send_life(argv[2], life, argv[4], argv[5]) && is_there(argv[4], "again"))
			life++;
	if (ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(ctx))
		die("close");
	ibv_free_device_list(list);
	return 0;
}
