//! The exporter's answer, in terms that another process understands.

use std::sync::Arc;

use super::message::{ENTRIES_MAX, Entry, FILES_MAX, Mapped};
use crate::attachment::{MapError, PinError};
use crate::exporter::{ExporterError, ExporterErrorKind, SgBacking, SgTable};

/// A table in the terms of another process.
pub(super) fn describe(table: &SgTable) -> Result<(Mapped, Vec<SgBacking>), ExporterError> {
    let refuse = |what: &str| Err(ExporterError::new(ExporterErrorKind::Invalid, what));
    let page = rustix::param::page_size() as u64;
    let mut files: Vec<SgBacking> = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    for entry in &table.entries {
        let Some(backing) = &entry.backing else {
            return refuse("the memory has no file by which another process could map it");
        };
        if !backing.offset.is_multiple_of(page) || !entry.len.is_multiple_of(page) {
            return refuse("the memory is not in whole pages, and another process cannot map it");
        }
        let known = files.iter().position(|file| Arc::ptr_eq(&file.file, &backing.file));
        let file = known.unwrap_or_else(|| {
            files.push(backing.clone());
            files.len() - 1
        }) as u64;
        match entries.last_mut() {
            Some(last) if last.file == file && last.offset + last.len == backing.offset => {
                last.len += entry.len;
            }
            _ => entries.push(Entry { file, offset: backing.offset, len: entry.len }),
        }
        if files.len() > FILES_MAX || entries.len() > ENTRIES_MAX {
            return refuse("the memory is in too many pieces for another process");
        }
    }
    if !files.iter().all(|backing| backing.file.is_ours()) {
        return refuse("the program that exports it closed the memory's file");
    }
    Ok((Mapped { epoch: table.epoch, map_type: table.map_type, entries }, files))
}

pub(super) fn unknown() -> ExporterError {
    ExporterError::new(
        ExporterErrorKind::Invalid,
        "the exporter knows no such buffer or attachment",
    )
}

pub(super) fn of_pin(error: PinError) -> ExporterError {
    match error {
        PinError::Exporter { reason, .. } => reason,
        PinError::Revoked { .. } => {
            ExporterError::new(ExporterErrorKind::NoDevice, error.to_string())
        }
        _ => ExporterError::new(ExporterErrorKind::Invalid, error.to_string()),
    }
}

pub(super) fn of_map(error: MapError) -> ExporterError {
    match error {
        MapError::Exporter { reason, .. } => reason,
        MapError::Revoked { .. } => {
            ExporterError::new(ExporterErrorKind::NoDevice, error.to_string())
        }
        _ => ExporterError::new(ExporterErrorKind::Invalid, error.to_string()),
    }
}
