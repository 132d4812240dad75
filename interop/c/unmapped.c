/* Memory that vanished under its MR: a completion with an error, never a signal; a new queue pair
 * works. */
#include "rc_loopback.h"

#include <sys/mman.h>

static void *pages(void)
{
	void *at = mmap(NULL, LOOP_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : memset(at, 1, LOOP_SIZE);
}

static int expect(const char *what, int got, int one, int other)
{
	if (got == one || got == other)
		return 0;
	fprintf(stderr, "%s: %s\n", what, got < 0 ? "no completion" : ibv_wc_status_str(got));
	return -1;
}

int main(int argc, char **argv)
{
	struct loop l;
	struct ibv_mr *gone;
	void *at = pages();
	int status;

	if (!at || argc < 2 || loop_open(&l) || loop_write(&l, 1))
		return 1;
	gone = ibv_reg_mr(l.pd, at, LOOP_SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!gone || munmap(at, LOOP_SIZE))
		return 1;
	if (!strcmp(argv[1], "source")) {
		struct ibv_mr *good = l.mr;
		l.mr = gone;
		if (loop_post_write(&l, at, 4096, (uintptr_t)l.buf, good->rkey))
			return 1;
		status = loop_poll(l.cq);
		l.mr = good;
		if (expect("unmapped source", status, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR))
			return 1;
	} else {
		if (loop_post_write(&l, l.buf, 4096, (uintptr_t)at, gone->rkey))
			return 1;
		status = loop_poll(l.cq);
		if (expect("unmapped target", status, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR))
			return 1;
	}
	if (ibv_dereg_mr(gone) || loop_close(&l))
		return 1;
	if (loop_open(&l) || loop_write(&l, 2) || loop_close(&l))
		return 1;
	puts("ok");
	return 0;
}
