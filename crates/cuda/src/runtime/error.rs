//! Errors: the last one of each thread, and their names.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use crate::boundary::{Calls, Function};
use crate::status;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
}

/// Sets the last error of this thread.
pub(super) fn set(number: c_int) {
    // A thread that is ending has no last error.
    let _ = LAST.try_with(|last| last.set(number));
}

/// The name of each number in the header.
const NAMES: &[(c_int, &CStr)] = &[
    (0, c"cudaSuccess"),
    (1, c"cudaErrorInvalidValue"),
    (2, c"cudaErrorMemoryAllocation"),
    (3, c"cudaErrorInitializationError"),
    (4, c"cudaErrorCudartUnloading"),
    (5, c"cudaErrorProfilerDisabled"),
    (6, c"cudaErrorProfilerNotInitialized"),
    (7, c"cudaErrorProfilerAlreadyStarted"),
    (8, c"cudaErrorProfilerAlreadyStopped"),
    (9, c"cudaErrorInvalidConfiguration"),
    (10, c"cudaErrorVersionTranslation"),
    (12, c"cudaErrorInvalidPitchValue"),
    (13, c"cudaErrorInvalidSymbol"),
    (16, c"cudaErrorInvalidHostPointer"),
    (17, c"cudaErrorInvalidDevicePointer"),
    (18, c"cudaErrorInvalidTexture"),
    (19, c"cudaErrorInvalidTextureBinding"),
    (20, c"cudaErrorInvalidChannelDescriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection"),
    (22, c"cudaErrorAddressOfConstant"),
    (23, c"cudaErrorTextureFetchFailed"),
    (24, c"cudaErrorTextureNotBound"),
    (25, c"cudaErrorSynchronizationError"),
    (26, c"cudaErrorInvalidFilterSetting"),
    (27, c"cudaErrorInvalidNormSetting"),
    (28, c"cudaErrorMixedDeviceExecution"),
    (31, c"cudaErrorNotYetImplemented"),
    (32, c"cudaErrorMemoryValueTooLarge"),
    (34, c"cudaErrorStubLibrary"),
    (35, c"cudaErrorInsufficientDriver"),
    (36, c"cudaErrorCallRequiresNewerDriver"),
    (37, c"cudaErrorInvalidSurface"),
    (43, c"cudaErrorDuplicateVariableName"),
    (44, c"cudaErrorDuplicateTextureName"),
    (45, c"cudaErrorDuplicateSurfaceName"),
    (46, c"cudaErrorDevicesUnavailable"),
    (49, c"cudaErrorIncompatibleDriverContext"),
    (52, c"cudaErrorMissingConfiguration"),
    (53, c"cudaErrorPriorLaunchFailure"),
    (65, c"cudaErrorLaunchMaxDepthExceeded"),
    (66, c"cudaErrorLaunchFileScopedTex"),
    (67, c"cudaErrorLaunchFileScopedSurf"),
    (68, c"cudaErrorSyncDepthExceeded"),
    (69, c"cudaErrorLaunchPendingCountExceeded"),
    (98, c"cudaErrorInvalidDeviceFunction"),
    (100, c"cudaErrorNoDevice"),
    (101, c"cudaErrorInvalidDevice"),
    (102, c"cudaErrorDeviceNotLicensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished"),
    (127, c"cudaErrorStartupFailure"),
    (200, c"cudaErrorInvalidKernelImage"),
    (201, c"cudaErrorDeviceUninitialized"),
    (205, c"cudaErrorMapBufferObjectFailed"),
    (206, c"cudaErrorUnmapBufferObjectFailed"),
    (207, c"cudaErrorArrayIsMapped"),
    (208, c"cudaErrorAlreadyMapped"),
    (209, c"cudaErrorNoKernelImageForDevice"),
    (210, c"cudaErrorAlreadyAcquired"),
    (211, c"cudaErrorNotMapped"),
    (212, c"cudaErrorNotMappedAsArray"),
    (213, c"cudaErrorNotMappedAsPointer"),
    (214, c"cudaErrorECCUncorrectable"),
    (215, c"cudaErrorUnsupportedLimit"),
    (216, c"cudaErrorDeviceAlreadyInUse"),
    (217, c"cudaErrorPeerAccessUnsupported"),
    (218, c"cudaErrorInvalidPtx"),
    (219, c"cudaErrorInvalidGraphicsContext"),
    (220, c"cudaErrorNvlinkUncorrectable"),
    (221, c"cudaErrorJitCompilerNotFound"),
    (222, c"cudaErrorUnsupportedPtxVersion"),
    (223, c"cudaErrorJitCompilationDisabled"),
    (224, c"cudaErrorUnsupportedExecAffinity"),
    (225, c"cudaErrorUnsupportedDevSideSync"),
    (226, c"cudaErrorContained"),
    (227, c"cudaErrorInsufficientLoaderVersion"),
    (300, c"cudaErrorInvalidSource"),
    (301, c"cudaErrorFileNotFound"),
    (302, c"cudaErrorSharedObjectSymbolNotFound"),
    (303, c"cudaErrorSharedObjectInitFailed"),
    (304, c"cudaErrorOperatingSystem"),
    (400, c"cudaErrorInvalidResourceHandle"),
    (401, c"cudaErrorIllegalState"),
    (402, c"cudaErrorLossyQuery"),
    (500, c"cudaErrorSymbolNotFound"),
    (600, c"cudaErrorNotReady"),
    (700, c"cudaErrorIllegalAddress"),
    (701, c"cudaErrorLaunchOutOfResources"),
    (702, c"cudaErrorLaunchTimeout"),
    (703, c"cudaErrorLaunchIncompatibleTexturing"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled"),
    (705, c"cudaErrorPeerAccessNotEnabled"),
    (708, c"cudaErrorSetOnActiveProcess"),
    (709, c"cudaErrorContextIsDestroyed"),
    (710, c"cudaErrorAssert"),
    (711, c"cudaErrorTooManyPeers"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered"),
    (713, c"cudaErrorHostMemoryNotRegistered"),
    (714, c"cudaErrorHardwareStackError"),
    (715, c"cudaErrorIllegalInstruction"),
    (716, c"cudaErrorMisalignedAddress"),
    (717, c"cudaErrorInvalidAddressSpace"),
    (718, c"cudaErrorInvalidPc"),
    (719, c"cudaErrorLaunchFailure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge"),
    (721, c"cudaErrorTensorMemoryLeak"),
    (800, c"cudaErrorNotPermitted"),
    (801, c"cudaErrorNotSupported"),
    (802, c"cudaErrorSystemNotReady"),
    (803, c"cudaErrorSystemDriverMismatch"),
    (804, c"cudaErrorCompatNotSupportedOnDevice"),
    (805, c"cudaErrorMpsConnectionFailed"),
    (806, c"cudaErrorMpsRpcFailure"),
    (807, c"cudaErrorMpsServerNotReady"),
    (808, c"cudaErrorMpsMaxClientsReached"),
    (809, c"cudaErrorMpsMaxConnectionsReached"),
    (810, c"cudaErrorMpsClientTerminated"),
    (811, c"cudaErrorCdpNotSupported"),
    (812, c"cudaErrorCdpVersionMismatch"),
    (900, c"cudaErrorStreamCaptureUnsupported"),
    (901, c"cudaErrorStreamCaptureInvalidated"),
    (902, c"cudaErrorStreamCaptureMerge"),
    (903, c"cudaErrorStreamCaptureUnmatched"),
    (904, c"cudaErrorStreamCaptureUnjoined"),
    (905, c"cudaErrorStreamCaptureIsolation"),
    (906, c"cudaErrorStreamCaptureImplicit"),
    (907, c"cudaErrorCapturedEvent"),
    (908, c"cudaErrorStreamCaptureWrongThread"),
    (909, c"cudaErrorTimeout"),
    (910, c"cudaErrorGraphExecUpdateFailure"),
    (911, c"cudaErrorExternalDevice"),
    (912, c"cudaErrorInvalidClusterSize"),
    (913, c"cudaErrorFunctionNotLoaded"),
    (914, c"cudaErrorInvalidResourceType"),
    (915, c"cudaErrorInvalidResourceConfiguration"),
    (917, c"cudaErrorStreamDetached"),
    (918, c"cudaErrorGraphRecaptureFailure"),
    (919, c"cudaErrorFabricNotReady"),
    (999, c"cudaErrorUnknown"),
];

/// Texts of codes that the driver does not have.
const TEXTS_OF_OUR_OWN: &[(c_int, &CStr)] = &[
    (12, c"invalid pitch argument"),
    (13, c"invalid device symbol"),
    (21, c"invalid copy direction for memcpy"),
    (35, c"CUDA driver version is insufficient for CUDA runtime version"),
    (98, c"invalid device function"),
    (999, c"unknown error"),
];

const UNRECOGNIZED: &CStr = c"unrecognized error code";

fn find(list: &[(c_int, &'static CStr)], number: c_int) -> Option<&'static CStr> {
    list.iter().find(|(known, _)| *known == number).map(|(_, text)| *text)
}

/// The name of a number, for the log.
pub(super) fn name(number: c_int) -> &'static str {
    find(NAMES, number).and_then(|name| name.to_str().ok()).unwrap_or("unrecognized")
}

#[allow(non_snake_case, reason = "names of C")]
extern "C" fn cudaGetErrorName(error: c_int) -> *const c_char {
    find(NAMES, error).unwrap_or(UNRECOGNIZED).as_ptr()
}

#[allow(non_snake_case, reason = "names of C")]
extern "C" fn cudaGetErrorString(error: c_int) -> *const c_char {
    let known = find(NAMES, error);
    let words = find(TEXTS_OF_OUR_OWN, error).or_else(|| status::words(error)).or(known);
    words.unwrap_or(UNRECOGNIZED).as_ptr()
}

#[allow(non_snake_case, reason = "names of C")]
extern "C" fn cudaGetLastError() -> c_int {
    LAST.try_with(|last| last.replace(0)).unwrap_or_default()
}

#[allow(non_snake_case, reason = "names of C")]
extern "C" fn cudaPeekAtLastError() -> c_int {
    LAST.try_with(Cell::get).unwrap_or_default()
}

/// Functions that query errors; they never fail.
pub(super) const CALLS: Calls = &[
    ("cudaGetLastError", Function(cudaGetLastError as *const ())),
    ("cudaPeekAtLastError", Function(cudaPeekAtLastError as *const ())),
];

/// Functions that return text.
pub(super) const TEXTS: Calls = &[
    ("cudaGetErrorName", Function(cudaGetErrorName as *const ())),
    ("cudaGetErrorString", Function(cudaGetErrorString as *const ())),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_the_threads_own_and_asking_for_it_clears_it() {
        set(98);
        assert_eq!((cudaPeekAtLastError(), cudaGetLastError(), cudaGetLastError()), (98, 98, 0));
        set(1);
        let other = std::thread::spawn(|| cudaGetLastError()).join().expect("it ends");
        assert_eq!((other, cudaGetLastError()), (0, 1));
    }

    #[test]
    fn each_number_has_one_name() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!((name(0), name(201)), ("cudaSuccess", "cudaErrorDeviceUninitialized"));
    }
}
