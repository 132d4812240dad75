//! The address of a PCI function.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function: `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    domain: u32,
    bus: u8,
    devfn: u8,
}

/// Text that is not the address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not the address of a PCI function: domain:bus:device.function, as in 0000:3b:00.0"
)]
pub struct BdfError {
    text: String,
}

impl Bdf {
    /// `device` is below 32 and `function` below 8; higher bits are cut off.
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Self {
        Self { domain, bus, devfn: ((device & 31) << 3) | (function & 7) }
    }

    /// The PCI segment.
    pub const fn domain(self) -> u32 {
        self.domain
    }

    /// The bus in its domain.
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// The device on its bus, 0 to 31.
    #[doc(alias = "PCI_SLOT")]
    pub const fn device(self) -> u8 {
        self.devfn >> 3
    }

    /// The function of its device, 0 to 7.
    #[doc(alias = "PCI_FUNC")]
    pub const fn function(self) -> u8 {
        self.devfn & 7
    }

    /// Device and function in one byte, as in configuration space.
    pub const fn devfn(self) -> u8 {
        self.devfn
    }

    /// The address as one number, with the domain in the highest bits.
    pub const fn to_bits(self) -> u64 {
        // CAST: widening.
        (self.domain as u64) << 16 | (self.bus as u64) << 8 | self.devfn as u64
    }

    /// The inverse of [`to_bits`](Self::to_bits); `None` for numbers of more than 48 bits.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >> 48 != 0 {
            return None;
        }
        // CAST: each field is cut out at its own width.
        Some(Self { domain: (bits >> 16) as u32, bus: (bits >> 8) as u8, devfn: bits as u8 })
    }
}

impl From<Bdf> for u64 {
    fn from(bdf: Bdf) -> Self {
        bdf.to_bits()
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, function) = (self.device(), self.function());
        write!(f, "{:04x}:{:02x}:{device:02x}.{function:x}", self.domain, self.bus)
    }
}

impl FromStr for Bdf {
    type Err = BdfError;

    fn from_str(text: &str) -> Result<Self, BdfError> {
        let error = || BdfError { text: text.to_owned() };
        let hex = |digits: &str, width: std::ops::RangeInclusive<usize>, max: u32| {
            let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
            let number = u32::from_str_radix(digits, 16).ok()?;
            (plain && width.contains(&digits.len()) && number <= max).then_some(number)
        };
        let (domain, rest) = text.split_once(':').ok_or_else(error)?;
        let (bus, rest) = rest.split_once(':').ok_or_else(error)?;
        let (device, function) = rest.split_once('.').ok_or_else(error)?;
        let parse = || {
            let domain = hex(domain, 4..=8, u32::MAX)?;
            let bus = u8::try_from(hex(bus, 2..=2, 0xff)?).ok()?;
            let device = u8::try_from(hex(device, 2..=2, 31)?).ok()?;
            let function = u8::try_from(hex(function, 1..=1, 7)?).ok()?;
            Some(Self::new(domain, bus, device, function))
        };
        parse().ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_error_names_the_text() {
        for text in [
            "",
            "0000:00",
            "0000:00:20.0",
            "0000:00:00.8",
            "0:0:0.0",
            "0000:+1:00.0",
            "0000:00:00.0 ",
        ] {
            let error = text.parse::<Bdf>().expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    proptest! {
        #[test]
        fn text_and_number_convert_back(domain: u32, bus: u8, device in 0_u8..32, function in 0_u8..8) {
            let bdf = Bdf::new(domain, bus, device, function);
            prop_assert_eq!(bdf.to_string().parse::<Bdf>(), Ok(bdf));
            prop_assert_eq!(Bdf::from_bits(bdf.to_bits()), Some(bdf));
            prop_assert_eq!((bdf.device(), bdf.function()), (device, function));
        }
    }
}
