/* Memory of malloc that a peer reaches by a mapping (peerdma run --shared-heap), across a fork.
 *
 * The first process writes to blocks of the second. The second forks, and its child has the bytes
 * as they were: what either of the two or the peer writes then, the others do not see.
 * argv[1] is the role of the second, or the name of a case. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "rc_loopback.h"
#include "two_processes.h"

#define SMALL 8192
#define LARGE (40 << 20)
#define ATOMICS 10

struct hello {
	union ibv_gid gid;
	uint32_t qpn, rkey[2];
	uint64_t addr[2];
};

struct more {
	uint32_t rkey;
	uint64_t addr;
};

static struct loop open_one(union ibv_gid *gid)
{
	struct loop l = { .ctx = loop_device() };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };

	CHECK(l.ctx);
	CHECK((l.pd = ibv_alloc_pd(l.ctx)) && (l.cq = ibv_create_cq(l.ctx, 16, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = l.cq;
	CHECK((l.qp[0] = ibv_create_qp(l.pd, &init)));
	CHECK(!ibv_query_gid(l.ctx, 1, 0, gid));
	return l;
}

static struct ibv_mr *reg(struct loop *l, void *what, size_t len)
{
	struct ibv_mr *mr = ibv_reg_mr(l->pd, what, len,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					       IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	return mr;
}

static unsigned char pattern(size_t i, unsigned seed)
{
	return (unsigned char)(i * 31 + (i >> 8) + seed);
}

static void check(const unsigned char *at, size_t from, size_t len, unsigned seed)
{
	for (size_t i = from; i < len; i++)
		CHECK(at[i] == pattern(i, seed));
}

static void ask(int sock)
{
	char go = 'g';

	put(sock, &go, 1);
	get(sock, &go, 1);
}

static void answer(int sock)
{
	char go;

	get(sock, &go, 1);
}

static void owns(int sock)
{
	struct hello ours, theirs;
	struct loop l = open_one(&ours.gid);
	unsigned char *small = malloc(SMALL), *large;
	struct ibv_mr *mr = reg(&l, small, SMALL);
	struct more more = { 0 };
	int up[2], down[2], status;
	uint64_t *words;
	char go = 'g';
	pid_t child;

	/* The heap grows behind the first region. */
	CHECK((large = calloc(LARGE, 1)));
	ours.qpn = l.qp[0]->qp_num;
	ours.rkey[0] = mr->rkey;
	ours.addr[0] = (uintptr_t)small;
	mr = reg(&l, large, LARGE);
	ours.rkey[1] = mr->rkey;
	ours.addr[1] = (uintptr_t)large;
	put(sock, &ours, sizeof(ours));
	get(sock, &theirs, sizeof(theirs));
	CHECK(!loop_connect(l.qp[0], theirs.qpn, &theirs.gid, 14));
	put(sock, &go, 1);
	answer(sock);
	check(small, 0, SMALL, 1);
	check(large, 0, LARGE, 2);

	/* It grows behind what the peer has mapped. */
	CHECK((words = calloc(LARGE, 2)));
	more.addr = (uintptr_t)words + 2 * LARGE - 8;
	more.rkey = reg(&l, words, 2 * LARGE)->rkey;
	put(sock, &more, sizeof(more));
	answer(sock);
	CHECK(words[2 * LARGE / 8 - 1] == ATOMICS);

	CHECK(!pipe(up) && !pipe(down));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		unsigned char *more;

		memset(small, 0x77, 16);
		CHECK(write(up[1], &go, 1) == 1 && read(down[0], &go, 1) == 1);
		/* The peer has written to the parent in the meantime. */
		check(small, 16, SMALL, 1);
		check(large, 0, LARGE, 2);
		CHECK((more = malloc(LARGE)));
		memset(more, 1, LARGE);
		_exit(0);
	}
	CHECK(read(up[0], &go, 1) == 1);
	check(small, 0, SMALL, 1);
	put(sock, &go, 1);
	answer(sock);
	check(small, 0, SMALL, 3);
	check(large, 0, LARGE, 4);
	CHECK(write(down[1], &go, 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	put(sock, &go, 1);
	exit(0);
}

static void write_all(struct loop *l, unsigned char *from, size_t len, unsigned seed, uint64_t to, uint32_t rkey)
{
	for (size_t i = 0; i < len; i++)
		from[i] = pattern(i, seed);
	CHECK(!loop_post_write(l, from, (uint32_t)len, to, rkey));
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
}

static void add_one(struct loop *l, unsigned char *to, struct more at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)to, .length = 8, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = at.addr, .rkey = at.rkey, .compare_add = 1 } }, *bad;

	CHECK(!ibv_post_send(l->qp[0], &wr, &bad) && loop_poll(l->cq) == IBV_WC_SUCCESS);
}

static void opens(pid_t owner, int sock)
{
	struct more more;
	struct hello ours, theirs;
	struct loop l = open_one(&ours.gid);
	unsigned char *from = malloc(LARGE);
	int status;
	char go;

	l.mr = reg(&l, from, LARGE);
	ours.qpn = l.qp[0]->qp_num;
	get(sock, &theirs, sizeof(theirs));
	put(sock, &ours, sizeof(ours));
	CHECK(!loop_connect(l.qp[0], theirs.qpn, &theirs.gid, 14));
	get(sock, &go, 1);
	write_all(&l, from, SMALL, 1, theirs.addr[0], theirs.rkey[0]);
	write_all(&l, from, LARGE, 2, theirs.addr[1], theirs.rkey[1]);
	put(sock, &go, 1);
	get(sock, &more, sizeof(more));
	for (int i = 0; i < ATOMICS; i++)
		add_one(&l, from, more);
	ask(sock);
	write_all(&l, from, SMALL, 3, theirs.addr[0], theirs.rkey[0]);
	write_all(&l, from, LARGE, 4, theirs.addr[1], theirs.rkey[1]);
	ask(sock);
	CHECK(waitpid(owner, &status, 0) == owner && status == 0);
	CHECK(!ibv_destroy_qp(l.qp[0]) && !ibv_dereg_mr(l.mr) && !ibv_destroy_cq(l.cq) && !ibv_dealloc_pd(l.pd));
	CHECK(!ibv_close_device(l.ctx));
}

static int *shared_word;
static void *volatile block;

static int cloned(void *arg)
{
	*shared_word = 2;
	block = malloc(100000);
	free(block);
	return arg != shared_word;
}

/* A child without handlers of a fork, by libc and by a system call. */
static int children(const char *how)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	int status;
	pid_t pid;

	shared_word = malloc(10000);
	*shared_word = 1;
	if (!strcmp(how, "clone")) {
		pid = clone(cloned, stack + sizeof(stack), SIGCHLD, shared_word);
	} else {
		pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		if (pid == 0)
			_exit(cloned(shared_word));
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	if (!strcmp(how, "clone"))
		CHECK(status == 0 && *shared_word == 1);
	else
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	printf("ok\n");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "owns"))
		return children(argv[1]);
	return two_processes(argc, argv, owns, opens);
}
