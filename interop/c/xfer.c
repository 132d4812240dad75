/* Every operation of a reliable connection, at many sizes, between two hosts, with every byte
 * checked on the far side: one at a time, and then SENDs, WRITEs and READs sixteen at a time.
 *
 *   xfer -d DEVICE -g GID_INDEX -m MTU -p PORT              serves
 *   xfer -d DEVICE -g GID_INDEX -m MTU -p PORT [-l] HOST    requests the operations; -l: large, too
 *
 * -t CODE: the local ACK timeout, a second if it is not given.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM (8u << 20)
#define GUARD 64u
#define PATIENCE 60
/* The number of requests in flight, and the space that each has on both sides. */
#define BURST 16u
#define SLOT (256u << 10)

enum op { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, CAS, FAA, OPS };
static const char *const names[OPS] = { "SEND", "SEND_WITH_IMM", "WRITE", "WRITE_WITH_IMM", "READ", "CMP_SWAP",
					"FETCH_ADD" };

static struct {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *buf;
	FILE *in, *out;
	uint64_t addr;
	uint32_t rkey;
} x;

static void die(const char *what, ...)
{
	va_list args;

	va_start(args, what);
	vfprintf(stderr, what, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static unsigned char pattern(uint32_t at, uint32_t seed)
{
	return (unsigned char)(at * 167 + (at >> 8) * 13 + (at >> 16) * 7 + seed);
}

static void fill(uint32_t size, uint32_t seed)
{
	for (uint32_t i = 0; i < size; i++)
		x.buf[i] = pattern(i, seed);
	memset(x.buf + size, 0xee, GUARD);
}

static void check(const char *what, uint32_t size, uint32_t seed)
{
	for (uint32_t i = 0; i < size; i++)
		if (x.buf[i] != pattern(i, seed))
			die("%s of %u bytes: byte %u is wrong", what, size, i);
	for (uint32_t i = size; i < size + GUARD; i++)
		if (x.buf[i] != 0xee)
			die("%s of %u bytes: byte %u was written, too", what, size, i);
}

static int dial(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	int one = 1, fd, conn;

	if (!host)
		hints.ai_flags = AI_PASSIVE;
	if (getaddrinfo(host, port, &hints, &found))
		die("no address");
	for (int tries = 0; tries < PATIENCE * 5; tries++) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (host) {
			if (!connect(fd, found->ai_addr, found->ai_addrlen))
				return fd;
		} else if (!bind(fd, found->ai_addr, found->ai_addrlen) && !listen(fd, 1)) {
			conn = accept(fd, NULL, NULL);
			close(fd);
			return conn;
		}
		close(fd);
		usleep(200000);
	}
	die("no connection: %s", strerror(errno));
	return -1;
}

static struct ibv_wc complete(const char *what)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + PATIENCE;
	int n;

	while (!(n = ibv_poll_cq(x.cq, 1, &wc)))
		if (time(NULL) > end)
			die("%s: no completion", what);
	if (n < 0)
		die("%s: poll", what);
	if (wc.status)
		die("%s: %s (%d, vendor_err %u)", what, ibv_wc_status_str(wc.status), wc.status, wc.vendor_err);
	return wc;
}

static void open_device(const char *device)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			x.ctx = ibv_open_device(list[i]);
	if (!x.ctx)
		die("no device %s", device);
	x.pd = ibv_alloc_pd(x.ctx);
	x.cq = ibv_create_cq(x.ctx, 4 * BURST, NULL, NULL, 0);
	if (posix_memalign((void **)&x.buf, 4096, ROOM + 4096))
		die("memory");
	memset(x.buf, 0, ROOM + 4096);
	x.mr = ibv_reg_mr(x.pd, x.buf, ROOM + 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_qp_init_attr init = { .send_cq = x.cq, .recv_cq = x.cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = BURST, .max_recv_wr = BURST, .max_send_sge = 1, .max_recv_sge = 1 } };
	x.qp = x.mr ? ibv_create_qp(x.pd, &init) : NULL;
	if (!x.qp)
		die("MR or QP: %s", strerror(errno));
}

static void connect_qp(int gid_index, int mtu, int timeout)
{
	union ibv_gid gid, theirs;
	char raw[33], *byte = raw;
	unsigned qpn, psn, own_psn = 0x1234;

	if (ibv_query_gid(x.ctx, 1, gid_index, &gid))
		die("GID %d", gid_index);
	for (int i = 0; i < 16; i++, byte += 2)
		sprintf(byte, "%02x", gid.raw[i]);
	fprintf(x.out, "%u %u %s %llu %u\n", x.qp->qp_num, own_psn, raw, (unsigned long long)(uintptr_t)x.buf,
		x.mr->rkey);
	fflush(x.out);
	unsigned long long addr;
	if (fscanf(x.in, "%u %u %32s %llu %u", &qpn, &psn, raw, &addr, &x.rkey) != 5)
		die("the peer says nothing");
	fgetc(x.in);
	x.addr = addr;
	for (int i = 0; i < 16; i++) {
		unsigned value;

		sscanf(raw + 2 * i, "%2x", &value);
		theirs.raw[i] = value;
	}
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	if (ibv_modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT: %s", strerror(errno));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = theirs, .sgid_index = gid_index, .hop_limit = 64 } } };
	for (attr.path_mtu = IBV_MTU_256; 128 << attr.path_mtu != mtu && attr.path_mtu < IBV_MTU_4096;)
		attr.path_mtu++;
	if (ibv_modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR: %s", strerror(errno));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 7, .rnr_retry = 7,
		.sq_psn = own_psn, .max_rd_atomic = 4 };
	if (ibv_modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS: %s", strerror(errno));
}

static void hear(const char *wanted)
{
	char line[64] = "";

	if (!fgets(line, sizeof(line), x.in) || strncmp(line, wanted, strlen(wanted)))
		die("the peer says %s, not %s", *line ? line : "nothing", wanted);
}

static void say(const char *words)
{
	fprintf(x.out, "%s\n", words);
	fflush(x.out);
}

static const enum ibv_wr_opcode codes[OPS] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
	IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };

/* The n-th request of a burst, and whether the server has a receive for it. */
static unsigned op_of(unsigned n, unsigned seed) { return (n * 3 + n / 5 + seed) % CAS; }
static int receives(unsigned op) { return op == SEND || op == SEND_IMM || op == WRITE_IMM; }

/* Fills the places of a burst: with bytes to send or read, or with bytes to be overwritten. */
static void lay_out(uint32_t size, unsigned seed, int asks)
{
	for (unsigned n = 0; n < BURST; n++) {
		unsigned char *slot = x.buf + n * SLOT;
		int is_source = (op_of(n, seed) == READ) != asks;

		memset(slot, 0xee, size + GUARD);
		for (uint32_t i = 0; i < size && is_source; i++)
			slot[i] = pattern(i, seed + n);
	}
}

/* Checks the places that the other side filled. */
static void look(uint32_t size, unsigned seed, int asks)
{
	for (unsigned n = 0; n < BURST; n++) {
		const unsigned char *slot = x.buf + n * SLOT;

		if ((op_of(n, seed) == READ) != asks)
			continue;
		for (uint32_t i = 0; i < size + GUARD; i++)
			if (slot[i] != (i < size ? pattern(i, seed + n) : 0xee))
				die("%s %u of a burst: byte %u of %u is wrong", names[op_of(n, seed)], n, i, size);
	}
}

static void serve_burst(uint32_t size, unsigned seed)
{
	lay_out(size, seed, 0);
	for (unsigned n = 0; n < BURST; n++) {
		unsigned op = op_of(n, seed);
		struct ibv_sge sge = { .addr = (uintptr_t)(x.buf + n * SLOT), .length = size, .lkey = x.mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = op != WRITE_IMM }, *bad;

		if (receives(op) && ibv_post_recv(x.qp, &wr, &bad))
			die("post_recv");
	}
	say("ready");
	for (unsigned n = 0; n < BURST; n++) {
		unsigned op = op_of(n, seed);

		if (!receives(op))
			continue;
		struct ibv_wc wc = complete("a burst");

		if (wc.wr_id != n || wc.byte_len != size)
			die("burst: receive %u of %u bytes, not %u of %u", (unsigned)wc.wr_id, wc.byte_len, n, size);
		if (op != SEND && (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != seed + n))
			die("burst: immediate data %x", ntohl(wc.imm_data));
	}
	hear("done");
	look(size, seed, 0);
	say("right");
}

static void ask_burst(uint32_t size, unsigned seed)
{
	lay_out(size, seed, 1);
	fprintf(x.out, "%u %u %u\n", OPS, size, seed);
	fflush(x.out);
	hear("ready");
	for (unsigned n = 0; n < BURST; n++) {
		struct ibv_sge sge = { .addr = (uintptr_t)(x.buf + n * SLOT), .length = size, .lkey = x.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = codes[op_of(n, seed)],
			.imm_data = htonl(seed + n), .wr.rdma = { x.addr + n * SLOT, x.rkey } }, *bad;

		if (ibv_post_send(x.qp, &wr, &bad))
			die("post_send");
	}
	for (unsigned n = 0; n < BURST; n++) {
		struct ibv_wc wc = complete("a burst");

		if (wc.wr_id != n)
			die("burst: request %u completes, not %u", (unsigned)wc.wr_id, n);
	}
	look(size, seed, 1);
	say("done");
	hear("right");
}

static void serve(void)
{
	unsigned op, size, seed, count = 0;
	char line[64];

	while (fgets(line, sizeof(line), x.in) && sscanf(line, "%u %u %u", &op, &size, &seed) == 3 && op <= OPS) {
		if (op == OPS) {
			serve_burst(size, seed);
			count++;
			continue;
		}
		uint64_t before = 0x1122334455667788ull * seed, *word = (uint64_t *)x.buf;
		int is_received = receives(op);

		if (op == READ)
			fill(size, seed);
		else
			memset(x.buf, 0xee, size + GUARD);
		if (op == CAS || op == FAA)
			*word = before;
		if (is_received) {
			struct ibv_sge sge = { .addr = (uintptr_t)x.buf, .length = size, .lkey = x.mr->lkey };
			struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = op != WRITE_IMM }, *bad;

			if (ibv_post_recv(x.qp, &wr, &bad))
				die("post_recv");
		}
		say("ready");
		if (is_received) {
			struct ibv_wc wc = complete(names[op]);

			if (wc.byte_len != size)
				die("%s: %u bytes instead of %u", names[op], wc.byte_len, size);
			if (op != SEND && (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != (seed ^ size)))
				die("%s: immediate data %x", names[op], ntohl(wc.imm_data));
		}
		hear("done");
		if (op == CAS || op == FAA) {
			uint64_t after = op == CAS ? ~before : before + seed;

			if (*word != after)
				die("%s: %llx", names[op], (unsigned long long)*word);
		} else if (op != READ) {
			check(names[op], size, seed);
		}
		say("right");
		count++;
	}
	printf("%u exchanges\n", count);
}

static void ask(unsigned op, uint32_t size, uint32_t seed)
{
	struct ibv_sge sge = { .addr = (uintptr_t)x.buf, .length = size, .lkey = x.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .imm_data = htonl(seed ^ size) }, *bad;
	uint64_t before = 0x1122334455667788ull * seed;

	wr.opcode = codes[op];
	if (op == READ || op >= CAS)
		memset(x.buf, 0xee, size + GUARD);
	else
		fill(size, seed);
	if (op >= CAS) {
		wr.wr.atomic.remote_addr = x.addr;
		wr.wr.atomic.rkey = x.rkey;
		wr.wr.atomic.compare_add = op == CAS ? before : seed;
		wr.wr.atomic.swap = ~before;
	} else if (op >= WRITE) {
		wr.wr.rdma.remote_addr = x.addr;
		wr.wr.rdma.rkey = x.rkey;
	}
	fprintf(x.out, "%u %u %u\n", op, size, seed);
	fflush(x.out);
	hear("ready");
	if (ibv_post_send(x.qp, &wr, &bad))
		die("post_send");
	complete(names[op]);
	if (op == READ)
		check(names[op], size, seed);
	if (op >= CAS && *(uint64_t *)x.buf != before)
		die("%s: old value %llx", names[op], (unsigned long long)*(uint64_t *)x.buf);
	say("done");
	hear("right");
}

int main(int argc, char **argv)
{
	const char *device = "", *port = "18515";
	uint32_t sizes[16];
	unsigned most = 0;
	int gid_index = 0, timeout = 18, option;
	uint32_t mtu = 1024, count = 0;

	while ((option = getopt(argc, argv, "d:g:lm:p:t:")) != -1) {
		switch (option) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'l':
			for (uint32_t size = 2u << 20; size <= ROOM; size *= 2)
				sizes[most++] = size;
			break;
		case 'm': mtu = atoi(optarg); break;
		case 'p': port = optarg; break;
		case 't': timeout = atoi(optarg); break;
		default: return 2;
		}
	}
	/* The device may get its addresses from an interface that comes up with the peer. */
	int fd = dial(argv[optind], port);
	x.in = fdopen(fd, "r");
	x.out = fdopen(dup(fd), "w");
	open_device(device);
	connect_qp(gid_index, mtu, timeout);
	say("go");
	hear("go");
	if (!argv[optind]) {
		serve();
		return 0;
	}
	const uint32_t all[] = { 1, 3, 4, 255, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 2, 65541, 1 << 20 };
	for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)
		sizes[most++] = all[i];
	for (unsigned op = 0; op < OPS; op++) {
		if (op >= CAS) {
			ask(op, 8, ++count);
			continue;
		}
		for (unsigned i = 0; i < most; i++)
			ask(op, sizes[i], ++count);
	}
	for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (all[i] <= SLOT / 2)
			for (unsigned n = 0; n < CAS; n++)
				ask_burst(all[i], ++count);
	puts("every exchange was right");
	return 0;
}
