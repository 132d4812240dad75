//! Which providers there are: the variable `PEERDMA_PROVIDER`.
//!
//! | value | devices |
//! |---|---|
//! | not set | those of `libibverbs.so.1`, if the kernel has any; then the software ones |
//! | `soft` | the software ones |
//! | `system` | those of the system's `libibverbs.so.1` |
//! | a path | those of this library |
//!
//! Where nothing is said, the library is loaded only if the kernel has a device for it, and is not
//! used if it is `libpeerdma.so` itself: its devices are the software ones.

use std::fs;
use std::path::{Path, PathBuf};

use sysverbs::{Library, LoadError};

use crate::arm::refused;
use crate::{Kind, Refusal, Result};

const VARIABLE: &str = "PEERDMA_PROVIDER";
/// Where the kernel lists the devices that a library can open.
const KERNEL: &str = "/sys/class/infiniband_verbs";
/// What only our own library exports.
const OURS: &std::ffi::CStr = c"peerdma_node_file_ops";

/// What the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The system's library if it is of use, and the software device.
    Any,
    /// The software device.
    Soft,
    /// A library, and nothing else: the system's, or the one at a path.
    Library(Option<PathBuf>),
}

impl Choice {
    /// The chosen devices, each kind from where it is found. Those of a library come first: a
    /// program that takes the first device gets a NIC of the machine if there is one.
    pub(crate) fn devices<D>(
        &self,
        soft: impl FnOnce() -> Result<Vec<D>>,
        named: impl FnOnce(Option<&Path>) -> Result<Vec<D>>,
        system: impl FnOnce() -> Vec<D>,
    ) -> Result<Vec<D>> {
        match self {
            Self::Soft => soft(),
            Self::Library(path) => named(path.as_deref()),
            Self::Any => {
                let mut devices = system();
                devices.extend(soft()?);
                Ok(devices)
            }
        }
    }
}

/// What the variable says.
pub(crate) fn choice() -> Result<Choice> {
    parse(environment::var_os(VARIABLE).as_deref().map(Path::new))
}

fn parse(value: Option<&Path>) -> Result<Choice> {
    Ok(match value {
        None => Choice::Any,
        Some(soft) if soft == Path::new("soft") => Choice::Soft,
        Some(system) if system == Path::new("system") => Choice::Library(None),
        Some(path) if path.is_absolute() => Choice::Library(Some(path.to_owned())),
        Some(other) => {
            let other = other.display();
            let what = format!("{VARIABLE}={other}: neither soft, system, nor an absolute path");
            return Err(Refusal::new(Kind::Invalid, what));
        }
    })
}

/// The devices of a library that the user named.
pub(crate) fn of_library(path: Option<&Path>) -> Result<Vec<sysverbs::Device>> {
    let library = Library::open(path).map_err(not_loaded)?;
    library.devices().map_err(refused)
}

/// The devices of the system's library, if it is of use.
pub(crate) fn of_system() -> Vec<sysverbs::Device> {
    let has_devices = fs::read_dir(KERNEL)
        .is_ok_and(|mut list| list.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir())));
    if !has_devices {
        return Vec::new();
    }
    let library = match Library::open(None) {
        Ok(library) => library,
        Err(why) => {
            not_loaded(why);
            return Vec::new();
        }
    };
    if library.has_symbol(OURS) {
        return Vec::new();
    }
    library.devices().map_err(refused).unwrap_or_default()
}

fn not_loaded(why: LoadError) -> Refusal {
    Refusal::new(Kind::NoDevice, format!("no libibverbs: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_four_forms() {
        let parse = |value: &str| parse(Some(Path::new(value)));
        assert_eq!(super::parse(None), Ok(Choice::Any));
        assert_eq!(parse("soft"), Ok(Choice::Soft));
        assert_eq!(parse("system"), Ok(Choice::Library(None)));
        assert_eq!(parse("/a/b.so"), Ok(Choice::Library(Some("/a/b.so".into()))));
        let refusal = parse("mlx5").unwrap_err();
        assert_eq!(
            refusal.what(),
            "PEERDMA_PROVIDER=mlx5: neither soft, system, nor an absolute path"
        );
    }

    #[test]
    fn devices_of_a_library_come_before_software_ones() {
        let of = |choice: Choice| {
            let named = |path: Option<&Path>| {
                Ok(vec![if path.is_some() { "named" } else { "the system's" }])
            };
            choice.devices(|| Ok(vec!["soft0", "soft1"]), named, || vec!["hard0", "hard1"])
        };
        assert_eq!(of(Choice::Any).unwrap(), ["hard0", "hard1", "soft0", "soft1"]);
        assert_eq!(of(Choice::Soft).unwrap(), ["soft0", "soft1"]);
        assert_eq!(of(Choice::Library(None)).unwrap(), ["the system's"]);
        assert_eq!(of(Choice::Library(Some("/a/b.so".into()))).unwrap(), ["named"]);
    }

    #[test]
    fn a_library_that_is_not_there_is_said_so() {
        let refusal = of_library(Some(Path::new("/nonexistent/libibverbs.so.1"))).unwrap_err();
        assert_eq!(refusal.kind(), Kind::NoDevice);
        assert!(refusal.what().starts_with("no libibverbs: /nonexistent/"), "{refusal}");
    }
}
