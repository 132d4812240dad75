/* On-demand paging within one process: which regions there are, every advice with its errno,
 * random traffic at any offset and across pages compared with a model, and memory that is
 * unmapped. It is compiled with the system's header and knows nothing about the library below it.
 *
 * on_demand mlx5|rxe|none|slow: what the NIC is like. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "paged.h"

#define PAGES 32u
#define SIZE (PAGE * PAGES)
#define LONGEST (3 * PAGE)

static struct ibv_pd *other;

static enum ibv_wc_status status(void)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc.status;
}

/* One request, and its completion. A SEND has its receive posted before, whose completion comes, too. */
static enum ibv_wc_status go(struct pair pair, enum ibv_wr_opcode op, struct ibv_sge from, struct ibv_sge to)
{
	struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	enum ibv_wc_status first;

	wr.wr.rdma.remote_addr = to.addr;
	wr.wr.rdma.rkey = to.lkey;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to.addr;
		wr.wr.atomic.rkey = to.lkey;
		wr.wr.atomic.compare_add = 5;
	}
	if (op == IBV_WR_SEND)
		CHECK(!ibv_post_recv(pair.far, &recv, &bad_recv));
	CHECK(!ibv_post_send(pair.near, &wr, &bad));
	first = status();
	if (op == IBV_WR_SEND && first == IBV_WC_SUCCESS)
		first = status();
	return first;
}

static struct ibv_sge element(const void *at, uint32_t length, const struct ibv_mr *mr)
{
	return (struct ibv_sge){ .addr = (uintptr_t)at, .length = length, .lkey = mr->lkey };
}

static int advise(enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge sge)
{
	return ibv_advise_mr(pd, advice, flags, &sge, 1);
}

static const enum ibv_advise_mr_advice ADVICE[] = {
	IBV_ADVISE_MR_ADVICE_PREFETCH,
	IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
	IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
};

/* What every NIC with on-demand paging does; `unknown` is its errno for a key that names no such
 * region. */
static void advice(int unknown)
{
	char *memory = pages(SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, PAGED), *plain = ibv_reg_mr(pd, memory, SIZE, ALL);
	struct ibv_mr *readable = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *elsewhere = ibv_reg_mr(other, memory, SIZE, PAGED);
	struct ibv_sge several[] = { element(memory, 1, mr), element(memory + PAGE - 1, 2, mr), element(memory, 0, mr) };
	struct ibv_sge none = { .addr = (uintptr_t)memory, .length = 1, .lkey = 0xfffffff0 };

	CHECK(mr && plain && readable && elsewhere);
	for (unsigned i = 0; i < 3; i++) {
		CHECK(!advise(ADVICE[i], 0, element(memory, SIZE, mr)));
		CHECK(!advise(ADVICE[i], IBV_ADVISE_MR_FLAG_FLUSH, element(memory + 100, 5000, mr)));
		CHECK(!ibv_advise_mr(pd, ADVICE[i], 0, several, 3));
		CHECK(advise(ADVICE[i], 0, none) == unknown);
		CHECK(advise(ADVICE[i], 0, element(memory, 1, plain)) == unknown);
		CHECK(advise(ADVICE[i], 0, element(memory + SIZE, 1, mr)) == EFAULT);
		CHECK(advise(ADVICE[i], 0, element(memory - 1, 1, mr)) == EFAULT);
		CHECK(advise(ADVICE[i], 0, element(memory + 1, SIZE, mr)) == EFAULT);
		CHECK(advise(ADVICE[i], 0, element(memory, 1, elsewhere)) == (unknown == ENOENT ? EPERM : EINVAL));
		CHECK(advise(ADVICE[i], 2, element(memory, 1, mr)) == EINVAL);
		/* One wrong element is enough. */
		several[1].lkey = none.lkey;
		CHECK(ibv_advise_mr(pd, ADVICE[i], 0, several, 3) == unknown);
		several[1].lkey = mr->lkey;
	}
	CHECK(!advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, element(memory, 1, readable)));
	CHECK(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, element(memory, 1, readable)) == EPERM);
	CHECK(advise(3, 0, element(memory, 1, mr)) == EOPNOTSUPP);
	CHECK(ibv_advise_mr(pd, 0, 0, several, 0) == EINVAL && ibv_advise_mr(pd, 0, 0, NULL, 1) == EINVAL);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(plain) && !ibv_dereg_mr(readable) && !ibv_dereg_mr(elsewhere));
	munmap(memory, SIZE);
}

/* A window has a key, and is no region: EINVAL with mlx5. */
static void advice_on_a_window(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_sge sge = { .addr = 0, .length = 1 };

	CHECK(mw);
	sge.lkey = mw->rkey;
	CHECK(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, sge) == EINVAL);
	CHECK(!ibv_dealloc_mw(mw));
}

static struct ibv_mr *implicit(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, PAGED);

	CHECK(mr && mr->addr == NULL && mr->length == SIZE_MAX);
	CHECK_ERRNO(!ibv_reg_mr(pd, (void *)4096, SIZE_MAX, PAGED), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, NULL, SIZE_MAX, PAGED | IBV_ACCESS_HUGETLB), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 4096, PAGED), EINVAL);
	return mr;
}

static uint64_t drawn = 88172645463325252ull;

/* xorshift64: the same in each run. */
static uint32_t draw(uint32_t below)
{
	drawn ^= drawn << 13;
	drawn ^= drawn >> 7;
	drawn ^= drawn << 17;
	return (drawn >> 16) % below;
}

/* Random requests from anywhere to anywhere, with either kind of region at either end, against a copy of what there should
 * be. Pages are thrown away now and then, and come back as zeros. */
static void traffic(struct ibv_mr *implicit)
{
	static const enum ibv_wr_opcode OPS[] = {
		IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	unsigned char *memory = pages(SIZE), *model = calloc(1, SIZE);
	struct ibv_mr *regions[3] = { ibv_reg_mr(pd, memory, SIZE, PAGED), ibv_reg_mr(pd, memory, SIZE, ALL), implicit };
	unsigned kinds = implicit ? 3 : 2;
	struct pair pair = connected();

	CHECK(model && regions[0] && regions[1]);
	for (uint32_t i = 0; i < SIZE; i++)
		memory[i] = model[i] = i * 7 + i / 251;
	for (int round = 0; round < 4000; round++) {
		enum ibv_wr_opcode op = OPS[draw(4)];
		int is_atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD, is_read = op == IBV_WR_RDMA_READ;
		uint32_t length = is_atomic ? 8 : 1 + draw(LONGEST);
		/* Ends that do not overlap: one in each half. */
		uint32_t from = draw(SIZE / 2 - length), to = SIZE / 2 + draw(SIZE / 2 - length);
		struct ibv_mr *near = regions[draw(kinds)], *far = regions[draw(kinds)];

		if (is_atomic)
			to &= ~7u;
		if (!draw(20)) {
			uint32_t page = draw(PAGES) * PAGE;
			CHECK(!madvise(memory + page, PAGE, MADV_DONTNEED));
			memset(model + page, 0, PAGE);
		}
		CHECK(go(pair, op, element(memory + from, length, near), element(memory + to, length, far)) ==
		      IBV_WC_SUCCESS);
		if (is_atomic) {
			uint64_t word;
			memcpy(model + from, model + to, 8);
			memcpy(&word, model + to, 8);
			word += 5;
			memcpy(model + to, &word, 8);
		} else if (is_read) {
			memcpy(model + from, model + to, length);
		} else {
			memcpy(model + to, model + from, length);
		}
		CHECK(!memcmp(memory + from, model + from, length) && !memcmp(memory + to, model + to, length));
	}
	CHECK(!memcmp(memory, model, SIZE));
	destroy(pair);
	CHECK(!ibv_dereg_mr(regions[0]) && !ibv_dereg_mr(regions[1]));
	munmap(memory, SIZE);
	free(model);
}

/* Memory that is gone is an error of the request that needs it, and of nothing else. */
static void unmapped(struct ibv_mr *of_all)
{
	for (int is_source = 0; is_source < 2; is_source++) {
		char *memory = pages(2 * PAGE), *gone = pages(PAGE);
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * PAGE, PAGED);
		struct ibv_mr *lost = of_all ? of_all : ibv_reg_mr(pd, gone, PAGE, PAGED);
		struct ibv_sge here = element(memory, 64, mr), there = element(gone, 64, lost);
		struct pair pair = connected();
		enum ibv_wc_status end;

		CHECK(mr && lost);
		CHECK(go(pair, IBV_WR_RDMA_WRITE, here, there) == IBV_WC_SUCCESS);
		munmap(gone, PAGE);
		end = is_source ? go(pair, IBV_WR_RDMA_WRITE, there, here) : go(pair, IBV_WR_RDMA_WRITE, here, there);
		CHECK(end == (is_source ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_REM_ACCESS_ERR));
		destroy(pair);
		pair = connected();
		CHECK(go(pair, IBV_WR_RDMA_WRITE, here, element(memory + PAGE, 64, mr)) == IBV_WC_SUCCESS);
		destroy(pair);
		CHECK(!ibv_dereg_mr(mr) && (of_all || !ibv_dereg_mr(lost)));
		munmap(memory, 2 * PAGE);
	}
}

static double milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* A fault takes 20 ms here, on either side; what was brought in before takes none. The test reads the counters. */
static void slow(void)
{
	char *memory = pages(SIZE), *plain = pages(PAGE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, PAGED), *local = ibv_reg_mr(pd, plain, PAGE, ALL);
	struct ibv_sge here = element(plain, 8, local);
	struct pair pair = connected();
	double began = milliseconds();

	CHECK(mr && local);
	CHECK(go(pair, IBV_WR_RDMA_WRITE, here, element(memory, 8, mr)) == IBV_WC_SUCCESS);
	CHECK(milliseconds() - began >= 20);
	began = milliseconds();
	CHECK(go(pair, IBV_WR_RDMA_WRITE, element(memory + PAGE, 8, mr), here) == IBV_WC_SUCCESS);
	CHECK(milliseconds() - began >= 20);
	CHECK(!advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, element(memory + 2 * PAGE, 3 * PAGE, mr)));
	for (int page = 2; page < 5; page++)
		CHECK(go(pair, IBV_WR_RDMA_WRITE, here, element(memory + page * PAGE, 8, mr)) == IBV_WC_SUCCESS);
	destroy(pair);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(local));
}

int main(int argc, char **argv)
{
	const char *nic = argc > 1 ? argv[1] : "";
	struct ibv_mr *of_all = NULL;

	open_device();
	CHECK((other = ibv_alloc_pd(context)));
	if (!strcmp(nic, "none")) {
		char *memory = pages(PAGE);
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, ALL);

		CHECK_ERRNO(!ibv_reg_mr(pd, memory, PAGE, PAGED), EOPNOTSUPP);
		CHECK_ERRNO(!ibv_reg_mr(pd, NULL, SIZE_MAX, PAGED), EOPNOTSUPP);
		CHECK(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, element(memory, 1, mr)) == EOPNOTSUPP);
		CHECK(!ibv_dereg_mr(mr));
	} else if (!strcmp(nic, "slow")) {
		slow();
	} else if (!strcmp(nic, "rxe")) {
		CHECK_ERRNO(!ibv_reg_mr(pd, NULL, SIZE_MAX, PAGED), EOPNOTSUPP);
		advice(EINVAL);
		traffic(NULL);
		unmapped(NULL);
	} else {
		of_all = implicit();
		advice(ENOENT);
		CHECK(!advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, element(&context, 8, of_all)));
		advice_on_a_window();
		traffic(of_all);
		unmapped(of_all);
		unmapped(NULL);
		CHECK(!ibv_dereg_mr(of_all));
	}
	CHECK(!ibv_dealloc_pd(other));
	close_device();
	printf("every check passed\n");
	return 0;
}
