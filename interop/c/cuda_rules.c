/* The results of CUDA's driver: error codes for each mistake, attributes of pointers, contexts,
 * streams, mapped memory. */
#include "cuda_api.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void before_init(void)
{
	const char *name = NULL;
	void *found = (void *)1;
	cu_context context;
	cu_ptr at;
	int n;

	CU(cuDriverGetVersion(&n));
	CHECK(n == 13030);
	CU_IS(cuDeviceGetCount(&n), CU_NOT_INITIALIZED);
	CU_IS(cuMemAlloc_v2(&at, MIB), CU_NOT_INITIALIZED);
	CU_IS(cuCtxGetCurrent(&context), CU_NOT_INITIALIZED);
	CU(cuGetErrorName(CU_NOT_INITIALIZED, &name));
	CHECK(!strcmp(name, "CUDA_ERROR_NOT_INITIALIZED"));
	CU_IS(cuGetErrorName(424242, &name), CU_INVALID_VALUE);
	CHECK(name == NULL);
	/* An unknown name is not found; a version newer than the driver is an error. */
	CU(cuGetProcAddress_v2("cuNoSuchThing", &found, 12000, 0, &n));
	CHECK(found == NULL && n == 1);
	CU(cuGetProcAddress_v2("cuMemcpyBatchAsync", &found, 12000, 0, &n));
	CHECK(found == NULL && n == 2);
	CU(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, NULL));
	CHECK(found == (void *)cuMemAlloc_v2);
	CU_IS(cuGetProcAddress_v2("cuMemAlloc", &found, 99000, 0, &n), CU_INVALID_VALUE);
	CU_IS(cuGetExportTable((const void **)&found, "0123456789abcdef"), CU_NOT_FOUND);
	CU_IS(cuInit(1), CU_INVALID_VALUE);
}

static void contexts(void)
{
	cu_context a, b, now;
	unsigned flags;
	int active;
	cu_ptr at;

	CU(cuInit(0));
	CU(cuInit(0));
	CU_IS(cuMemAlloc_v2(&at, MIB), CU_INVALID_CONTEXT);
	CU_IS(cuDeviceGet(&active, 99), CU_INVALID_DEVICE);
	CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	CU(cuDevicePrimaryCtxRetain(&a, 0));
	CU(cuDevicePrimaryCtxRetain(&b, 0));
	CHECK(a == b);
	CU(cuCtxGetCurrent(&now));
	CHECK(now == NULL);
	CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(active);
	CU_IS(cuDevicePrimaryCtxSetFlags(0, 1), CU_PRIMARY_CONTEXT_ACTIVE);
	CU(cuDevicePrimaryCtxRelease_v2(0));
	CU(cuDevicePrimaryCtxRelease_v2(0));
	CU_IS(cuDevicePrimaryCtxRelease_v2(0), CU_INVALID_CONTEXT);
	CU_IS(cuCtxSetCurrent(a), CU_CONTEXT_IS_DESTROYED);
	CU_IS(cuCtxSetCurrent((cu_context)(uintptr_t)4711), CU_INVALID_CONTEXT);
	CU(cuCtxCreate_v2(&a, 0, 0));
	CU(cuMemAlloc_v2(&at, MIB));
	/* Memory is freed with its context. */
	CU(cuCtxDestroy_v2(a));
	CU(cuCtxCreate_v2(&b, 0, 0));
	CU_IS(cuMemFree_v2(at), CU_INVALID_VALUE);
	CU(cuCtxDestroy_v2(b));
	CU_IS(cuMemAlloc_v2(&at, MIB), CU_INVALID_CONTEXT);
}

static void memory(void)
{
	static unsigned char from[65536], to[65536];
	size_t len, before, after, total;
	cu_ptr a, b, base;

	CU_IS(cuMemAlloc_v2(&a, 0), CU_INVALID_VALUE);
	CU_IS(cuMemAlloc_v2(NULL, MIB), CU_INVALID_VALUE);
	CU_IS(cuMemAlloc_v2(&a, (size_t)1 << 60), CU_OUT_OF_MEMORY);
	CU(cuMemGetInfo_v2(&before, &total));
	CU_IS(cuMemAlloc_v2(&a, total + MIB), CU_OUT_OF_MEMORY);
	CU(cuMemAlloc_v2(&a, MIB));
	CU(cuMemAlloc_v2(&b, 100));
	CU(cuMemGetInfo_v2(&after, &total));
	CHECK(after < before && after <= total);
	CHECK(a % 256 == 0 && b % 256 == 0);
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * 31 + (i >> 8));
	CU(cuMemcpyHtoD_v2(a + 77, from, sizeof(from)));
	CU(cuMemcpyDtoD_v2(a + 500000, a + 77, sizeof(from)));
	CU(cuMemcpyDtoH_v2(to, a + 500000, sizeof(to)));
	CHECK(!memcmp(from, to, sizeof(to)));
	CU(cuMemsetD8_v2(a, 0x5a, MIB));
	CU(cuMemcpyDtoH_v2(to, a + MIB - 16, 16));
	CHECK(to[0] == 0x5a && to[15] == 0x5a);
	CU(cuMemsetD32_v2(a + 4, 0x01020304, 3));
	CU(cuMemcpyDtoH_v2(to, a, 20));
	CHECK(to[3] == 0x5a && to[4] == 4 && to[15] == 1 && to[16] == 0x5a);
	CU_IS(cuMemsetD32_v2(a + 1, 0, 1), CU_INVALID_VALUE);
	/* Half inside, outside, wrapping around the end. */
	CU_IS(cuMemcpyDtoH_v2(to, a + MIB - 8, 16), CU_INVALID_VALUE);
	CU_IS(cuMemcpyHtoD_v2(b, from, 101), CU_INVALID_VALUE);
	CU_IS(cuMemcpyHtoD_v2(a + 64 * MIB, from, 1), CU_INVALID_VALUE);
	CU_IS(cuMemcpyHtoD_v2(UINT64_MAX - 3, from, 16), CU_INVALID_VALUE);
	CU_IS(cuMemcpyHtoD_v2(a, NULL, 16), CU_INVALID_VALUE);
	CU(cuMemcpyHtoD_v2(a, from, 0));
	CU(cuMemGetAddressRange_v2(&base, &len, a + 4711));
	CHECK(base == a && len == MIB);
	CU(cuMemGetAddressRange_v2(NULL, NULL, a));
	CU_IS(cuMemGetAddressRange_v2(&base, &len, (uintptr_t)from), CU_NOT_FOUND);
	CU_IS(cuMemFree_v2(a + 1), CU_INVALID_VALUE);
	CU_IS(cuMemFree_v2((uintptr_t)from), CU_INVALID_VALUE);
	CU(cuMemFree_v2(0));
	CU(cuMemFree_v2(a));
	CU(cuMemFree_v2(b));
	CU_IS(cuMemFree_v2(a), CU_INVALID_VALUE);
	CU_IS(cuMemcpyHtoD_v2(a, from, 16), CU_INVALID_VALUE);
	CU(cuMemGetInfo_v2(&after, &total));
	CHECK(after == before);
}

enum { CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, P2P_TOKENS, SYNC_MEMOPS, BUFFER_ID, IS_MANAGED, ORDINAL, IS_LEGACY };

static void pointers(cu_context context)
{
	int attributes[] = { MEMORY_TYPE, IS_MANAGED, ORDINAL, CONTEXT, BUFFER_ID };
	int type, managed, ordinal, on = 1;
	cu_context owner;
	uint64_t id, first;
	void *out[] = { &type, &managed, &ordinal, &owner, &id };
	char plain[64];
	cu_ptr a, m;
	void *host;

	/* An address that CUDA does not know: success and empty values; for a single attribute, an
	 * error. */
	type = managed = ordinal = 77;
	owner = (cu_context)plain;
	CU(cuPointerGetAttributes(5, attributes, out, (uintptr_t)plain));
	CHECK(type == 0 && managed == 0 && ordinal == -2 && owner == NULL && id == 0);
	CU_IS(cuPointerGetAttribute(&owner, CONTEXT, (uintptr_t)plain), CU_INVALID_VALUE);
	CU(cuMemAlloc_v2(&a, MIB));
	CU(cuPointerGetAttributes(5, attributes, out, a + 5000));
	CHECK(type == 2 && managed == 0 && ordinal == 0 && owner == context && id != 0);
	CU_IS(cuPointerGetAttribute(&host, HOST_POINTER, a), CU_INVALID_VALUE);
	CU(cuPointerSetAttribute(&on, SYNC_MEMOPS, a + 100));
	CU(cuPointerGetAttribute(&type, SYNC_MEMOPS, a));
	CHECK(type == 1);
	CU_IS(cuPointerSetAttribute(&on, MEMORY_TYPE, a), CU_INVALID_VALUE);
	/* The same address again, with other memory. */
	first = id;
	CU(cuMemFree_v2(a));
	CU(cuMemAlloc_v2(&a, MIB));
	CU(cuPointerGetAttribute(&id, BUFFER_ID, a));
	CHECK(id != first);
	CU(cuMemFree_v2(a));
	CU(cuMemAllocManaged(&m, MIB, 1));
	CU(cuPointerGetAttributes(5, attributes, out, m));
	CHECK(type == 2 && managed == 1);
	memset((void *)(uintptr_t)m, 1, MIB);
	CU(cuMemFree_v2(m));
	CU(cuMemAllocHost_v2(&host, 4096));
	CU(cuPointerGetAttribute(&type, MEMORY_TYPE, (uintptr_t)host));
	CHECK(type == 1);
	CU(cuMemFreeHost(host));
	CU(cuMemHostRegister_v2(plain, sizeof(plain), 0));
	CU(cuPointerGetAttribute(&type, MEMORY_TYPE, (uintptr_t)plain + 3));
	CHECK(type == 1);
	CU_IS(cuMemHostRegister_v2(plain + 10, 4, 0), CU_ALREADY_REGISTERED);
	CU(cuMemHostUnregister(plain));
	CU_IS(cuMemHostUnregister(plain), CU_NOT_REGISTERED);
}

static void a_cpu_that_follows_a_device_pointer_faults(void)
{
	int status;
	cu_ptr a;
	pid_t child;

	CU(cuMemAlloc_v2(&a, MIB));
	CHECK(write(1, (void *)(uintptr_t)a, 1) == -1 && errno == EFAULT);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		*(volatile char *)(uintptr_t)a = 1;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	/* And a child is told that it has no GPU. */
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		cu_context context;
		int n;

		_exit(cuInit(0) != CU_NOT_INITIALIZED || cuMemFree_v2(a) != CU_NOT_INITIALIZED ||
		      cuCtxGetCurrent(&context) != CU_NOT_INITIALIZED || cuDeviceGetCount(&n) != CU_NOT_INITIALIZED);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CU(cuMemFree_v2(a));
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static int called;

static void call(void *data)
{
	pthread_mutex_lock(&held);
	called += *(int *)data;
	pthread_mutex_unlock(&held);
}

static void streams(void)
{
	cu_stream a, b;
	cu_event e, f;
	uint32_t word;
	int two = 2;
	cu_ptr at;
	float ms;

	CU(cuMemAlloc_v2(&at, 4096));
	CU(cuMemsetD8_v2(at, 0, 4096));
	CU(cuStreamCreate(&a, 1));
	CU(cuStreamCreate(&b, 1));
	CU(cuEventCreate(&e, 0));
	CU(cuEventCreate(&f, 0));
	CU(cuEventQuery(e));
	CU_IS(cuEventElapsedTime(&ms, e, f), CU_INVALID_HANDLE);
	/* Another thread calls the function: the caller may hold its locks. */
	pthread_mutex_lock(&held);
	CU(cuLaunchHostFunc(a, call, &two));
	CU_IS(cuStreamQuery(a), CU_NOT_READY);
	pthread_mutex_unlock(&held);
	CU(cuStreamSynchronize(a));
	CHECK(called == 2);
	/* Work behind a wait waits, and so does work that waits for an event behind it. */
	CU(cuEventRecord(e, a));
	CU(cuStreamWaitValue32_v2(a, at, 7, 1));
	CU(cuMemsetD32Async(at + 64, 0xabcd, 1, a));
	CU(cuEventRecord(f, a));
	CU(cuStreamWaitEvent(b, f, 0));
	CU(cuMemsetD32Async(at + 128, 0xef, 1, b));
	CU_IS(cuStreamQuery(a), CU_NOT_READY);
	CU_IS(cuStreamQuery(b), CU_NOT_READY);
	CU_IS(cuEventQuery(f), CU_NOT_READY);
	CU(cuMemcpyDtoH_v2(&word, at + 64, 4));
	CHECK(word == 0);
	CU(cuMemcpyDtoH_v2(&word, at + 128, 4));
	CHECK(word == 0);
	CU(cuStreamWriteValue32_v2(NULL, at, 7, 0));
	CU(cuStreamSynchronize(b));
	CU(cuMemcpyDtoH_v2(&word, at + 128, 4));
	CHECK(word == 0xef);
	CU(cuMemcpyDtoH_v2(&word, at + 64, 4));
	CHECK(word == 0xabcd);
	CU(cuEventSynchronize(f));
	CU(cuEventElapsedTime(&ms, e, f));
	CHECK(ms >= 0);
	CU_IS(cuStreamWaitValue32_v2(a, at + 1, 7, 1), CU_INVALID_VALUE);
	CU_IS(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL), CU_NOT_SUPPORTED);
	CU(cuEventDestroy_v2(e));
	CU(cuEventDestroy_v2(f));
	CU_IS(cuEventQuery(f), CU_INVALID_HANDLE);
	CU(cuStreamDestroy_v2(a));
	CU(cuStreamDestroy_v2(b));
	CU_IS(cuStreamQuery(a), CU_INVALID_HANDLE);
	CU(cuMemAllocAsync(&at, MIB, NULL));
	CU(cuMemsetD8_v2(at, 1, MIB));
	CU(cuMemFreeAsync(at, NULL));
	CU(cuCtxSynchronize());
	CU_IS(cuMemsetD8_v2(at, 1, MIB), CU_INVALID_VALUE);
}

static void mapped_memory(void)
{
	cu_prop prop = { .type = 1, .handle_types = 1, .location = { 1, 0 }, .flags.rdma = 1 };
	cu_access access = { { 1, 0 }, 3 };
	uint64_t a, b, again;
	cu_ptr at, base;
	size_t page, len;
	char bytes[32];
	int fd;

	CU(cuMemGetAllocationGranularity(&page, &prop, 0));
	CHECK(page == 2 * MIB);
	CU_IS(cuMemCreate(&a, page + 1, &prop, 0), CU_INVALID_VALUE);
	CU(cuMemCreate(&a, page, &prop, 0));
	CU(cuMemCreate(&b, page, &prop, 0));
	CU(cuMemAddressReserve(&at, 4 * page, 0, 0, 0));
	CU_IS(cuMemMap(at + 64 * page, page, 0, a, 0), CU_INVALID_VALUE);
	CU(cuMemMap(at, page, 0, a, 0));
	CU_IS(cuMemMap(at, page, 0, b, 0), CU_INVALID_VALUE);
	CU(cuMemMap(at + page, page, 0, b, 0));
	/* No access before it is granted, and none where nothing is mapped. */
	CU_IS(cuMemsetD8_v2(at, 1, 16), CU_INVALID_VALUE);
	CU_IS(cuMemSetAccess(at, 3 * page, &access, 1), CU_INVALID_VALUE);
	CU(cuMemSetAccess(at, 2 * page, &access, 1));
	CU(cuMemsetD8_v2(at + page - 16, 0x33, 32));
	CU(cuMemcpyDtoH_v2(bytes, at + page - 16, 32));
	CHECK(bytes[0] == 0x33 && bytes[31] == 0x33);
	CU(cuMemGetAddressRange_v2(&base, &len, at + page + 5));
	CHECK(base == at + page && len == page);
	CU(cuMemRetainAllocationHandle(&again, at + 100));
	CHECK(again == a);
	CU(cuMemRelease(again));
	CU(cuMemRelease(a));
	CU_IS(cuMemRelease(a), CU_INVALID_VALUE);
	CU(cuMemcpyDtoH_v2(bytes, at + page - 16, 16));
	CHECK(bytes[0] == 0x33);
	/* Passed on as a descriptor, it is the same memory. */
	CU(cuMemExportToShareableHandle(&fd, b, 1, 0));
	CU(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, 1));
	close(fd);
	CU(cuMemMap(at + 2 * page, page, 0, again, 0));
	CU(cuMemSetAccess(at + 2 * page, page, &access, 1));
	CU(cuMemcpyDtoH_v2(bytes, at + 2 * page, 16));
	CHECK(bytes[0] == 0x33 && bytes[15] == 0x33);
	CU_IS(cuMemUnmap(at, page / 2), CU_INVALID_VALUE);
	CU_IS(cuMemAddressFree(at, 4 * page), CU_INVALID_VALUE);
	CU(cuMemUnmap(at, 3 * page));
	CU_IS(cuMemcpyDtoH_v2(bytes, at, 16), CU_INVALID_VALUE);
	CU_IS(cuMemAddressFree(at, page), CU_INVALID_VALUE);
	CU(cuMemAddressFree(at, 4 * page));
	CU(cuMemRelease(b));
	CU(cuMemRelease(again));
}

static void exports(void)
{
	cu_ptr a, m;
	int fd, other;

	CU(cuMemAlloc_v2(&a, MIB));
	CU_IS(cuMemGetHandleForAddressRange(&fd, a + 1, 4096, 1, 0), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(&fd, a, 4095, 1, 0), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(&fd, a, 2 * MIB, 1, 0), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(&fd, a, MIB, 2, 0), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(&fd, a, MIB, 1, 1), CU_NOT_SUPPORTED);
	CU_IS(cuMemGetHandleForAddressRange(&fd, (uintptr_t)&a & ~4095ul, 4096, 1, 0), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(NULL, a, MIB, 1, 0), CU_INVALID_VALUE);
	CU(cuMemGetHandleForAddressRange(&fd, a, MIB, 1, 0));
	CU(cuMemGetHandleForAddressRange(&other, a, MIB, 1, 0));
	CHECK(fd != other && close(fd) == 0 && close(other) == 0);
	CU(cuMemAllocManaged(&m, MIB, 1));
	CU_IS(cuMemGetHandleForAddressRange(&fd, m, 4096, 1, 0), CU_INVALID_VALUE);
	CU(cuMemFree_v2(m));
	CU(cuMemFree_v2(a));
}

int main(void)
{
	cu_context context;

	cuda_load();
	before_init();
	contexts();
	CU(cuCtxCreate_v2(&context, 0, 0));
	memory();
	pointers(context);
	streams();
	mapped_memory();
	exports();
	a_cpu_that_follows_a_device_pointer_faults();
	printf("ok\n");
	return 0;
}
