/*
 * A dma-buf of device memory that the CPU cannot map: the start of a BAR, exported by VFIO.
 *
 * vfio_buffer DEVICE GROUP BAR: sends the buffer on standard input, a socket, and ends when the
 * other side of that socket is closed.
 */
#include "send_fd.h"

#include <fcntl.h>
#include <linux/vfio.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Newer than the headers of this system. */
#define FEATURE_DMA_BUF 11
struct get_dma_buf {
	uint32_t argsz, flags;
	uint32_t region, open_flags, buf_flags, nr_ranges;
	uint64_t offset, length;
};

static int check(int result, const char *what)
{
	if (result < 0)
		err(1, "%s", what);
	return result;
}

int main(int argc, char **argv)
{
	char path[64], byte;
	uint16_t command;
	struct vfio_region_info config = { .argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX };
	struct get_dma_buf get = {
		.argsz = sizeof get,
		.flags = VFIO_DEVICE_FEATURE_GET | FEATURE_DMA_BUF,
		.open_flags = O_RDWR | O_CLOEXEC,
		.nr_ranges = 1,
		.length = 4096,
	};
	int container, group, device;

	if (argc != 4)
		errx(1, "usage: vfio_buffer DEVICE GROUP BAR");
	snprintf(path, sizeof path, "/dev/vfio/%s", argv[2]);
	get.region = atoi(argv[3]);
	container = check(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC), "/dev/vfio/vfio");
	group = check(open(path, O_RDWR | O_CLOEXEC), path);
	check(ioctl(group, VFIO_GROUP_SET_CONTAINER, &container), "SET_CONTAINER");
	check(ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU), "SET_IOMMU");
	device = check(ioctl(group, VFIO_GROUP_GET_DEVICE_FD, argv[1]), "GET_DEVICE_FD");

	/* Memory decoding on: without it, a buffer is revoked from the start. */
	check(ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &config), "GET_REGION_INFO");
	if (pread(device, &command, sizeof command, config.offset + 4) != sizeof command)
		err(1, "pread");
	command |= 6;
	if (pwrite(device, &command, sizeof command, config.offset + 4) != sizeof command)
		err(1, "pwrite");

	send_fd(check(ioctl(device, VFIO_DEVICE_FEATURE, &get), "FEATURE_DMA_BUF"));
	return read(0, &byte, 1) == 0 ? 0 : 1;
}
