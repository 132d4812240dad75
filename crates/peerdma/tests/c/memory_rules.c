/* Registering memory: which errno, and in which order the checks come (docs/semantics.md 2.1, 2.2,
 * 2.7, 2.8, 3). A call that is wrong in two ways is refused for the check that comes first. It is
 * compiled with the system's header and knows nothing about the library below it; the argument
 * says which NIC that has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

#define PAGE 4096
#define LOCAL IBV_ACCESS_LOCAL_WRITE
#define DM_LENGTH (2 * PAGE)
/* Newer than some headers. */
#define FLUSH_GLOBAL (1 << 8)
#define FLUSH_PERSISTENT (1 << 9)
#define RELAXED (1 << 20)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_dm *dm;
/* The device memory as a dma-buf, a descriptor of something else, and one that is closed. */
static int buffer, pipes[2], closed;

static void *symbol(const char *name)
{
	void *at = dlsym(RTLD_DEFAULT, name);

	CHECK(at);
	return at;
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_alloc_dm_attr attr = { .length = DM_LENGTH };
	int (*export)(struct ibv_dm *) = (int (*)(struct ibv_dm *))symbol("ibv_dm_export_dmabuf_fd");

	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(context)) && (dm = ibv_alloc_dm(context, &attr)));
	CHECK((buffer = export(dm)) >= 0 && !pipe(pipes));
	CHECK((closed = dup(buffer)) >= 0 && !close(closed));
}

static int refused(uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access));
	return errno;
}

/* The checks of 2.2, each with every later one failing, too. */
static void dmabuf_order(void)
{
	const int odd[] = { IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_HUGETLB,
			    FLUSH_GLOBAL, FLUSH_PERSISTENT, 1 << 30 };
	struct ibv_mr *mr;

	/* 3 to 5 and 7 check only the arguments. */
	CHECK(refused(1, 0, 0, -1, 0) == EINVAL && refused(PAGE, 0, 8, closed, 0) == EINVAL);
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		CHECK(refused(0, 0, 0, -1, odd[i]) == EINVAL && refused(0, PAGE, 0, buffer, LOCAL | odd[i]) == EINVAL);
	CHECK(refused(0, 0, 0, -1, IBV_ACCESS_REMOTE_WRITE) == EINVAL);
	CHECK(refused(0, 0, 0, -1, IBV_ACCESS_REMOTE_ATOMIC) == EINVAL);
	CHECK(refused(UINT64_MAX - PAGE + 1, PAGE, 0, -1, 0) == EINVAL);
	/* 8, by which programs find out whether there is support; then 9. */
	CHECK(refused(0, 0, 0, -1, 0) == EBADF && refused(0, PAGE, 0, closed, LOCAL) == EBADF);
	CHECK(refused(UINT64_MAX - PAGE + 1, PAGE - 1, 0, -1, 0) == EBADF);
	/* As UCX asks: a page, with every access right and hint that it will use. */
	CHECK(refused(0, PAGE, 0, -1, LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			      IBV_ACCESS_REMOTE_ATOMIC | RELAXED) == EBADF);
	CHECK(refused(0, PAGE, 0, pipes[0], 0) == EINVAL);
	/* 10 and 11. */
	CHECK(refused(0, DM_LENGTH + 1, 0, buffer, 0) == EINVAL && refused(DM_LENGTH, 1, 0, buffer, 0) == EINVAL);
	CHECK(refused(0, 0, 0, buffer, 0) == EINVAL && refused(DM_LENGTH, 0, 0, buffer, 0) == EINVAL);

	/* Byte granular, congruent with the iova, read only, or in any order: 2.1 and the consequences of 2.2. */
	mr = ibv_reg_dmabuf_mr(pd, PAGE + 100, 3996, 7 * PAGE + 100, buffer, 0);
	CHECK(mr && mr->addr == (void *)(PAGE + 100) && mr->length == 3996 && mr->pd == pd && mr->lkey && mr->rkey);
	CHECK(!ibv_dereg_mr(mr));
	CHECK((mr = ibv_reg_dmabuf_mr(pd, 0, DM_LENGTH, 0, buffer, LOCAL | RELAXED)) && !ibv_dereg_mr(mr));
}

static struct ibv_mr *by_attr(uint64_t mask, uint64_t iova, void *addr, int fd, uint64_t offset)
{
	/* struct ibv_mr_init_attr, newer than the header. */
	struct {
		size_t length;
		int access;
		uint64_t mask, iova;
		void *addr;
		int fd;
		uint64_t fd_offset;
		void *dmah, *buf;
	} attr = { PAGE, LOCAL, mask, iova, addr, fd, offset, NULL, NULL };
	struct ibv_mr *(*reg)(struct ibv_pd *, void *) = (struct ibv_mr * (*)(struct ibv_pd *, void *)) symbol("ibv_reg_mr_ex");
	struct ibv_mr *mr;
	char before[sizeof(attr)];

	memcpy(before, &attr, sizeof(attr));
	errno = 0;
	mr = reg(pd, &attr);
	CHECK(!memcmp(before, &attr, sizeof(attr)));
	return mr;
}

/* Which attributes go together. */
static void extended(char *memory)
{
	enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, UNKNOWN = 1 << 10 };
	struct ibv_mr *mr;

	for (unsigned mask = 0; mask < 16; mask++) {
		int dmabuf = mask == (IOVA | FD | FD_OFFSET), plain = mask == ADDR || mask == (ADDR | IOVA);

		mr = by_attr(mask, dmabuf ? PAGE : (uintptr_t)memory, memory, buffer, PAGE);
		if (dmabuf)
			CHECK(mr && mr->addr == (void *)PAGE && !ibv_dereg_mr(mr));
		else if (plain)
			CHECK(mr && mr->addr == memory && !ibv_dereg_mr(mr));
		else
			CHECK(!mr && errno == EINVAL);
		CHECK(!by_attr(mask | DMAH, 0, memory, buffer, 0) && errno == EOPNOTSUPP);
		CHECK(!by_attr(mask | UNKNOWN, 0, memory, buffer, 0) && errno == EOPNOTSUPP);
	}
	CHECK(!by_attr(IOVA | ADDR, 1, memory, -1, 0) && errno == EINVAL);
	CHECK(!by_attr(IOVA | FD | FD_OFFSET, 1, NULL, -1, 0) && errno == EINVAL);
	CHECK(!by_attr(IOVA | FD | FD_OFFSET, 0, NULL, -1, 0) && errno == EBADF);
}

/* Buffers that the library allocates are plain memory, so there is no dma-buf to return. */
static void library_buffers(void)
{
	void *(*alloc)(struct ibv_pd *, size_t, void **) = (void *(*)(struct ibv_pd *, size_t, void **))symbol("ibv_alloc_buf");
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, void *, size_t, int) =
		(struct ibv_mr * (*)(struct ibv_pd *, void *, void *, size_t, int)) symbol("ibv_reg_buf_mr");
	int (*export)(void *) = (int (*)(void *))symbol("ibv_export_buf_dmabuf_fd");
	void (*release)(void *) = (void (*)(void *))symbol("ibv_free_buf");
	void *handle;
	char *at = alloc(pd, 2 * PAGE, &handle);
	struct ibv_mr *mr;

	CHECK(at && (mr = reg(pd, handle, at + PAGE, PAGE, LOCAL)) && mr->addr == at + PAGE && !ibv_dereg_mr(mr));
	CHECK_ERRNO(!reg(pd, handle, at + PAGE, PAGE + 1, LOCAL), EINVAL);
	CHECK_ERRNO(export(handle) == -1, ENODATA);
	release(handle);
}

/* Plain memory: errors of the call come before errors of the memory. */
static void host_order(char *hole)
{
	CHECK_ERRNO(!ibv_reg_mr_iova(pd, hole, PAGE, 1, 0), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, 1 << 12), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, SIZE_MAX, LOCAL), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, 0, LOCAL), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, LOCAL), EFAULT);
}

static void changes(char *memory, char *hole)
{
	const int anew = IBV_REREG_MR_CHANGE_TRANSLATION, rights = IBV_REREG_MR_CHANGE_ACCESS;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL), *null = ibv_alloc_null_mr(pd);
	struct ibv_mr *on_dm = ibv_reg_dm_mr(pd, dm, 0, PAGE, LOCAL | IBV_ACCESS_ZERO_BASED);

	CHECK(mr && null && on_dm);
	/* The library's own: the region is as it was. */
	CHECK_ERRNO(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(mr, anew, NULL, NULL, PAGE, 0) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(mr, anew, NULL, memory, 0, 0) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, LOCAL) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(null, rights, NULL, NULL, 0, LOCAL) == IBV_REREG_MR_ERR_INPUT, EINVAL);
	/* The kernel's: nothing to change, invalid access rights, memory that does not exist, in this
	 * order. */
	CHECK_ERRNO(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD, EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(mr, rights | anew, NULL, hole, PAGE, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD,
		    EINVAL);
	CHECK_ERRNO(ibv_rereg_mr(mr, anew, NULL, hole, PAGE, 0) == IBV_REREG_MR_ERR_CMD, EFAULT);
	/* Device memory reaches the kernel, which refuses first of all. */
	for (int flags = 1; flags < 8; flags++)
		CHECK_ERRNO(ibv_rereg_mr(on_dm, flags, pd, hole, PAGE, flags & rights ? LOCAL : 0) ==
				    IBV_REREG_MR_ERR_CMD, EINVAL);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(null) && !ibv_dereg_mr(on_dm));
}

/* Each aligned 32-bit word is whole for every reader: half of one word and half of another is
 * never seen. */
static atomic_int stop;

static void *writer(void *unused)
{
	uint32_t words[2][64];

	for (int i = 0; i < 64; i++)
		words[0][i] = 0x11111111, words[1][i] = 0x22222222;
	for (unsigned round = 0; !atomic_load(&stop); round++)
		CHECK(!ibv_memcpy_to_dm(dm, 4, words[round % 2], sizeof(words[0])));
	return unused;
}

static void words(void)
{
	char out[260];
	pthread_t thread;
	unsigned seen = 0;
	uint32_t word;

	memset(out, 0x11, sizeof(out));
	CHECK(!ibv_memcpy_to_dm(dm, 0, out, sizeof(out)));
	CHECK(!pthread_create(&thread, NULL, writer, NULL));
	for (int round = 0; round < 20000 || (seen != 3 && round < 10000000); round++) {
		/* The program's own side need not be aligned. */
		CHECK(!ibv_memcpy_from_dm(out + 1, dm, 4, 256));
		for (int i = 0; i < 64; i++) {
			memcpy(&word, out + 1 + 4 * i, 4);
			CHECK(word == 0x11111111 || word == 0x22222222);
			seen |= word == 0x11111111 ? 1 : 2;
		}
	}
	CHECK(seen == 3);
	atomic_store(&stop, 1);
	CHECK(!pthread_join(thread, NULL));
}

/* The words of a copy are written in ascending order: a reader that sees the last one of a copy
 * also sees its first one. */
static atomic_int written;

static void *counter(void *unused)
{
	uint32_t copy[64];

	for (uint32_t round = 1; round <= 200000; round++) {
		for (int i = 0; i < 64; i++)
			copy[i] = round;
		CHECK(!ibv_memcpy_to_dm(dm, 0, copy, sizeof(copy)));
	}
	atomic_store(&written, 1);
	return unused;
}

static void order(void)
{
	uint32_t zeros[64] = { 0 }, first, last;
	pthread_t thread;

	CHECK(!ibv_memcpy_to_dm(dm, 0, zeros, sizeof(zeros)));
	CHECK(!pthread_create(&thread, NULL, counter, NULL));
	do {
		CHECK(!ibv_memcpy_from_dm(&last, dm, 63 * 4, 4) && !ibv_memcpy_from_dm(&first, dm, 0, 4));
		CHECK(first >= last);
	} while (!atomic_load(&written));
	CHECK(!pthread_join(thread, NULL));
}

static void device_memory(void)
{
	const int zero = IBV_ACCESS_ZERO_BASED;
	const int odd[] = { IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_HUGETLB, FLUSH_GLOBAL, RELAXED, 1 << 30 };
	struct ibv_alloc_dm_attr attr = { .length = 100, .log_align_req = 12 };
	struct ibv_device_attr_ex device;
	struct ibv_mr *one, *two;
	struct ibv_dm *block;
	char word[8];

	CHECK(!ibv_query_device_ex(context, NULL, &device) && device.max_dm_size > 0);
	CHECK((block = ibv_alloc_dm(context, &attr)) && !ibv_free_dm(block));
	attr.log_align_req = 13;
	CHECK_ERRNO(!ibv_alloc_dm(context, &attr), EINVAL);
	attr = (struct ibv_alloc_dm_attr){ .length = device.max_dm_size + 1 };
	CHECK_ERRNO(!ibv_alloc_dm(context, &attr), EINVAL);
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		CHECK_ERRNO(!ibv_reg_dm_mr(pd, dm, 0, 64, zero | LOCAL | odd[i]), EINVAL);
	CHECK_ERRNO(!ibv_reg_dm_mr(pd, dm, 0, 64, zero | IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_ERRNO(!ibv_reg_dm_mr(pd, dm, DM_LENGTH, 1, zero), EINVAL);
	CHECK_ERRNO(!ibv_reg_dm_mr(pd, dm, 0, DM_LENGTH + 1, zero), EINVAL);
	/* Several regions, which may overlap; the block is in use until the last one is gone. */
	CHECK((one = ibv_reg_dm_mr(pd, dm, 0, DM_LENGTH, zero)) && (two = ibv_reg_dm_mr(pd, dm, 8, 100, zero | LOCAL)));
	CHECK(!one->addr && one->length == DM_LENGTH && !two->addr && two->length == 100 && one->rkey != two->rkey);
	CHECK(ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(one) && ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(two));
	/* Outside comes before half a word. */
	CHECK(ibv_memcpy_to_dm(dm, DM_LENGTH - 1, word, 2) == EFAULT && ibv_memcpy_from_dm(word, dm, DM_LENGTH - 1, 2) == EFAULT);
	CHECK(ibv_memcpy_to_dm(dm, UINT64_MAX, word, 4) == EFAULT && ibv_memcpy_from_dm(word, dm, UINT64_MAX, 4) == EFAULT);
	CHECK(ibv_memcpy_to_dm(dm, 1, word, 4) == EINVAL && ibv_memcpy_from_dm(word, dm, 1, 4) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 0, word, 5) == EINVAL && ibv_memcpy_from_dm(word, dm, 0, 5) == EINVAL);
	words();
	order();
}

/* The exported buffer ends with the memory: the descriptor then stands for a buffer that cannot be
 * mapped. */
static void freed(void)
{
	CHECK(!ibv_free_dm(dm));
	CHECK(refused(0, PAGE, 0, buffer, LOCAL) == ENODEV);
	CHECK(!close(buffer));
}

/* Lack of support is reported before anything else. */
static void none(void)
{
	CHECK(refused(0, 0, 0, -1, 0) == EOPNOTSUPP && refused(1, 0, 0, closed, -1) == EOPNOTSUPP);
	CHECK(refused(0, PAGE, 0, buffer, LOCAL) == EOPNOTSUPP);
	CHECK(!by_attr(13, 0, NULL, -1, 0) && errno == EOPNOTSUPP);
}

/* A NIC that pins what is registered, in a program that may lock nothing, and then a page. */
static void locked(char *memory, char *hole)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	struct rlimit limit = { 0, 0 };
	struct ibv_mr *mr;

	CHECK(!getrlimit(RLIMIT_MEMLOCK, &limit));
	limit.rlim_cur = 0;
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit) && !syscall(SYS_capget, &header, data));
	if (data[0].effective & 1u << CAP_IPC_LOCK) {
		/* The capability lifts the limit. */
		CHECK((mr = ibv_reg_mr(pd, memory, PAGE, LOCAL)) && !ibv_dereg_mr(mr));
		data[0].effective &= ~(1u << CAP_IPC_LOCK);
		CHECK(!syscall(SYS_capset, &header, data));
	}
	/* Checked before the length, the number of pages and the memory, after the access rights and the
	 * end of the range. */
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, SIZE_MAX, LOCAL), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, 0, LOCAL), EPERM);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, LOCAL), EPERM);
	limit.rlim_cur = PAGE;
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, 0, LOCAL), EINVAL);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, 2 * PAGE, LOCAL), ENOMEM);
	CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, LOCAL), EFAULT);
	CHECK((mr = ibv_reg_mr(pd, memory, PAGE, LOCAL)) && !ibv_dereg_mr(mr));
	/* A dma-buf is not charged. */
	CHECK((mr = ibv_reg_dmabuf_mr(pd, 0, DM_LENGTH, 0, buffer, LOCAL)) && !ibv_dereg_mr(mr));
}

int main(int argc, char **argv)
{
	const char *nic = argc > 1 ? argv[1] : "";
	char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* So low that nothing is mapped there by itself; between mappings, the library may put one of its own at any time. */
	char *hole = (char *)PAGE;

	CHECK(memory != MAP_FAILED);
	open_device();
	if (!strcmp(nic, "none")) {
		none();
	} else if (!strcmp(nic, "pinned")) {
		/* 13: the exporter does not pin. */
		CHECK(refused(0, PAGE, 0, buffer, LOCAL) == EOPNOTSUPP && refused(0, 0, 0, -1, 0) == EBADF);
	} else if (!strcmp(nic, "rxe")) {
		/* Checked before the memory, after invalid access rights. */
		CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, LOCAL | IBV_ACCESS_ZERO_BASED), EOPNOTSUPP);
		CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, LOCAL | IBV_ACCESS_HUGETLB), EOPNOTSUPP);
		CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, IBV_ACCESS_HUGETLB | IBV_ACCESS_REMOTE_WRITE), EINVAL);
		CHECK_ERRNO(!ibv_reg_mr(pd, hole, PAGE, LOCAL), EFAULT);
	} else if (!strcmp(nic, "locked")) {
		locked(memory, hole);
	} else {
		dmabuf_order();
		extended(memory);
		library_buffers();
		host_order(hole);
		changes(memory, hole);
		device_memory();
		freed();
	}
	printf("every check passed\n");
	return 0;
}
