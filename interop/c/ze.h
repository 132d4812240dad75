/* Level Zero by the system's loader: one driver, its first device, and a check that prints the
 * result of a failed call. */
#ifndef ZE_H
#define ZE_H

#include <level_zero/ze_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"

#define ZE_IS(call, expected)                                                                                              \
	do {                                                                                                                \
		ze_result_t answer_ = (call);                                                                                \
		if (answer_ != (expected)) {                                                                                 \
			fprintf(stderr, "%s:%d: %s: %#x, not %#x\n", __FILE__, __LINE__, #call, (unsigned)answer_, (unsigned)(expected)); \
			exit(1);                                                                                             \
		}                                                                                                            \
	} while (0)

#define ZE(call) ZE_IS(call, ZE_RESULT_SUCCESS)

#define MIB ((size_t)1 << 20)

static ze_driver_handle_t driver;
static ze_device_handle_t device;
static ze_context_handle_t context;

static inline ze_context_handle_t ze_new_context(void)
{
	ze_context_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC };
	ze_context_handle_t made;

	ZE(zeContextCreate(driver, &desc, &made));
	return made;
}

static inline void ze_start(void)
{
	uint32_t count = 1;

	ZE(zeInit(ZE_INIT_FLAG_GPU_ONLY));
	ZE(zeDriverGet(&count, &driver));
	count = 1;
	ZE(zeDeviceGet(driver, &count, &device));
	context = ze_new_context();
}

static inline void *ze_device_memory(size_t len)
{
	ze_device_mem_alloc_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC };
	void *at = NULL;

	ZE(zeMemAllocDevice(context, &desc, len, 0, device, &at));
	return at;
}

static inline ze_command_list_handle_t ze_immediate(void)
{
	ze_command_queue_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
		.mode = ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS };
	ze_command_list_handle_t list;

	ZE(zeCommandListCreateImmediate(context, device, &desc, &list));
	return list;
}

/* Memory that the CPU reaches; `next` is the chain of its descriptor. */
static inline void *ze_host_memory(const void *next, size_t len, size_t align)
{
	ze_host_mem_alloc_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC, .pNext = next };
	void *at = NULL;

	ZE(zeMemAllocHost(context, &desc, len, align, &at));
	return at;
}

/* The dma-buf of memory of a kind: the driver's own descriptor. */
static inline int ze_dma_buf_of(void *at, ze_memory_type_t type)
{
	ze_external_memory_export_fd_t file = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD,
		.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, .fd = -1 };
	ze_memory_allocation_properties_t about = { .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES, .pNext = &file };

	ZE(zeMemGetAllocProperties(context, at, &about, NULL));
	CHECK(about.type == type);
	return file.fd;
}

static inline int ze_dma_buf(void *at)
{
	return ze_dma_buf_of(at, ZE_MEMORY_TYPE_DEVICE);
}

#endif
