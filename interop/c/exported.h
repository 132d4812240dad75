/* A dma-buf of device memory, registered with every NIC, and written and read by RDMA. */
#ifndef EXPORTED_H
#define EXPORTED_H

#include "check.h"
#include "rc_loopback.h"

#include <err.h>

#define MOST_NICS 8

/* A step that must fail with this errno. */
#define REFUSED(call, number) (errno = 0, (call) == -1 && errno == (number))

static struct loop nics[MOST_NICS];
static int nic_count;

static inline void open_nics(void)
{
	struct ibv_device **list = ibv_get_device_list(&nic_count);

	CHECK(list && nic_count > 0 && nic_count <= MOST_NICS);
	for (int i = 0; i < nic_count; i++)
		CHECK(loop_open_on(&nics[i], ibv_open_device(list[i])) == 0);
	ibv_free_device_list(list);
}

static inline void close_nics(void)
{
	for (int i = 0; i < nic_count; i++)
		CHECK(loop_close(&nics[i]) == 0);
}

static inline struct ibv_mr *reg_exported(struct loop *l, int fd, uint64_t size)
{
	return ibv_reg_dmabuf_mr(l->pd, 0, size, 0, fd,
				 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

/* Reads from a region into the target half of the buffer; returns the status of the completion. */
static inline int loop_read(struct loop *l, struct ibv_mr *mr, uint64_t from)
{
	struct ibv_sge sge = { .addr = (uintptr_t)(l->buf + LOOP_SIZE), .length = LOOP_SIZE, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { .remote_addr = from, .rkey = mr->rkey } }, *bad;

	CHECK(ibv_post_send(l->qp[0], &wr, &bad) == 0);
	return loop_poll(l->cq);
}

static inline unsigned char pattern(unsigned seed, unsigned i)
{
	return (unsigned char)(i * 31 + (i >> 8) + seed * 7);
}

/* Writes a pattern into a region; returns the status of the completion. */
static inline int loop_write_to(struct loop *l, struct ibv_mr *mr, uint64_t to, unsigned seed)
{
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = pattern(seed, i);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, to, mr->rkey) == 0);
	return loop_poll(l->cq);
}

/* Whether a NIC reads this pattern there. */
static inline int loop_finds(struct loop *l, struct ibv_mr *mr, uint64_t at, unsigned seed)
{
	memset(l->buf + LOOP_SIZE, 0xee, LOOP_SIZE);
	CHECK(loop_read(l, mr, at) == IBV_WC_SUCCESS);
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		if (l->buf[LOOP_SIZE + i] != pattern(seed, i))
			return 0;
	return 1;
}

/* Each NIC finds what another one wrote. */
static inline void every_nic_writes(int fd, uint64_t size)
{
	struct ibv_mr *mr[MOST_NICS];

	for (int i = 0; i < nic_count; i++) {
		mr[i] = reg_exported(&nics[i], fd, size);
		if (!mr[i])
			err(1, "%s", ibv_get_device_name(nics[i].ctx->device));
	}
	for (int i = 0; i < nic_count; i++) {
		uint64_t at = (uint64_t)(i + 1) * 4096;

		CHECK(loop_write_to(&nics[i], mr[i], at, (unsigned)i + 3) == IBV_WC_SUCCESS);
		for (int j = 0; j < nic_count; j++)
			CHECK(loop_finds(&nics[j], mr[j], at, (unsigned)i + 3));
	}
	for (int i = 0; i < nic_count; i++)
		CHECK(ibv_dereg_mr(mr[i]) == 0);
}

/* No NIC registers it, and all report that. */
static inline void every_nic_is_refused(int fd, uint64_t size, int number)
{
	for (int i = 0; i < nic_count; i++) {
		errno = 0;
		CHECK(!reg_exported(&nics[i], fd, size) && errno == number);
	}
}

#endif
