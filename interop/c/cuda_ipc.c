/* Memory and events of one process in another. The program starts itself again as the owner, and
 * kills that at the end. */
#include "cuda_api.h"
#include "two_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void opens(pid_t owner, int from, int to)
{
	char bytes[64], token;
	cu_ptr a, again, own;
	cu_event event;
	cu_ipc handle;
	int status;

	cuda_start();
	get(from, &handle, sizeof(handle));
	CU_IS(cuIpcOpenMemHandle_v2(&a, handle, 0), CU_INVALID_VALUE);
	CU(cuIpcOpenMemHandle_v2(&a, handle, 1));
	CU(cuIpcOpenMemHandle_v2(&again, handle, 1));
	CHECK(a == again);
	CU(cuMemcpyDtoH_v2(bytes, a + MIB - 64, 64));
	CHECK(bytes[0] == 0x11 && bytes[63] == 0x11);
	CU_IS(cuMemcpyDtoH_v2(bytes, a + MIB, 1), CU_INVALID_VALUE);
	CU(cuMemAlloc_v2(&own, MIB));
	CU(cuMemsetD8_v2(own, 0x22, MIB));
	CU(cuMemcpyDtoD_v2(a, own, MIB));
	CU_IS(cuMemFree_v2(a), CU_INVALID_VALUE);
	CU_IS(cuMemGetHandleForAddressRange(&status, a, MIB, 1, 0), CU_INVALID_VALUE);
	get(from, &handle, sizeof(handle));
	CU(cuIpcOpenEventHandle(&event, handle));
	CU_IS(cuEventQuery(event), CU_NOT_READY);
	put(to, "e", 1);
	CU(cuEventSynchronize(event));
	CU(cuIpcCloseMemHandle(a));
	CU(cuIpcCloseMemHandle(a));
	CU_IS(cuIpcCloseMemHandle(a), CU_INVALID_VALUE);
	put(to, "c", 1);
	/* Freed, and allocated again at the same address: the old handle is invalid. */
	get(from, &handle, sizeof(handle));
	CU_IS(cuIpcOpenMemHandle_v2(&a, handle, 1), CU_INVALID_VALUE);
	get(from, &handle, sizeof(handle));
	CU(cuIpcOpenMemHandle_v2(&a, handle, 1));
	CU(cuMemcpyDtoH_v2(bytes, a, 64));
	CHECK(bytes[0] == 0x33);
	/* The owner is killed. Nothing hangs, and its handle is invalid. */
	CHECK(kill(owner, SIGKILL) == 0 && waitpid(owner, &status, 0) == owner);
	CU(cuMemcpyDtoH_v2(bytes, a, 64));
	CHECK(bytes[0] == 0x33);
	CU(cuIpcCloseMemHandle(a));
	CU_IS(cuIpcOpenMemHandle_v2(&a, handle, 1), CU_INVALID_VALUE);
	token = 0;
	handle.bytes[0] = token;
	CU_IS(cuIpcOpenMemHandle_v2(&a, handle, 1), CU_INVALID_VALUE);
}

/* The process that owns. It never returns. */
static void owns(int to, int from)
{
	char bytes[64], token;
	cu_ipc handle, event_handle;
	cu_stream stream;
	cu_event event;
	cu_ptr a, b, flag;

	cuda_start();
	CU(cuMemAlloc_v2(&a, MIB));
	CU(cuMemAlloc_v2(&flag, 4));
	CU(cuMemsetD32_v2(flag, 0, 1));
	CU(cuMemsetD8_v2(a, 0x11, MIB));
	CU(cuIpcGetMemHandle(&handle, a + 5000));
	CU_IS(cuIpcOpenMemHandle_v2(&b, handle, 1), CU_INVALID_CONTEXT);
	CU_IS(cuIpcGetMemHandle(&event_handle, (uintptr_t)bytes), CU_INVALID_VALUE);
	put(to, &handle, sizeof(handle));
	CU(cuStreamCreate(&stream, 1));
	CU_IS(cuEventCreate(&event, 4), CU_INVALID_VALUE);
	CU(cuEventCreate(&event, 2));
	CU_IS(cuIpcGetEventHandle(&event_handle, event), CU_INVALID_HANDLE);
	CU(cuEventCreate(&event, 6));
	CU(cuIpcGetEventHandle(&event_handle, event));
	CU(cuStreamWaitValue32_v2(stream, flag, 1, 1));
	CU(cuEventRecord(event, stream));
	put(to, &event_handle, sizeof(event_handle));
	get(from, &token, 1);
	CU(cuStreamWriteValue32_v2(NULL, flag, 1, 0));
	get(from, &token, 1);
	CU(cuMemcpyDtoH_v2(bytes, a, 64));
	CHECK(bytes[0] == 0x22 && bytes[63] == 0x22);
	CU(cuMemFree_v2(a));
	CU(cuMemAlloc_v2(&b, MIB));
	CHECK(a == b);
	CU(cuMemsetD8_v2(b, 0x33, MIB));
	put(to, &handle, sizeof(handle));
	CU(cuIpcGetMemHandle(&handle, b));
	put(to, &handle, sizeof(handle));
	pause();
}

int main(int argc, char **argv)
{
	int down[2], up[2];
	pid_t owner;

	if (argc > 1) {
		owns(1, 0);
		return 1;
	}
	CHECK(pipe(down) == 0 && pipe(up) == 0);
	owner = fork();
	CHECK(owner >= 0);
	if (owner == 0) {
		dup2(down[0], 0);
		dup2(up[1], 1);
		close(down[1]);
		close(up[0]);
		execl("/proc/self/exe", argv[0], "owns", NULL);
		_exit(1);
	}
	close(down[0]);
	close(up[1]);
	opens(owner, up[0], down[1]);
	printf("ok\n");
	return 0;
}
