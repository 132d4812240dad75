/* Pairs of QPs between this process and another one, where each program polls only after an event.
 *
 *   events PAIRS ROUNDS SEED rc|uc poll|block
 *
 * The process forks before it opens the device. On each pair the two take turns: one posts some
 * messages in one list, all unsignaled except the last; the other waits for events until all have
 * arrived and then posts as many back. Each message has a number, which is checked. There is no ACK
 * timeout, and over UC not even an acknowledgement, so that nothing is woken by chance: forgotten
 * work hangs the pair, and the program reports that after ten seconds without an event. It waits for
 * events by poll(2), or in ibv_get_cq_event, where ten seconds without one end it by a signal.
 */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PAIRS 64
#define MOST 60 /* more than a QP sends in one turn */
#define SIZE 256u

struct pair {
	struct ibv_qp *qp;
	uint32_t peer;
	/* Rounds begun, messages of this round received, and whether our own are in flight. */
	unsigned round, came;
	int sending;
};

static struct pair pairs[MAX_PAIRS];
static unsigned count, rounds, seed, finished;
static int blocks;
static enum ibv_qp_type type;
static const char *own;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char *buf;

static void die(const char *what, ...)
{
	va_list args;

	va_start(args, what);
	fprintf(stderr, "%s: ", own);
	vfprintf(stderr, what, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

static unsigned char *slot(unsigned pair, unsigned n) { return buf + ((size_t)pair * 2 * MOST + n) * SIZE; }

/* How many messages a round of a pair has; both sides compute it. */
static unsigned messages(unsigned pair, unsigned round)
{
	uint32_t x = seed * 2654435761u ^ (pair * 97 + round) * 2246822519u;

	x ^= x >> 15;
	x *= 2246822519u;
	x ^= x >> 13;
	return 1 + x % MOST;
}

static void receive(unsigned pair, unsigned n)
{
	struct ibv_sge sge = {(uintptr_t)slot(pair, MOST + n), SIZE, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)pair << 32 | n, .sg_list = &sge, .num_sge = 1}, *bad;

	if (ibv_post_recv(pairs[pair].qp, &wr, &bad))
		die("post_recv");
}

static void send_round(unsigned pair)
{
	struct ibv_send_wr wr[MOST], *bad;
	struct ibv_sge sge[MOST];
	unsigned n, all = messages(pair, pairs[pair].round);

	for (n = 0; n < all; n++) {
		memset(slot(pair, n), (int)(pairs[pair].round + n), SIZE);
		sge[n] = (struct ibv_sge){(uintptr_t)slot(pair, n), SIZE, mr->lkey};
		wr[n] = (struct ibv_send_wr){
			.wr_id = (uint64_t)pair << 32,
			.next = n + 1 < all ? &wr[n + 1] : NULL,
			.sg_list = &sge[n],
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = n + 1 < all ? 0 : IBV_SEND_SIGNALED,
		};
	}
	pairs[pair].sending = 1;
	if (ibv_post_send(pairs[pair].qp, wr, &bad))
		die("post_send");
}

static int is_ours(unsigned round, int is_first) { return (round % 2 == 0) == is_first; }

/* Our round is over when its messages are done, a round of the peer when they have arrived. */
static void next(unsigned pair, int is_first)
{
	struct pair *p = &pairs[pair];

	for (;;) {
		if (is_ours(p->round, is_first)) {
			if (p->sending)
				return;
		} else {
			if (p->came < messages(pair, p->round))
				return;
			p->came = 0;
		}
		if (++p->round == rounds) {
			finished++;
			return;
		}
		if (is_ours(p->round, is_first))
			send_round(pair);
	}
}

static void complete(struct ibv_wc *wc, int is_first)
{
	unsigned pair = (unsigned)(wc->wr_id >> 32), n = (uint32_t)wc->wr_id;
	struct pair *p = &pairs[pair];

	if (wc->status)
		die("pair %u round %u: %s", pair, p->round, ibv_wc_status_str(wc->status));
	if (wc->opcode & IBV_WC_RECV) {
		/* The peer's answer may be seen before our own completion. */
		unsigned round = p->round + (unsigned)is_ours(p->round, is_first);
		unsigned char *at = slot(pair, MOST + n), want = (unsigned char)(round + p->came);

		if (wc->byte_len != SIZE || at[0] != want || at[SIZE - 1] != want)
			die("pair %u round %u message %u: %u bytes of %d", pair, p->round, p->came, wc->byte_len, at[0]);
		p->came++;
		receive(pair, n);
	} else {
		p->sending = 0;
	}
	next(pair, is_first);
}

static void connect_pairs(int to_peer, union ibv_gid *gid)
{
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	unsigned i;

	if (type == IBV_QPT_RC) {
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	for (i = 0; i < count; i++) {
		uint32_t qpn = pairs[i].qp->qp_num;

		if (write(to_peer, &qpn, sizeof qpn) != sizeof qpn)
			die("write");
	}
	for (i = 0; i < count; i++) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

		if (read(to_peer, &pairs[i].peer, sizeof pairs[i].peer) != sizeof pairs[i].peer)
			die("the peer is gone");
		if (ibv_modify_qp(pairs[i].qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			die("INIT");
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_1024,
			.dest_qp_num = pairs[i].peer,
			.max_dest_rd_atomic = 1,
			.min_rnr_timer = 1,
			.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}},
		};
		if (ibv_modify_qp(pairs[i].qp, &attr, rtr))
			die("RTR");
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 0, .retry_cnt = 7, .rnr_retry = 7};
		attr.max_rd_atomic = 1;
		if (ibv_modify_qp(pairs[i].qp, &attr, rts))
			die("RTS");
	}
}

static void run(int to_peer, int is_first)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	struct ibv_comp_channel *channel = ctx ? ibv_create_comp_channel(ctx) : NULL;
	union ibv_gid gid;
	unsigned i, n;
	char ready = 1;

	if (!pd || !channel || ibv_query_gid(ctx, 1, 0, &gid))
		die("no device");
	cq = ibv_create_cq(ctx, (int)(count * (MOST + 2)), NULL, channel, 0);
	buf = calloc(count * 2 * MOST, SIZE);
	mr = buf ? ibv_reg_mr(pd, buf, (size_t)count * 2 * MOST * SIZE, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!cq || !mr)
		die("no queue or no memory");
	for (i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type};

		init.cap = (struct ibv_qp_cap){MOST, MOST, 1, 1, 0};
		pairs[i].qp = ibv_create_qp(pd, &init);
		if (!pairs[i].qp)
			die("create_qp");
	}
	connect_pairs(to_peer, &gid);
	for (i = 0; i < count; i++)
		for (n = 0; n < MOST; n++)
			receive(i, n);
	if (ibv_req_notify_cq(cq, 0) || write(to_peer, &ready, 1) != 1 || read(to_peer, &ready, 1) != 1)
		die("the peer is gone");
	for (i = 0; is_first && i < count; i++)
		send_round(i);
	while (finished < count) {
		struct pollfd wait = {.fd = channel->fd, .events = POLLIN};
		struct ibv_cq *which;
		struct ibv_wc wc[16];
		void *context;
		int got, j;

		if (blocks)
			alarm(10);
		else if (poll(&wait, 1, 10000) != 1)
			die("no event for ten seconds, %u of %u pairs done", finished, count);
		if (ibv_get_cq_event(channel, &which, &context) || ibv_req_notify_cq(cq, 0))
			die("get_cq_event");
		ibv_ack_cq_events(which, 1);
		while ((got = ibv_poll_cq(cq, 16, wc)) > 0)
			for (j = 0; j < got; j++)
				complete(&wc[j], is_first);
		if (got < 0)
			die("poll_cq");
	}
	alarm(0);
	/* The peer still has to receive the last messages. */
	if (write(to_peer, &ready, 1) != 1 || read(to_peer, &ready, 1) != 1)
		die("the peer is gone");
	printf("%s: %u pairs, %u rounds\n", own, count, rounds);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int ends[2], status;
	pid_t child;

	if (argc != 6)
		return 2;
	blocks = !strcmp(argv[5], "block");
	type = strcmp(argv[4], "uc") ? IBV_QPT_RC : IBV_QPT_UC;
	count = (unsigned)atoi(argv[1]);
	rounds = (unsigned)atoi(argv[2]);
	seed = (unsigned)atoi(argv[3]);
	if (count < 1 || count > MAX_PAIRS || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 2;
	child = fork();
	own = child ? "first" : "second";
	close(ends[child == 0]);
	run(ends[child != 0], child != 0);
	if (!child)
		return 0;
	return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
