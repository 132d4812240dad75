//! What programs that use CUDA are built with.

use std::path::PathBuf;

use super::built::name;
use super::wheels;
use crate::sh::{Outcome, target_dir};

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
