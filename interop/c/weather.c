/* GPU memory under verbs while a fault plan, or a user by hand, moves it and takes it away.
 *
 * "storm N": N WRITEs into a dma-buf, each checked through CUDA; one key for all of them. "dead N":
 * the same, until the key is dead. "copies N": N copies there and back by CUDA; prints how many
 * came back wrong. "twice": two allocations. "sleep FILE": uses the region, and once more when FILE
 * exists. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "rc_loopback.h"

#define MIB ((size_t)1 << 20)

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
static unsigned char back[LOOP_SIZE];

static struct ibv_mr *region(struct loop *l, cu_ptr *a)
{
	struct ibv_mr *mr;
	int fd;

	CU(cuMemAlloc_v2(a, MIB));
	CU(cuMemGetHandleForAddressRange(&fd, *a, MIB, 1, 0));
	mr = ibv_reg_dmabuf_mr(l->pd, 0, MIB, *a, fd, ACCESS);
	CHECK(mr && close(fd) == 0);
	return mr;
}

static void fill(unsigned char *bytes, unsigned seed)
{
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		bytes[i] = (unsigned char)(i * 31 + (i >> 8) + seed * 7);
}

/* Whether the bytes arrived by RDMA and were found through CUDA; otherwise the status of the
 * completion. */
static int written(struct loop *l, struct ibv_mr *mr, cu_ptr a, unsigned seed, int look)
{
	uint64_t at = a + seed % 15 * LOOP_SIZE;
	int status;

	fill(l->buf, seed);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, at, mr->rkey) == 0);
	status = loop_poll(l->cq);
	if (status || !look)
		return status;
	CU(cuMemcpyDtoH_v2(back, at, LOOP_SIZE));
	CHECK(!memcmp(back, l->buf, LOOP_SIZE));
	return 0;
}

static void copies(unsigned count)
{
	static unsigned char bytes[LOOP_SIZE];
	unsigned wrong = 0;
	cu_ptr a;

	CU(cuMemAlloc_v2(&a, MIB));
	for (unsigned i = 0; i < count; i++) {
		fill(bytes, i);
		CU(cuMemcpyHtoD_v2(a, bytes, LOOP_SIZE));
		CU(cuMemcpyDtoH_v2(back, a, LOOP_SIZE));
		wrong += memcmp(back, bytes, LOOP_SIZE) != 0;
	}
	printf("%u copies, %u with wrong bytes\n", count, wrong);
}

int main(int argc, char **argv)
{
	unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
	struct ibv_mr *mr;
	struct loop l;
	cu_ptr a;

	CHECK(argc > 1);
	cuda_start();
	if (!strcmp(argv[1], "copies")) {
		copies(count);
		return 0;
	}
	if (!strcmp(argv[1], "twice")) {
		CU(cuMemAlloc_v2(&a, MIB));
		CU(cuMemAlloc_v2(&a, MIB));
		return 0;
	}
	CHECK(loop_open(&l) == 0);
	mr = region(&l, &a);
	if (!strcmp(argv[1], "storm")) {
		for (unsigned i = 0; i < count; i++)
			CHECK(written(&l, mr, a, i, 1) == IBV_WC_SUCCESS);
	} else if (!strcmp(argv[1], "dead")) {
		int status = 0;

		for (unsigned i = 0; i < count && !status; i++)
			status = written(&l, mr, a, i, 0);
		printf("%s\n", status ? ibv_wc_status_str(status) : "alive");
	} else {
		CHECK(written(&l, mr, a, 1, 1) == IBV_WC_SUCCESS);
		printf("ready\n");
		fflush(stdout);
		while (access(argv[2], F_OK))
			usleep(1000);
		CU(cuMemcpyDtoH_v2(back, a + LOOP_SIZE, LOOP_SIZE));
		CHECK(!memcmp(back, l.buf, LOOP_SIZE));
		CHECK(written(&l, mr, a, 2, 1) == IBV_WC_SUCCESS);
	}
	printf("ok\n");
	return 0;
}
