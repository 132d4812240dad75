/* Buffers of the kernel's exporters as source and target of RDMA.
 *
 * Each argument is an exporter: udmabuf, dma_heap, or the name of a DRM driver, which allocates a dumb buffer. */
#define _GNU_SOURCE
#include "rc_loopback.h"

#include <linux/dma-buf.h>

#define SIZE (1u << 20)
#define AT 8192

#include "exporters.h"

static void sync_cpu(int fd, uint64_t flags)
{
	struct dma_buf_sync sync = { .flags = flags };

	if (ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync))
		err(1, "SYNC");
}

static void use(struct loop *l, const char *name, int fd)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(l->pd, 4096, SIZE - 4096, 4096, fd, access);
	unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct ibv_sge sge = { .addr = AT, .length = LOOP_SIZE };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)l->buf + LOOP_SIZE, .rkey = l->mr->rkey } }, *bad;

	if (!mr || at == MAP_FAILED)
		err(1, "%s: registered and mapped", name);
	/* A mapping of it cannot be pinned. */
	if (ibv_reg_mr(l->pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE) || errno != EFAULT)
		errx(1, "%s: its mapping was registered, or errno %d is not EFAULT", name, errno);
	/* As target. */
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = (unsigned char)(i * 7 + (i >> 9) + (unsigned char)name[0]);
	if (loop_post_write(l, l->buf, LOOP_SIZE, AT, mr->rkey) || loop_poll(l->cq))
		errx(1, "%s: WRITE into it", name);
	sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
	if (memcmp(at + AT, l->buf, LOOP_SIZE))
		errx(1, "%s: what was written is not there", name);
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		at[AT + i] ^= 0x5a;
	sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
	/* As source, from a region whose descriptor is closed. */
	close(fd);
	sge.lkey = mr->lkey;
	memset(l->buf + LOOP_SIZE, 0, LOOP_SIZE);
	if (ibv_post_send(l->qp[0], &wr, &bad) || loop_poll(l->cq))
		errx(1, "%s: WRITE out of it", name);
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		if (l->buf[LOOP_SIZE + i] != (l->buf[i] ^ 0x5a))
			errx(1, "%s: byte %u is wrong", name, i);
	if (ibv_dereg_mr(mr) || munmap(at, SIZE))
		err(1, "%s: the end", name);
	printf("%s: source and target ... ok\n", name);
}

int main(int argc, char **argv)
{
	struct loop l;

	if (loop_open(&l) || loop_write(&l, 1))
		return 1;
	for (int i = 1; i < argc; i++) {
		use(&l, argv[i], of_exporter(argv[i]));
	}
	return loop_close(&l) ? 1 : 0;
}
