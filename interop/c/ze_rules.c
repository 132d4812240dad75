/* The results of Level Zero's driver through the system's loader: error codes, order, events,
 * lists, mapped memory. */
#include "ze.h"

#include <level_zero/zes_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static ze_command_list_handle_t now;

static void beginning(void)
{
	ze_driver_handle_t drivers[2];
	ze_device_handle_t devices[3];
	ze_driver_ipc_properties_t ipc = { .stype = ZE_STRUCTURE_TYPE_DRIVER_IPC_PROPERTIES };
	ze_driver_extension_properties_t extensions[8];
	ze_device_properties_t about[2];
	ze_api_version_t version;
	uint32_t count = 0;
	uint8_t reaches;
	void *found;

	ze_start();
	ZE(zeInit(0));
	ZE(zeDriverGet(&count, NULL));
	CHECK(count == 1);
	count = 2;
	ZE(zeDriverGet(&count, drivers));
	CHECK(count == 1 && drivers[0] == driver);
	ZE(zeDriverGetApiVersion(driver, &version));
	CHECK(ZE_MAJOR_VERSION(version) == 1);
	ZE(zeDriverGetIpcProperties(driver, &ipc));
	CHECK(ipc.flags == (ZE_IPC_PROPERTY_FLAG_MEMORY | ZE_IPC_PROPERTY_FLAG_EVENT_POOL));
	count = 8;
	ZE(zeDriverGetExtensionProperties(driver, &count, extensions));
	for (uint32_t i = 0; i < count; i++)
		CHECK(strcmp(extensions[i].name, "ZE_extension_driver_ddi_handles"));
	ZE_IS(zeDriverGetExtensionFunctionAddress(driver, "zexDriverImportExternalPointer", &found), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
	count = 3;
	ZE(zeDeviceGet(driver, &count, devices));
	CHECK(count == 2 && devices[0] == device);
	for (int i = 0; i < 2; i++) {
		about[i].stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
		about[i].pNext = NULL;
		ZE(zeDeviceGetProperties(devices[i], &about[i]));
		CHECK(about[i].type == ZE_DEVICE_TYPE_GPU && about[i].vendorId == 0x8086);
	}
	CHECK(memcmp(&about[0].uuid, &about[1].uuid, sizeof(about[0].uuid)) && !strcmp(about[1].name, "peerdma xe1"));
	ZE(zeDeviceCanAccessPeer(devices[0], devices[1], &reaches));
	CHECK(reaches);
	ZE_IS(zeDeviceGetProperties((ze_device_handle_t)(uintptr_t)4711, &about[0]), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeDeviceGetProperties(NULL, &about[0]), ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	ZE_IS(zeDeviceGetProperties(device, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
}

static void memory(void)
{
	ze_device_mem_alloc_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC };
	ze_host_mem_alloc_desc_t host_desc = { .stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC };
	ze_memory_allocation_properties_t about = { .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES };
	static unsigned char from[65536], to[65536];
	ze_context_handle_t other = ze_new_context();
	ze_device_handle_t owner;
	void *a, *b, *base, *host, *shared;
	char pattern[4] = { 1, 2, 3, 4 };
	size_t len;

	ZE_IS(zeMemAllocDevice(context, &desc, 0, 0, device, &a), ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
	ZE_IS(zeMemAllocDevice(context, &desc, (size_t)1 << 60, 0, device, &a), ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
	ZE_IS(zeMemAllocDevice(context, &desc, MIB, 3, device, &a), ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
	ZE_IS(zeMemAllocDevice(context, &desc, MIB, 0, device, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	ZE_IS(zeMemAllocDevice(context, NULL, MIB, 0, device, &a), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	ZE_IS(zeMemAllocDevice(NULL, &desc, MIB, 0, device, &a), ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	ZE_IS(zeMemAllocDevice(context, &desc, MIB, 0, NULL, &a), ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	/* A handle of another kind. */
	ZE_IS(zeMemAllocDevice((ze_context_handle_t)now, &desc, MIB, 0, device, &a), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	desc.flags = 0x80;
	ZE_IS(zeMemAllocDevice(context, &desc, MIB, 0, device, &a), ZE_RESULT_ERROR_INVALID_ENUMERATION);
	desc.flags = 0;
	ZE(zeMemAllocDevice(context, &desc, MIB, 1 << 22, device, &a));
	CHECK((uintptr_t)a % (1 << 22) == 0);
	b = ze_device_memory(100);
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * 31 + (i >> 8));
	ZE(zeCommandListAppendMemoryCopy(now, (char *)a + 77, from, sizeof(from), NULL, 0, NULL));
	ZE(zeCommandListAppendMemoryCopy(now, (char *)a + 500000, (char *)a + 77, sizeof(from), NULL, 0, NULL));
	ZE(zeCommandListAppendMemoryCopy(now, to, (char *)a + 500000, sizeof(to), NULL, 0, NULL));
	CHECK(!memcmp(from, to, sizeof(to)));
	ZE(zeCommandListAppendMemoryFill(now, (char *)a + 3, pattern, 4, 12, NULL, 0, NULL));
	ZE(zeCommandListAppendMemoryCopy(now, to, (char *)a + 3, 12, NULL, 0, NULL));
	CHECK(to[0] == 1 && to[11] == 4);
	ZE_IS(zeCommandListAppendMemoryFill(now, a, pattern, 3, 12, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_SIZE);
	ZE_IS(zeCommandListAppendMemoryFill(now, a, NULL, 4, 12, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	/* Half inside, outside, wrapping around the end, empty. */
	ZE_IS(zeCommandListAppendMemoryCopy(now, to, (char *)a + MIB - 8, 16, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeCommandListAppendMemoryCopy(now, b, from, 101, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeCommandListAppendMemoryCopy(now, (void *)(UINTPTR_MAX - 3), from, 16, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeCommandListAppendMemoryCopy(now, NULL, from, 16, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	ZE(zeCommandListAppendMemoryCopy(now, a, from, 0, NULL, 0, NULL));
	/* Queries of addresses. An unknown address is not an error, and has no type. */
	ZE(zeMemGetAllocProperties(context, (char *)a + 4711, &about, &owner));
	CHECK(about.type == ZE_MEMORY_TYPE_DEVICE && owner == device && about.id != 0);
	ZE(zeMemGetAllocProperties(context, from, &about, &owner));
	CHECK(about.type == ZE_MEMORY_TYPE_UNKNOWN && owner == NULL);
	ZE(zeMemGetAddressRange(context, (char *)a + 4711, &base, &len));
	CHECK(base == a && len == MIB);
	ZE(zeMemGetAddressRange(context, a, NULL, NULL));
	ZE_IS(zeMemGetAddressRange(context, from, &base, &len), 0x78000021);
	ZE(zeMemAllocHost(context, &host_desc, 5000, 8192, &host));
	ZE(zeMemAllocShared(context, &desc, &host_desc, 5000, 0, device, &shared));
	CHECK((uintptr_t)host % 8192 == 0);
	memset(host, 0x5a, 5000);
	ZE(zeCommandListAppendMemoryCopy(now, shared, host, 5000, NULL, 0, NULL));
	CHECK(((char *)shared)[4999] == 0x5a);
	ZE_IS(zeCommandListAppendMemoryCopy(now, shared, from, 5001, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemGetAllocProperties(context, shared, &about, &owner));
	CHECK(about.type == ZE_MEMORY_TYPE_SHARED && owner == device);
	/* Freed only by its own context, whole, and once. */
	ZE_IS(zeMemFree(other, a), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeMemFree(context, (char *)a + 1), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeMemFree(context, from), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeMemFree(context, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	ZE(zeMemFree(context, a));
	ZE_IS(zeMemFree(context, a), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemFree(context, b));
	ZE(zeMemFree(context, host));
	ZE(zeMemFree(context, shared));
	ZE(zeContextDestroy(other));
	ZE_IS(zeContextDestroy(other), ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

/* Descriptors belong to the driver: one for each allocation, closed with it. */
static void files(void)
{
	ze_external_memory_import_fd_t import = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD,
		.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF };
	ze_device_mem_alloc_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC, .pNext = &import };
	ze_external_memory_export_fd_t file = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD,
		.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_D3D12_HEAP };
	ze_memory_allocation_properties_t about = { .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES, .pNext = &file };
	ze_ipc_mem_handle_t handle, bare = { 0 };
	void *a = ze_device_memory(MIB), *b, *c;
	char word[4] = "abcd", back[4];
	int fd = ze_dma_buf((char *)a + 5000);

	CHECK(fd >= 0 && fd == ze_dma_buf(a));
	ZE_IS(zeMemGetAllocProperties(context, a, &about, NULL), ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION);
	import.fd = fd;
	ZE(zeMemAllocDevice(context, &desc, MIB, 0, device, &b));
	ZE_IS(zeMemAllocDevice(context, &desc, 2 * MIB, 0, device, &c), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	CHECK(b != a);
	ZE(zeCommandListAppendMemoryCopy(now, (char *)a + MIB - 4, word, 4, NULL, 0, NULL));
	ZE(zeCommandListAppendMemoryCopy(now, back, (char *)b + MIB - 4, 4, NULL, 0, NULL));
	CHECK(!memcmp(word, back, 4));
	/* The descriptor in a handle is enough to open it. */
	ZE(zeMemGetIpcHandle(context, a, &handle));
	CHECK(!memcmp(&handle, &fd, 4));
	memcpy(&bare, &fd, 4);
	ZE(zeMemOpenIpcHandle(context, device, bare, 0, &c));
	ZE(zeCommandListAppendMemoryCopy(now, back, (char *)c + MIB - 4, 4, NULL, 0, NULL));
	CHECK(!memcmp(word, back, 4));
	ZE_IS(zeMemFree(context, c), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeMemCloseIpcHandle(context, a), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemCloseIpcHandle(context, c));
	ZE_IS(zeMemCloseIpcHandle(context, c), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemFree(context, a));
	CHECK_ERRNO(close(fd) != 0, EBADF);
	ZE_IS(zeMemOpenIpcHandle(context, device, handle, 0, &c), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeMemOpenIpcHandle(context, device, bare, 0, &c), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	memset(&handle, 0xff, sizeof(handle));
	ZE_IS(zeMemOpenIpcHandle(context, device, handle, 0, &c), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	/* An import keeps the memory. */
	ZE(zeCommandListAppendMemoryCopy(now, back, (char *)b + MIB - 4, 4, NULL, 0, NULL));
	CHECK(!memcmp(word, back, 4));
	ZE(zeMemFree(context, b));
	import.fd = -1;
	ZE_IS(zeMemAllocDevice(context, &desc, MIB, 0, device, &b), ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

static void lists(void)
{
	ze_command_list_desc_t list_desc = { .stype = ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC };
	ze_command_queue_desc_t queue_desc = { .stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC };
	ze_event_pool_desc_t pool_desc = { .stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE, .count = 2 };
	ze_event_desc_t event_desc = { .stype = ZE_STRUCTURE_TYPE_EVENT_DESC };
	ze_fence_desc_t fence_desc = { .stype = ZE_STRUCTURE_TYPE_FENCE_DESC };
	ze_context_handle_t other = ze_new_context();
	ze_command_queue_handle_t queue, others_queue;
	ze_command_list_handle_t list, others;
	ze_event_pool_handle_t pool, others_pool;
	ze_event_handle_t start, done, others_event;
	ze_fence_handle_t fence;
	char *a = ze_device_memory(MIB), from[16] = "fifteen letters", to[16];
	ze_copy_region_t box = { .width = 4, .height = 2 }, wide = { .width = 5, .height = 2 };

	ZE(zeCommandQueueCreate(context, device, &queue_desc, &queue));
	ZE(zeCommandQueueCreate(other, device, &queue_desc, &others_queue));
	ZE(zeCommandListCreate(context, device, &list_desc, &list));
	ZE(zeCommandListCreate(other, device, &list_desc, &others));
	ZE(zeEventPoolCreate(context, &pool_desc, 1, &device, &pool));
	ZE(zeEventPoolCreate(other, &pool_desc, 0, NULL, &others_pool));
	ZE(zeEventCreate(pool, &event_desc, &start));
	ZE(zeEventCreate(others_pool, &event_desc, &others_event));
	event_desc.index = 1;
	ZE(zeEventCreate(pool, &event_desc, &done));
	event_desc.index = 2;
	ZE_IS(zeEventCreate(pool, &event_desc, &done), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeFenceCreate(queue, &fence_desc, &fence));
	queue_desc.ordinal = 2;
	ZE_IS(zeCommandQueueCreate(context, device, &queue_desc, &queue), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	queue_desc.ordinal = 0;
	queue_desc.mode = 7;
	ZE_IS(zeCommandQueueCreate(context, device, &queue_desc, &queue), ZE_RESULT_ERROR_INVALID_ENUMERATION);
	/* A list that waits for the host: the queue is busy, the fence and the event are not signalled. */
	ZE(zeCommandListAppendMemoryCopy(list, a, from, 16, NULL, 1, &start));
	ZE(zeCommandListAppendMemoryCopy(list, to, a, 16, done, 0, NULL));
	ZE_IS(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeCommandListClose(list));
	ZE_IS(zeCommandListAppendBarrier(list, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence));
	ZE_IS(zeFenceQueryStatus(fence), ZE_RESULT_NOT_READY);
	ZE_IS(zeEventHostSynchronize(done, 1000000), ZE_RESULT_NOT_READY);
	ZE_IS(zeCommandQueueSynchronize(queue, 1000000), ZE_RESULT_NOT_READY);
	ZE(zeEventHostSignal(start));
	ZE(zeFenceHostSynchronize(fence, UINT64_MAX));
	ZE(zeEventQueryStatus(done));
	ZE(zeCommandQueueSynchronize(queue, UINT64_MAX));
	CHECK(!memcmp(from, to, 16));
	ZE(zeFenceReset(fence));
	ZE_IS(zeFenceHostSynchronize(fence, 0), ZE_RESULT_NOT_READY);
	ZE(zeEventHostReset(done));
	ZE_IS(zeEventQueryStatus(done), ZE_RESULT_NOT_READY);
	/* Boxes. */
	ZE(zeCommandListAppendMemoryCopyRegion(now, a + 64, &box, 4, 0, from, &box, 8, 0, NULL, 0, NULL));
	ZE(zeCommandListAppendMemoryCopy(now, to, a + 64, 8, NULL, 0, NULL));
	CHECK(!memcmp(to, "fiftlett", 8));
	ZE_IS(zeCommandListAppendMemoryCopyRegion(now, a, &box, 4, 0, from, &wide, 8, 0, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	/* Objects of another context, and invalid arguments. */
	ZE(zeCommandListClose(others));
	ZE_IS(zeCommandQueueExecuteCommandLists(queue, 1, &others, NULL), ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE);
	ZE_IS(zeCommandQueueExecuteCommandLists(others_queue, 1, &others, fence), ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT);
	ZE_IS(zeCommandListAppendSignalEvent(now, others_event), ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT);
	ZE_IS(zeCommandQueueExecuteCommandLists(queue, 1, &now, NULL), ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE);
	ZE(zeCommandListReset(now));
	ZE(zeContextDestroy(other));
	ZE_IS(zeCommandListCreate(other, device, &list_desc, &others), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeFenceDestroy(fence));
	ZE(zeEventDestroy(start));
	ZE(zeEventDestroy(done));
	ZE(zeEventDestroy(others_event));
	ZE_IS(zeEventQueryStatus(done), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeEventPoolDestroy(pool));
	ZE(zeEventPoolDestroy(others_pool));
	ZE(zeCommandListDestroy(list));
	ZE(zeCommandListDestroy(others));
	ZE_IS(zeCommandListReset(list), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeCommandQueueDestroy(queue));
	ZE(zeCommandQueueDestroy(others_queue));
	ZE(zeMemFree(context, a));
}

static void mapped(void)
{
	ze_physical_mem_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC };
	ze_memory_access_attribute_t access;
	ze_physical_mem_handle_t one, two;
	char word[4] = "wxyz", back[4];
	size_t page, len;
	char *at;

	ZE(zeVirtualMemQueryPageSize(context, device, 2 * MIB, &page));
	desc.size = page + 1;
	ZE_IS(zePhysicalMemCreate(context, device, &desc, &one), ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
	desc.size = page;
	ZE(zePhysicalMemCreate(context, device, &desc, &one));
	ZE(zePhysicalMemCreate(context, device, &desc, &two));
	ZE_IS(zeVirtualMemReserve(context, NULL, 0, (void **)&at), ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
	ZE(zeVirtualMemReserve(context, NULL, 2 * page, (void **)&at));
	ZE_IS(zeCommandListAppendMemoryCopy(now, at, word, 4, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeVirtualMemMap(context, at, page, one, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
	ZE_IS(zeVirtualMemMap(context, at, page, two, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE_IS(zeVirtualMemMap(context, at + page, page, two, 0, 9), ZE_RESULT_ERROR_INVALID_ENUMERATION);
	ZE_IS(zeVirtualMemMap(context, at + 1, page, two, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_NONE), ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
	ZE(zeVirtualMemMap(context, at + page, page, two, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_NONE));
	ZE(zeVirtualMemGetAccessAttribute(context, at, 2 * page, &access, &len));
	CHECK(access == ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE && len == page);
	ZE_IS(zeCommandListAppendMemoryCopy(now, at + page - 2, word, 4, NULL, 0, NULL), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeVirtualMemSetAccessAttribute(context, at, 2 * page, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
	ZE(zeCommandListAppendMemoryCopy(now, at + page - 2, word, 4, NULL, 0, NULL));
	ZE(zeCommandListAppendMemoryCopy(now, back, at + page - 2, 4, NULL, 0, NULL));
	CHECK(!memcmp(word, back, 4));
	ZE_IS(zeVirtualMemFree(context, at, 2 * page), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeVirtualMemUnmap(context, at, page));
	ZE(zeVirtualMemUnmap(context, at + page, page));
	ZE(zeVirtualMemUnmap(context, at + page, page));
	ZE(zeVirtualMemFree(context, at, 2 * page));
	ZE(zePhysicalMemDestroy(context, one));
	ZE(zePhysicalMemDestroy(context, two));
	ZE_IS(zePhysicalMemDestroy(context, two), ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

/* Physical memory of the host: the CPU can access it wherever it is mapped, and nowhere else. */
static void mapped_for_the_host(void)
{
	/* ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_HOST, which older headers do not have. */
	ze_physical_mem_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC, .flags = 2 };
	ze_memory_allocation_properties_t about = { .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES };
	ze_physical_mem_handle_t memory;
	char pattern = 0x3c, back[4], *at, *again;
	size_t page;
	int zero = open("/dev/zero", O_RDONLY);

	ZE(zeVirtualMemQueryPageSize(context, device, 2 * MIB, &page));
	desc.size = 2 * page;
	ZE(zePhysicalMemCreate(context, device, &desc, &memory));
	ZE(zeVirtualMemReserve(context, NULL, 2 * page, (void **)&at));
	ZE(zeVirtualMemReserve(context, NULL, page, (void **)&again));
	ZE(zeVirtualMemMap(context, at, 2 * page, memory, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
	ZE(zeVirtualMemMap(context, again, page, memory, page, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
	ZE(zeMemGetAllocProperties(context, at + page, &about, NULL));
	CHECK(about.type == ZE_MEMORY_TYPE_HOST);
	ZE(zeCommandListAppendMemoryFill(now, at, &pattern, 1, 2 * page, NULL, 0, NULL));
	CHECK(at[0] == 0x3c && at[2 * page - 1] == 0x3c && again[page - 1] == 0x3c);
	again[0] = 0x55;
	CHECK(at[page] == 0x55 && at[page - 1] == 0x3c);
	ZE(zeCommandListAppendMemoryCopy(now, back, at + page, 4, NULL, 0, NULL));
	CHECK(back[0] == 0x55 && back[1] == 0x3c);
	ZE(zeVirtualMemUnmap(context, at, 2 * page));
	/* A system call with a device pointer gets EFAULT. */
	CHECK_ERRNO(read(zero, at, 1) < 0, EFAULT);
	CHECK(read(zero, again, 1) == 1 && again[0] == 0);
	ZE(zePhysicalMemDestroy(context, memory));
	again[1] = 0x66;
	ZE(zeVirtualMemUnmap(context, again, page));
	CHECK_ERRNO(read(zero, again, 1) < 0, EFAULT);
	ZE(zeVirtualMemFree(context, at, 2 * page));
	ZE(zeVirtualMemFree(context, again, page));
	CHECK(close(zero) == 0);
}

static void nothing_computes(void)
{
	ze_module_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_MODULE_DESC, .inputSize = 4, .pInputModule = (const uint8_t *)"code" };
	ze_module_handle_t module;

	for (int i = 0; i < 2; i++)
		ZE_IS(zeModuleCreate(context, device, &desc, &module, NULL), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
}

static void management(void)
{
	zes_pci_properties_t pci = { .stype = ZES_STRUCTURE_TYPE_PCI_PROPERTIES };
	zes_mem_state_t state = { .stype = ZES_STRUCTURE_TYPE_MEM_STATE };
	zes_device_handle_t managed = (zes_device_handle_t)device;
	zes_mem_handle_t module;
	uint32_t count = 1;
	uint64_t before;
	void *a;

	ZE(zesDevicePciGetProperties(managed, &pci));
	CHECK(pci.address.domain == 1);
	ZE(zesDeviceEnumMemoryModules(managed, &count, &module));
	CHECK(count == 1);
	ZE(zesMemoryGetState(module, &state));
	before = state.free;
	a = ze_device_memory(16 * MIB);
	ZE(zesMemoryGetState(module, &state));
	CHECK(state.size == (uint64_t)8 << 30 && state.free + 16 * MIB == before);
	ZE(zeMemFree(context, a));
}

/* The tables as a loader asks for them: nothing is written beyond the entries of its version. */
static void tables(void)
{
	typedef ze_result_t get_table(uint32_t, void **);
	void *driver_library = dlopen(getenv("ZE_ENABLE_ALT_DRIVERS"), RTLD_NOW), *table[64];
	static const struct {
		const char *name;
		uint32_t minor;
		int entries;
	} known[] = { { "zeGetMemProcAddrTable", 0, 9 }, { "zeGetMemProcAddrTable", 4, 10 }, { "zeGetGlobalProcAddrTable", 4, 1 },
		{ "zesGetMemoryProcAddrTable", 4, 3 }, { "zetGetDebugProcAddrTable", 4, 11 } };

	CHECK(driver_library);
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		get_table *get = (get_table *)dlsym(driver_library, known[i].name);
		CHECK(get);
		memset(table, 0xa5, sizeof(table));
		ZE(get(1 << 16 | known[i].minor, table));
		for (int n = 0; n < 64; n++)
			CHECK((memcmp(&table[n], "\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5", 8) == 0) == (n >= known[i].entries));
		memset(table, 0xa5, sizeof(table));
		ZE_IS(get(2 << 16, table), ZE_RESULT_ERROR_UNSUPPORTED_VERSION);
		ZE_IS(get(0, table), ZE_RESULT_ERROR_UNSUPPORTED_VERSION);
		CHECK(memcmp(&table[0], "\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5", 8) == 0);
		ZE_IS(get(1 << 16, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	}
}

/* A child has none of it, and its CPU does not reach the memory. */
static void children(void)
{
	ze_memory_allocation_properties_t about = { .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES };
	volatile char *a = ze_device_memory(MIB);
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		ZE_IS(zeMemGetAllocProperties(context, (void *)a, &about, NULL), ZE_RESULT_ERROR_UNINITIALIZED);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		a[5] = 1;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	ZE(zeMemFree(context, (void *)a));
}

int main(void)
{
	beginning();
	now = ze_immediate();
	memory();
	files();
	lists();
	mapped();
	mapped_for_the_host();
	nothing_computes();
	management();
	tables();
	children();
	ZE(zeCommandListDestroy(now));
	ZE(zeContextDestroy(context));
	printf("ok\n");
	return 0;
}
