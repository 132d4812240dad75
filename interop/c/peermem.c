/* A plain registration of GPU memory by the address at which it is mapped.
 *
 * "refused": EFAULT, as without PeerDirect. "served": a peer writes into it, and once the program
 * frees it the key is dead. */
#include "check.h"
#include "rc_loopback.h"

#include <amdgpu_drm.h>
#include <drm.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define SIZE (1u << 20)

static void served(struct loop *l, struct ibv_mr *mr, unsigned char *at)
{
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = (unsigned char)(i * 7 + 3);
	CHECK(mr->addr == at + 100 && mr->length == SIZE - 100);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, (uintptr_t)at + 8192, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
	CHECK(!memcmp(at + 8192, l->buf, LOOP_SIZE));
	/* A region of peer memory cannot be changed. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	union drm_amdgpu_gem_create make = { .in = { .bo_size = SIZE, .domains = AMDGPU_GEM_DOMAIN_VRAM,
		.domain_flags = AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED } };
	union drm_amdgpu_gem_mmap where;
	struct drm_gem_close close_args;
	unsigned char *at;
	struct ibv_mr *mr;
	struct loop l;
	int fd;

	CHECK(argc == 2);
	CHECK(loop_open(&l) == 0 && loop_write(&l, 1) == 0);
	fd = open(strtok(getenv("PEERDMA_DRM_NODE"), ","), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &make) == 0);
	close_args = (struct drm_gem_close){ .handle = make.out.handle };
	where = (union drm_amdgpu_gem_mmap){ .in.handle = make.out.handle };
	CHECK(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_MMAP, &where) == 0);
	at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)where.out.addr_ptr);
	CHECK(at != MAP_FAILED);
	mr = ibv_reg_mr(l.pd, at + 100, SIZE - 100, access);
	if (!strcmp(argv[1], "refused")) {
		CHECK(!mr && errno == EFAULT);
	} else {
		CHECK(mr);
		served(&l, mr, at);
		/* Plain memory next to it does not belong to the client. */
		CHECK(!ibv_reg_mr(l.pd, at + 100, SIZE, access) && errno == EFAULT);
		CHECK(munmap(at, SIZE) == 0 && ioctl(fd, DRM_IOCTL_GEM_CLOSE, &close_args) == 0 && close(fd) == 0);
		CHECK(loop_post_write(&l, l.buf, 64, (uintptr_t)at + 8192, mr->rkey) == 0);
		CHECK(loop_poll(l.cq) == IBV_WC_REM_ACCESS_ERR);
		CHECK(ibv_dereg_mr(mr) == 0);
	}
	CHECK(loop_close(&l) == 0);
	printf("ok\n");
	return 0;
}
