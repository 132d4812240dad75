/* The runtime libraries 12 and 13, NVML, and the first instructions of the driver's functions,
 * looked up as programs do. The declarations are those of the public headers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { MIB = 1 << 20, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEFAULT = 4 };

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	return library;
}

static void *find(void *library, const char *name, const char *version)
{
	void *found = version ? dlvsym(library, name, version) : dlsym(library, name);
	if (!found)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(found);
	return found;
}

/* A function of the runtime. */
#define RUNTIME(name, ...) ((int (*)(__VA_ARGS__))find(runtime, name, node))
/* A function without a version. */
#define PLAIN(library, name, ...) ((int (*)(__VA_ARGS__))find(library, name, NULL))

static void *runtime;
static const char *node;

static void *last_error_of_another_thread(void *argument)
{
	(void)argument;
	return (void *)(intptr_t)RUNTIME("cudaGetLastError", void)();
}

static void errors(void)
{
	int (*last)(void) = RUNTIME("cudaGetLastError", void), (*peek)(void) = RUNTIME("cudaPeekAtLastError", void);
	const char *(*name)(int) = (const char *(*)(int))find(runtime, "cudaGetErrorName", node);
	const char *(*words)(int) = (const char *(*)(int))find(runtime, "cudaGetErrorString", node);
	int device;
	void *other;
	pthread_t thread;

	CHECK(last() == 0);
	CHECK(RUNTIME("cudaSetDevice", int)(77) == 101);
	/* A call that succeeds does not clear the last error; asking for it does. */
	CHECK(RUNTIME("cudaGetDevice", int *)(&device) == 0 && device == 0);
	CHECK(pthread_create(&thread, NULL, last_error_of_another_thread, NULL) == 0);
	CHECK(pthread_join(thread, &other) == 0 && other == NULL);
	CHECK(peek() == 101 && last() == 101 && last() == 0);
	CHECK(strcmp(name(101), "cudaErrorInvalidDevice") == 0 && strcmp(name(98), "cudaErrorInvalidDeviceFunction") == 0);
	CHECK(strcmp(words(2), "out of memory") == 0 && strcmp(words(0), "no error") == 0);
	CHECK(strcmp(name(12345), "unrecognized error code") == 0);
	/* Kernels and variables are refused. */
	CHECK(RUNTIME("cudaLaunchKernel", void *)(NULL) == 98 && last() == 98);
	size_t size;
	CHECK(RUNTIME("cudaGetSymbolSize", size_t *, void *)(&size, &size) == 13 && last() == 13);
	CHECK(((void *(*)(void *))find(runtime, "__cudaRegisterFatBinary", node))(NULL) != NULL);
}

/* The structure that `cudaGetDeviceProperties` fills decides where `major` and `pciBusID` are. */
static void properties(int bus_at, size_t size)
{
	unsigned char bytes[1100];
	int major, bus, wanted;
	char name[256], id[32];

	memset(bytes, 0xa5, sizeof(bytes));
	const char *which = size == 1032 ? "cudaGetDeviceProperties_v2" : "cudaGetDeviceProperties";
	CHECK(RUNTIME(which, void *, int)(bytes, 1) == 0);
	memcpy(&major, bytes + 360, 4);
	memcpy(&bus, bytes + bus_at, 4);
	CHECK(RUNTIME("cudaDeviceGetAttribute", int *, int, int)(&wanted, 33, 1) == 0);
	CHECK(major == 9 && bus == wanted);
	CHECK(bytes[size - 1] == 0 && bytes[size] == 0xa5);
	CHECK(PLAIN(open_library("libcuda.so.1"), "cuDeviceGetName", char *, int, int)(name, 256, 1) == 0);
	CHECK(strcmp(name, (char *)bytes) == 0);
	CHECK(RUNTIME("cudaDeviceGetPCIBusId", char *, int, int)(id, 32, 1) == 0);
	CHECK(RUNTIME("cudaDeviceGetByPCIBusId", int *, const char *)(&wanted, id) == 0 && wanted == 1);
}

static void memory(void)
{
	struct {
		int type, device;
		void *device_pointer, *host_pointer;
		long rest[8];
	} attributes;
	int (*what)(void *, const void *) = RUNTIME("cudaPointerGetAttributes", void *, const void *);
	int (*copy)(void *, const void *, size_t, int) = RUNTIME("cudaMemcpy", void *, const void *, size_t, int);
	int (*state)(int, unsigned *, int *) =
		PLAIN(open_library("libcuda.so.1"), "cuDevicePrimaryCtxGetState", int, unsigned *, int *);
	char host[64] = "unregistered", back[64];
	char *device, *managed, *pinned, *rows;
	size_t pitch, free_bytes, total;
	unsigned flags;
	int active, current;
	void *context, *stream, *event;

	/* Nothing so far needed a context. An unknown pointer is reported as such. */
	CHECK(what(&attributes, host) == 0);
	CHECK(attributes.type == 0 && attributes.host_pointer == host && !attributes.device_pointer);
	CHECK(state(0, &flags, &active) == 0 && active == 0);
	CHECK(RUNTIME("cudaMalloc", void *, size_t)(&device, MIB) == 0 && device);
	CHECK(state(0, &flags, &active) == 0 && active == 1);
	CHECK(what(&attributes, device + 17) == 0);
	CHECK(attributes.type == 2 && attributes.device == 0 && attributes.device_pointer == device + 17);
	CHECK(!attributes.host_pointer);
	CHECK(RUNTIME("cudaMallocManaged", void *, size_t, unsigned)(&managed, 4096, 1) == 0);
	CHECK(what(&attributes, managed) == 0 && attributes.type == 3);
	managed[0] = 1;
	CHECK(RUNTIME("cudaMallocHost", void *, size_t)(&pinned, 4096) == 0);
	CHECK(what(&attributes, pinned) == 0 && attributes.type == 1 && attributes.host_pointer == pinned);

	CHECK(copy(device, host, sizeof(host), HOST_TO_DEVICE) == 0);
	/* A direction that the addresses contradict is not an error; a direction that does not exist
	 * is. */
	CHECK(copy(back, device, sizeof(back), HOST_TO_DEVICE) == 0 && strcmp(back, "unregistered") == 0);
	CHECK(copy(back, device, sizeof(back), 9) == 21 && RUNTIME("cudaGetLastError", void)() == 21);
	CHECK(copy(device + MIB - 8, host, sizeof(host), DEFAULT) == 1);
	CHECK(RUNTIME("cudaMemset", void *, int, size_t)(device, 'x', 3) == 0);
	CHECK(copy(back, device, sizeof(back), DEVICE_TO_HOST) == 0 && strncmp(back, "xxxegis", 7) == 0);
	CHECK(RUNTIME("cudaMallocPitch", void *, size_t *, size_t, size_t)(&rows, &pitch, 100, 3) == 0 && pitch == 512);
	int (*copy_rows)(void *, size_t, const void *, size_t, size_t, size_t, int) =
		RUNTIME("cudaMemcpy2D", void *, size_t, const void *, size_t, size_t, size_t, int);
	CHECK(copy_rows(rows, pitch, host, 16, 16, 3, DEFAULT) == 0);
	CHECK(copy(back, rows + pitch, 16, DEFAULT) == 0 && memcmp(back, host + 16, 16) == 0);
	CHECK(copy_rows(rows, pitch, host, 8, 16, 3, DEFAULT) == 12);
	CHECK(RUNTIME("cudaMemGetInfo", size_t *, size_t *)(&free_bytes, &total) == 0 && free_bytes < total);

	CHECK(RUNTIME("cudaStreamCreateWithFlags", void *, unsigned)(&stream, 1) == 0);
	CHECK(RUNTIME("cudaEventCreateWithFlags", void *, unsigned)(&event, 2) == 0);
	CHECK(RUNTIME("cudaMemcpyAsync", void *, void *, size_t, int, void *)(back, device, 3, DEFAULT, stream) == 0);
	CHECK(RUNTIME("cudaEventRecord", void *, void *)(event, stream) == 0);
	CHECK(RUNTIME("cudaEventSynchronize", void *)(event) == 0 && RUNTIME("cudaStreamQuery", void *)(stream) == 0);
	CHECK(RUNTIME("cudaEventDestroy", void *)(event) == 0 && RUNTIME("cudaStreamDestroy", void *)(stream) == 0);

	/* A context that the driver made current is used, and its device is the thread's. */
	void *cuda = open_library("libcuda.so.1");
	CHECK(PLAIN(cuda, "cuCtxCreate_v2", void *, unsigned, int)(&context, 0, 1) == 0);
	CHECK(RUNTIME("cudaGetDevice", int *)(&current) == 0 && current == 1);
	void *other;
	CHECK(RUNTIME("cudaMalloc", void *, size_t)(&other, 4096) == 0);
	CHECK(what(&attributes, other) == 0 && attributes.device == 1);
	CHECK(state(1, &flags, &active) == 0 && active == 0);
	/* And cudaSetDevice makes the primary context current at once. */
	CHECK(RUNTIME("cudaSetDevice", int)(1) == 0 && state(1, &flags, &active) == 0 && active == 1);
	CHECK(RUNTIME("cudaSetDevice", int)(0) == 0);

	CHECK(RUNTIME("cudaFree", void *)(NULL) == 0 && RUNTIME("cudaFree", void *)(device) == 0);
	CHECK(RUNTIME("cudaFree", void *)(device) == 1 && RUNTIME("cudaFree", void *)(rows) == 0);
	CHECK(RUNTIME("cudaFreeHost", void *)(pinned) == 0 && RUNTIME("cudaFree", void *)(managed) == 0);
	/* A reset ends the context, and the next call that needs a context gets a new one. */
	CHECK(RUNTIME("cudaDeviceReset", void)() == 0 && state(0, &flags, &active) == 0 && active == 0);
	CHECK(RUNTIME("cudaMalloc", void *, size_t)(&device, MIB) == 0);
	CHECK(RUNTIME("cudaFree", void *)(device) == 0);
}

static void runtime_of(const char *version)
{
	char soname[32];
	int found, devices, is_13 = strcmp(version, "13") == 0, status = -1;
	void *function = NULL;

	snprintf(soname, sizeof(soname), "libcudart.so.%s", version);
	node = strdup(soname);
	runtime = open_library(soname);
	CHECK(RUNTIME("cudaRuntimeGetVersion", int *)(&found) == 0 && found == (is_13 ? 13050 : 12090));
	CHECK(RUNTIME("cudaDriverGetVersion", int *)(&found) == 0 && found == 13030);
	CHECK(RUNTIME("cudaGetDeviceCount", int *)(&devices) == 0 && devices == 2);
	errors();
	memory();
	properties(is_13 ? 568 : 584, is_13 ? 1008 : 1032);
	int (*entry)(const char *, void **, unsigned long long, int *) =
		RUNTIME("cudaGetDriverEntryPoint", const char *, void **, unsigned long long, int *);
	CHECK(entry("cuMemAlloc", &function, 0, &status) == 0 && status == 0);
	CHECK(function == find(open_library("libcuda.so.1"), "cuMemAlloc_v2", NULL));
	CHECK(entry("cuNoSuchThing", &function, 0, &status) == 0 && status == 1 && !function);
	CHECK(entry("cuNoSuchThing", &function, 0, NULL) == 500);
}

/* Each library has its names under its own node, and the two differ where the headers do. */
static void versions(void)
{
	void *twelve = open_library("libcudart.so.12"), *thirteen = open_library("libcudart.so.13");
	void *old = find(twelve, "cudaGetDeviceProperties", "libcudart.so.12");
	CHECK(old != find(thirteen, "cudaGetDeviceProperties", "libcudart.so.13"));
	CHECK(find(twelve, "cudaMalloc", NULL) == find(twelve, "cudaMalloc", "libcudart.so.12"));
	CHECK(dlvsym(twelve, "cudaThreadExit", "libcudart.so.12"));
	CHECK(!dlvsym(thirteen, "cudaThreadExit", "libcudart.so.13"));
	CHECK(dlvsym(thirteen, "cudaGreenCtxCreate", "libcudart.so.13"));
	CHECK(!dlvsym(twelve, "cudaGreenCtxCreate", "libcudart.so.12"));
	/* Functions that are not served exist, and report that. */
	CHECK(((int (*)(void))find(thirteen, "cudaGreenCtxCreate", "libcudart.so.13"))() == 801);
}

/* An attribute of the GPU at this address in sysfs, as text. */
static void attribute(const char *address, const char *name, const char *expected)
{
	char path[128], text[64] = "";
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", address, name);
	for (char *letter = path; *letter; letter++)
		*letter = *letter >= 'A' && *letter <= 'F' ? *letter + 32 : *letter;
	FILE *file = fopen(path, "r");
	CHECK(file && fgets(text, sizeof(text), file));
	fclose(file);
	CHECK(strncmp(text, expected, strlen(expected)) == 0 && text[strlen(expected)] == '\n');
}

static void nvml(void)
{
	struct {
		char legacy[16];
		unsigned domain, bus, device, id, subsystem;
		char text[32];
	} pci;
	struct {
		unsigned field, scope;
		long long timestamp, latency;
		int type, code;
		unsigned long long value;
	} fields[2] = { { .field = 91 }, { .field = 7 } };
	struct {
		unsigned version;
		unsigned long long total, reserved, free, used;
	} memory = { .version = 0x02000028 };
	void *ml = open_library("libnvidia-ml.so.1"), *cuda = open_library("libcuda.so.1");
	unsigned count = 0, minor;
	void *gpu, *again;
	char text[96], uuid[96], name[96], address[32];
	int level;

	/* Nothing works before init, and shutdowns must match inits. */
	int (*get_count)(unsigned *) = PLAIN(ml, "nvmlDeviceGetCount_v2", unsigned *);
	int (*init)(void) = PLAIN(ml, "nvmlInit_v2", void), (*end)(void) = PLAIN(ml, "nvmlShutdown", void);
	CHECK(get_count(&count) == 1 && end() == 1);
	CHECK(init() == 0 && init() == 0 && end() == 0 && get_count(&count) == 0 && count == 2 && get_count(NULL) == 2);
	int (*by_index)(unsigned, void **) = PLAIN(ml, "nvmlDeviceGetHandleByIndex_v2", unsigned, void **);
	CHECK(by_index(2, &gpu) == 2);
	/* CUDA may hide GPUs; NVML does not. */
	CHECK(PLAIN(cuda, "cuDeviceGet", int *, int)(&level, 0) == 3);
	for (unsigned index = 0; index < count; index++) {
		CHECK(by_index(index, &gpu) == 0);
		CHECK(PLAIN(ml, "nvmlDeviceGetPciInfo_v3", void *, void *)(gpu, &pci) == 0 && pci.id == 0x233510de);
		snprintf(address, sizeof(address), "%08X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
		CHECK(strcmp(address, pci.text) == 0 && strcmp(address + 4, pci.legacy) == 0);
		CHECK(PLAIN(ml, "nvmlDeviceGetHandleByPciBusId_v2", char *, void **)(address, &again) == 0 && again == gpu);
		attribute(pci.legacy, "vendor", "0x10de");
		attribute(pci.legacy, "device", "0x2335");
		attribute(pci.legacy, "class", "0x030200");
		CHECK(PLAIN(ml, "nvmlDeviceGetUUID", void *, char *, unsigned)(gpu, uuid, 96) == 0);
		CHECK(PLAIN(ml, "nvmlDeviceGetUUID", void *, char *, unsigned)(gpu, text, 8) == 7);
		CHECK(PLAIN(ml, "nvmlDeviceGetHandleByUUID", char *, void **)(uuid, &again) == 0 && again == gpu);
		CHECK(PLAIN(ml, "nvmlDeviceGetSerial", void *, char *, unsigned)(gpu, text, 96) == 0);
		CHECK(PLAIN(ml, "nvmlDeviceGetHandleBySerial", char *, void **)(text, &again) == 0 && again == gpu);
		CHECK(PLAIN(ml, "nvmlDeviceGetMinorNumber", void *, unsigned *)(gpu, &minor) == 0 && minor == index);
	}
	CHECK(PLAIN(ml, "nvmlDeviceGetHandleByUUID", char *, void **)("GPU-no", &again) == 6);
	CHECK(PLAIN(ml, "nvmlDeviceGetMemoryInfo_v2", void *, void *)(gpu, &memory) == 0);
	CHECK(memory.total == 8ULL << 30 && memory.free + memory.used == memory.total);
	memory.version = 1;
	CHECK(PLAIN(ml, "nvmlDeviceGetMemoryInfo_v2", void *, void *)(gpu, &memory) == 25);
	/* Each field has its own answer. */
	CHECK(PLAIN(ml, "nvmlDeviceGetFieldValues", void *, int, void *)(gpu, 2, fields) == 0);
	CHECK(fields[0].code == 0 && fields[0].value == 0 && fields[1].code == 3);
	CHECK(PLAIN(ml, "nvmlDeviceGetGpuFabricInfoV", void *, void *)(gpu, text) == 3);
	CHECK(PLAIN(ml, "nvmlDeviceGetNvLinkState", void *, unsigned, int *)(gpu, 0, &level) == 3);
	CHECK(by_index(0, &again) == 0);
	CHECK(PLAIN(ml, "nvmlDeviceGetTopologyCommonAncestor", void *, void *, int *)(gpu, again, &level) == 0);
	CHECK(level == 50);
	CHECK(PLAIN(ml, "nvmlDeviceGetTemperature", void *, int, unsigned *)(gpu, 0, &minor) == 3);
	CHECK(PLAIN(ml, "nvmlDeviceGetName", void *, char *, unsigned)(NULL, text, 96) == 2);

	/* The driver, not initialised until now, reports the same name, address and UUID for the last
	 * GPU. */
	unsigned char bytes[16];
	char packed[96];
	CHECK(PLAIN(cuda, "cuInit", unsigned)(0) == 0);
	CHECK(PLAIN(cuda, "cuDeviceGetName", char *, int, int)(name, 96, 1) == 0);
	CHECK(PLAIN(ml, "nvmlDeviceGetName", void *, char *, unsigned)(gpu, text, 96) == 0 && strcmp(text, name) == 0);
	CHECK(PLAIN(cuda, "cuDeviceGetPCIBusId", char *, int, int)(text, 96, 1) == 0 && strcmp(text, pci.legacy) == 0);
	CHECK(PLAIN(cuda, "cuDeviceGetUuid_v2", void *, int)(bytes, 1) == 0);
	int at = sprintf(packed, "GPU-");
	for (int index = 0; index < 16; index++)
		at += sprintf(packed + at, index == 4 || index == 6 || index == 8 || index == 10 ? "-%02x" : "%02x",
			      bytes[index]);
	CHECK(strcmp(packed, uuid) == 0);
	CHECK(end() == 0 && end() == 1);
}

/* The functions that UCX patches begin with instructions that it can relocate, and all are
 * distinct. */
static void hooks(void)
{
	static const char *const names[] = {
		"cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch", "cuMemAllocPitch_v2", "cuMemMap",
		"cuModuleGetGlobal_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuLibraryGetGlobal", "cuMemFree",
		"cuMemFree_v2", "cuMemFreeHost", "cuMemUnmap", "cuMemFreeAsync",
	};
	void *cuda = open_library("libcuda.so.1");
	const unsigned char *seen[sizeof(names) / sizeof(*names)];
	for (size_t index = 0; index < sizeof(names) / sizeof(*names); index++) {
		seen[index] = find(cuda, names[index], NULL);
#ifdef __x86_64__
		/* mov $imm32, %eax: three times the same. */
		CHECK(seen[index][0] == 0xb8);
		CHECK(!memcmp(seen[index], seen[index] + 5, 5) && !memcmp(seen[index], seen[index] + 10, 5));
#endif
		for (size_t before = 0; before < index; before++)
			CHECK(seen[before] != seen[index] && memcmp(seen[before], seen[index], 5));
	}
}

#ifdef __x86_64__
#include <sys/mman.h>

static void *seen_allocation, *seen_free;
static int (*go_on_allocating)(void **, size_t), (*go_on_freeing)(void *);

static int allocating(void **out, size_t size)
{
	int answer = go_on_allocating(out, size);
	seen_allocation = *out;
	return answer;
}

static int freeing(void *start)
{
	seen_free = start;
	return go_on_freeing(start);
}

/* As UCX does: moves the beginning of a function elsewhere, and replaces it by a jump to another
 * function. */
static void *patch(unsigned char *function, void *hook)
{
	enum { MOVED = 15, JUMP = 12 };
	long page = 4096;
	unsigned char *moved = mmap(NULL, page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char jump[JUMP] = { 0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff };
	void *rest = function + MOVED;

	CHECK(moved != MAP_FAILED);
	/* mov $rest, %r11; jmp *%r11 */
	memcpy(moved, function, MOVED);
	memcpy(moved + MOVED, jump, JUMP);
	memcpy(moved + MOVED + 2, &rest, 8);
	moved[MOVED + JUMP] = 0xe3;
	unsigned char *first = (unsigned char *)((uintptr_t)function & ~(uintptr_t)(page - 1));
	CHECK(mprotect(first, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	memcpy(function, jump, JUMP);
	memcpy(function + 2, &hook, 8);
	function[JUMP] = 0xe3;
	CHECK(mprotect(first, 2 * page, PROT_READ | PROT_EXEC) == 0);
	return moved;
}
#endif

/* A hook on the driver's function sees what the runtime does. */
static void seen(void)
{
#ifdef __x86_64__
	void *cuda = open_library("libcuda.so.1"), *memory = NULL;
	node = "libcudart.so.12";
	runtime = open_library(node);
	go_on_allocating = (int (*)(void **, size_t))patch(find(cuda, "cuMemAlloc_v2", NULL), allocating);
	go_on_freeing = (int (*)(void *))patch(find(cuda, "cuMemFree_v2", NULL), freeing);
	CHECK(RUNTIME("cudaMalloc", void *, size_t)(&memory, MIB) == 0 && memory && seen_allocation == memory);
	CHECK(RUNTIME("cudaFree", void *)(memory) == 0 && seen_free == memory);
#endif
}

/* The driver is of CUDA 12.8: the newer library refuses it, except for functions that need no
 * driver. */
static void old(void)
{
	int version, count;
	node = "libcudart.so.13";
	runtime = open_library(node);
	CHECK(RUNTIME("cudaDriverGetVersion", int *)(&version) == 0 && version == 12080);
	CHECK(RUNTIME("cudaGetDeviceCount", int *)(&count) == 35 && RUNTIME("cudaGetLastError", void)() == 35);
	node = "libcudart.so.12";
	runtime = open_library(node);
	CHECK(RUNTIME("cudaGetDeviceCount", int *)(&count) == 0 && count == 1);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "12") || !strcmp(what, "13"))
		runtime_of(what);
	else if (!strcmp(what, "versions"))
		versions();
	else if (!strcmp(what, "nvml"))
		nvml();
	else if (!strcmp(what, "hooks"))
		hooks();
	else if (!strcmp(what, "seen"))
		seen();
	else if (!strcmp(what, "old"))
		old();
	else
		return 2;
	puts("ok");
	return 0;
}
