//! Result codes of Level Zero.

use std::borrow::Cow;
use std::fmt;

use umd::Kind;

/// A result of a call.
#[doc(alias = "ze_result_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    /// The work is not done yet.
    NotReady = 1,
    /// The GPU was reset or removed.
    DeviceLost = 0x7000_0001,
    /// No memory on the host.
    OutOfHostMemory = 0x7000_0002,
    /// No memory on the GPU.
    OutOfDeviceMemory = 0x7000_0003,
    /// The user lacks permission.
    InsufficientPermissions = 0x7001_0000,
    /// Another process has the object.
    NotAvailable = 0x7001_0001,
    /// `zeInit` was not called, or only in a parent of this process, before a fork.
    Uninitialized = 0x7800_0001,
    /// The loader has another major version.
    UnsupportedVersion = 0x7800_0002,
    /// Not supported.
    UnsupportedFeature = 0x7800_0003,
    /// An argument is invalid.
    InvalidArgument = 0x7800_0004,
    /// A handle is null.
    InvalidNullHandle = 0x7800_0005,
    /// A pointer is null.
    InvalidNullPointer = 0x7800_0007,
    /// A size or a count is 0 or invalid.
    InvalidSize = 0x7800_0008,
    /// The GPU does not support this size.
    UnsupportedSize = 0x7800_0009,
    /// An alignment is not a power of two, or an address is not aligned.
    UnsupportedAlignment = 0x7800_000a,
    /// An event or a fence cannot be used in this way.
    InvalidSynchronizationObject = 0x7800_000b,
    /// A number or a flag is not in the header.
    InvalidEnumeration = 0x7800_000c,
    /// Flags are not supported.
    UnsupportedEnumeration = 0x7800_000d,
    /// The list is not of the right type, or not in the right state.
    InvalidCommandListType = 0x7800_0019,
    /// Source and destination overlap.
    OverlappingRegions = 0x7800_001a,
    /// Nothing is at the address.
    AddressNotFound = 0x7800_0021,
    /// A bug.
    Unknown = 0x7fff_fffe,
}

/// Why a call is refused.
pub(crate) type Refusal = umd::Refused<Status>;

/// A result, or why the call is refused.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// An invalid argument.
pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::InvalidArgument, what)
}

/// An operation that is not supported.
pub(crate) fn unsupported(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::UnsupportedFeature, what)
}

/// Checks flags against those that the header has.
pub(crate) fn flags(given: u32, known: u32) -> Result<()> {
    if given & !known == 0 {
        return Ok(());
    }
    Err(Refusal::new(
        Status::InvalidEnumeration,
        format!("flags {given:#x}: the known ones are {known:#x}"),
    ))
}

/// Checks a number of an enumeration that ends at `last`.
pub(crate) fn enumeration(given: u32, last: u32) -> Result<()> {
    if given <= last {
        return Ok(());
    }
    Err(Refusal::new(Status::InvalidEnumeration, format!("{given}, where the last is {last}")))
}

/// Level Zero's codes for the kinds of refusal that all drivers share.
impl From<Kind> for Status {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Invalid => Self::InvalidArgument,
            Kind::Null => Self::InvalidNullPointer,
            Kind::NotSupported => Self::UnsupportedFeature,
            Kind::NotPermitted => Self::InsufficientPermissions,
            Kind::NoMemory => Self::OutOfDeviceMemory,
            Kind::Unavailable => Self::DeviceLost,
            Kind::Busy => Self::NotAvailable,
            Kind::System => Self::OutOfHostMemory,
            Kind::Destroyed => Self::InvalidArgument,
            Kind::Unknown => Self::Unknown,
        }
    }
}
