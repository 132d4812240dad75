//! Result codes of CUDA.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use umd::Kind;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $symbol:literal, $text:literal;)*) => {
        /// A result of the driver.
        #[doc(alias = "CUresult")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[allow(dead_code, reason = "the table has the names of all codes")]
        pub(crate) enum Status {
            $($(#[$doc])* $name = $number,)*
        }

        /// Number, name and description of each code.
        const KNOWN: &[(i32, &CStr, &CStr)] = &[
            $(($number, $symbol, $text),)*
        ];
    };
}

statuses! {
    /// The call succeeded.
    Success = 0, c"CUDA_SUCCESS", c"no error";
    /// An argument is invalid.
    InvalidValue = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    /// No memory, on the GPU or on the host.
    OutOfMemory = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    /// `cuInit` was not called, or only in a parent of this process, before a fork.
    NotInitialized = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    /// The process is ending.
    Deinitialized = 4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down";
    /// There is no profiler.
    ProfilerDisabled = 5, c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled while using external profiling tool";
    /// The library is a stub, without a driver.
    StubLibrary = 34, c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library";
    /// Another process uses the GPU exclusively, or it was reset or removed.
    DeviceUnavailable = 46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable";
    /// The machine has no GPU.
    NoDevice = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    /// There is no GPU with that number.
    InvalidDevice = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    /// The image has no code for this GPU.
    InvalidImage = 200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    /// The thread has no context, or the handle is not that of a context.
    InvalidContext = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    /// It cannot be mapped.
    MapFailed = 205, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed";
    /// It cannot be unmapped.
    UnmapFailed = 206, c"CUDA_ERROR_UNMAP_FAILED", c"unmapping of buffer object failed";
    /// It is mapped already.
    AlreadyMapped = 208, c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped";
    /// It is not mapped.
    NotMapped = 211, c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped";
    /// This GPU has no such limit.
    UnsupportedLimit = 215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit is not supported on this architecture";
    /// One GPU has no path to the other.
    PeerAccessUnsupported = 217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices";
    /// There is no such file.
    FileNotFound = 301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found";
    /// A system call failed.
    OperatingSystem = 304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS";
    /// The handle is not that of a stream, event or pool.
    InvalidHandle = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    /// The operation is not possible in this state.
    IllegalState = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state";
    /// There is nothing with that name or at that address.
    NotFound = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    /// The work is not done yet.
    NotReady = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    /// A copy reached memory that is not mapped.
    IllegalAddress = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    /// Access to the peer is enabled already.
    PeerAccessAlreadyEnabled = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    /// Access to the peer is not enabled.
    PeerAccessNotEnabled = 705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled";
    /// The primary context exists, so its flags cannot be changed.
    PrimaryContextActive = 708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"cannot set while device is active in this process";
    /// The context was destroyed.
    ContextIsDestroyed = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    /// Some of the range is registered.
    HostMemoryAlreadyRegistered = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped";
    /// It is not registered.
    HostMemoryNotRegistered = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region";
    /// A kernel could not be started.
    LaunchFailed = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    /// The user lacks permission.
    NotPermitted = 800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    /// Not supported.
    NotSupported = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    /// The system is not initialised yet.
    SystemNotReady = 802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized";
    /// A bug.
    Unknown = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

/// Names of the codes that this library never returns.
const OTHERS: &[(i32, &CStr)] = &[
    (6, c"CUDA_ERROR_PROFILER_NOT_INITIALIZED"),
    (7, c"CUDA_ERROR_PROFILER_ALREADY_STARTED"),
    (8, c"CUDA_ERROR_PROFILER_ALREADY_STOPPED"),
    (36, c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"),
    (47, c"CUDA_ERROR_MULTICAST_RESOURCE_FULL"),
    (102, c"CUDA_ERROR_DEVICE_NOT_LICENSED"),
    (202, c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT"),
    (207, c"CUDA_ERROR_ARRAY_IS_MAPPED"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (210, c"CUDA_ERROR_ALREADY_ACQUIRED"),
    (212, c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY"),
    (213, c"CUDA_ERROR_NOT_MAPPED_AS_POINTER"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE"),
    (216, c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE"),
    (218, c"CUDA_ERROR_INVALID_PTX"),
    (219, c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"),
    (220, c"CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (221, c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND"),
    (222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    (223, c"CUDA_ERROR_JIT_COMPILATION_DISABLED"),
    (224, c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"),
    (225, c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"),
    (226, c"CUDA_ERROR_CONTAINED"),
    (227, c"CUDA_ERROR_INSUFFICIENT_LOADER_VERSION"),
    (300, c"CUDA_ERROR_INVALID_SOURCE"),
    (302, c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"),
    (303, c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"),
    (402, c"CUDA_ERROR_LOSSY_QUERY"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT"),
    (703, c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"),
    (710, c"CUDA_ERROR_ASSERT"),
    (711, c"CUDA_ERROR_TOO_MANY_PEERS"),
    (714, c"CUDA_ERROR_HARDWARE_STACK_ERROR"),
    (715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, c"CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, c"CUDA_ERROR_INVALID_PC"),
    (720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
    (721, c"CUDA_ERROR_TENSOR_MEMORY_LEAK"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (805, c"CUDA_ERROR_MPS_CONNECTION_FAILED"),
    (806, c"CUDA_ERROR_MPS_RPC_FAILURE"),
    (807, c"CUDA_ERROR_MPS_SERVER_NOT_READY"),
    (808, c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"),
    (809, c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"),
    (810, c"CUDA_ERROR_MPS_CLIENT_TERMINATED"),
    (811, c"CUDA_ERROR_CDP_NOT_SUPPORTED"),
    (812, c"CUDA_ERROR_CDP_VERSION_MISMATCH"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE"),
    (903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"),
    (904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"),
    (905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION"),
    (906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"),
    (907, c"CUDA_ERROR_CAPTURED_EVENT"),
    (908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"),
    (909, c"CUDA_ERROR_TIMEOUT"),
    (910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
    (911, c"CUDA_ERROR_EXTERNAL_DEVICE"),
    (912, c"CUDA_ERROR_INVALID_CLUSTER_SIZE"),
    (913, c"CUDA_ERROR_FUNCTION_NOT_LOADED"),
    (914, c"CUDA_ERROR_INVALID_RESOURCE_TYPE"),
    (915, c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"),
    (916, c"CUDA_ERROR_KEY_ROTATION"),
    (917, c"CUDA_ERROR_STREAM_DETACHED"),
    (918, c"CUDA_ERROR_GRAPH_RECAPTURE_FAILURE"),
    (919, c"CUDA_ERROR_FABRIC_NOT_READY"),
];

impl Status {
    /// The number of the code.
    pub(crate) fn number(self) -> i32 {
        self as i32
    }
}

/// The name of a number.
pub(crate) fn name(number: i32) -> Option<&'static CStr> {
    let known = KNOWN.iter().find(|known| known.0 == number).map(|known| known.1);
    known.or_else(|| OTHERS.iter().find(|other| other.0 == number).map(|other| other.1))
}

/// The meaning of a number in words, or its name if this library never returns it.
pub(crate) fn text(number: i32) -> Option<&'static CStr> {
    words(number).or_else(|| name(number))
}

/// The meaning of a number in words.
pub(crate) fn words(number: i32) -> Option<&'static CStr> {
    KNOWN.iter().find(|known| known.0 == number).map(|known| known.2)
}

/// Why a call is refused.
pub(crate) type Refusal = umd::Refused<Status>;

/// A result, or why the call is refused.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// An invalid argument.
pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::InvalidValue, what)
}

/// An operation that is not supported.
pub(crate) fn unsupported(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::NotSupported, what)
}

/// CUDA's codes for the kinds of refusal that all drivers share.
impl From<Kind> for Status {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Invalid | Kind::Null => Self::InvalidValue,
            Kind::NotSupported => Self::NotSupported,
            Kind::NotPermitted => Self::NotPermitted,
            Kind::NoMemory => Self::OutOfMemory,
            Kind::Unavailable => Self::DeviceUnavailable,
            Kind::Busy => Self::SystemNotReady,
            Kind::System => Self::OperatingSystem,
            Kind::Destroyed => Self::InvalidHandle,
            Kind::Unknown => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_name() {
        let mut numbers: Vec<_> = KNOWN.iter().map(|known| known.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), KNOWN.len());
        assert_eq!(name(1), Some(c"CUDA_ERROR_INVALID_VALUE"));
        assert_eq!(name(910), Some(c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"));
        assert_eq!((name(424_242), text(424_242)), (None, None));
    }
}
