//! The toolkits with which programs that use CUDA or HSA are built.

use std::path::PathBuf;

use super::built::name;
use super::wheels;
use crate::sh::{Outcome, check, root, target_dir, tool};

/// A directory that looks like a CUDA toolkit to builds: the headers of NVIDIA's wheels, and our
/// libraries to link with.
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

/// The same for ROCm: Debian's headers of HSA and what they lack, our library, and the part of HIP
/// that `ucx_perftest` calls.
pub(crate) fn rocm() -> Outcome<PathBuf> {
    let dir = target_dir().join("rocm-toolkit");
    let library = target_dir().join("release/libpeerdma_hsa.so");
    let ours = root().join("interop/rocm");
    for headers in ["hsa", "hip"] {
        name(&dir.join("include").join(headers), &ours.join(headers))?;
    }
    name(&dir.join("lib/libhsa-runtime64.so"), &library)?;
    let hip = dir.join("lib/libamdhip64.so");
    let mut gcc = tool("gcc");
    gcc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    gcc.arg(format!("-I{}", dir.join("include").display())).arg("-o").arg(&hip);
    // Programs linked with it find it here, without a search path.
    gcc.arg(format!("-Wl,-soname,{}", hip.display())).arg(ours.join("hip.c"));
    gcc.arg(format!("-L{}", dir.join("lib").display())).arg("-lhsa-runtime64");
    check(&mut gcc)?;
    Ok(dir)
}
