//! What went wrong, as Level Zero's numbers.

use std::borrow::Cow;
use std::fmt;

use umd::Kind;

/// A result of a call.
#[doc(alias = "ze_result_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    /// Not yet.
    NotReady = 1,
    /// The GPU was reset or removed.
    DeviceLost = 0x7000_0001,
    /// No memory here.
    OutOfHostMemory = 0x7000_0002,
    /// No memory on the GPU.
    OutOfDeviceMemory = 0x7000_0003,
    /// The user may not.
    InsufficientPermissions = 0x7001_0000,
    /// Somebody else has it.
    NotAvailable = 0x7001_0001,
    /// `zeInit` was not called, or was called in a process of which this one is a child.
    Uninitialized = 0x7800_0001,
    /// A loader of another major version.
    UnsupportedVersion = 0x7800_0002,
    /// Not served.
    UnsupportedFeature = 0x7800_0003,
    /// An argument makes no sense.
    InvalidArgument = 0x7800_0004,
    /// A handle is null.
    InvalidNullHandle = 0x7800_0005,
    /// A pointer is null.
    InvalidNullPointer = 0x7800_0007,
    /// A size or a count is none.
    InvalidSize = 0x7800_0008,
    /// A size that the GPU has not.
    UnsupportedSize = 0x7800_0009,
    /// An alignment that is no power of two, or an address that is not aligned.
    UnsupportedAlignment = 0x7800_000a,
    /// An event or a fence that cannot be used so.
    InvalidSynchronizationObject = 0x7800_000b,
    /// A number or flags that the header does not have.
    InvalidEnumeration = 0x7800_000c,
    /// Flags that are not served.
    UnsupportedEnumeration = 0x7800_000d,
    /// The list is not of the kind, or not in the state, for what is asked.
    InvalidCommandListType = 0x7800_0019,
    /// Source and destination have bytes in common.
    OverlappingRegions = 0x7800_001a,
    /// Nothing is at the address.
    AddressNotFound = 0x7800_0021,
    /// A bug.
    Unknown = 0x7fff_fffe,
}

/// Why a call is refused.
pub(crate) type Refusal = umd::Refused<Status>;

/// An answer, or why there is none.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// An argument that makes no sense.
pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::InvalidArgument, what)
}

/// What is not served.
pub(crate) fn unsupported(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::UnsupportedFeature, what)
}

/// Checks flags against those that the header has.
pub(crate) fn flags(given: u32, known: u32) -> Result<()> {
    if given & !known == 0 {
        return Ok(());
    }
    Err(Refusal::new(Status::InvalidEnumeration, format!("flags {given:#x}, of {known:#x}")))
}

/// Checks a number of an enumeration that ends at `last`.
pub(crate) fn enumeration(given: u32, last: u32) -> Result<()> {
    if given <= last {
        return Ok(());
    }
    Err(Refusal::new(Status::InvalidEnumeration, format!("{given}, where the last is {last}")))
}

/// What the kinds that all drivers have are here.
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
