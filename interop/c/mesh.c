/* One of several hosts, each of which sends to every other over many QPs at once, and checks what
 * it receives.
 *
 *   mesh INDEX PORT QPS COUNT HOST...    INDEX is our place among the hosts; QPS QPs to each other
 *                                        host, COUNT messages on each
 *
 * Prints "ready" when all are connected, "all but host N" when only messages to or from host N
 * remain, and at the end: how many were sent; how far the slowest QP was when the first was done,
 * among all QPs and among those to the same host; and how much memory the process took for each QP
 * and its traffic.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_HOSTS 16
#define MAX_QPS 1024
#define SIZE 4096u
#define RECEIVES 4

struct conn {
	struct ibv_qp *qp;
	uint32_t qpn;
	int host, lane, sent, received;
};

static struct conn conns[MAX_QPS];
static int own, hosts, lanes, count, all;
/* Outstanding messages to and from each host, and the number of hosts with none left. */
static int left[MAX_HOSTS], finished;
static FILE *in[MAX_HOSTS], *out[MAX_HOSTS];
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char *buf;
/* Memory before the first QP. */
static long before;

static void die(const char *what, ...)
{
	va_list args;

	va_start(args, what);
	fprintf(stderr, "host %d: ", own);
	vfprintf(stderr, what, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static unsigned char *send_slot(int conn) { return buf + (size_t)conn * (RECEIVES + 1) * SIZE; }
static unsigned char *recv_slot(int conn, int slot) { return send_slot(conn) + (size_t)(slot + 1) * SIZE; }

/* What `from` sends to `to` on a lane as its n-th message. */
static unsigned char pattern(int from, int to, int lane, int n, unsigned at)
{
	return (unsigned char)(from * 31 + to * 17 + lane * 7 + n * 3 + at + (at >> 8));
}

static void join(char **names, int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), fd;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	inet_pton(AF_INET, names[own], &addr.sin_addr);
	if (bind(listener, (struct sockaddr *)&addr, sizeof(addr)) || listen(listener, MAX_HOSTS))
		die("listen: %s", strerror(errno));
	for (int other = 0; other < own; other++) {
		inet_pton(AF_INET, names[other], &addr.sin_addr);
		for (int tries = 0;; tries++) {
			fd = socket(AF_INET, SOCK_STREAM, 0);
			if (!connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
				break;
			close(fd);
			if (tries > 600)
				die("host %d does not listen", other);
			usleep(100000);
		}
		out[other] = fdopen(dup(fd), "w");
		in[other] = fdopen(fd, "r");
		fprintf(out[other], "%d\n", own);
		fflush(out[other]);
	}
	for (int left = hosts - own - 1; left > 0; left--) {
		int other;

		fd = accept(listener, NULL, NULL);
		FILE *file = fdopen(fd, "r");
		if (fscanf(file, "%d", &other) != 1 || other <= own || other >= hosts || in[other])
			die("who is that?");
		in[other] = file;
		out[other] = fdopen(dup(fd), "w");
	}
	close(listener);
}

static void to_all(const char *words)
{
	for (int other = 0; other < hosts; other++)
		if (other != own) {
			fprintf(out[other], "%s\n", words);
			fflush(out[other]);
		}
	for (int other = 0; other < hosts; other++) {
		char word[32];

		if (other != own && (fscanf(in[other], "%31s", word) != 1 || strcmp(word, words)))
			die("host %d is not %s", other, words);
	}
}

static void post_receive(int conn, int slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)recv_slot(conn, slot), .length = SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1u << 31 | conn << 8 | slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(conns[conn].qp, &wr, &bad))
		die("post_recv");
}

static void post_send(int conn)
{
	struct conn *c = &conns[conn];
	struct ibv_sge sge = { .addr = (uintptr_t)send_slot(conn), .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = conn, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htonl(c->sent), .send_flags = IBV_SEND_SIGNALED }, *bad;

	for (unsigned at = 0; at < SIZE; at++)
		send_slot(conn)[at] = pattern(own, c->host, c->lane, c->sent, at);
	if (ibv_post_send(c->qp, &wr, &bad))
		die("post_send");
}

/* KiB of this process that are not file pages. */
static long resident(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	while (status && kib < 0 && fgets(line, sizeof(line), status))
		sscanf(line, "RssAnon: %ld", &kib);
	if (kib < 0)
		die("no RssAnon");
	fclose(status);
	return kib;
}

static void open_qps(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	size_t size = (size_t)all * (RECEIVES + 1) * SIZE;

	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	cq = pd ? ibv_create_cq(ctx, all * (RECEIVES + 2), NULL, NULL, 0) : NULL;
	if (!cq || posix_memalign((void **)&buf, 4096, size))
		die("device: %s", strerror(errno));
	memset(buf, 0, size);
	mr = ibv_reg_mr(pd, buf, size, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("MR: %s", strerror(errno));
	before = resident();
	for (int i = 0; i < all; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 2, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

		conns[i].qp = ibv_create_qp(pd, &init);
		if (!conns[i].qp || ibv_modify_qp(conns[i].qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
									       IBV_QP_ACCESS_FLAGS))
			die("QP %d: %s", i, strerror(errno));
		conns[i].qpn = conns[i].qp->qp_num;
		conns[i].lane = i % lanes;
		conns[i].host = i / lanes + (i / lanes >= own);
		left[conns[i].host] += 2 * count;
		for (int slot = 0; slot < RECEIVES; slot++)
			post_receive(i, slot);
		fprintf(out[conns[i].host], "%u\n", conns[i].qpn);
	}
}

static void connect_qps(char **names)
{
	for (int other = 0; other < hosts; other++)
		if (other != own)
			fflush(out[other]);
	for (int i = 0; i < all; i++) {
		unsigned qpn;
		union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

		if (fscanf(in[conns[i].host], "%u", &qpn) != 1)
			die("host %d says nothing", conns[i].host);
		inet_pton(AF_INET, names[conns[i].host], gid.raw + 12);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn,
			.rq_psn = 77, .min_rnr_timer = 12, .max_dest_rd_atomic = 1,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
		if (ibv_modify_qp(conns[i].qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
							      IBV_QP_MIN_RNR_TIMER))
			die("RTR: %s", strerror(errno));
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 19, .retry_cnt = 7, .rnr_retry = 7,
			.sq_psn = 77, .max_rd_atomic = 1 };
		if (ibv_modify_qp(conns[i].qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
							      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
			die("RTS: %s", strerror(errno));
	}
}

static void received(const struct ibv_wc *wc)
{
	int conn = wc->wr_id >> 8 & 0x7fffff, slot = wc->wr_id & 0xff, n;
	struct conn *c = &conns[conn];

	n = ntohl(wc->imm_data);
	if (n != c->received || wc->byte_len != SIZE || wc->qp_num != c->qpn)
		die("from host %d lane %d: message %d of %u bytes, not %d", c->host, c->lane, n, wc->byte_len, c->received);
	for (unsigned at = 0; at < SIZE; at++)
		if (recv_slot(conn, slot)[at] != pattern(c->host, own, c->lane, n, at))
			die("from host %d lane %d: byte %u of message %d is wrong", c->host, c->lane, at, n);
	c->received++;
	post_receive(conn, slot);
}

/* One more message was sent to a host, or received from it. */
static void progress(int host)
{
	if (--left[host] || ++finished != hosts - 2)
		return;
	for (int other = 0; other < hosts; other++)
		if (other != own && left[other])
			printf("all but host %d\n", other);
}

/* The fewest messages that one of the QPs to a host has sent, or of all QPs if the host is
 * negative. */
static int least_sent(int host)
{
	int least = count;

	for (int i = 0; i < all; i++)
		if ((host < 0 || conns[i].host == host) && conns[i].sent < least)
			least = conns[i].sent;
	return least;
}

int main(int argc, char **argv)
{
	long total, sent = 0, got = 0;
	int slowest = -1, slowest_lane, done[MAX_HOSTS] = { 0 };

	if (argc < 7)
		return 2;
	own = atoi(argv[1]);
	lanes = atoi(argv[3]);
	count = atoi(argv[4]);
	hosts = argc - 5;
	all = (hosts - 1) * lanes;
	slowest_lane = count;
	if (own >= hosts || hosts > MAX_HOSTS || all > MAX_QPS)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	join(argv + 5, atoi(argv[2]));
	open_qps();
	connect_qps(argv + 5);
	to_all("ready");
	puts("ready");
	total = (long)all * count;
	for (int i = 0; i < all; i++)
		post_send(i);
	time_t last = time(NULL);
	while (sent < total || got < total) {
		struct ibv_wc wc[32];
		int n = ibv_poll_cq(cq, 32, wc);

		if (n < 0)
			die("poll_cq");
		if (n)
			last = time(NULL);
		else if (time(NULL) > last + 90)
			die("nothing comes: %ld of %ld sent, %ld received", sent, total, got);
		for (int i = 0; i < n; i++) {
			int conn = wc[i].wr_id & 0xffffff;

			if (wc[i].status)
				die("%s (vendor_err %u)", ibv_wc_status_str(wc[i].status), wc[i].vendor_err);
			if (wc[i].wr_id >> 31) {
				received(&wc[i]);
				progress(conns[wc[i].wr_id >> 8 & 0x7fffff].host);
				got++;
				continue;
			}
			progress(conns[conn].host);
			sent++;
			if (++conns[conn].sent < count) {
				post_send(conn);
			} else {
				int host = conns[conn].host;

				if (slowest < 0)
					slowest = least_sent(-1);
				/* The first to this host. */
				if (!done[host]++) {
					int lane = least_sent(host);

					if (lane < slowest_lane)
						slowest_lane = lane;
				}
			}
		}
	}
	/* A host that ended earlier would not acknowledge retransmissions. */
	to_all("done");
	double each = (double)(resident() - before) / all;
	for (int i = 0; i < all; i++)
		if (ibv_destroy_qp(conns[i].qp))
			die("destroy_qp");
	if (ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(ctx))
		die("close");
	printf("%ld sent, %ld received; the slowest of %d QPs had sent %d of %d when the first was done, of %d to one host slowest=%d; "
	       "%.1f KiB for each QP\n",
	       sent, got, all, slowest, count, lanes, slowest_lane, each);
	return 0;
}
