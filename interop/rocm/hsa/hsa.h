/* Debian's header, and later additions that programs look for. It is found beside and below its own
 * directory, by both of its names. */
#include_next <hsa/hsa.h>

#ifndef PEERDMA_HSA_H
#define PEERDMA_HSA_H

#define HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED ((hsa_system_info_t)0x204)

#endif
