//! The configuration: which NICs and GPUs the machine has.

use std::path::Path;
use std::sync::OnceLock;

use crate::{NamedFile, var, var_os};

/// The machine of `peerdma run --gpu=nvidia` without a file.
const NVIDIA: &str = include_str!("nvidia.toml");

/// The machine of `peerdma run --gpu=xe`, `--gpu=i915` and `--gpu=amdgpu`, in which GPUs are named
/// after their driver.
const DRM: &str = include_str!("drm.toml");

/// What this process sets in place of `PEERDMA_GPU`.
static CHOSEN: OnceLock<String> = OnceLock::new();

/// For a program that is about to set `PEERDMA_GPU` for another program, and wants to read the
/// configuration as that program will. The first choice stays.
pub fn choose_gpu(preset: &str) {
    CHOSEN.get_or_init(|| preset.to_owned());
}

/// The file that `PEERDMA_CONFIG` names. Without it, the machine that `PEERDMA_GPU` (`peerdma run
/// --gpu`) stands for, if there is one of that name; otherwise nothing: a machine with the defaults
/// of its readers.
///
/// # Errors
///
/// Why the file cannot be read, in words.
pub fn configuration() -> Result<Option<NamedFile>, String> {
    if let Some(path) = var_os("PEERDMA_CONFIG") {
        let path = Path::new(&path);
        let failed = |error| format!("PEERDMA_CONFIG: {}: {error}", path.display());
        return NamedFile::read(path).map(Some).map_err(failed);
    }
    let chosen = CHOSEN.get().cloned().or_else(|| var("PEERDMA_GPU"));
    Ok(match chosen.as_deref() {
        Some("nvidia") => Some(NamedFile::built_in("--gpu=nvidia", NVIDIA)),
        Some(driver @ ("xe" | "i915" | "amdgpu")) => {
            let text = DRM.replace("DRIVER", driver);
            Some(NamedFile::built_in(&format!("--gpu={driver}"), &text))
        }
        _ => None,
    })
}
