/* A peer that is gone before its memory is written: argv[1] says how. "exec": it executes another
 * program, which keeps the pid. "pid": it is killed, and the next process gets its pid. Either
 * successor has its own memory at the address that the peer registered, and must find it unchanged.
 * The writer is stopped meanwhile, outside of any call, and writes as soon as it continues, so it
 * cannot have been told. Exit status 0 and "ok" mean success. */
#define _GNU_SOURCE
#include "rc_loopback.h"

#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ROUNDS 12
#define PLACE ((unsigned char *)0x600000000000)
#define SIZE (1 << 20)
#define PATTERN 0xa5

struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey;
};

/* What all of them share, in a file, since mappings do not survive an exec. */
struct control {
	struct end writer, target;
	atomic_int writer_is_known, target_is_known, writer_spins, must_go, successor_is_ready, must_write, must_look;
	atomic_int status;
};

static struct control *control;
static int file;

static void wait_for(atomic_int *flag)
{
	while (!atomic_load(flag))
		usleep(100);
}

static int map_control(void)
{
	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	return control == MAP_FAILED ? loop_fail("control") : 0;
}

static unsigned char *map_place(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	unsigned char *at = mmap(PLACE, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);

	return at == PLACE ? at : NULL;
}

/* The successor of the target. */
static int succeed(void)
{
	unsigned char *at = map_place();

	if (!at)
		return loop_fail("the place is taken");
	memset(at, PATTERN, SIZE);
	atomic_store(&control->successor_is_ready, 1);
	wait_for(&control->must_look);
	for (size_t i = 0; i < SIZE; i++)
		if (at[i] != PATTERN) {
			fprintf(stderr, "%d: byte %zu was overwritten: %#x\n", (int)getpid(), i, at[i]);
			return 1;
		}
	return 0;
}

static int open_end(struct loop *l, struct end *own, unsigned char *memory)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

	memset(l, 0, sizeof(*l));
	l->ctx = loop_device();
	l->pd = l->ctx ? ibv_alloc_pd(l->ctx) : NULL;
	l->cq = l->pd ? ibv_create_cq(l->ctx, 16, NULL, NULL, 0) : NULL;
	l->buf = memory;
	l->mr = l->cq ? ibv_reg_mr(l->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
	init.send_cq = init.recv_cq = l->cq;
	l->qp[0] = l->mr ? ibv_create_qp(l->pd, &init) : NULL;
	if (!l->qp[0] || ibv_query_gid(l->ctx, 1, 0, &own->gid))
		return loop_fail("objects");
	own->qpn = l->qp[0]->qp_num;
	own->rkey = l->mr->rkey;
	return 0;
}

static int target(const char *program, const char *how)
{
	unsigned char *memory = map_place();
	struct loop l;
	char number[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!memory || open_end(&l, &control->target, memory))
		return 1;
	wait_for(&control->writer_is_known);
	if (loop_connect(l.qp[0], control->writer.qpn, &control->writer.gid, 14))
		return 1;
	atomic_store(&control->target_is_known, 1);
	wait_for(&control->must_go);
	if (strcmp(how, "exec"))
		pause();
	snprintf(number, sizeof(number), "%d", file);
	execl(program, program, "successor", number, (char *)NULL);
	return loop_fail("exec");
}

static int writer(void)
{
	static unsigned char memory[SIZE];
	struct loop l;
	int status = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memset(memory, 1, sizeof(memory));
	if (open_end(&l, &control->writer, memory))
		return 1;
	atomic_store(&control->writer_is_known, 1);
	wait_for(&control->target_is_known);
	if (loop_connect(l.qp[0], control->target.qpn, &control->target.gid, 8))
		return 1;
	/* Often enough that it polls, and that everything is set up. */
	for (int i = 0; i < 2000; i++)
		if (loop_post_write(&l, memory, 8, (uintptr_t)PLACE, control->target.rkey) || loop_poll(l.cq))
			return loop_fail("the first writes");
	atomic_store(&control->writer_spins, 1);
	while (!atomic_load(&control->must_write))
		;
	for (int i = 0; i < 100 && !status; i++) {
		unsigned length = i % 2 ? SIZE : 8;

		errno = 0;
		if (loop_post_write(&l, memory, length, (uintptr_t)PLACE, control->target.rkey))
			return 1;
		status = loop_poll(l.cq);
	}
	atomic_store(&control->status, status);
	return 0;
}

static int ended_well(pid_t pid, const char *who)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "%s ended with wait status %#x\n", who, status);
		return -1;
	}
	return 0;
}

static int one_round(const char *program, const char *how)
{
	pid_t to, from;
	int status;

	file = memfd_create("control", 0);
	if (file < 0 || ftruncate(file, sizeof(*control)) || map_control())
		return loop_fail("control");
	to = fork();
	if (to == 0)
		_exit(target(program, how));
	from = fork();
	if (from == 0)
		_exit(writer());
	wait_for(&control->writer_spins);
	if (kill(from, SIGSTOP) || waitpid(from, &status, WUNTRACED) != from || !WIFSTOPPED(status))
		return loop_fail("stop");
	atomic_store(&control->must_go, 1);
	if (strcmp(how, "exec")) {
		struct clone_args next = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&to, .set_tid_size = 1 };

		kill(to, SIGKILL);
		waitpid(to, &status, 0);
		to = (pid_t)syscall(SYS_clone3, &next, sizeof(next));
		if (to == 0)
			_exit(succeed());
		if (to < 0)
			return loop_fail("the same pid again");
	}
	wait_for(&control->successor_is_ready);
	atomic_store(&control->must_write, 1);
	kill(from, SIGCONT);
	if (ended_well(from, "the writer"))
		return -1;
	atomic_store(&control->must_look, 1);
	if (ended_well(to, "the successor"))
		return -1;
	status = atomic_load(&control->status);
	if (status != IBV_WC_RETRY_EXC_ERR) {
		fprintf(stderr, "the write to a peer that is gone: status %d\n", status);
		return -1;
	}
	munmap(control, sizeof(*control));
	close(file);
	return 0;
}

/* In a pid namespace of its own, a process can choose a pid. */
static int in_pid_namespace(void)
{
	pid_t child;

	if (unshare(CLONE_NEWPID | (geteuid() ? CLONE_NEWUSER : 0)))
		return loop_fail("a pid namespace");
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return 0;
	}
	_exit(ended_well(child, "the namespace") ? 1 : 0);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "successor")) {
		file = atoi(argv[2]);
		return map_control() || succeed();
	}
	if (argc != 2)
		return 2;
	if (!strcmp(argv[1], "pid") && in_pid_namespace())
		return 1;
	for (int i = 0; i < ROUNDS; i++)
		if (one_round("/proc/self/exe", argv[1]))
			return 1;
	puts("ok");
	fflush(stdout);
	return 0;
}
