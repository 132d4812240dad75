//! The tables that a loader asks for: the functions of each, in order, with the version that added
//! each.

use std::ffi::c_void;

use crate::api;
use crate::status::Status;

/// The version of the interface: 1.17.
pub(crate) const VERSION: u32 = 1 << 16 | 17;

/// Functions and the versions that added them, as in the headers.
const TABLES: &str = include_str!("../names/tables.txt");

/// The entries of a table: functions by name, and the minor version that added each.
fn entries(table: &str) -> Option<impl Iterator<Item = (&'static str, u32)>> {
    let mut lines = TABLES.lines();
    lines.find(|line| *line == table)?;
    Some(lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, version) = line.trim_start().split_once(' ')?;
        Some((name, version.split_once('.')?.1.parse().ok()?))
    }))
}

/// The addresses of the functions of a table of that version, null for those that are not served.
/// Functions of later versions are left out.
///
/// # Errors
///
/// Another major version, or an unknown table.
pub(crate) fn table(name: &str, version: u32) -> Result<Vec<*const c_void>, Status> {
    if version >> 16 != VERSION >> 16 {
        return Err(Status::UnsupportedVersion);
    }
    let minor = version & 0xffff;
    let entries = entries(name).ok_or(Status::UnsupportedFeature)?;
    let address = |name: &str| api::find(name).map_or(std::ptr::null(), |found| found.0.cast());
    Ok(entries.take_while(|(_, since)| *since <= minor).map(|(name, _)| address(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_exactly_the_functions_of_its_version() {
        let len = |name, minor: u32| table(name, 1 << 16 | minor).expect("a table").len();
        assert_eq!((len("zeGetMemProcAddrTable", 0), len("zeGetMemProcAddrTable", 4)), (9, 10));
        assert_eq!(
            (len("zeGetGlobalProcAddrTable", 4), len("zeGetGlobalProcAddrTable", 10)),
            (1, 2)
        );
        assert!(len("zeGetDeviceProcAddrTable", 4) < len("zeGetDeviceProcAddrTable", 17));
        assert_eq!(len("zeGetDeviceProcAddrTable", 17), len("zeGetDeviceProcAddrTable", 99));
    }

    #[test]
    fn another_major_version_is_refused() {
        for version in [0, 0xffff, 2 << 16, u32::MAX] {
            assert_eq!(table("zeGetMemProcAddrTable", version), Err(Status::UnsupportedVersion));
        }
        assert_eq!(table("zeGetNothing", VERSION), Err(Status::UnsupportedFeature));
    }

    #[test]
    fn every_line_of_the_list_is_read() {
        let tables: Vec<_> = TABLES.lines().filter(|line| line.starts_with("ze")).collect();
        let read: usize = tables.iter().map(|table| entries(table).expect("listed").count()).sum();
        assert_eq!(read, TABLES.lines().filter(|line| line.starts_with("  ")).count());
    }
}
