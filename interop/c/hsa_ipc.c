/* Memory of one process in another. The program starts itself again as the owner, and kills that at
 * the end. */
#include "hsa_api.h"
#include "two_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void opens(pid_t owner, int sock)
{
	hsa_amd_pointer_info_t about = { .size = sizeof(about) };
	hsa_amd_ipc_memory_t handle, none = { { 0 } };
	hsa_agent_t nobody = { 0 };
	char bytes[64], *a, *b;
	uint64_t offset;
	int status, fd;

	hsa_start();
	get(sock, &handle, sizeof(handle));
	HSA_IS(hsa_amd_ipc_memory_attach(&none, MIB, 0, NULL, (void **)&a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_attach(&handle, 2 * MIB, 0, NULL, (void **)&a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_attach(&handle, MIB, 0, NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_attach(&handle, MIB, 1, NULL, (void **)&a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_attach(&handle, MIB, 1, &nobody, (void **)&a), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA(hsa_amd_ipc_memory_attach(&handle, MIB, 0, NULL, (void **)&a));
	HSA(hsa_amd_ipc_memory_attach(&handle, MIB, 2, gpus, (void **)&b));
	HSA(hsa_amd_pointer_info(a + MIB - 1, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_IPC && about.agentBaseAddress == a && about.sizeInBytes == MIB);
	CHECK(about.agentOwner.handle == gpus[0].handle);
	HSA(hsa_memory_copy(bytes, a + MIB - 64, 64));
	CHECK(bytes[0] == 0x11 && bytes[63] == 0x11);
	HSA(hsa_amd_memory_fill(b, 0x22222222, 16));
	HSA(hsa_memory_copy(bytes, a, 64));
	CHECK(bytes[0] == 0x22 && bytes[63] == 0x22);
	HSA_IS(export_dmabuf(a, MIB, &fd, &offset), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(hsa_memory_free(a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_amd_ipc_memory_detach(b));
	HSA_IS(hsa_amd_ipc_memory_detach(b), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	put(sock, "f", 1);
	/* Freed and allocated again: the old handle is invalid, and attached memory stays. */
	get(sock, bytes, 1);
	HSA_IS(hsa_amd_ipc_memory_attach(&handle, MIB, 0, NULL, (void **)&b), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_memory_copy(bytes, a, 64));
	CHECK(bytes[0] == 0x22);
	get(sock, &handle, sizeof(handle));
	HSA(hsa_amd_ipc_memory_attach(&handle, MIB, 0, NULL, (void **)&b));
	/* The owner is killed. Nothing hangs, attached memory stays, and the handle is invalid. */
	CHECK(kill(owner, SIGKILL) == 0 && waitpid(owner, &status, 0) == owner);
	HSA(hsa_memory_copy(bytes, b, 64));
	CHECK(bytes[0] == 0x33);
	HSA_IS(hsa_amd_ipc_memory_attach(&handle, MIB, 0, NULL, (void **)&a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_amd_ipc_memory_detach(b));
}

/* The process that owns. It never returns. */
static void owns(int sock)
{
	hsa_amd_ipc_memory_t handle;
	char token, *a;

	hsa_start();
	a = hsa_device_memory(MIB - 100);
	HSA(hsa_amd_memory_fill(a, 0x11111111, (MIB - 100) / 4));
	HSA_IS(hsa_amd_ipc_memory_create(a + 4096, MIB - 100, &handle), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_create(a, 4096, &handle), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_create(a, MIB, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_ipc_memory_create(NULL, MIB, &handle), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_amd_ipc_memory_create(a, MIB - 100, &handle));
	HSA(hsa_memory_free(a));
	a = hsa_device_memory(MIB);
	HSA(hsa_amd_memory_fill(a, 0x11111111, MIB / 4));
	HSA(hsa_amd_ipc_memory_create(a, MIB, &handle));
	put(sock, &handle, sizeof(handle));
	get(sock, &token, 1);
	HSA(hsa_memory_free(a));
	a = hsa_device_memory(MIB);
	HSA(hsa_amd_memory_fill(a, 0x33333333, MIB / 4));
	put(sock, "f", 1);
	HSA(hsa_amd_ipc_memory_create(a, MIB, &handle));
	put(sock, &handle, sizeof(handle));
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	return two_processes(argc, argv, owns, opens);
}
