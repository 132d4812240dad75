/* The functions of HIP that ucx_perftest calls: memory, over HSA (../hip.c). HIP's own library
 * needs kernels. */
#ifndef PEERDMA_HIP_RUNTIME_H
#define PEERDMA_HIP_RUNTIME_H

#include <stddef.h>

typedef enum hipError_t { hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorOutOfMemory = 2, hipErrorNoDevice = 100 } hipError_t;
typedef enum hipMemcpyKind { hipMemcpyDefault = 4 } hipMemcpyKind;

#define hipMemAttachGlobal 1

hipError_t hipGetDeviceCount(int *count);
hipError_t hipSetDevice(int device);
hipError_t hipMalloc(void **at, size_t len);
hipError_t hipMallocManaged(void **at, size_t len, unsigned flags);
hipError_t hipFree(void *at);
hipError_t hipMemcpy(void *to, const void *from, size_t len, hipMemcpyKind kind);
hipError_t hipMemset(void *at, int value, size_t len);
const char *hipGetErrorString(hipError_t error);

#endif
