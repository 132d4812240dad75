/* GPU memory that HSA also maps for the CPU: `host_access = true`. */
#include "hsa_api.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	hsa_amd_pointer_info_t about = { .size = sizeof(about) };
	hsa_amd_memory_pool_access_t access;
	static char back[MIB];
	char *a, byte;
	int status;
	pid_t child;

	hsa_start();
	HSA(hsa_amd_agent_memory_pool_get_info(cpu, vram[0], HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, &access));
	CHECK(access == HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT);
	a = hsa_device_memory(MIB);
	HSA(hsa_amd_pointer_info(a + 1, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_HSA && about.hostBaseAddress == a && about.agentBaseAddress == a);
	HSA(hsa_amd_agents_allow_access(1, &cpu, NULL, a));
	/* CPU and GPU see the same bytes. */
	for (size_t i = 0; i < MIB; i++)
		a[i] = (char)(i * 31 + (i >> 8));
	HSA(hsa_memory_copy(back, a, MIB));
	CHECK(!memcmp(a, back, MIB));
	HSA(hsa_amd_memory_fill(a + MIB - 64, 0x5a5a5a5a, 16));
	CHECK(a[MIB - 65] != 0x5a && a[MIB - 64] == 0x5a && a[MIB - 1] == 0x5a);
	HSA(hsa_memory_free(a));
	/* Once freed, the address must not be readable. */
	child = fork();
	if (child == 0) {
		byte = *(volatile char *)a;
		_exit(byte);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	/* The address is given out again. */
	CHECK(hsa_device_memory(MIB) == a);
	a[0] = 1;
	HSA(hsa_shut_down());
	printf("ok\n");
	return 0;
}
