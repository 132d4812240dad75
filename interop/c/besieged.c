/* Two programs that check each other's bytes for a given time, whatever else arrives at their
 * ports.
 *
 *   besieged PORT [v6]                    serves
 *   besieged PORT HOST SECONDS [v6]       WRITEs to the server's region and announces that by a
 *                                         SEND; the server checks the bytes and answers
 *
 * v6: over the GID of fd00::/8. The server prints "aim NUMBER" for its first QP and for some more,
 * which are connected to nonexistent QPs and begin with sequence number 100, as targets for
 * guesses.
 *
 * When a connection ends with an error, both sides make a new one. The region is between two pages
 * of known bytes, and these are between two inaccessible pages; every other region has the same
 * layout. At the end each side prints what it did:
 *   connections C exchanges X errors E wrong W last RIGHT|WRONG canaries INTACT|CHANGED
 *   rss BEFORE AFTER (KiB), all on one line
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define SIZE (4 * PAGE)
#define MESSAGE 3000
#define RECVS 16
#define CANARY 0xc5
#define BAITS 4
#define BAIT_PSN 100
/* The timeouts of the QP expire long before this. */
#define PATIENCE 20

enum { DATA, NOTE, AREAS };

static struct {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp, *baits[BAITS];
	unsigned gid_index;
	unsigned char *area[AREAS];
	struct ibv_mr *mr[AREAS];
	union ibv_gid gid;
	FILE *in, *out;
	int tcp;
	uint64_t addr;
	uint32_t rkey;
	long connections, exchanges, errors, wrong, rss;
	int last_right;
} x;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static long rss(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%*d %ld", &pages) != 1)
		die("statm");
	fclose(f);
	return pages * (PAGE / 1024);
}

static unsigned char pattern(uint32_t at, uint32_t seed)
{
	return (unsigned char)(at * 167 + (at >> 8) * 13 + seed * 31 + (seed >> 8));
}

static void make_area(int i)
{
	unsigned char *all = mmap(NULL, SIZE + 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED || mprotect(all + PAGE, SIZE + 2 * PAGE, PROT_READ | PROT_WRITE))
		die("mmap");
	memset(all + PAGE, CANARY, PAGE);
	memset(all + 2 * PAGE + SIZE, CANARY, PAGE);
	x.area[i] = all + 2 * PAGE;
	x.mr[i] = ibv_reg_mr(x.pd, x.area[i], SIZE,
			     i == DATA ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
				       : IBV_ACCESS_LOCAL_WRITE);
	if (!x.mr[i])
		die("ibv_reg_mr");
}

static int canaries_intact(void)
{
	for (int i = 0; i < AREAS; i++)
		for (int at = 0; at < PAGE; at++)
			if (x.area[i][at - PAGE] != CANARY || x.area[i][SIZE + at] != CANARY)
				return 0;
	return 1;
}

static void connect_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = x.cq, .recv_cq = x.cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	uint32_t psn = (uint32_t)random() & 0xffffff;
	union ibv_gid gid;
	unsigned qpn, peer_psn;
	char raw[33] = "";
	struct ibv_wc wc;

	if (x.qp && ibv_destroy_qp(x.qp))
		die("ibv_destroy_qp");
	while (ibv_poll_cq(x.cq, 1, &wc) > 0)
		;
	x.qp = ibv_create_qp(x.pd, &init);
	if (!x.qp || ibv_modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	for (int i = 0; i < RECVS; i++) {
		struct ibv_sge sge = { (uintptr_t)x.area[NOTE] + 64 * i, 64, x.mr[NOTE]->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		if (ibv_post_recv(x.qp, &wr, &bad))
			die("ibv_post_recv");
	}
	for (int i = 0; i < 16; i++)
		sprintf(raw + 2 * i, "%02x", x.gid.raw[i]);
	fprintf(x.out, "%u %u %lu %u %s\n", x.qp->qp_num, psn, (unsigned long)(uintptr_t)x.area[DATA], x.mr[DATA]->rkey, raw);
	fflush(x.out);
	if (fscanf(x.in, "%u %u %lu %u %32s", &qpn, &peer_psn, &x.addr, &x.rkey, raw) != 5 || fgetc(x.in) != '\n')
		die("the other side");
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		sscanf(raw + 2 * i, "%2x", &byte);
		gid.raw[i] = (unsigned char)byte;
	}
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = peer_psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = x.gid_index, .hop_limit = 64 } } };
	if (ibv_modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = psn,
		.max_rd_atomic = 1 };
	if (ibv_modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
	/* Both are ready before either begins. */
	fputs("ready\n", x.out);
	fflush(x.out);
	if (fgetc(x.in) != 'r' || fscanf(x.in, "%*[^\n]") != 0 || fgetc(x.in) != '\n')
		die("ready");
	x.connections++;
}

/* QPs that accept WRITEs and READs from anyone who knows the key. Nobody does. */
static void lay_baits(void)
{
	struct ibv_qp_init_attr init = { .send_cq = x.cq, .recv_cq = x.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr connected, attr;
	struct ibv_qp_init_attr unused;

	if (ibv_query_qp(x.qp, &connected, IBV_QP_AV, &unused))
		die("query_qp");
	printf("aim %u\n", x.qp->qp_num);
	for (int i = 0; i < BAITS; i++) {
		x.baits[i] = ibv_create_qp(x.pd, &init);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
			.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
		if (!x.baits[i] || ibv_modify_qp(x.baits[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
									    IBV_QP_ACCESS_FLAGS))
			die("bait INIT");
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 0x3fffff,
			.rq_psn = BAIT_PSN, .max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = connected.ah_attr };
		if (ibv_modify_qp(x.baits[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
			die("bait RTR");
		printf("aim %u\n", x.baits[i]->qp_num);
	}
	printf("that is all\n");
	fflush(stdout);
}

static void find_gid(int is_v6)
{
	for (;; x.gid_index++) {
		if (ibv_query_gid(x.ctx, 1, x.gid_index, &x.gid))
			die("no such GID");
		if (!is_v6 || x.gid.raw[0] == 0xfd)
			return;
	}
}

static int post(enum ibv_wr_opcode opcode, int area, uint32_t length, uint32_t imm)
{
	struct ibv_sge sge = { (uintptr_t)x.area[area] + (area == NOTE ? 2 * PAGE : 0), length, x.mr[area]->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = htonl(imm),
		.wr.rdma = { x.addr, x.rkey } }, *bad;

	return ibv_post_send(x.qp, &wr, &bad);
}

/* The next completion: 1; none yet: 0; an error: -1. Posts a new receive for each one taken. */
static int next(struct ibv_wc *wc)
{
	int found = ibv_poll_cq(x.cq, 1, wc);

	if (found < 0)
		die("ibv_poll_cq");
	if (!found) {
		usleep(100);
		return 0;
	}
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "connection %ld ended: %s\n", x.connections, ibv_wc_status_str(wc->status));
		return -1;
	}
	if (wc->opcode == IBV_WC_RECV) {
		struct ibv_sge sge = { (uintptr_t)x.area[NOTE] + 64 * wc->wr_id, 64, x.mr[NOTE]->lkey };
		struct ibv_recv_wr wr = { .wr_id = wc->wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

		if (ibv_post_recv(x.qp, &wr, &bad))
			return -1;
	}
	return 1;
}

/* One WRITE and the server's answer. Returns whether everything succeeded. */
static int exchange(uint32_t seed)
{
	double end = now() + PATIENCE;
	int left = 3;

	for (uint32_t i = 0; i < MESSAGE; i++)
		x.area[DATA][i] = pattern(i, seed);
	if (post(IBV_WR_RDMA_WRITE, DATA, MESSAGE, 0) || post(IBV_WR_SEND_WITH_IMM, NOTE, 8, seed))
		return -1;
	while (left > 0) {
		struct ibv_wc wc;
		int found = next(&wc);

		if (found < 0)
			return -1;
		if (!found) {
			if (now() > end) {
				fprintf(stderr, "no answer to exchange %u\n", seed);
				return -1;
			}
			continue;
		}
		left--;
		if (wc.opcode == IBV_WC_RECV) {
			x.last_right = wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 1;
			x.wrong += !x.last_right;
		}
	}
	x.exchanges++;
	return 0;
}

static void client(double seconds)
{
	double end = now() + seconds;
	uint32_t seed = 0;
	int settled = 0;

	/* The last exchange must end after the time is up, and succeed. */
	while (!settled) {
		int failed = 0;

		connect_qp();
		while (!failed && !settled) {
			failed = exchange(++seed) != 0;
			settled = !failed && x.last_right && now() >= end;
			if (x.exchanges == 20)
				x.rss = rss();
		}
		x.errors += failed;
		fputs(settled ? "enough\n" : "again\n", x.out);
		fflush(x.out);
	}
}

/* Whether the client continues with another connection. */
static int serve(void)
{
	int failed = 0;

	for (;;) {
		struct pollfd word = { .fd = x.tcp, .events = POLLIN };
		struct ibv_wc wc;
		int found = failed ? 0 : next(&wc);

		if (found > 0 && wc.opcode == IBV_WC_RECV) {
			uint32_t seed = ntohl(wc.imm_data), i = 0;

			while (i < MESSAGE && x.area[DATA][i] == pattern(i, seed))
				i++;
			x.last_right = i == MESSAGE;
			x.wrong += !x.last_right;
			x.exchanges++;
			if (x.exchanges == 20)
				x.rss = rss();
			failed = post(IBV_WR_SEND_WITH_IMM, NOTE, 8, x.last_right) != 0;
		}
		failed |= found < 0;
		if (found <= 0 && poll(&word, 1, failed ? 1000 : 0) > 0) {
			char line[16];

			if (!fgets(line, sizeof line, x.in))
				die("the client");
			x.errors += failed;
			return line[0] == 'a';
		}
	}
}

static int listening(const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *ai;
	int one = 1, fd;

	if (getaddrinfo(NULL, port, &hints, &ai))
		die("getaddrinfo");
	fd = socket(ai->ai_family, ai->ai_socktype, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, 1))
		die("bind");
	return accept(fd, NULL, NULL);
}

static int connected(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *ai;
	int fd;

	if (getaddrinfo(host, port, &hints, &ai))
		die("getaddrinfo");
	fd = socket(ai->ai_family, ai->ai_socktype, 0);
	if (connect(fd, ai->ai_addr, ai->ai_addrlen))
		die("connect");
	return fd;
}

int main(int argc, char **argv)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	int one = 1, is_v6 = argc > 2 && !strcmp(argv[argc - 1], "v6");

	argc -= is_v6;
	if (argc != 2 && argc != 4)
		return 2;
	srandom((unsigned)getpid());
	x.ctx = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	x.pd = x.ctx ? ibv_alloc_pd(x.ctx) : NULL;
	x.cq = x.pd ? ibv_create_cq(x.ctx, 64, NULL, NULL, 0) : NULL;
	if (!x.cq)
		die("no device");
	find_gid(is_v6);
	for (int i = 0; i < AREAS; i++)
		make_area(i);
	x.tcp = argc == 2 ? listening(argv[1]) : connected(argv[2], argv[1]);
	if (x.tcp < 0)
		die("accept");
	setsockopt(x.tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	x.in = fdopen(x.tcp, "r");
	x.out = fdopen(dup(x.tcp), "w");
	setvbuf(x.in, NULL, _IONBF, 0);
	if (argc == 4)
		client(atof(argv[3]));
	else
		do {
			connect_qp();
			if (!x.baits[0])
				lay_baits();
		} while (serve());
	printf("connections %ld exchanges %ld errors %ld wrong %ld last %s canaries %s rss %ld %ld\n", x.connections, x.exchanges,
	       x.errors, x.wrong, x.last_right ? "right" : "wrong", canaries_intact() ? "intact" : "changed", x.rss, rss());
	fflush(stdout);
	ibv_destroy_qp(x.qp);
	for (int i = 0; i < BAITS && x.baits[i]; i++)
		ibv_destroy_qp(x.baits[i]);
	for (int i = 0; i < AREAS; i++)
		ibv_dereg_mr(x.mr[i]);
	ibv_destroy_cq(x.cq);
	ibv_dealloc_pd(x.pd);
	ibv_close_device(x.ctx);
	return 0;
}
