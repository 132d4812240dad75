/* Pages of regions paged on demand that the kernel took away: dropped, mapped anew, dropped after they were brought in
 * ahead. The counters in the library's log tell the rest. It is compiled with the system's header and knows nothing of
 * the library below it.
 *
 * odp_drop NIC: its name does not matter. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "paged.h"

static struct ibv_mr *source;
static uint8_t *bytes;
static uint8_t round_of_bytes;

/* Writes so many pages, each byte another than before, and looks whether they came. */
static void write_all(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t count)
{
	struct ibv_sge from = { .addr = (uintptr_t)bytes, .length = count * PAGE, .lkey = source->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &from,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int n;

	round_of_bytes++;
	for (uint32_t at = 0; at < count * PAGE; at++)
		bytes[at] = (uint8_t)((at * 31) ^ (at >> 8) ^ round_of_bytes);
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(mr->addr, bytes, count * PAGE) == 0);
}

int main(void)
{
	uint8_t *eight = pages(8 * PAGE), *four = pages(4 * PAGE);
	struct ibv_mr *first, *second;
	struct ibv_sge sge;
	struct pair pair;
	struct ibv_qp *near;

	open_device();
	pair = connected();
	near = pair.near;
	bytes = pages(8 * PAGE);
	source = ibv_reg_mr(pd, bytes, 8 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	first = ibv_reg_mr(pd, eight, 8 * PAGE, PAGED);
	second = ibv_reg_mr(pd, four, 4 * PAGE, PAGED);
	CHECK(source && first && second);

	/* Eight faults, and none the second time. */
	write_all(near, first, 8);
	write_all(near, first, 8);
	/* Three pages are dropped. */
	CHECK(!madvise(eight + 2 * PAGE, 3 * PAGE, MADV_DONTNEED));
	write_all(near, first, 8);
	/* Two are mapped anew. */
	CHECK(!munmap(eight + 6 * PAGE, 2 * PAGE));
	CHECK(mmap(eight + 6 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		   0) == eight + 6 * PAGE);
	write_all(near, first, 8);
	write_all(near, first, 8);
	/* Four are brought in ahead, and do not fault. Then two of them are dropped. */
	sge = (struct ibv_sge){ .addr = (uintptr_t)four, .length = 4 * PAGE, .lkey = second->lkey };
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	write_all(near, second, 4);
	CHECK(!madvise(four, 2 * PAGE, MADV_DONTNEED));
	write_all(near, second, 4);

	destroy(pair);
	CHECK(!ibv_dereg_mr(first) && !ibv_dereg_mr(second) && !ibv_dereg_mr(source));
	close_device();
	puts("every check passed");
	return 0;
}
