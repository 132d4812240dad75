/* Buffers of the kernel's exporters as source and target of RDMA.
 *
 * Each argument is an exporter: udmabuf, dma_heap, or the name of a DRM driver, which allocates a dumb buffer. */
#define _GNU_SOURCE
#include "rc_loopback.h"

#include <err.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define SIZE (1u << 20)
#define AT 8192

struct create_dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};

#define CREATE_DUMB _IOWR('d', 0xb2, struct create_dumb)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)

static int of_drm(const char *driver)
{
	for (int card = 0; card < 8; card++) {
		char path[32], name[64] = "";
		struct {
			int major, minor, patch;
			size_t name_len;
			char *name;
			size_t date_len;
			char *date;
			size_t desc_len;
			char *desc;
		} version = { .name_len = sizeof(name) - 1, .name = name };
		struct create_dumb dumb = { .width = 512, .height = SIZE / 2048, .bpp = 32 };
		struct prime_handle prime = { .flags = O_RDWR | O_CLOEXEC };
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/card%d", card);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'd', 0, sizeof(version)), &version) || strcmp(name, driver)) {
			close(fd);
			continue;
		}
		if (ioctl(fd, CREATE_DUMB, &dumb) || dumb.size < SIZE)
			err(1, "%s: CREATE_DUMB", driver);
		prime.handle = dumb.handle;
		if (ioctl(fd, PRIME_HANDLE_TO_FD, &prime))
			err(1, "%s: PRIME_HANDLE_TO_FD", driver);
		/* The buffer outlives the node it was made by. */
		close(fd);
		return prime.fd;
	}
	errx(1, "no card of the driver %s can be opened", driver);
}

static int of_udmabuf(void)
{
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int memfd = memfd_create("kernel_buffers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct udmabuf_create make = { .memfd = (uint32_t)memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = SIZE };
	int fd;

	if (device < 0 || memfd < 0 || ftruncate(memfd, SIZE) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		err(1, "udmabuf");
	fd = ioctl(device, UDMABUF_CREATE, &make);
	if (fd < 0)
		err(1, "UDMABUF_CREATE");
	close(device);
	close(memfd);
	return fd;
}

static int of_heap(void)
{
	int device = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	struct dma_heap_allocation_data data = { .len = SIZE, .fd_flags = O_RDWR | O_CLOEXEC };

	if (device < 0 || ioctl(device, DMA_HEAP_IOCTL_ALLOC, &data))
		err(1, "dma_heap");
	close(device);
	return (int)data.fd;
}

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
		const char *name = argv[i];

		use(&l, name, !strcmp(name, "udmabuf") ? of_udmabuf() : !strcmp(name, "dma_heap") ? of_heap() : of_drm(name));
	}
	return loop_close(&l) ? 1 : 0;
}
