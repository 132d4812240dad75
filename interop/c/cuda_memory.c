/* CUDA memory that is not just one contiguous allocation.
 *
 *     boxes     copies and fills of boxes, by the driver and by the runtime
 *     joined    a dma-buf of several mapped allocations, written by a NIC
 *     pool      a dma-buf of memory of a pool that was made for peers, and of a pool that was not
 *     lasting   memory that is registered by its address with a NIC that cannot stop, and freed
 *     packed    small allocations packed into pages (pack = true) */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "rc_loopback.h"

#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct end {
	size_t x, y, z, level;
	int kind;
	const void *host;
	cu_ptr device;
	void *array, *reserved;
	size_t pitch, height;
};
struct box {
	struct end src, dst;
	size_t width, height, depth;
};
struct pitched { void *ptr; size_t pitch, width, height; };
struct extent { size_t width, height, depth; };
struct runtime_box {
	void *src_array;
	size_t src_at[3];
	struct pitched src;
	void *dst_array;
	size_t dst_at[3];
	struct pitched dst;
	struct extent extent;
	int direction;
};
struct pool_properties {
	int type;
	unsigned handle_types;
	cu_location location;
	void *security;
	size_t max_size;
	unsigned short usage;
	unsigned char rdma, reserved[53];
};

static void *find(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_NOW), *found = handle ? dlsym(handle, name) : NULL;

	CHECK(found);
	return found;
}

static void boxes(void)
{
	enum { PITCH = 64, ROWS = 8, PLANES = 4, HOST = 1, DEVICE = 2, ARRAY = 3 };
	cu_result (*copy)(const struct box *) = (cu_result(*)(const struct box *))find("libcuda.so.1", "cuMemcpy3D_v2");
	cu_result (*copy_later)(const struct box *, cu_stream) =
		(cu_result(*)(const struct box *, cu_stream))find("libcuda.so.1", "cuMemcpy3DAsync_v2");
	int (*runtime)(const struct runtime_box *) =
		(int (*)(const struct runtime_box *))find("libcudart.so.12", "cudaMemcpy3D");
	int (*fill)(struct pitched, int, struct extent) =
		(int (*)(struct pitched, int, struct extent))find("libcudart.so.12", "cudaMemset3D");
	static unsigned char from[PITCH * ROWS * PLANES], back[PITCH * ROWS * PLANES], want[PITCH * ROWS * PLANES];
	struct box box = { .src = { 3, 1, 1, 0, HOST, from, 0, NULL, NULL, PITCH, ROWS },
			   .dst = { 5, 2, 0, 0, DEVICE, NULL, 0, NULL, NULL, PITCH, ROWS },
			   .width = 20, .height = 5, .depth = 3 };
	struct runtime_box other = { .src_at = { 5, 2, 0 }, .dst_at = { 1, 0, 1 }, .extent = { 20, 5, 3 }, .direction = 4 };
	cu_ptr a;

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * 7 + (i >> 8) + 1);
	CU(cuMemAlloc_v2(&a, sizeof(from)));
	CU(cuMemsetD8_v2(a, 0, sizeof(from)));
	box.dst.device = a;
	CU(copy(&box));
	CU(cuMemcpyDtoH_v2(back, a, sizeof(back)));
	for (size_t z = 0; z < 3; z++)
		for (size_t y = 0; y < 5; y++)
			memcpy(want + ((z * ROWS) + y + 2) * PITCH + 5, from + ((z + 1) * ROWS + y + 1) * PITCH + 3, 20);
	CHECK(!memcmp(back, want, sizeof(back)));
	CU(cuMemsetD8_v2(a, 0, sizeof(from)));
	CU(copy_later(&box, NULL));
	CU(cuCtxSynchronize());
	CU(cuMemcpyDtoH_v2(back, a, sizeof(back)));
	CHECK(!memcmp(back, want, sizeof(back)));
	/* Overlapping rows, overlapping planes, arrays, and an empty box. */
	box.width = PITCH - 4;
	CU_IS(copy(&box), CU_INVALID_VALUE);
	box.width = 20, box.height = 8;
	CU_IS(copy(&box), CU_INVALID_VALUE);
	box.height = 5, box.dst.level = 1;
	CU_IS(copy(&box), CU_INVALID_VALUE);
	box.dst.level = 0, box.dst.kind = ARRAY;
	CU_IS(copy(&box), CU_NOT_SUPPORTED);
	CU_IS(copy(NULL), CU_INVALID_VALUE);
	/* More planes than there is memory. */
	box.dst.kind = DEVICE, box.dst.z = 2;
	CU_IS(copy(&box), CU_INVALID_VALUE);

	other.src = (struct pitched){ (void *)(uintptr_t)a, PITCH, PITCH, ROWS };
	other.dst = (struct pitched){ back, PITCH, PITCH, ROWS };
	memset(back, 0, sizeof(back));
	CHECK(runtime(&other) == 0);
	for (size_t z = 0; z < 3; z++)
		for (size_t y = 0; y < 5; y++)
			CHECK(!memcmp(back + ((z + 1) * ROWS + y) * PITCH + 1, from + ((z + 1) * ROWS + y + 1) * PITCH + 3, 20));
	CHECK(back[0] == 0 && back[ROWS * PITCH] == 0 && back[ROWS * PITCH + 21] == 0);
	CHECK(fill(other.src, 9, (struct extent){ 10, 2, PLANES }) == 0);
	CU(cuMemcpyDtoH_v2(back, a, sizeof(back)));
	for (size_t z = 0; z < PLANES; z++) {
		unsigned char *plane = back + z * ROWS * PITCH;

		CHECK(plane[0] == 9 && plane[9] == 9 && plane[PITCH + 9] == 9 && plane[10] != 9 && plane[2 * PITCH] != 9);
	}
	other.dst_array = back;
	CHECK(runtime(&other) == CU_NOT_SUPPORTED);
}

/* A WRITE into a region, at `offset` of a dma-buf whose first byte is `at`. */
static void write_and_look(struct loop *l, uint32_t key, uint64_t to, cu_ptr at, unsigned char seed)
{
	static unsigned char back[LOOP_SIZE];

	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l->buf[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, to, key) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
	if (at) {
		CU(cuMemcpyDtoH_v2(back, at, LOOP_SIZE));
		CHECK(!memcmp(back, l->buf, LOOP_SIZE));
	}
}

static void joined(struct loop *l)
{
	size_t page = 2 * MIB;
	cu_prop prop = { .type = 1, .handle_types = 1, .location = { 1, 0 }, .flags = { .rdma = 1 } };
	cu_access access = { { 1, 0 }, 3 };
	uint64_t handle[3];
	struct ibv_mr *mr;
	cu_ptr at;
	unsigned char *map;
	int fd;

	CU(cuMemAddressReserve(&at, 4 * page, 0, 0, 0));
	for (int i = 0; i < 3; i++) {
		/* The last has other properties. */
		prop.handle_types = i < 2;
		CU(cuMemCreate(&handle[i], page, &prop, 0));
		CU(cuMemMap(at + (size_t)i * page, page, 0, handle[i], 0));
		CU(cuMemRelease(handle[i]));
	}
	CU(cuMemSetAccess(at, 3 * page, &access, 1));
	CU_IS(cuMemGetHandleForAddressRange(&fd, at, 3 * page, 1, 0), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(&fd, at, 4 * page, 1, 0), CU_INVALID_VALUE);
	CU(cuMemGetHandleForAddressRange(&fd, at + MIB, 2 * MIB, 1, 0));
	CHECK(lseek(fd, 0, SEEK_END) == (off_t)(2 * MIB));
	mr = ibv_reg_dmabuf_mr(l->pd, 0, 2 * MIB, at + MIB, fd, ACCESS);
	CHECK(mr);
	/* Across the boundary of two allocations. */
	write_and_look(l, mr->rkey, at + page - LOOP_SIZE / 2 - 7, at + page - LOOP_SIZE / 2 - 7, 3);
	map = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED && !memcmp(map + MIB - LOOP_SIZE / 2 - 7, l->buf, LOOP_SIZE));
	CHECK(munmap(map, 2 * MIB) == 0 && close(fd) == 0);
	/* A registration keeps the memory. */
	CU(cuMemUnmap(at, 3 * page));
	CU(cuMemAddressFree(at, 4 * page));
	write_and_look(l, mr->rkey, at + page, 0, 4);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void pool(struct loop *l)
{
	cu_result (*create)(uint64_t *, const struct pool_properties *) =
		(cu_result(*)(uint64_t *, const struct pool_properties *))find("libcuda.so.1", "cuMemPoolCreate");
	cu_result (*allocate)(cu_ptr *, size_t, uint64_t, cu_stream) =
		(cu_result(*)(cu_ptr *, size_t, uint64_t, cu_stream))find("libcuda.so.1", "cuMemAllocFromPoolAsync");
	struct pool_properties prop = { .type = 1, .location = { 1, 0 } };
	struct ibv_mr *mr;
	int fd, capable;

	for (int rdma = 0; rdma < 2; rdma++) {
		uint64_t pool;
		cu_ptr a;

		prop.rdma = (unsigned char)rdma;
		CU(create(&pool, &prop));
		CU(allocate(&a, MIB, pool, NULL));
		CU(cuPointerGetAttribute(&capable, 15, a));
		CHECK(capable == rdma);
		if (!rdma) {
			CU_IS(cuMemGetHandleForAddressRange(&fd, a, MIB, 1, 0), CU_INVALID_VALUE);
			continue;
		}
		CU(cuMemGetHandleForAddressRange(&fd, a, MIB, 1, 0));
		mr = ibv_reg_dmabuf_mr(l->pd, 0, MIB, a, fd, ACCESS);
		CHECK(mr && close(fd) == 0);
		write_and_look(l, mr->rkey, a + 4096, a + 4096, 5);
		/* Never by address. */
		CHECK(!ibv_reg_mr(l->pd, (void *)(uintptr_t)a, MIB, ACCESS) && errno == EFAULT);
		CHECK(ibv_dereg_mr(mr) == 0);
	}
}

static void lasting(struct loop *l)
{
	size_t before, during, after, total;
	struct ibv_mr *mr;
	cu_ptr a;

	CU(cuMemGetInfo_v2(&before, &total));
	CU(cuMemAlloc_v2(&a, 4 * MIB));
	mr = ibv_reg_mr(l->pd, (void *)(uintptr_t)a, MIB, ACCESS);
	CHECK(mr);
	write_and_look(l, mr->rkey, a + 100, a + 100, 6);
	CU(cuMemFree_v2(a));
	/* The NIC has the pages until it gives them back, and nobody else gets them. */
	CU(cuMemGetInfo_v2(&during, &total));
	CHECK(during <= before - 4 * MIB);
	write_and_look(l, mr->rkey, a + 100, 0, 7);
	CHECK(ibv_dereg_mr(mr) == 0);
	CU(cuMemGetInfo_v2(&after, &total));
	CHECK(after == before);
}

static void packed(struct loop *l)
{
	size_t size = 5000, before, total, len, free_now;
	struct ibv_mr *mr;
	cu_ptr a[4], base, again;
	uint64_t from, to;
	unsigned char *map, byte;
	int fd;

	CU(cuMemGetInfo_v2(&before, &total));
	for (int i = 0; i < 4; i++)
		CU(cuMemAlloc_v2(&a[i], size));
	CHECK(a[1] - a[0] == 5120 && a[1] % PAGE && a[1] % 512 == 0);
	CU(cuMemGetAddressRange_v2(&base, &len, a[1] + 17));
	CHECK(base == a[1] && len == size);
	CU_IS(cuMemsetD8_v2(a[1], 1, size + 1), CU_INVALID_VALUE);
	CU(cuMemsetD8_v2(a[1], 0x11, size));
	CU(cuMemsetD8_v2(a[0], 0x22, size));
	CU(cuMemcpyDtoH_v2(&byte, a[1], 1));
	CHECK(byte == 0x11);
	/* A program that does not round is refused; one that rounds finds the bytes in place. */
	CU_IS(cuMemGetHandleForAddressRange(&fd, a[1], size, 1, 0), CU_INVALID_VALUE);
	from = a[1] / PAGE * PAGE, to = (a[1] + size + PAGE - 1) / PAGE * PAGE;
	CU(cuMemGetHandleForAddressRange(&fd, from, to - from, 1, 0));
	map = mmap(NULL, to - from, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED && map[a[1] - from] == 0x11 && map[a[1] - from + size - 1] == 0x11);
	CHECK(map[a[1] - from - 512] == 0x22);
	mr = ibv_reg_dmabuf_mr(l->pd, a[1] - from, size, a[1], fd, ACCESS);
	CHECK(mr && close(fd) == 0);
	memset(l->buf, 0x33, size);
	CHECK(loop_post_write(l, l->buf, (unsigned)size, a[1], mr->rkey) == 0 && loop_poll(l->cq) == IBV_WC_SUCCESS);
	CHECK(map[a[1] - from] == 0x33 && map[a[1] - from - 512] == 0x22);
	CHECK(ibv_dereg_mr(mr) == 0);
	/* By address: a key dies with its own allocation, and not with a neighbour. */
	mr = ibv_reg_mr(l->pd, (void *)(uintptr_t)a[2], size, ACCESS);
	CHECK(mr);
	CU(cuMemFree_v2(a[3]));
	CHECK(loop_post_write(l, l->buf, (unsigned)size, a[2], mr->rkey) == 0 && loop_poll(l->cq) == IBV_WC_SUCCESS);
	CU(cuMemFree_v2(a[2]));
	CHECK(loop_post_write(l, l->buf, (unsigned)size, a[2], mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0);
	CU(cuMemAlloc_v2(&again, 3 * MIB));
	CHECK(again % (2 * MIB) == 0);
	CU(cuMemFree_v2(again));
	CU_IS(cuMemFree_v2(a[2]), CU_INVALID_VALUE);
	CU(cuMemFree_v2(a[0]));
	CU(cuMemFree_v2(a[1]));
	CHECK(munmap(map, to - from) == 0);
	CU(cuMemGetInfo_v2(&free_now, &total));
	CHECK(free_now == before);
}

int main(int argc, char **argv)
{
	struct loop l;

	CHECK(argc == 2);
	cuda_start();
	if (!strcmp(argv[1], "boxes")) {
		boxes();
	} else {
		CHECK(loop_open(&l) == 0);
		if (!strcmp(argv[1], "joined"))
			joined(&l);
		else if (!strcmp(argv[1], "pool"))
			pool(&l);
		else if (!strcmp(argv[1], "lasting"))
			lasting(&l);
		else
			packed(&l);
	}
	printf("ok\n");
	return 0;
}
