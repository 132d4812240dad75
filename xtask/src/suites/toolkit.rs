//! What programs that use CUDA or HSA are built with.

use std::path::PathBuf;

use super::built::name;
use super::wheels;
use crate::sh::{Outcome, root, target_dir};

/// A directory that looks like CUDA's to builds: the headers of NVIDIA's wheels, and our libraries
/// to link to.
pub(crate) fn toolkit() -> Outcome<PathBuf> {
    let headers = wheels("cuda-headers")?.join("nvidia/cu13/include");
    let dir = target_dir().join("cuda-toolkit");
    let libraries = dir.join("lib64");
    let ours = target_dir().join("release/libpeerdma_cuda.so");
    let names = ["libcuda.so", "libcudart.so", "libnvidia-ml.so"];
    let links = names.map(|name| (libraries.join(name), ours.clone()));
    for (link, to) in links.into_iter().chain([(dir.join("include"), headers)]) {
        name(&link, &to)?;
    }
    Ok(dir)
}

/// The same for ROCm: Debian's headers of HSA with what they lack, and our library.
pub(crate) fn rocm() -> Outcome<PathBuf> {
    let dir = target_dir().join("rocm-toolkit");
    let library = target_dir().join("release/libpeerdma_hsa.so");
    name(&dir.join("include/hsa"), &root().join("interop/rocm/hsa"))?;
    name(&dir.join("lib/libhsa-runtime64.so"), &library)?;
    Ok(dir)
}
