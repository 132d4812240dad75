//! The attribute with which a user lets a driver use peer-to-peer memory: a device, or a boolean.

use std::fmt;

use crate::Bdf;
use crate::p2pdma::P2pdma;

/// The value of the attribute; [`P2pdma::enable_store`] reads its text.
#[doc(alias = "pci_p2pdma_enable_show")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the attribute has three meanings")]
pub enum Enable {
    /// Use no peer-to-peer memory.
    No,
    /// Find a provider.
    Any,
    /// Use the memory of this device.
    Device(Bdf),
}

/// Why the attribute was not set (ENODEV).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnableError {
    /// The device has published no memory.
    #[error("PCI device {bdf} has no peer-to-peer memory")]
    NoMemory {
        /// The device.
        bdf: Bdf,
    },
    /// The text is neither a device nor a boolean.
    #[error("no such PCI device: {text}")]
    NoDevice {
        /// The written text.
        text: String,
    },
}

impl P2pdma {
    /// Parses the text of a user: the address of a device, or a boolean in any of the kernel's
    /// spellings. 0 and 1 must stand alone, so that a mistyped address is not taken as true.
    ///
    /// # Errors
    ///
    /// [`EnableError`].
    #[doc(alias = "pci_p2pdma_enable_store")]
    pub fn enable_store(&self, text: &str) -> Result<Enable, EnableError> {
        let line = text.split(['\n', '\0']).next().unwrap_or_default();
        // The kernel compares names, so that no other spelling of an address is one.
        let is_name = |bdf: &Bdf| bdf.to_string() == line && self.tree().function(*bdf).is_some();
        let device = line.parse().ok().filter(is_name);
        if let Some(bdf) = device {
            return match self.has_p2pmem(bdf) {
                true => Ok(Enable::Device(bdf)),
                false => Err(EnableError::NoMemory { bdf }),
            };
        }
        match yes_or_no(line) {
            Some(true) => Ok(Enable::Any),
            Some(false) => Ok(Enable::No),
            None => Err(EnableError::NoDevice { text: line.to_owned() }),
        }
    }
}

impl fmt::Display for Enable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("0"),
            Self::Any => f.write_str("1"),
            Self::Device(bdf) => bdf.fmt(f),
        }
    }
}

/// The kernel's parser of booleans reads only the first one or two letters.
fn yes_or_no(text: &str) -> Option<bool> {
    let mut letters = text.bytes();
    match (letters.next()?, letters.next()) {
        (b'1', None) => Some(true),
        (b'0', None) => Some(false),
        (b'y' | b'Y' | b't' | b'T', _) => Some(true),
        (b'n' | b'N' | b'f' | b'F', _) => Some(false),
        (b'o' | b'O', Some(b'n' | b'N')) => Some(true),
        (b'o' | b'O', Some(b'f' | b'F')) => Some(false),
        _ => None,
    }
}
