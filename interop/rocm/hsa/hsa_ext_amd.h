/* Debian's header, and later additions that programs look for, likewise. */
#include "hsa.h"
#include_next <hsa/hsa_ext_amd.h>

#ifndef PEERDMA_HSA_EXT_AMD_H
#define PEERDMA_HSA_EXT_AMD_H

#ifdef __cplusplus
extern "C" {
#endif

hsa_status_t hsa_amd_portable_export_dmabuf(const void *at, size_t len, int *fd, uint64_t *offset);
hsa_status_t hsa_amd_portable_close_dmabuf(int fd);

#ifdef __cplusplus
}
#endif

#endif
