/* A render node: makes buffers of the GPU, maps, exports and registers them, writes them by RDMA,
 * and reads them by the CPU.
 *
 * With the driver's name as argument, all of that for its ways of making buffers; with "rules",
 * what is refused and what copies of descriptors, closes and forks do; with "shared", two
 * processes; with "imports", two GPUs and two processes. The node is the one that PEERDMA_DRM_NODE
 * names, as a program that looks for itself would find it. */
#define _GNU_SOURCE
#include "check.h"
#include "rc_loopback.h"

#include <amdgpu_drm.h>
#include <drm.h>
#include <fcntl.h>
#include <i915_drm.h>
#include <linux/dma-buf.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#define SIZE (1u << 20)

/* From xe_drm.h, which not every libdrm-dev has. */
struct xe_create {
	uint64_t extensions, size;
	uint32_t placement, flags, vm, handle;
	uint16_t caching, pad[3];
	uint64_t reserved[2];
};
struct xe_map {
	uint64_t extensions;
	uint32_t handle, flags;
	uint64_t offset, reserved[2];
};
#define XE_CREATE DRM_IOWR(DRM_COMMAND_BASE + 0x01, struct xe_create)
#define XE_MAP DRM_IOWR(DRM_COMMAND_BASE + 0x02, struct xe_map)

#define REFUSED(call, number) (errno = 0, (call) == -1 && errno == (number))

static const char *node;

static int open_node(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static const char *driver_of(int fd)
{
	static char name[16];
	struct drm_version version = { .name = name, .name_len = sizeof(name) };

	memset(name, 0, sizeof(name));
	CHECK(ioctl(fd, DRM_IOCTL_VERSION, &version) == 0);
	CHECK(version.name_len == strlen(name));
	return name;
}

/* Makes a buffer as the driver's own library would. */
static uint32_t create(int fd, const char *driver, bool vram)
{
	if (!strcmp(driver, "amdgpu")) {
		union drm_amdgpu_gem_create args = { .in = { .bo_size = SIZE,
			.domains = vram ? AMDGPU_GEM_DOMAIN_VRAM : AMDGPU_GEM_DOMAIN_GTT,
			.domain_flags = vram ? AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED : AMDGPU_GEM_CREATE_CPU_GTT_USWC } };

		CHECK(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &args) == 0);
		return args.out.handle;
	}
	if (!strcmp(driver, "xe")) {
		struct xe_create args = { .size = SIZE, .placement = vram ? 3 : 1, .caching = vram ? 2 : 1 };

		CHECK(ioctl(fd, XE_CREATE, &args) == 0);
		return args.handle;
	}
	if (vram) {
		struct drm_i915_gem_memory_class_instance regions[] = { { I915_MEMORY_CLASS_DEVICE, 0 },
			{ I915_MEMORY_CLASS_SYSTEM, 0 } };
		struct drm_i915_gem_create_ext_memory_regions where = { .base.name = I915_GEM_CREATE_EXT_MEMORY_REGIONS,
			.num_regions = 2, .regions = (uintptr_t)regions };
		struct drm_i915_gem_create_ext args = { .size = SIZE, .extensions = (uintptr_t)&where };

		CHECK(ioctl(fd, DRM_IOCTL_I915_GEM_CREATE_EXT, &args) == 0);
		return args.handle;
	}
	struct drm_i915_gem_create args = { .size = SIZE - 1 };

	CHECK(ioctl(fd, DRM_IOCTL_I915_GEM_CREATE, &args) == 0 && args.size == SIZE);
	return args.handle;
}

static uint64_t offset_of(int fd, const char *driver, uint32_t handle)
{
	if (!strcmp(driver, "amdgpu")) {
		union drm_amdgpu_gem_mmap args = { .in.handle = handle };

		CHECK(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_MMAP, &args) == 0);
		return args.out.addr_ptr;
	}
	if (!strcmp(driver, "xe")) {
		struct xe_map args = { .handle = handle };

		CHECK(ioctl(fd, XE_MAP, &args) == 0);
		return args.offset;
	}
	struct drm_i915_gem_mmap_gtt old = { .handle = handle };
	struct drm_i915_gem_mmap_offset new = { .handle = handle, .flags = I915_MMAP_OFFSET_FIXED };

	CHECK(ioctl(fd, DRM_IOCTL_I915_GEM_MMAP_GTT, &old) == 0);
	CHECK(ioctl(fd, DRM_IOCTL_I915_GEM_MMAP_OFFSET, &new) == 0 && new.offset == old.offset);
	return old.offset;
}

static int export(int fd, uint32_t handle, unsigned flags)
{
	struct drm_prime_handle args = { .handle = handle, .flags = flags };

	return ioctl(fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &args) ? -1 : args.fd;
}

static int close_handle(int fd, uint32_t handle)
{
	struct drm_gem_close args = { .handle = handle };

	return ioctl(fd, DRM_IOCTL_GEM_CLOSE, &args);
}

static unsigned char *map(int fd, uint64_t offset)
{
	unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

	CHECK(at != MAP_FAILED);
	return at;
}

static void rdma_write(struct loop *l, int dmabuf, uint64_t at, unsigned seed)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(l->pd, 0, SIZE, 0, dmabuf, access);

	CHECK(mr);
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = (unsigned char)(i * 7 + seed);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, at, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void traffic(struct loop *l, bool vram, bool map_first)
{
	int fd = open_node();
	const char *driver = driver_of(fd);
	uint32_t handle = create(fd, driver, vram);
	uint64_t offset = offset_of(fd, driver, handle);
	unsigned char *at = map_first ? map(fd, offset) : NULL;
	int dmabuf = export(fd, handle, DRM_CLOEXEC | DRM_RDWR);
	unsigned char *same;

	CHECK(dmabuf >= 0);
	rdma_write(l, dmabuf, 8192, 3);
	if (!at)
		at = map(fd, offset);
	CHECK(!memcmp(at + 8192, l->buf, LOOP_SIZE));
	memset(at, 0x5a, 4096);
	/* The file of the buffer can be mapped as well, and is the same memory. */
	same = mmap(NULL, SIZE - 4096, PROT_READ, MAP_SHARED, dmabuf, 4096);
	CHECK(same != MAP_FAILED);
	CHECK(!memcmp(same + 4096, l->buf, LOOP_SIZE));
	struct dma_buf_sync sync = { .flags = DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ };
	CHECK(ioctl(dmabuf, DMA_BUF_IOCTL_SYNC, &sync) == 0);
	/* The buffer outlives its handle, its node and every mapping. */
	CHECK(munmap(same, SIZE - 4096) == 0 && munmap(at, SIZE) == 0);
	CHECK(close_handle(fd, handle) == 0 && close(fd) == 0);
	rdma_write(l, dmabuf, 65536, 4);
	fd = open_node();
	struct drm_prime_handle import = { .fd = dmabuf };
	CHECK(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &import) == 0);
	at = map(fd, offset_of(fd, driver, import.handle));
	CHECK(at[0] == 0x5a && !memcmp(at + 65536, l->buf, LOOP_SIZE));
	CHECK(munmap(at, SIZE) == 0 && close(dmabuf) == 0 && close(fd) == 0);
}

/* More than the GPU has, one after the other: closed buffers are free. */
static void reuse(void)
{
	for (int i = 0; i < 40; i++) {
		int fd = open_node(), copy;
		union drm_amdgpu_gem_create args = { .in = { .bo_size = 256u << 20, .domains = AMDGPU_GEM_DOMAIN_GTT } };

		CHECK(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &args) == 0);
		copy = export(fd, args.out.handle, DRM_RDWR);
		CHECK(copy >= 0);
		CHECK(close(fd) == 0 && close(copy) == 0);
	}
}

static void rules(void)
{
	int fd = open_node(), other = open_node(), copy, dmabuf, status;
	char card[32];
	struct stat by_path, by_fd;
	struct drm_get_cap cap = { .capability = DRM_CAP_PRIME };
	uint32_t handle = create(fd, "amdgpu", true);
	uint64_t offset = offset_of(fd, "amdgpu", handle);
	unsigned char *at;
	pid_t child;

	CHECK(!strcmp(driver_of(fd), "amdgpu"));
	CHECK(ioctl(fd, DRM_IOCTL_GET_CAP, &cap) == 0 && cap.value == (DRM_PRIME_CAP_IMPORT | DRM_PRIME_CAP_EXPORT));
	cap.capability = 999;
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_GET_CAP, &cap), EINVAL));
	CHECK(access(node, R_OK | W_OK) == 0 && stat(node, &by_path) == 0 && fstat(fd, &by_fd) == 0);
	CHECK(S_ISCHR(by_path.st_mode) && S_ISCHR(by_fd.st_mode) && by_path.st_rdev == by_fd.st_rdev);
	CHECK(major(by_fd.st_rdev) == 226 && minor(by_fd.st_rdev) == (unsigned)atoi(node + strlen("/dev/dri/renderD")));
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);

	/* Handles belong to an open file. */
	struct drm_gem_close gone = { .handle = 77 };
	union drm_amdgpu_gem_mmap missing = { .in.handle = handle };
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_GEM_CLOSE, &gone), EINVAL));
	CHECK(REFUSED(ioctl(other, DRM_IOCTL_AMDGPU_GEM_MMAP, &missing), ENOENT));
	CHECK(REFUSED(export(fd, 77, DRM_RDWR), ENOENT));
	CHECK(REFUSED(export(fd, handle, O_APPEND), EINVAL));
	CHECK(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, other, (off_t)offset) == MAP_FAILED && errno == EACCES);
	CHECK(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 1l << 40) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, SIZE + 4096, PROT_READ, MAP_SHARED, fd, (off_t)offset) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, SIZE, PROT_WRITE, MAP_PRIVATE, fd, (off_t)offset) == MAP_FAILED && errno == EINVAL);

	/* Arguments and requests. */
	union drm_amdgpu_gem_create wrong = { .in = { .bo_size = 4096, .domains = 1 << 7 } };
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &wrong), EINVAL));
	wrong.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
	wrong.in.bo_size = 1ull << 40;
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &wrong), ENOMEM));
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, NULL), EFAULT));
	CHECK(REFUSED(ioctl(fd, DRM_IOWR(0x3f, uint64_t), &offset), EINVAL));
	CHECK(REFUSED(ioctl(fd, _IOWR('b', 0, uint64_t), &offset), ENOTTY));
	CHECK(!isatty(fd));

	/* Dumb buffers belong to the card node. */
	struct drm_mode_create_dumb dumb = { .width = 100, .height = 10, .bpp = 32 };
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_MODE_CREATE_DUMB, &dumb), EACCES));
	snprintf(card, sizeof(card), "/dev/dri/card%d", atoi(node + strlen("/dev/dri/renderD")) - 128);
	copy = open(card, O_RDWR);
	CHECK(copy >= 0 && ioctl(copy, DRM_IOCTL_MODE_CREATE_DUMB, &dumb) == 0);
	CHECK(dumb.pitch == 512 && dumb.size == 8192 && fcntl(copy, F_GETFD) == 0);
	struct drm_mode_map_dumb where = { .handle = dumb.handle };
	struct drm_mode_destroy_dumb destroy = { .handle = dumb.handle };
	CHECK(ioctl(copy, DRM_IOCTL_MODE_MAP_DUMB, &where) == 0);
	at = mmap(NULL, dumb.size, PROT_READ | PROT_WRITE, MAP_SHARED, copy, (off_t)where.offset);
	CHECK(at != MAP_FAILED);
	memset(at, 1, dumb.size);
	CHECK(munmap(at, dumb.size) == 0);
	CHECK(ioctl(copy, DRM_IOCTL_MODE_DESTROY_DUMB, &destroy) == 0);
	CHECK(REFUSED(ioctl(copy, DRM_IOCTL_MODE_DESTROY_DUMB, &destroy), EINVAL) && close(copy) == 0);

	/* A buffer has one handle in a file, and one file. */
	dmabuf = export(fd, handle, 0);
	CHECK(dmabuf >= 0 && (fcntl(dmabuf, F_GETFL) & O_ACCMODE) == O_RDONLY && fcntl(dmabuf, F_GETFD) == 0);
	CHECK(lseek(dmabuf, 0, SEEK_END) == SIZE);
	struct drm_prime_handle import = { .fd = dmabuf };
	CHECK(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &import) == 0 && import.handle == handle);
	CHECK(ioctl(other, DRM_IOCTL_PRIME_FD_TO_HANDLE, &import) == 0);
	import.fd = other;
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &import), EINVAL));
	import.fd = -1;
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &import), EBADF));

	/* Mappings: the middle is unmapped, the ends stay; no mapping can grow into the memory behind
	 * it. */
	at = map(fd, offset);
	at[0] = 1;
	at[SIZE - 1] = 2;
	CHECK(munmap(at + 4096, SIZE - 8192) == 0);
	CHECK(mremap(at, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
	CHECK(at[0] == 1 && at[SIZE - 1] == 2);
	CHECK(mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && at[0] == 0);
	CHECK(munmap(at, SIZE) == 0);

	/* A copy of the descriptor is the same file, whichever is closed first. */
	copy = dup(fd);
	CHECK(close(fd) == 0 && offset_of(copy, "amdgpu", handle) == offset);
	fd = fcntl(copy, F_DUPFD_CLOEXEC, 100);
	CHECK(fd >= 100 && close(copy) == 0 && offset_of(fd, "amdgpu", handle) == offset);

	/* A forked child has to open the node itself. */
	child = fork();
	if (child == 0) {
		int own;

		CHECK(REFUSED(ioctl(fd, DRM_IOCTL_GET_CAP, &cap), ENODEV));
		own = open_node();
		handle = create(own, "amdgpu", true);
		at = map(own, offset_of(own, "amdgpu", handle));
		at[5] = 5;
		CHECK(REFUSED(ioctl(fd, DRM_IOCTL_GET_CAP, &cap), ENODEV));
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(offset_of(fd, "amdgpu", handle) == offset);
	CHECK(close(fd) == 0 && close(other) == 0 && close(dmabuf) == 0);
	CHECK(REFUSED(ioctl(fd, DRM_IOCTL_GET_CAP, &cap), EBADF));
}

/* Another process registers and writes a buffer, which outlives everything that the first process
 * had of it. */
static void shared(void)
{
	int fd = open_node(), dmabuf, status;
	uint32_t handle = create(fd, "amdgpu", true);
	unsigned char *at = map(fd, offset_of(fd, "amdgpu", handle));
	pid_t child;

	dmabuf = export(fd, handle, DRM_CLOEXEC | DRM_RDWR);
	CHECK(dmabuf >= 0);
	child = fork();
	if (child == 0) {
		struct loop l;

		CHECK(loop_open(&l) == 0);
		rdma_write(&l, dmabuf, 4096, 9);
		CHECK(loop_close(&l) == 0);
		exit(0);
	}
	CHECK(close_handle(fd, handle) == 0 && close(dmabuf) == 0 && close(fd) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		CHECK(at[4096 + i] == (unsigned char)(i * 7 + 9));
	CHECK(munmap(at, SIZE) == 0);
}

/* PRIME between two GPUs, and between two processes: a handle, a mapping, and the same bytes. */
static uint32_t import_checked(int fd, int dmabuf)
{
	struct drm_prime_handle import = { .fd = dmabuf }, again = { .fd = dmabuf };
	int back;

	CHECK(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &import) == 0);
	CHECK(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &again) == 0 && again.handle == import.handle);
	/* An imported buffer is exported as the same buffer. */
	back = export(fd, import.handle, DRM_CLOEXEC | DRM_RDWR);
	again.fd = back;
	CHECK(back >= 0 && lseek(back, 0, SEEK_END) == SIZE);
	CHECK(ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &again) == 0 && again.handle == import.handle);
	CHECK(close(back) == 0);
	return import.handle;
}

static void imports(void)
{
	char *second = strchr(node = strdup(node), ',');
	int fd, other, dmabuf, status;
	unsigned char *at, *there;
	uint32_t handle;
	pid_t child;

	CHECK(second);
	*second++ = '\0';
	fd = open_node();
	other = open(second, O_RDWR | O_CLOEXEC);
	CHECK(other >= 0);
	handle = create(fd, "amdgpu", true);
	dmabuf = export(fd, handle, DRM_RDWR);
	CHECK(dmabuf >= 0);
	uint32_t imported = import_checked(other, dmabuf);
	at = map(fd, offset_of(fd, "amdgpu", handle));
	there = map(other, offset_of(other, "amdgpu", imported));
	at[7] = 7;
	there[SIZE - 1] = 8;
	CHECK(there[7] == 7 && at[SIZE - 1] == 8);
	child = fork();
	if (child == 0) {
		char number[16];

		snprintf(number, sizeof(number), "%d", dmabuf);
		execl("/proc/self/exe", "drm_node", "imported", number, (char *)NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(at[100] == 1 && there[100] == 1);
	CHECK(close_handle(other, imported) == 0 && munmap(there, SIZE) == 0 && munmap(at, SIZE) == 0);
	CHECK(close(dmabuf) == 0 && close(fd) == 0 && close(other) == 0);
}

/* Another process, which has both nodes as well. */
static void imported(int dmabuf)
{
	char *second = strchr(node = strdup(node), ',');

	CHECK(second);
	*second++ = '\0';
	for (int i = 0; i < 2; i++) {
		int fd = open(i ? second : node, O_RDWR | O_CLOEXEC);
		uint32_t handle = import_checked(fd, dmabuf);
		unsigned char *at = map(fd, offset_of(fd, "amdgpu", handle));

		CHECK(at[7] == 7 && at[SIZE - 1] == 8);
		at[100] = 1;
		CHECK(munmap(at, SIZE) == 0 && close_handle(fd, handle) == 0 && close(fd) == 0);
	}
	exit(0);
}

int main(int argc, char **argv)
{
	struct loop l;

	node = getenv("PEERDMA_DRM_NODE");
	if (argc == 3 && !strcmp(argv[1], "imported") && node)
		imported(atoi(argv[2]));
	CHECK(argc == 2 && node);
	/* The first of them, where one is enough. */
	if (strcmp(argv[1], "imports"))
		node = strndup(node, strcspn(node, ","));
	if (!strcmp(argv[1], "rules")) {
		rules();
		reuse();
	} else if (!strcmp(argv[1], "shared")) {
		shared();
	} else if (!strcmp(argv[1], "imports")) {
		imports();
	} else {
		int fd;

		fd = open_node();
		CHECK(!strcmp(driver_of(fd), argv[1]) && close(fd) == 0);
		CHECK(loop_open(&l) == 0 && loop_write(&l, 1) == 0);
		for (int vram = 0; vram < 2; vram++)
			for (int map_first = 0; map_first < 2; map_first++)
				traffic(&l, vram, map_first);
		CHECK(loop_close(&l) == 0);
	}
	printf("ok\n");
	return 0;
}
