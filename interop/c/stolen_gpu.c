/* As stolen.c, for descriptors of a GPU: argv[1] says what the program has, argv[2] how it takes
 * descriptors (theft.h).
 *
 *   cuda      CUDA memory, for which the library keeps the pools, their ledger, dma-bufs and
 *             files for IPC
 *   render    a node and one of its buffers
 *   accel     an accelerator that the program has for itself
 *
 * The library does not close, write to, or punch holes in any file of the program, not even when
 * the memory is freed; what is no longer possible is refused. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "rc_loopback.h"
#include "theft.h"

#include <drm.h>
#include <drm_mode.h>
#include <signal.h>
#include <sys/ioctl.h>

#define MIB ((size_t)1 << 20)
#define DMA_BUF_FD 1

static void theft(const char *how, int own)
{
	int fd;

	list(ours);
	for (fd = 0; fd < MOST; fd++)
		ours[fd] = ours[fd] && !before[fd] && fd != own;
	CHECK(steal(how) == 0);
}

static void cuda(const char *how)
{
	struct ibv_context *ctx;
	char bytes[64];
	cu_ptr a, b, c;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	cu_ipc handle;
	int fd = -1, again = -1;

	/* The NIC's descriptors have a test of their own. */
	ctx = loop_device();
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	CHECK(pd);
	list(before);
	cuda_start();
	CU(cuMemAlloc_v2(&a, MIB));
	CU(cuMemAlloc_v2(&b, MIB));
	memset(bytes, 0x5a, sizeof(bytes));
	CU(cuMemcpyHtoD_v2(a, bytes, sizeof(bytes)));
	CU(cuMemGetHandleForAddressRange(&fd, a, MIB, DMA_BUF_FD, 0));
	CU(cuIpcGetMemHandle(&handle, a));
	mr = ibv_reg_dmabuf_mr(pd, 0, MIB, 0, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	theft(how, fd);
	/* Mapped memory stays mapped. */
	memset(bytes, 0, sizeof(bytes));
	CU(cuMemcpyDtoH_v2(bytes, a, sizeof(bytes)));
	CHECK(bytes[0] == 0x5a && bytes[63] == 0x5a);
	/* No more memory can be allocated or opened by others. */
	CHECK(cuMemAlloc_v2(&c, MIB) != CU_OK);
	CHECK(cuMemGetHandleForAddressRange(&again, a, MIB, DMA_BUF_FD, 0) != CU_OK || again >= 0);
	cuIpcGetMemHandle(&handle, b);
	ibv_dereg_mr(mr);
	CU(cuMemFree_v2(b));
	CU(cuMemFree_v2(a));
	if (again >= 0)
		close(again);
}

static void render(const char *how)
{
	struct drm_mode_create_dumb dumb = { .width = 1024, .height = 64, .bpp = 32 };
	struct drm_mode_map_dumb map = { 0 };
	struct drm_prime_handle prime = { .flags = DRM_CLOEXEC | DRM_RDWR };
	unsigned char *at;
	const char *render = getenv("PEERDMA_DRM_NODE");
	char card[64];
	int fd;

	CHECK(render);
	snprintf(card, sizeof(card), "/dev/dri/card%d", atoi(render + strlen("/dev/dri/renderD")) - 128);
	list(before);
	fd = open(card, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && ioctl(fd, DRM_IOCTL_MODE_CREATE_DUMB, &dumb) == 0);
	map.handle = prime.handle = dumb.handle;
	CHECK(ioctl(fd, DRM_IOCTL_MODE_MAP_DUMB, &map) == 0);
	CHECK(ioctl(fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime) == 0);
	at = mmap(NULL, dumb.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, map.offset);
	CHECK(at != MAP_FAILED);
	close(prime.fd);
	memset(at, 0x5a, dumb.size);
	theft(how, fd);
	CHECK(at[0] == 0x5a && at[dumb.size - 1] == 0x5a);
	/* Opening a node releases nodes that nobody has any more. */
	munmap(at, dumb.size);
	fd = open(card, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	fd = open(card, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
}

static void accel(const char *how)
{
	int fd, tries;

	list(before);
	fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	theft(how, -1);
	/* It belongs to one program until it is closed, and this one was closed. */
	for (tries = 0; tries < 2; tries++) {
		fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
		CHECK(fd >= 0);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";

	alarm(60);
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(what, "cuda"))
		cuda(how);
	else if (!strcmp(what, "render"))
		render(how);
	else if (!strcmp(what, "accel"))
		accel(how);
	else
		return 2;
	if (untouched())
		return 1;
	puts("ok");
	return 0;
}
