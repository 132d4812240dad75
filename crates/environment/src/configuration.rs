//! The configuration: which NICs and GPUs the machine has.

use std::path::Path;

use crate::{NamedFile, var, var_os};

/// The machine of `peerdma run --gpu=nvidia` without a file.
const NVIDIA: &str = include_str!("nvidia.toml");

/// The file that `PEERDMA_CONFIG` names. Without one, the machine that `PEERDMA_GPU` (`peerdma run --gpu`) stands for, if there is
/// one of that name; else nothing: a machine with what its readers have by default.
///
/// # Errors
///
/// The file cannot be read: in words.
pub fn configuration() -> Result<Option<NamedFile>, String> {
    if let Some(path) = var_os("PEERDMA_CONFIG") {
        let path = Path::new(&path);
        let failed = |error| format!("PEERDMA_CONFIG: {}: {error}", path.display());
        return NamedFile::read(path).map(Some).map_err(failed);
    }
    let machine = (var("PEERDMA_GPU").as_deref() == Some("nvidia")).then_some(NVIDIA);
    Ok(machine.map(|text| NamedFile::built_in("--gpu=nvidia", text)))
}
