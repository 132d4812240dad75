//! Why something was not done: a kind, which each driver has a number for, and a sentence.

use std::borrow::Cow;
use std::fmt;

use dmabuf::{ExporterError, ExporterErrorKind};

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a driver has a number for each")]
pub enum Kind {
    /// An argument is invalid.
    Invalid,
    /// A pointer that must not be null is null.
    Null,
    /// No memory, on the GPU or here.
    NoMemory,
    /// It cannot be done here.
    NotSupported,
    /// The user may not.
    NotPermitted,
    /// The GPU was reset or removed, or another process has exclusive use of it.
    Unavailable,
    /// Not now.
    Busy,
    /// A call of the system failed.
    System,
    /// The object was destroyed.
    Destroyed,
    /// A bug.
    Unknown,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "drivers take it apart")]
pub struct Refusal {
    /// The kind, which each driver turns into a number.
    pub kind: Kind,
    /// Who, what, and which rule.
    pub what: Cow<'static, str>,
}

/// A result, or why there is none.
pub type Result<T> = std::result::Result<T, Refusal>;

/// A refusal as a driver tells it: with a number of its own for the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "drivers make and take it apart")]
pub struct Refused<S> {
    /// The number that the program gets.
    pub status: S,
    /// Who, what, and which rule.
    pub what: Cow<'static, str>,
}

/// What a driver makes of a refusal.
pub trait Error: From<Refusal> + fmt::Display + Send + 'static {}

impl<E: From<Refusal> + fmt::Display + Send + 'static> Error for E {}

impl Refusal {
    /// A refusal of that kind.
    pub fn new(kind: Kind, what: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, what: what.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl<S> Refused<S> {
    /// A refusal with that number.
    pub fn new(status: S, what: impl Into<Cow<'static, str>>) -> Self {
        Self { status, what: what.into() }
    }
}

impl<S: fmt::Display> fmt::Display for Refused<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.status)
    }
}

/// A refusal from code that all drivers share.
impl<S: From<Kind>> From<Refusal> for Refused<S> {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.kind.into(), refusal.what)
    }
}

/// A refusal of the GPU.
impl<S: From<Kind>> From<ExporterError> for Refused<S> {
    fn from(error: ExporterError) -> Self {
        Refusal::from(error).into()
    }
}

/// An invalid argument.
pub fn invalid(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Kind::Invalid, what)
}

/// A refusal of the GPU.
impl From<ExporterError> for Refusal {
    fn from(error: ExporterError) -> Self {
        let kind = match error.kind {
            ExporterErrorKind::Invalid => Kind::Invalid,
            ExporterErrorKind::NotSupported => Kind::NotSupported,
            ExporterErrorKind::NotPermitted => Kind::NotPermitted,
            ExporterErrorKind::NoMemory | ExporterErrorKind::Again => Kind::NoMemory,
            ExporterErrorKind::NoDevice => Kind::Unavailable,
            ExporterErrorKind::Busy => Kind::Busy,
            _ => Kind::Unknown,
        };
        Self::new(kind, error.to_string())
    }
}
