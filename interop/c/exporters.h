/* Buffers of the kernel's exporters, or of their stand-ins: udmabuf, dma_heap, or the dumb buffer
 * of a DRM driver. SIZE must be defined before. */
#include <err.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

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
		/* The buffer outlives the node that made it. */
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

static int of_exporter(const char *name)
{
	return !strcmp(name, "udmabuf") ? of_udmabuf() : !strcmp(name, "dma_heap") ? of_heap() : of_drm(name);
}
