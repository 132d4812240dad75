/* fork() in every order that programs use it. argv[1] names the case; exit status 0 and "ok" mean
 * success. */
#include "rc_loopback.h"

#include <sys/wait.h>

static int waited(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "the child ended with wait status %#x\n", status);
		return -1;
	}
	return 0;
}

/* The child does not touch verbs; the parent continues. */
static int child_idle(struct loop *l)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	return waited(pid) || loop_write(l, 2);
}

/* Parent and child both move data, each by a device of its own, at the same time. */
static int both(struct loop *l)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct loop own;
		_exit(loop_open(&own) || loop_write(&own, 3) || loop_write(&own, 4) || loop_close(&own));
	}
	return loop_write(l, 5) || loop_write(l, 6) || waited(pid);
}

/* Objects that a child inherits: posting fails, destroying succeeds, and the parent does not
 * notice. */
static int husks(struct loop *l)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct ibv_sge sge = { .addr = (uintptr_t)l->buf, .length = 8, .lkey = l->mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { .remote_addr = (uintptr_t)l->buf, .rkey = l->mr->rkey } }, *bad;
		if (ibv_post_send(l->qp[0], &wr, &bad) == 0) {
			fprintf(stderr, "a child posted on its parent's queue pair\n");
			_exit(1);
		}
		l->buf = NULL; /* the copy of the parent's memory goes with the process */
		_exit(loop_close(l) != 0);
	}
	return waited(pid) || loop_write(l, 7);
}

/* The parent ends first; its child opens the device afterwards and works alone. */
static int orphan(struct loop *l)
{
	int gone[2], done[2];
	char byte = 0;

	if (pipe(gone) || pipe(done))
		return loop_fail("pipe");
	pid_t parent = fork();
	if (parent == 0) {
		/* This process opens verbs, forks and exits. */
		struct loop own;
		if (loop_open(&own) || loop_write(&own, 8))
			_exit(1);
		if (fork() == 0) {
			struct loop late;
			close(gone[1]);
			/* End of file: every holder of the other end, thus the parent, has ended. */
			if (read(gone[0], &byte, 1) != 0)
				_exit(1);
			byte = loop_open(&late) == 0 && loop_write(&late, 9) == 0 && loop_close(&late) == 0 ? 'y' : 'n';
			_exit(write(done[1], &byte, 1) != 1);
		}
		_exit(0);
	}
	close(gone[1]);
	close(done[1]);
	if (waited(parent) || read(done[0], &byte, 1) != 1 || byte != 'y')
		return loop_fail("the orphan");
	return loop_write(l, 10);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	struct loop l;
	int rc;

	if (loop_open(&l) || loop_write(&l, 1))
		return 1;
	if (!strcmp(name, "child_idle"))
		rc = child_idle(&l);
	else if (!strcmp(name, "both"))
		rc = both(&l);
	else if (!strcmp(name, "husks"))
		rc = husks(&l);
	else if (!strcmp(name, "orphan"))
		rc = orphan(&l);
	else
		return 2;
	if (rc || loop_close(&l))
		return 1;
	puts("ok");
	return 0;
}
