//! Descriptions as bytes. Both ends are on one host, so numbers are in its byte order.
//!
//! A record is its fields in their order; a list and a text have their length in front. No length
//! is believed before there are as many bytes.

/// Why bytes are not the description of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadView {
    /// They are of another version of peerdma.
    Version(u32),
    /// They end in the middle.
    Short,
    /// Something follows the end.
    Long,
    /// A value that no field can have.
    Value,
}

impl std::fmt::Display for BadView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "it describes itself in version {version}, and this is version {VERSION}")
            }
            Self::Short => f.write_str("its description ends in the middle"),
            Self::Long => f.write_str("its description is longer than it says"),
            Self::Value => f.write_str("its description has a value that no object has"),
        }
    }
}

impl std::error::Error for BadView {}

/// The version of the encoding; a field more is another version.
pub(crate) const VERSION: u32 = 2;

/// Longest text: names of processes and reasons are shorter.
const TEXT_MAX: usize = 1024;

/// What has a form in bytes.
pub(crate) trait Coded: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Result<Self, BadView>;
}

/// A description as bytes, with the version in front.
pub(crate) fn encode(what: &impl Coded) -> Vec<u8> {
    let mut out = Vec::with_capacity(4096);
    VERSION.put(&mut out);
    what.put(&mut out);
    out
}

/// The description in bytes that another process gave.
pub(crate) fn decode<T: Coded>(mut bytes: &[u8]) -> Result<T, BadView> {
    let version = u32::take(&mut bytes)?;
    if version != VERSION {
        return Err(BadView::Version(version));
    }
    let what = T::take(&mut bytes)?;
    if bytes.is_empty() { Ok(what) } else { Err(BadView::Long) }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Coded for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_ne_bytes());
            }

            fn take(from: &mut &[u8]) -> Result<Self, BadView> {
                let (bytes, rest) = from.split_first_chunk().ok_or(BadView::Short)?;
                *from = rest;
                Ok(Self::from_ne_bytes(*bytes))
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 }

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadView::Value),
        }
    }
}

impl<const N: usize> Coded for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        let (bytes, rest) = from.split_first_chunk().ok_or(BadView::Short)?;
        *from = rest;
        Ok(*bytes)
    }
}

impl Coded for String {
    fn put(&self, out: &mut Vec<u8>) {
        let mut end = self.len().min(TEXT_MAX);
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        // CAST: at most TEXT_MAX.
        (end as u16).put(out);
        out.extend(&self.as_bytes()[..end]);
    }

    /// Control characters of another process do not belong on a terminal.
    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        let length = usize::from(u16::take(from)?);
        if length > TEXT_MAX {
            return Err(BadView::Value);
        }
        let (text, rest) = from.split_at_checked(length).ok_or(BadView::Short)?;
        *from = rest;
        let text = std::str::from_utf8(text).map_err(|_| BadView::Value)?;
        if text.chars().any(char::is_control) { Err(BadView::Value) } else { Ok(text.to_owned()) }
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        Ok(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        // CAST: lists are bounded by LIST_MAX.
        (self.len() as u32).put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        // No element is shorter than a byte, and room is made only as elements come.
        let count = u32::take(from)? as usize;
        if count > from.len() {
            return Err(BadView::Short);
        }
        (0..count).map(|_| T::take(from)).collect()
    }
}

/// Defines a record and its encoding.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[expect(clippy::exhaustive_structs, reason = "engines fill in every field")]
        pub struct $name {
            $($(#[$of])* pub $field: $kind,)*
        }

        impl $crate::codec::Coded for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Coded::put(&self.$field, out);)*
            }

            fn take(from: &mut &[u8]) -> Result<Self, $crate::codec::BadView> {
                Ok(Self { $($field: $crate::codec::Coded::take(from)?,)* })
            }
        }
    };
}
pub(crate) use record;
