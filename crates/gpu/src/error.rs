//! Refusals in words. A GPU uses the exporter's errors: a kind that maps to one errno, and a text
//! that says which part refused what.

use dmabuf::{ExporterError, ExporterErrorKind};

/// What an operation of the GPU returns.
pub type Result<T> = std::result::Result<T, ExporterError>;

macro_rules! refusals {
    ($($name:ident => $kind:ident,)*) => {
        $(pub(crate) fn $name(what: impl Into<String>) -> ExporterError {
            ExporterError::new(ExporterErrorKind::$kind, what)
        })*
    };
}

refusals! {
    invalid => Invalid,
    busy => Busy,
    not_supported => NotSupported,
    unsupported => Unsupported,
    no_device => NoDevice,
    not_permitted => NotPermitted,
    no_memory => NoMemory,
    again => Again,
}
