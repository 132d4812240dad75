//! Why the device refused.

use std::fmt;

/// The kind of a refusal. The C ABI gives each kind its errno; nothing below it knows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The address is in use by another.
    AddressInUse,
    /// The address is not one of this device's.
    AddressNotAvailable,
    /// Memory the caller named cannot be used.
    BadAddress,
    /// The file descriptor is not open.
    BadFd,
    /// The object is in use.
    Busy,
    /// An argument breaks a rule.
    Invalid,
    /// The device or the system failed.
    Io,
    /// No such device.
    NoDevice,
    /// A limit is reached or memory is exhausted.
    NoMemory,
    /// The named object does not exist.
    NotFound,
    /// The caller lacks the permission.
    NotPermitted,
    /// This device does not support that.
    NotSupported,
    /// The exporter of a dma-buf does not support that, which it reports by a number that the
    /// kernel keeps internal (ENOTSUPP).
    Unsupported,
    /// The memory may only be read.
    ReadOnly,
    /// It did not happen in time.
    TimedOut,
    /// There is no path to the destination.
    Unreachable,
    /// Not now; try again.
    WouldBlock,
}

/// A refusal: its kind, and in words which part refused, what was asked, and which rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    kind: Kind,
    what: String,
}

impl Refusal {
    /// A refusal of `kind`, explained by `what`. It is logged here, so that `PEERDMA_LOG` shows it
    /// even if the program ignores the error.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        let what = what.into();
        tracing::info!(target: "peerdma::refusal", ?kind, "{what}");
        Self { kind, what }
    }

    /// What kind it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The explanation.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Refusal {}

/// Shorthand for the result of most calls.
pub type Result<T> = std::result::Result<T, Refusal>;

macro_rules! refuse {
    ($kind:ident, $($what:tt)*) => {
        return Err($crate::refusal::Refusal::new($crate::refusal::Kind::$kind, format!($($what)*)))
    };
}
pub(crate) use refuse;

/// A dma-buf that cannot be imported (`docs/semantics.md` 2.2, checks 8 and 9). A buffer whose
/// exporter is gone can no longer be mapped, like one that its exporter revoked in the kernel
/// (2.8).
pub(crate) fn from_import(error: dmabuf::ImportError) -> Refusal {
    let kind = match &error {
        dmabuf::ImportError::NotOpen { .. } => Kind::BadFd,
        dmabuf::ImportError::NoExporter { .. } => Kind::NoDevice,
        _ => Kind::Invalid,
    };
    Refusal::new(kind, error.to_string())
}

/// A refusal of a dma-buf's exporter, with the kind that it chose.
pub(crate) fn from_exporter(error: &dmabuf::ExporterError, what: String) -> Refusal {
    use dmabuf::ExporterErrorKind as E;
    let kind = match error.kind {
        E::Invalid => Kind::Invalid,
        E::Busy => Kind::Busy,
        E::NotSupported => Kind::NotSupported,
        E::Unsupported => Kind::Unsupported,
        E::NoDevice => Kind::NoDevice,
        E::NotPermitted => Kind::NotPermitted,
        E::NoMemory => Kind::NoMemory,
        E::Again => Kind::WouldBlock,
        _ => Kind::Io,
    };
    Refusal::new(kind, what)
}

/// An exporter that does not let the NIC attach (`docs/semantics.md` 2.2, check 12).
pub(crate) fn from_attach(error: dmabuf::AttachError) -> Refusal {
    let what = format!("reg_dmabuf_mr: {error}");
    match &error {
        dmabuf::AttachError::Exporter { reason, .. } => from_exporter(reason, what),
        _ => Refusal::new(Kind::Invalid, what),
    }
}

/// An exporter that does not pin for the NIC (check 13).
pub(crate) fn from_pin(error: dmabuf::PinError) -> Refusal {
    let what = format!("reg_dmabuf_mr: {error}");
    match &error {
        dmabuf::PinError::Exporter { reason, .. } => from_exporter(reason, what),
        dmabuf::PinError::Revoked { .. } => Refusal::new(Kind::NoDevice, what),
        _ => Refusal::new(Kind::Invalid, what),
    }
}

/// An exporter that does not map for the NIC (check 14).
pub(crate) fn from_map(error: dmabuf::MapError) -> Refusal {
    let what = format!("the NIC maps a dma-buf: {error}");
    match &error {
        dmabuf::MapError::Exporter { reason, .. } => from_exporter(reason, what),
        dmabuf::MapError::Revoked { .. } => Refusal::new(Kind::NoDevice, what),
        _ => Refusal::new(Kind::Invalid, what),
    }
}

/// Memory that could not be allocated.
pub(crate) fn no_memory(call: &str, error: &dyn std::error::Error) -> Refusal {
    Refusal::new(Kind::NoMemory, format!("{call}: {error}"))
}

#[cfg(test)]
mod tests {
    use dmabuf::{ExporterError, ExporterErrorKind as E};

    use super::*;

    /// The program gets the exporter's own errno at attach, pin and map (`docs/semantics.md` 2.2,
    /// 12 to 14).
    #[test]
    fn the_program_gets_the_exporters_errno() {
        let rows = [
            (E::Invalid, Kind::Invalid),
            (E::Busy, Kind::Busy),
            (E::NotSupported, Kind::NotSupported),
            (E::Unsupported, Kind::Unsupported),
            (E::NoDevice, Kind::NoDevice),
            (E::NotPermitted, Kind::NotPermitted),
            (E::NoMemory, Kind::NoMemory),
            (E::Again, Kind::WouldBlock),
        ];
        for (kind, expected) in rows {
            let (exporter, importer) = ("gpu0".to_owned(), "nic0".to_owned());
            let reason = ExporterError::new(kind, "no");
            let attach = dmabuf::AttachError::Exporter { exporter, importer, reason };
            assert_eq!(from_attach(attach).kind(), expected);
            let (exporter, importer) = ("gpu0".to_owned(), "nic0".to_owned());
            let reason = ExporterError::new(kind, "no");
            let pin = dmabuf::PinError::Exporter { exporter, importer, reason };
            assert_eq!(from_pin(pin).kind(), expected);
            let (exporter, importer) = ("gpu0".to_owned(), "nic0".to_owned());
            let reason = ExporterError::new(kind, "no");
            let map = dmabuf::MapError::Exporter { exporter, importer, reason };
            assert_eq!(from_map(map).kind(), expected);
        }
    }
}
