/* HSA: its agents and pools, and a check that prints the status of a failed call. */
#ifndef HSA_API_H
#define HSA_API_H

#include <dlfcn.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"

#define HSA_IS(call, expected)                                                                                             \
	do {                                                                                                                \
		hsa_status_t answer_ = (call);                                                                               \
		if ((int)answer_ != (int)(expected)) {                                                                       \
			fprintf(stderr, "%s:%d: %s: %#x, not %#x\n", __FILE__, __LINE__, #call, (unsigned)answer_, (unsigned)(expected)); \
			exit(1);                                                                                             \
		}                                                                                                            \
	} while (0)

#define HSA(call) HSA_IS(call, HSA_STATUS_SUCCESS)

#define MIB ((size_t)1 << 20)

static hsa_agent_t cpu, gpus[2];
static hsa_amd_memory_pool_t host, vram[2];

/* Debian's headers and library are older than these. */
static hsa_status_t (*export_dmabuf)(const void *at, size_t len, int *fd, uint64_t *offset);
static hsa_status_t (*export_dmabuf_v2)(const void *at, size_t len, int *fd, uint64_t *offset, uint64_t flags);
static hsa_status_t (*close_dmabuf)(int fd);

static inline hsa_status_t hsa_take_agent(hsa_agent_t agent, void *data)
{
	int *count = data;
	hsa_device_type_t kind;

	HSA(hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &kind));
	if (kind == HSA_DEVICE_TYPE_CPU)
		cpu = agent;
	else if (*count < 2)
		gpus[(*count)++] = agent;
	return HSA_STATUS_SUCCESS;
}

/* The first pool from which memory of this kind can be allocated. */
static inline hsa_status_t hsa_take_pool(hsa_amd_memory_pool_t pool, void *data)
{
	hsa_amd_segment_t segment;
	uint32_t flags;
	bool can_allocate;

	HSA(hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment));
	HSA(hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, &flags));
	HSA(hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, &can_allocate));
	if (!can_allocate || segment != HSA_AMD_SEGMENT_GLOBAL || !(flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED))
		return HSA_STATUS_SUCCESS;
	*(hsa_amd_memory_pool_t *)data = pool;
	return HSA_STATUS_INFO_BREAK;
}

static inline void hsa_start(void)
{
	int count = 0;

	HSA(hsa_init());
	HSA(hsa_iterate_agents(hsa_take_agent, &count));
	CHECK(count == 2 && cpu.handle);
	HSA_IS(hsa_amd_agent_iterate_memory_pools(cpu, hsa_take_pool, &host), HSA_STATUS_INFO_BREAK);
	for (int i = 0; i < 2; i++)
		HSA_IS(hsa_amd_agent_iterate_memory_pools(gpus[i], hsa_take_pool, &vram[i]), HSA_STATUS_INFO_BREAK);
	export_dmabuf = dlsym(RTLD_DEFAULT, "hsa_amd_portable_export_dmabuf");
	export_dmabuf_v2 = dlsym(RTLD_DEFAULT, "hsa_amd_portable_export_dmabuf_v2");
	close_dmabuf = dlsym(RTLD_DEFAULT, "hsa_amd_portable_close_dmabuf");
	CHECK(export_dmabuf && export_dmabuf_v2 && close_dmabuf);
}

static inline void *hsa_device_memory(size_t len)
{
	void *at = NULL;

	HSA(hsa_amd_memory_pool_allocate(vram[0], len, 0, &at));
	return at;
}

#endif
