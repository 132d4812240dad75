//! Functions that are not supported because nothing computes: modules, kernels, images, samplers.
//!
//! If a table had no entries for them, the loader itself would refuse them. With these functions,
//! programs get the same error code, and the log says why.

use std::ffi::{CStr, c_int};

use crate::boundary::{Calls, Function, LOG};
use crate::status::Status;

fn refuse(name: &'static CStr) -> c_int {
    if umd::boundary::is_first(name) {
        tracing::warn!(
            target: LOG,
            "{}: not served: the software GPU has memory and no cores (docs/LEVEL_ZERO.md)",
            name.to_string_lossy()
        );
    }
    Status::UnsupportedFeature as c_int
}

/// Functions whose arguments are not read.
macro_rules! refused {
    ($($name:ident)*) => {
        $(
            #[allow(non_snake_case, reason = "names of C")]
            extern "C" fn $name() -> c_int {
                const NAME: &str = concat!(stringify!($name), "\0");
                refuse(CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default())
            }
        )*

        pub(crate) const CALLS: Calls = &[
            $((stringify!($name), Function($name as *const ()))),*
        ];
    };
}

refused! {
    zeModuleCreate
    zeModuleDestroy
    zeModuleDynamicLink
    zeModuleGetFunctionPointer
    zeModuleGetGlobalPointer
    zeModuleGetKernelNames
    zeModuleGetNativeBinary
    zeModuleGetProperties
    zeModuleInspectLinkageExt
    zeModuleBuildLogDestroy
    zeModuleBuildLogGetString
    zeKernelCreate
    zeKernelDestroy
    zeKernelGetIndirectAccess
    zeKernelGetName
    zeKernelGetProperties
    zeKernelGetSourceAttributes
    zeKernelSetArgumentValue
    zeKernelSetCacheConfig
    zeKernelSetGroupSize
    zeKernelSetIndirectAccess
    zeKernelSuggestGroupSize
    zeKernelSuggestMaxCooperativeGroupCount
    zeCommandListAppendLaunchKernel
    zeCommandListAppendLaunchCooperativeKernel
    zeCommandListAppendLaunchKernelIndirect
    zeCommandListAppendLaunchMultipleKernelsIndirect
    zeCommandListAppendImageCopy
    zeCommandListAppendImageCopyRegion
    zeCommandListAppendImageCopyToMemory
    zeCommandListAppendImageCopyFromMemory
    zeImageGetProperties
    zeImageCreate
    zeImageDestroy
    zeSamplerCreate
    zeSamplerDestroy
    zeContextMakeImageResident
    zeContextEvictImage
}
