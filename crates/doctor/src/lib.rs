//! What a host has for RDMA and peer memory, and what it lacks.
//!
//! ```text
//!  /proc /sys /dev /boot  -->  host: facts   -->  uses: findings   -->  Report: text
//!    (files are read,          kernel, limits,     each use: what        works, does not,
//!     nothing is opened        RDMA devices,       holds, what hinders   or unknown
//!     or tried)                GPUs, IOMMU         it, what helps
//! ```
//!
//! A fact that is in no file is unknown, and so is a use that depends on it: nothing is guessed,
//! and nothing is tried, since a trial may load modules or pin memory. This crate has no unsafe
//! code, and all it does is read files.
//!
//! ```
//! let report = doctor::examine(std::path::Path::new("/")).expect("Linux");
//! assert_eq!(report.uses.len(), 10);
//! println!("{report}");
//! ```
#![forbid(unsafe_code)]

mod fact;
mod files;
mod finding;
mod host;
mod report;
mod uses;

use std::path::{Path, PathBuf};

pub use fact::Fact;
pub use finding::{Finding, Kind, Use, Verdict};
pub use report::Report;

/// Why a host cannot be examined.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}: this is not the root directory of a running Linux", path.display())]
pub struct ExamineError {
    path: PathBuf,
    error: std::io::Error,
}

/// Examines the host whose `/proc`, `/sys`, `/dev` and `/boot` lie below `root`.
///
/// # Errors
///
/// [`ExamineError`] if there is not even a kernel version.
pub fn examine(root: &Path) -> Result<Report, ExamineError> {
    let path = root.join("proc/sys/kernel/osrelease");
    if let Err(error) = std::fs::read_to_string(&path) {
        return Err(ExamineError { path, error });
    }
    let host = host::Host::read(&files::Files::new(root));
    Ok(Report { facts: host.facts(), uses: uses::all(&host) })
}
