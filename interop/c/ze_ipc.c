/* Memory and events of one process in another: by the descriptor alone, as libfabric and MPI pass
 * it on, and by the whole handle. The program starts itself again as the owner, and kills that at
 * the end. */
#include "ze.h"
#include "two_processes.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* One byte, and a descriptor. */
static void pass(int sock, int *fd, int sends)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	if (sends) {
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), fd, sizeof(int));
		CHECK(sendmsg(sock, &message, 0) == 1);
	} else {
		CHECK(recvmsg(sock, &message, 0) == 1);
		memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	}
}

static void opens(pid_t owner, int sock)
{
	ze_command_list_handle_t now;
	ze_ipc_mem_handle_t whole, bare = { 0 };
	ze_ipc_event_pool_handle_t events;
	ze_event_desc_t event_desc = { .stype = ZE_STRUCTURE_TYPE_EVENT_DESC, .index = 3 };
	ze_event_pool_handle_t pool;
	ze_event_handle_t event;
	char bytes[64], *a, *b;
	int fd, status;

	ze_start();
	now = ze_immediate();
	pass(sock, &fd, 0);
	memcpy(&bare, &fd, sizeof(fd));
	ZE(zeMemOpenIpcHandle(context, device, bare, 0, (void **)&a));
	CHECK(close(fd) == 0);
	ZE(zeCommandListAppendMemoryCopy(now, bytes, a + MIB - 64, 64, NULL, 0, NULL));
	CHECK(bytes[0] == 0x11 && bytes[63] == 0x11);
	/* The unchanged handle: its descriptor belongs to the other process. */
	get(sock, &whole, sizeof(whole));
	ZE(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&b));
	memset(bytes, 0x22, sizeof(bytes));
	ZE(zeCommandListAppendMemoryCopy(now, b, bytes, 64, NULL, 0, NULL));
	memset(bytes, 0, sizeof(bytes));
	ZE(zeCommandListAppendMemoryCopy(now, bytes, a, 64, NULL, 0, NULL));
	CHECK(bytes[0] == 0x22 && bytes[63] == 0x22);
	ZE_IS(zeMemFree(context, b), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemCloseIpcHandle(context, b));
	get(sock, &events, sizeof(events));
	memset(&whole, 0, sizeof(whole));
	memcpy(&whole, &events, sizeof(whole));
	ZE_IS(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&b), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	/* Memory that the CPU reaches there, it also reaches here. */
	get(sock, &whole, sizeof(whole));
	ZE(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&b));
	CHECK(b[0] == 0x44 && b[4999] == 0x44);
	b[1] = 0x55;
	ZE_IS(zeMemFree(context, b), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemCloseIpcHandle(context, b));
	/* Physical memory, by an address where it is mapped. */
	get(sock, &whole, sizeof(whole));
	ZE(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&b));
	ZE(zeCommandListAppendMemoryCopy(now, bytes, b, 64, NULL, 0, NULL));
	CHECK(bytes[0] == 0x66 && bytes[63] == 0x66);
	ZE(zeMemCloseIpcHandle(context, b));
	ZE(zeEventPoolOpenIpcHandle(context, events, &pool));
	ZE(zeEventCreate(pool, &event_desc, &event));
	ZE_IS(zeEventQueryStatus(event), ZE_RESULT_NOT_READY);
	put(sock, "e", 1);
	ZE(zeEventHostSynchronize(event, UINT64_MAX));
	ZE(zeEventDestroy(event));
	ZE(zeEventPoolCloseIpcHandle(pool));
	/* Freed and allocated again: the old handle is invalid. */
	get(sock, &whole, sizeof(whole));
	ZE_IS(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&b), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	get(sock, &whole, sizeof(whole));
	ZE(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&b));
	/* The owner is killed. Nothing hangs, opened memory stays, and the handle is invalid. */
	CHECK(kill(owner, SIGKILL) == 0 && waitpid(owner, &status, 0) == owner);
	ZE(zeCommandListAppendMemoryCopy(now, bytes, b, 64, NULL, 0, NULL));
	CHECK(bytes[0] == 0x33);
	ZE_IS(zeMemOpenIpcHandle(context, device, whole, 0, (void **)&a), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeMemCloseIpcHandle(context, b));
}

/* The process that owns. It never returns. */
static void owns(int sock)
{
	ze_event_pool_desc_t pool_desc = { .stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
		.flags = ZE_EVENT_POOL_FLAG_IPC | ZE_EVENT_POOL_FLAG_HOST_VISIBLE, .count = 4 };
	ze_event_desc_t event_desc = { .stype = ZE_STRUCTURE_TYPE_EVENT_DESC, .index = 3 };
	ze_external_memory_export_desc_t exported = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC,
		.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF };
	ze_command_list_handle_t now;
	ze_ipc_mem_handle_t handle;
	ze_ipc_event_pool_handle_t events;
	ze_event_pool_handle_t pool;
	ze_event_handle_t event;
	ze_physical_mem_desc_t physical_desc = { .stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC };
	ze_physical_mem_handle_t physical;
	char pattern = 0x11, token, *a, *host, *at;
	size_t page;
	int fd;

	ze_start();
	now = ze_immediate();
	a = ze_device_memory(MIB);
	ZE(zeCommandListAppendMemoryFill(now, a, &pattern, 1, MIB, NULL, 0, NULL));
	ZE(zeMemGetIpcHandle(context, a + 5000, &handle));
	memcpy(&fd, &handle, sizeof(fd));
	pass(sock, &fd, 1);
	put(sock, &handle, sizeof(handle));
	ZE(zeEventPoolCreate(context, &pool_desc, 0, NULL, &pool));
	ZE(zeEventCreate(pool, &event_desc, &event));
	ZE(zeEventPoolGetIpcHandle(pool, &events));
	put(sock, &events, sizeof(events));
	host = ze_host_memory(&exported, 5000, 0);
	memset(host, 0x44, 5000);
	ZE(zeMemGetIpcHandle(context, host, &handle));
	put(sock, &handle, sizeof(handle));
	ZE(zeVirtualMemQueryPageSize(context, device, MIB, &page));
	physical_desc.size = 2 * page;
	ZE(zePhysicalMemCreate(context, device, &physical_desc, &physical));
	/* With a hint: an older validation layer wants one. */
	ZE(zeVirtualMemReserve(context, a, 4 * page, (void **)&at));
	ZE_IS(zeMemGetIpcHandle(context, at, &handle), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	ZE(zeVirtualMemMap(context, at, 2 * page, physical, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
	ZE(zeVirtualMemMap(context, at + 2 * page, page, physical, page, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
	pattern = 0x66;
	ZE(zeCommandListAppendMemoryFill(now, at, &pattern, 1, 2 * page, NULL, 0, NULL));
	ZE_IS(zeMemGetIpcHandle(context, at + 2 * page, &handle), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
	ZE(zeMemGetIpcHandle(context, at + 100, &handle));
	fd = ze_dma_buf(at + 5000);
	CHECK(!memcmp(&handle, &fd, sizeof(fd)));
	put(sock, &handle, sizeof(handle));
	get(sock, &token, 1);
	CHECK(host[0] == 0x44 && host[1] == 0x55);
	ZE(zeCommandListAppendSignalEvent(now, event));
	ZE(zeMemGetIpcHandle(context, a, &handle));
	ZE(zeMemFree(context, a));
	put(sock, &handle, sizeof(handle));
	a = ze_device_memory(MIB);
	pattern = 0x33;
	ZE(zeCommandListAppendMemoryFill(now, a, &pattern, 1, MIB, NULL, 0, NULL));
	ZE(zeMemGetIpcHandle(context, a, &handle));
	put(sock, &handle, sizeof(handle));
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	return two_processes(argc, argv, owns, opens);
}
