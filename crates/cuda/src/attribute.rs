//! Attributes of a GPU. Those about computing have plausible values that nothing depends on.

use std::ffi::c_int;

use crate::machine::{Device, PCI_ID, PCI_SUBSYSTEM};
use crate::status::{Result, invalid};

/// The compute capability: 9.0. From 10.0 on, programs do not use gdrcopy.
pub(crate) const COMPUTE_MAJOR: c_int = 75;
pub(crate) const COMPUTE_MINOR: c_int = 76;

pub(crate) const MEMORY_BUS_WIDTH: c_int = 37;

/// Number and value of the attributes that are the same for every GPU. `cuda.h`,
/// `CUdevice_attribute`.
const FIXED: &[(c_int, c_int)] = &[
    (1, 1024), // MAX_THREADS_PER_BLOCK
    (2, 1024), // MAX_BLOCK_DIM_X, Y, Z
    (3, 1024),
    (4, 64),
    (5, 0x7fff_ffff), // MAX_GRID_DIM_X, Y, Z
    (6, 65535),
    (7, 65535),
    (8, 48 << 10),     // MAX_SHARED_MEMORY_PER_BLOCK
    (9, 64 << 10),     // TOTAL_CONSTANT_MEMORY
    (10, 32),          // WARP_SIZE
    (11, 0x7fff_ffff), // MAX_PITCH
    (12, 65536),       // MAX_REGISTERS_PER_BLOCK
    (13, 1_980_000),   // CLOCK_RATE, kHz
    (14, 512),         // TEXTURE_ALIGNMENT
    (15, 1),           // GPU_OVERLAP
    (16, 132),         // MULTIPROCESSOR_COUNT
    (17, 0),           // KERNEL_EXEC_TIMEOUT
    (18, 0),           // INTEGRATED
    (19, 1),           // CAN_MAP_HOST_MEMORY
    (20, 0),           // COMPUTE_MODE
    (30, 512),         // SURFACE_ALIGNMENT
    (31, 1),           // CONCURRENT_KERNELS
    (32, 0),           // ECC_ENABLED
    (35, 0),           // TCC_DRIVER
    (36, 2_619_000),   // MEMORY_CLOCK_RATE, kHz
    (37, 5120),        // GLOBAL_MEMORY_BUS_WIDTH, bits
    (38, 50 << 20),    // L2_CACHE_SIZE
    (39, 2048),        // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 3),           // ASYNC_ENGINE_COUNT
    (41, 1),           // UNIFIED_ADDRESSING
    (44, 0),           // CAN_TEX2D_GATHER
    (51, 32),          // TEXTURE_PITCH_ALIGNMENT
    (COMPUTE_MAJOR, 9),
    (COMPUTE_MINOR, 0),
    (78, 1),       // STREAM_PRIORITIES_SUPPORTED
    (79, 1),       // GLOBAL_L1_CACHE_SUPPORTED
    (80, 1),       // LOCAL_L1_CACHE_SUPPORTED
    (81, 233_472), // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    (82, 65536),   // MAX_REGISTERS_PER_MULTIPROCESSOR
    (83, 1),       // MANAGED_MEMORY
    (84, 0),       // MULTI_GPU_BOARD
    (86, 0),       // HOST_NATIVE_ATOMIC_SUPPORTED
    (87, 2),       // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    (88, 0),       // PAGEABLE_MEMORY_ACCESS
    (89, 0),       // CONCURRENT_MANAGED_ACCESS
    (90, 0),       // COMPUTE_PREEMPTION_SUPPORTED
    (91, 1),       // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (92, 1),       // CAN_USE_STREAM_MEM_OPS_V1
    (93, 1),       // CAN_USE_64_BIT_STREAM_MEM_OPS_V1
    (94, 1),       // CAN_USE_STREAM_WAIT_VALUE_NOR_V1
    (95, 0),       // COOPERATIVE_LAUNCH
    (96, 0),       // COOPERATIVE_MULTI_DEVICE_LAUNCH
    (97, 232_448), // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    (98, 1),       // CAN_FLUSH_REMOTE_WRITES
    (99, 1),       // HOST_REGISTER_SUPPORTED
    (100, 0),      // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    (101, 0),      // DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
    (102, 1),      // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (103, 1),      // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (104, 0),      // HANDLE_TYPE_WIN32_HANDLE_SUPPORTED
    (105, 0),      // HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED
    (106, 32),     // MAX_BLOCKS_PER_MULTIPROCESSOR
    (107, 0),      // GENERIC_COMPRESSION_SUPPORTED
    (108, 0),      // MAX_PERSISTING_L2_CACHE_SIZE
    (109, 0),      // MAX_ACCESS_POLICY_WINDOW_SIZE
    (110, 1),      // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    (111, 1024),   // RESERVED_SHARED_MEMORY_PER_BLOCK
    (112, 0),      // SPARSE_CUDA_ARRAY_SUPPORTED
    (113, 1),      // READ_ONLY_HOST_REGISTER_SUPPORTED
    (114, 0),      // TIMELINE_SEMAPHORE_INTEROP_SUPPORTED
    (115, 1),      // MEMORY_POOLS_SUPPORTED
    (116, 1),      // GPU_DIRECT_RDMA_SUPPORTED
    (117, 1),      // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: by the host
    (118, 100),    // GPU_DIRECT_RDMA_WRITES_ORDERING: for the owner
    (119, 1),      // MEMPOOL_SUPPORTED_HANDLE_TYPES: descriptors
    (120, 0),      // CLUSTER_LAUNCH
    (121, 0),      // DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
    (122, 1),      // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),      // CAN_USE_STREAM_WAIT_VALUE_NOR
    (125, 1),      // IPC_EVENT_SUPPORTED
    (126, 1),      // MEM_SYNC_DOMAIN_COUNT
    (127, 0),      // TENSOR_MAP_ACCESS_SUPPORTED
    (128, 0),      // HANDLE_TYPE_FABRIC_SUPPORTED
    (129, 0),      // UNIFIED_FUNCTION_POINTERS
    (130, 0),      // NUMA_CONFIG
    (131, -1),     // NUMA_ID
    (132, 0),      // MULTICAST_SUPPORTED
    (133, 0),      // MPS_ENABLED
    (134, 0),      // HOST_NUMA_ID
    (152, 1),      // DMA_BUF_MMAP_SUPPORTED
];

/// Numbers from here to [`LAST`] that are not in the table are 0: sizes of textures and the like,
/// and features that this GPU lacks.
const FIRST: c_int = 1;
const LAST: c_int = 161;

/// An attribute of a GPU.
///
/// # Errors
///
/// There is no attribute with that number.
pub(crate) fn of(device: &Device, attribute: c_int) -> Result<c_int> {
    Ok(match attribute {
        33 => c_int::from(device.bdf.bus()),
        34 => c_int::from(device.bdf.device()),
        50 => device.bdf.domain().cast_signed(),
        139 => PCI_ID.cast_signed(),
        140 => PCI_SUBSYSTEM.cast_signed(),
        124 => c_int::from(device.config.dma_buf.unwrap_or(true)),
        _ => match FIXED.iter().find(|(number, _)| *number == attribute) {
            Some((_, answer)) => *answer,
            None if (FIRST..=LAST).contains(&attribute) => 0,
            None => return Err(invalid(format!("a device has no attribute {attribute}"))),
        },
    })
}
