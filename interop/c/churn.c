/* Short-lived processes, each of which sends to itself; with force_udp all of them share the UDP
 * port of the host.
 *
 *   churn RUNS AT_A_TIME    RUNS short processes, AT_A_TIME of them at once, beside one that
 *                           stays until all are done
 *
 * Every message of RC and of UD must arrive: UD never retries, and RC not before an ACK timeout
 * (LOOP_TIMEOUT; 0 is for ever). Every second short process ends without closing its device. Prints
 * how many processes lost a message.
 */
#include "rc_loopback.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define GRH 40
#define SIZE 256u
#define MESSAGES 40
#define QKEY 0x1234

struct datagrams {
	struct ibv_qp *qp;
	struct ibv_ah *ah;
};

static void die(const char *what)
{
	loop_fail(what);
	exit(2);
}

static void open_datagrams(struct loop *l, struct datagrams *d)
{
	struct ibv_qp_init_attr init = { .send_cq = l->cq, .recv_cq = l->cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } };

	if (ibv_query_gid(l->ctx, 1, 0, &way.grh.dgid) || !(d->ah = ibv_create_ah(l->pd, &way)))
		die("the way to oneself");
	if (!(d->qp = ibv_create_qp(l->pd, &init)))
		die("UD QP");
	if (ibv_modify_qp(d->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		die("UD INIT");
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(d->qp, &attr, IBV_QP_STATE))
		die("UD RTR");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(d->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die("UD RTS");
}

/* Sends a datagram to this process itself, and waits until it has been sent and received. */
static int datagram(struct loop *l, struct datagrams *d, unsigned seed)
{
	unsigned char *to = l->buf + LOOP_SIZE;
	struct ibv_sge out = { (uintptr_t)l->buf, SIZE, l->mr->lkey };
	struct ibv_sge in = { (uintptr_t)to, GRH + SIZE, l->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
		.wr.ud = { .ah = d->ah, .remote_qpn = d->qp->qp_num, .remote_qkey = QKEY } }, *bad_send;

	for (unsigned i = 0; i < SIZE; i++)
		l->buf[i] = (unsigned char)(i * 7 + seed);
	if (ibv_post_recv(d->qp, &recv, &bad_recv) || ibv_post_send(d->qp, &send, &bad_send))
		die("post");
	if (loop_poll(l->cq) || loop_poll(l->cq))
		return -1;
	if (memcmp(l->buf, to + GRH, SIZE))
		die("a datagram with other bytes");
	return 0;
}

/* Runs a process: for this many messages, or until it is told that all others are done. Exits with
 * 1 if a message was lost. */
static void live(volatile int *over, int closes)
{
	struct datagrams d;
	struct loop l;

	if (loop_open(&l))
		exit(2);
	open_datagrams(&l, &d);
	for (unsigned i = 0; over ? !*over : i < MESSAGES; i++)
		if (loop_write(&l, i) || datagram(&l, &d, i))
			exit(1);
	if (closes && (ibv_destroy_ah(d.ah) || ibv_destroy_qp(d.qp) || loop_close(&l)))
		exit(2);
	exit(0);
}

static pid_t start(volatile int *over, int closes)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (!pid)
		live(over, closes);
	return pid;
}

/* 1 if the process lost a message. */
static int lost(int status)
{
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
		die("a process");
	return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	int runs = argc > 1 ? atoi(argv[1]) : 0, at_a_time = argc > 2 ? atoi(argv[2]) : 1;
	int started = 0, running = 0, bad = 0, status;
	volatile int *over = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t stays;

	if (over == MAP_FAILED)
		die("mmap");
	for (stays = start(over, 1); started < runs || running; running--) {
		for (; started < runs && running < at_a_time; running++)
			start(NULL, started++ % 2);
		if (wait(&status) == stays)
			die("the one that stays ended");
		bad += lost(status);
	}
	*over = 1;
	if (waitpid(stays, &status, 0) != stays)
		die("waitpid");
	bad += lost(status);
	printf("%d processes, %d lost a message\n", runs + 1, bad);
	return 0;
}
