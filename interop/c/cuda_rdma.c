/* CUDA memory under verbs: as a dma-buf ("dmabuf"), by its address ("peermem"), and refusals
 * without these ("refused"). */
#include "cuda_api.h"
#include "rc_loopback.h"

#define MIB ((size_t)1 << 20)

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static void fill(struct loop *l, unsigned seed)
{
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
}

/* Writes into a region of GPU memory at `to`, and checks the bytes through CUDA, at `at`. */
static void written(struct loop *l, struct ibv_mr *mr, uint64_t to, cu_ptr at, unsigned seed)
{
	static unsigned char back[LOOP_SIZE];

	fill(l, seed);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, to, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
	CU(cuMemcpyDtoH_v2(back, at, LOOP_SIZE));
	CHECK(!memcmp(back, l->buf, LOOP_SIZE));
}

/* From GPU memory to GPU memory: the source is in the region, too. */
static void between(struct loop *l, struct ibv_mr *mr, uint64_t from, uint64_t to, cu_ptr at_from, cu_ptr at_to)
{
	static unsigned char back[LOOP_SIZE];
	struct ibv_sge sge = { .addr = from, .length = LOOP_SIZE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { .remote_addr = to, .rkey = mr->rkey } }, *bad;

	fill(l, 99);
	CU(cuMemcpyHtoD_v2(at_from, l->buf, LOOP_SIZE));
	CHECK(ibv_post_send(l->qp[0], &wr, &bad) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
	CU(cuMemcpyDtoH_v2(back, at_to, LOOP_SIZE));
	CHECK(!memcmp(back, l->buf, LOOP_SIZE));
}

static void by_dma_buf(struct loop *l)
{
	size_t inside = 3 * 4096;
	struct ibv_mr *mr;
	cu_ptr a;
	int fd;

	/* The probe: the NIC takes dma-bufs, so only the descriptor is wrong. */
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(l->pd, 0, 4096, 0, -1, ACCESS), EBADF);
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(l->pd, 0, 0, 0, -1, ACCESS), EBADF);
	CU(cuMemAlloc_v2(&a, MIB));
	/* A part of the allocation: the first byte of the dma-buf is that of the address. */
	CU(cuMemGetHandleForAddressRange(&fd, a + inside, 512 * 1024, 1, 0));
	CHECK_ERRNO(!ibv_reg_dmabuf_mr(l->pd, 0, MIB, a, fd, ACCESS), EINVAL);
	mr = ibv_reg_dmabuf_mr(l->pd, 4096, 256 * 1024, a + inside + 4096, fd, ACCESS);
	CHECK(mr && close(fd) == 0);
	written(l, mr, a + inside + 4096, a + inside + 4096, 1);
	between(l, mr, a + inside + 4096, a + inside + 4096 + 2 * LOOP_SIZE, a + inside + 4096, a + inside + 4096 + 2 * LOOP_SIZE);
	/* The region keeps the memory after the program has freed it. */
	CU(cuMemFree_v2(a));
	fill(l, 5);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, a + inside + 4096, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void by_address(struct loop *l)
{
	struct ibv_mr *mr;
	cu_ptr a;

	CU(cuMemAlloc_v2(&a, MIB));
	mr = ibv_reg_mr(l->pd, (void *)(uintptr_t)(a + 100), MIB - 100, ACCESS);
	CHECK(mr);
	written(l, mr, a + 4711, a + 4711, 2);
	between(l, mr, a + 200000, a + 400000, a + 200000, a + 400000);
	CHECK_ERRNO(!ibv_reg_mr(l->pd, (void *)(uintptr_t)(a + 100), 2 * MIB, ACCESS), EFAULT);
	/* Freed under the region: the key is dead. */
	CU(cuMemFree_v2(a));
	CHECK(loop_post_write(l, l->buf, 64, a + 4711, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void refused(struct loop *l)
{
	cu_ptr a;

	CU(cuMemAlloc_v2(&a, MIB));
	CHECK_ERRNO(!ibv_reg_mr(l->pd, (void *)(uintptr_t)a, MIB, ACCESS), EFAULT);
	CU(cuMemFree_v2(a));
}

int main(int argc, char **argv)
{
	struct loop l;

	CHECK(argc == 2);
	cuda_start();
	CHECK(loop_open(&l) == 0 && loop_write(&l, 1) == 0);
	if (!strcmp(argv[1], "dmabuf"))
		by_dma_buf(&l);
	else if (!strcmp(argv[1], "peermem"))
		by_address(&l);
	else
		refused(&l);
	CHECK(loop_close(&l) == 0);
	printf("ok\n");
	return 0;
}
