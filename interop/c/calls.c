/* A program that repeats the calls that every program makes, open(2) among them, with at most 1,024
 * open files. It prints "ready" before the first call. After SIGINT it makes each call 200 times
 * more, and prints how many milliseconds the slowest call took, and which one it was. It ends if a
 * call fails. */
#include "rc_loopback.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#define FILES 1024
#define LAST_ROUNDS 200
#define REGION 4096
/* A QPN of the last process number of this host, which no honest process has: what a peer may use
 * must be taken away from it before the QP is destroyed. */
#define STRANGER (1023u << 14 | 1)

static unsigned char region[REGION] __attribute__((aligned(4096)));
static volatile sig_atomic_t told;
static double slowest;
static const char *slowest_call = "none";

static void tell(int signal)
{
	(void)signal;
	told = 1;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* Records how long a call took since it began, and ends the program if the call failed. */
static double took(const char *call, double since, int ok)
{
	double end = now();

	if (!ok) {
		perror(call);
		exit(1);
	}
	if (end - since > slowest) {
		slowest = end - since;
		slowest_call = call;
	}
	return now();
}

static void round_of_calls(struct ibv_pd *pd, struct ibv_cq *cq, const union ibv_gid *gid)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_port_attr port;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	double at = now();
	int fd;

	fd = open("/dev/null", O_RDONLY);
	at = took("open", at, fd >= 0 && !close(fd));
	mr = ibv_reg_mr(pd, region, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	at = took("ibv_reg_mr", at, mr != NULL);
	at = took("ibv_dereg_mr", at, !ibv_dereg_mr(mr));
	qp = ibv_create_qp(pd, &init);
	at = took("ibv_create_qp", at, qp != NULL);
	at = took("ibv_modify_qp", at, !loop_connect(qp, STRANGER, gid, 14));
	at = took("ibv_destroy_qp", at, !ibv_destroy_qp(qp));
	took("ibv_query_port", at, !ibv_query_port(pd->context, 1, &port));
}

int main(void)
{
	struct rlimit files = { FILES, FILES };
	struct sigaction action = { .sa_handler = tell };
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *first;
	union ibv_gid gid;

	if (setrlimit(RLIMIT_NOFILE, &files) || sigaction(SIGINT, &action, NULL))
		return 2;
	ctx = loop_device();
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	cq = pd ? ibv_create_cq(ctx, 4, NULL, NULL, 0) : NULL;
	first = cq ? ibv_reg_mr(pd, region, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
	took("the device", now(), first && !ibv_query_gid(ctx, 1, 0, &gid));
	puts("ready");
	fflush(stdout);
	while (!told) {
		round_of_calls(pd, cq, &gid);
		usleep(1000);
	}
	for (int i = 0; i < LAST_ROUNDS; i++)
		round_of_calls(pd, cq, &gid);
	double at = now();

	at = took("the first ibv_dereg_mr", at, !ibv_dereg_mr(first));
	took("ibv_close_device", at, !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	printf("slowest %.0f ms %s\n", slowest, slowest_call);
	return 0;
}
