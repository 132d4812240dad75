/* Wrong arguments: each call answers with the errno that libibverbs and the kernel give. */
#include "rc_loopback.h"

static int bad;

static void refused(const char *what, const void *got, int want)
{
	if (got || errno != want) {
		fprintf(stderr, "%s: %s, errno %d, wanted %d\n", what, got ? "accepted" : "refused", errno, want);
		bad++;
	}
}

static void answers(const char *what, int got, int want)
{
	if (got != want) {
		fprintf(stderr, "%s: %d, wanted %d\n", what, got, want);
		bad++;
	}
}

int main(void)
{
	struct ibv_alloc_dm_attr dm_attr = { .length = 4096 };
	struct ibv_device_attr_ex ex = { 0 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	char word[8] = "1234567";
	struct loop l;

	if (loop_open(&l))
		return 1;
	/* The probe of NCCL and libfabric for dma-buf MRs: the fd is checked before the length. */
	errno = 0;
	refused("dma-buf MR of fd -1", ibv_reg_dmabuf_mr(l.pd, 0, 0, 0, -1, 0), EBADF);
	errno = 0;
	refused("dma-buf MR of a pipe or file", ibv_reg_dmabuf_mr(l.pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	errno = 0;
	refused("dma-buf MR with iova off by one", ibv_reg_dmabuf_mr(l.pd, 0, 4096, 1, -1, 0), EINVAL);
	errno = 0;
	refused("REMOTE_WRITE without LOCAL_WRITE", ibv_reg_mr(l.pd, l.buf, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	errno = 0;
	refused("CQ of no entries", ibv_create_cq(l.ctx, 0, NULL, NULL, 0), EINVAL);
	answers("RTS to RTS without attributes but the state", ibv_modify_qp(l.qp[0], &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_INIT;
	answers("RTS to INIT", ibv_modify_qp(l.qp[0], &attr, IBV_QP_STATE), EINVAL);
	answers("PD in use", ibv_dealloc_pd(l.pd), EBUSY);
	answers("CQ in use", ibv_destroy_cq(l.cq), EBUSY);

	answers("query_device_ex", ibv_query_device_ex(l.ctx, NULL, &ex), 0);
	if (!ex.max_dm_size) {
		fprintf(stderr, "the device has no device memory\n");
		return 1;
	}
	dm = ibv_alloc_dm(l.ctx, &dm_attr);
	if (!dm)
		return loop_fail("ibv_alloc_dm");
	answers("memcpy past the end", ibv_memcpy_to_dm(dm, 4096, word, 4), EFAULT);
	answers("memcpy of 3 bytes", ibv_memcpy_to_dm(dm, 0, word, 3), EINVAL);
	answers("memcpy", ibv_memcpy_to_dm(dm, 8, word, 8), 0);
	memset(word, 0, 8);
	answers("memcpy back", ibv_memcpy_from_dm(word, dm, 8, 8), 0);
	answers("the bytes", memcmp(word, "1234567", 8), 0);
	errno = 0;
	refused("DM MR that is not zero based", ibv_reg_dm_mr(l.pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE),
		EINVAL);
	mr = ibv_reg_dm_mr(l.pd, dm, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	if (!mr)
		return loop_fail("ibv_reg_dm_mr");
	answers("DM with an MR", ibv_free_dm(dm), EBUSY);
	answers("dereg", ibv_dereg_mr(mr), 0);
	answers("free", ibv_free_dm(dm), 0);
	if (loop_write(&l, 1))
		return 1; /* the refusals must leave no trace */
	answers("close", loop_close(&l), 0);
	if (!bad)
		puts("ok");
	return bad != 0;
}
