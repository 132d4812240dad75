/* A libamdhip64.so with only memory functions, over HSA. */
#include <hip/hip_runtime.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define MOST 64

static hsa_amd_memory_pool_t pools[MOST], host;
static int count, device;

static hsa_status_t take_pool(hsa_amd_memory_pool_t pool, void *data)
{
	uint32_t flags = 0;

	hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, &flags);
	if (!(flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED))
		return HSA_STATUS_SUCCESS;
	*(hsa_amd_memory_pool_t *)data = pool;
	return HSA_STATUS_INFO_BREAK;
}

static hsa_status_t take_agent(hsa_agent_t agent, void *data)
{
	hsa_device_type_t kind = HSA_DEVICE_TYPE_CPU;

	(void)data;
	hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &kind);
	if (kind == HSA_DEVICE_TYPE_CPU)
		hsa_amd_agent_iterate_memory_pools(agent, take_pool, &host);
	else if (count < MOST)
		hsa_amd_agent_iterate_memory_pools(agent, take_pool, &pools[count++]);
	return HSA_STATUS_SUCCESS;
}

static void start(void)
{
	if (hsa_init() == HSA_STATUS_SUCCESS)
		hsa_iterate_agents(take_agent, NULL);
}

static bool has_devices(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start);
	return count > 0;
}

hipError_t hipGetDeviceCount(int *total)
{
	has_devices();
	*total = count;
	return count ? hipSuccess : hipErrorNoDevice;
}

hipError_t hipSetDevice(int number)
{
	if (!has_devices() || number < 0 || number >= count)
		return hipErrorNoDevice;
	device = number;
	return hipSuccess;
}

static hipError_t allocate(hsa_amd_memory_pool_t pool, void **at, size_t len)
{
	return hsa_amd_memory_pool_allocate(pool, len, 0, at) ? hipErrorOutOfMemory : hipSuccess;
}

hipError_t hipMalloc(void **at, size_t len)
{
	return has_devices() ? allocate(pools[device], at, len) : hipErrorNoDevice;
}

hipError_t hipMallocManaged(void **at, size_t len, unsigned flags)
{
	(void)flags;
	return has_devices() ? allocate(host, at, len) : hipErrorNoDevice;
}

hipError_t hipFree(void *at)
{
	return hsa_amd_memory_pool_free(at) ? hipErrorInvalidValue : hipSuccess;
}

hipError_t hipMemcpy(void *to, const void *from, size_t len, hipMemcpyKind kind)
{
	(void)kind;
	return hsa_memory_copy(to, from, len) ? hipErrorInvalidValue : hipSuccess;
}

hipError_t hipMemset(void *at, int value, size_t len)
{
	unsigned char bytes[256];

	memset(bytes, value, sizeof(bytes));
	for (size_t done = 0; done < len; done += sizeof(bytes)) {
		size_t part = len - done < sizeof(bytes) ? len - done : sizeof(bytes);

		if (hipMemcpy((char *)at + done, bytes, part, hipMemcpyDefault))
			return hipErrorInvalidValue;
	}
	return hipSuccess;
}

const char *hipGetErrorString(hipError_t error)
{
	return error == hipSuccess ? "no error" : "HSA refused it";
}
