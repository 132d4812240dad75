/*
 * A buffer of the vgem driver with fences on demand, to test a busy dma-buf of the kernel.
 *
 * Standard input is a socket. The program first sends the buffer on it (SCM_RIGHTS, with one byte);
 * then each byte that it receives is an order, answered by the same byte when done: 'r' or 'w' puts
 * a fence for work that reads or writes on the buffer, 's' signals the last fence. The driver
 * itself signals forgotten fences after ten seconds.
 */
#include "send_fd.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct create_dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
struct fence_attach {
	uint32_t handle, flags, out_fence, pad;
};
struct fence_signal {
	uint32_t fence, flags;
};

#define CREATE_DUMB _IOWR('d', 0xb2, struct create_dumb)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)
#define FENCE_ATTACH _IOWR('d', 0x41, struct fence_attach)
#define FENCE_SIGNAL _IOW('d', 0x42, struct fence_signal)

static int open_vgem(void)
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
		} version = { .name_len = sizeof name - 1, .name = name };
		snprintf(path, sizeof path, "/dev/dri/card%d", card);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'd', 0, sizeof version), &version) == 0 && !strcmp(name, "vgem"))
			return fd;
		close(fd);
	}
	errx(1, "no card of the vgem driver can be opened");
}

int main(void)
{
	int card = open_vgem();
	struct create_dumb dumb = { .width = 64, .height = 32, .bpp = 32 };
	if (ioctl(card, CREATE_DUMB, &dumb))
		err(1, "CREATE_DUMB");
	struct prime_handle prime = { .handle = dumb.handle, .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(card, PRIME_HANDLE_TO_FD, &prime))
		err(1, "PRIME_HANDLE_TO_FD");
	send_fd(prime.fd);

	struct fence_signal last = { 0 };
	char order;
	while (read(0, &order, 1) == 1) {
		struct fence_attach attach = { .handle = dumb.handle, .flags = order == 'w' };
		switch (order) {
		case 'r':
		case 'w':
			if (ioctl(card, FENCE_ATTACH, &attach))
				err(1, "FENCE_ATTACH");
			last.fence = attach.out_fence;
			break;
		case 's':
			if (ioctl(card, FENCE_SIGNAL, &last))
				err(1, "FENCE_SIGNAL");
			break;
		default:
			errx(1, "order %c is unknown", order);
		}
		if (write(0, &order, 1) != 1)
			err(1, "write");
	}
	return 0;
}
