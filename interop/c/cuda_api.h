/* The functions of CUDA's driver that our programs call, looked up by dlopen and dlsym, as in most
 * programs. The declarations are our own, so that no toolkit is needed. */
#ifndef CUDA_API_H
#define CUDA_API_H

#include "check.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef uint64_t cu_ptr;
typedef struct cu_ctx *cu_context;
typedef struct cu_str *cu_stream;
typedef struct cu_evt *cu_event;
typedef struct { char bytes[64]; } cu_ipc;
typedef struct { int type; int id; } cu_location;
typedef struct {
	int type;
	unsigned handle_types;
	cu_location location;
	void *metadata;
	struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} cu_prop;
typedef struct { cu_location location; unsigned flags; } cu_access;

enum {
	CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_NOT_INITIALIZED = 3, CU_NO_DEVICE = 100, CU_INVALID_DEVICE = 101,
	CU_INVALID_CONTEXT = 201, CU_INVALID_HANDLE = 400, CU_NOT_FOUND = 500, CU_NOT_READY = 600, CU_PRIMARY_CONTEXT_ACTIVE = 708,
	CU_CONTEXT_IS_DESTROYED = 709, CU_ALREADY_REGISTERED = 712, CU_NOT_REGISTERED = 713, CU_NOT_SUPPORTED = 801,
};

#define CUDA_FUNCTIONS(F)                                                                                              \
	F(cuInit, (unsigned))                                                                                          \
	F(cuDriverGetVersion, (int *))                                                                                 \
	F(cuGetErrorName, (cu_result, const char **))                                                                  \
	F(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                          \
	F(cuGetExportTable, (const void **, const void *))                                                             \
	F(cuDeviceGet, (int *, int))                                                                                   \
	F(cuDeviceGetCount, (int *))                                                                                   \
	F(cuDeviceGetAttribute, (int *, int, int))                                                                     \
	F(cuDeviceGetPCIBusId, (char *, int, int))                                                                     \
	F(cuDevicePrimaryCtxRetain, (cu_context *, int))                                                               \
	F(cuDevicePrimaryCtxRelease_v2, (int))                                                                         \
	F(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))                                                        \
	F(cuDevicePrimaryCtxSetFlags, (int, unsigned))                                                                 \
	F(cuCtxCreate_v2, (cu_context *, unsigned, int))                                                               \
	F(cuCtxDestroy_v2, (cu_context))                                                                               \
	F(cuCtxSetCurrent, (cu_context))                                                                               \
	F(cuCtxGetCurrent, (cu_context *))                                                                             \
	F(cuCtxSynchronize, (void))                                                                                    \
	F(cuMemAlloc_v2, (cu_ptr *, size_t))                                                                           \
	F(cuMemFree_v2, (cu_ptr))                                                                                      \
	F(cuMemAllocManaged, (cu_ptr *, size_t, unsigned))                                                             \
	F(cuMemAllocHost_v2, (void **, size_t))                                                                        \
	F(cuMemFreeHost, (void *))                                                                                     \
	F(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                            \
	F(cuMemHostUnregister, (void *))                                                                               \
	F(cuMemGetInfo_v2, (size_t *, size_t *))                                                                       \
	F(cuMemGetAddressRange_v2, (cu_ptr *, size_t *, cu_ptr))                                                       \
	F(cuMemcpyHtoD_v2, (cu_ptr, const void *, size_t))                                                             \
	F(cuMemcpyDtoH_v2, (void *, cu_ptr, size_t))                                                                   \
	F(cuMemcpyDtoD_v2, (cu_ptr, cu_ptr, size_t))                                                                   \
	F(cuMemcpyDtoHAsync_v2, (void *, cu_ptr, size_t, cu_stream))                                                   \
	F(cuMemsetD8_v2, (cu_ptr, unsigned char, size_t))                                                              \
	F(cuMemsetD32_v2, (cu_ptr, unsigned, size_t))                                                                  \
	F(cuMemsetD32Async, (cu_ptr, unsigned, size_t, cu_stream))                                                     \
	F(cuPointerGetAttribute, (void *, int, cu_ptr))                                                                \
	F(cuPointerGetAttributes, (unsigned, int *, void **, cu_ptr))                                                  \
	F(cuPointerSetAttribute, (const void *, int, cu_ptr))                                                          \
	F(cuMemGetHandleForAddressRange, (void *, cu_ptr, size_t, int, uint64_t))                                      \
	F(cuStreamCreate, (cu_stream *, unsigned))                                                                     \
	F(cuStreamDestroy_v2, (cu_stream))                                                                             \
	F(cuStreamQuery, (cu_stream))                                                                                  \
	F(cuStreamSynchronize, (cu_stream))                                                                            \
	F(cuStreamWaitEvent, (cu_stream, cu_event, unsigned))                                                          \
	F(cuStreamWaitValue32_v2, (cu_stream, cu_ptr, uint32_t, unsigned))                                             \
	F(cuStreamWriteValue32_v2, (cu_stream, cu_ptr, uint32_t, unsigned))                                            \
	F(cuLaunchHostFunc, (cu_stream, void (*)(void *), void *))                                                     \
	F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream, void **, void **)) \
	F(cuEventCreate, (cu_event *, unsigned))                                                                       \
	F(cuEventDestroy_v2, (cu_event))                                                                               \
	F(cuEventRecord, (cu_event, cu_stream))                                                                        \
	F(cuEventQuery, (cu_event))                                                                                    \
	F(cuEventSynchronize, (cu_event))                                                                              \
	F(cuEventElapsedTime, (float *, cu_event, cu_event))                                                           \
	F(cuIpcGetMemHandle, (cu_ipc *, cu_ptr))                                                                       \
	F(cuIpcOpenMemHandle_v2, (cu_ptr *, cu_ipc, unsigned))                                                         \
	F(cuIpcCloseMemHandle, (cu_ptr))                                                                               \
	F(cuIpcGetEventHandle, (cu_ipc *, cu_event))                                                                   \
	F(cuIpcOpenEventHandle, (cu_event *, cu_ipc))                                                                  \
	F(cuMemGetAllocationGranularity, (size_t *, const cu_prop *, int))                                             \
	F(cuMemCreate, (uint64_t *, size_t, const cu_prop *, uint64_t))                                                \
	F(cuMemRelease, (uint64_t))                                                                                    \
	F(cuMemAddressReserve, (cu_ptr *, size_t, size_t, cu_ptr, uint64_t))                                           \
	F(cuMemAddressFree, (cu_ptr, size_t))                                                                          \
	F(cuMemMap, (cu_ptr, size_t, size_t, uint64_t, uint64_t))                                                      \
	F(cuMemUnmap, (cu_ptr, size_t))                                                                                \
	F(cuMemSetAccess, (cu_ptr, size_t, const cu_access *, size_t))                                                 \
	F(cuMemRetainAllocationHandle, (uint64_t *, cu_ptr))                                                           \
	F(cuMemExportToShareableHandle, (void *, uint64_t, unsigned, uint64_t))                                        \
	F(cuMemImportFromShareableHandle, (uint64_t *, void *, unsigned))                                              \
	F(cuMemAllocAsync, (cu_ptr *, size_t, cu_stream))                                                              \
	F(cuMemFreeAsync, (cu_ptr, cu_stream))

#define CUDA_POINTER(name, arguments) static cu_result(*name) arguments __attribute__((unused));
CUDA_FUNCTIONS(CUDA_POINTER)

/* Calls a function and compares the result. */
#define CU_IS(call, expected)                                                                                          \
	do {                                                                                                           \
		cu_result cu_got = (call);                                                                             \
		if (cu_got != (expected)) {                                                                            \
			fprintf(stderr, "%s:%d: %s: %d, and not %d\n", __FILE__, __LINE__, #call, cu_got, (expected)); \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define CU(call) CU_IS(call, CU_OK)

static inline void cuda_load(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);

	if (!cuda) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define CUDA_FIND(name, arguments) CHECK((*(void **)&name = dlsym(cuda, #name)) != NULL);
	CUDA_FUNCTIONS(CUDA_FIND)
}

/* The first GPU, with a context for this thread. */
static inline cu_context cuda_start(void)
{
	cu_context context;

	cuda_load();
	CU(cuInit(0));
	CU(cuCtxCreate_v2(&context, 0, 0));
	return context;
}

#endif
