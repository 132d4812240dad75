//! The GPUs of the machine, as CUDA presents them.
//!
//! The driver, the runtime and NVML number them by one list, so names, addresses and UUIDs agree.

use gpu::Machine;
use pci::Bdf;
pub(crate) use umd::machine::{Device, Nearness};

use crate::status::{Result, invalid};

/// The PCI ID of every GPU: the vendor in the low half, the device in the high half.
pub const PCI_ID: u32 = 0x2335_10de;

/// The PCI subsystem ID.
pub const PCI_SUBSYSTEM: u32 = 0x18be_10de;

/// The preset of GPUs for which the configuration names none.
const PRESET: &str = "nvidia";

/// All GPUs, in the order of their PCI addresses. Empty if the configuration cannot be read, which
/// is logged.
pub(crate) fn devices() -> &'static [Device] {
    umd::machine::devices(PRESET)
}

/// The configured machine, in which a GPU without a preset is `nvidia`.
///
/// # Errors
///
/// The error of the configuration, in words.
pub fn load() -> std::result::Result<Machine, String> {
    umd::machine::load(PRESET)
}

/// The UUID of a GPU as text.
pub(crate) fn uuid_text(device: &Device) -> String {
    let hex: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The GPUs that `CUDA_VISIBLE_DEVICES` selects, by their index in [`devices`]: numbers or prefixes
/// of UUIDs, up to the first that names no GPU.
pub(crate) fn visible(given: Option<&str>) -> Vec<usize> {
    let all = devices();
    let Some(given) = given else { return (0..all.len()).collect() };
    let mut found = Vec::new();
    for entry in given.split(',').map(str::trim) {
        let by_number = entry.parse::<usize>().ok().filter(|number| *number < all.len());
        let by_uuid = || {
            let mut matches = all
                .iter()
                .enumerate()
                .filter(|(_, device)| entry.len() > 4 && uuid_text(device).starts_with(entry));
            matches.next().map(|(index, _)| index).filter(|_| matches.next().is_none())
        };
        match by_number.or_else(by_uuid) {
            Some(index) if !found.contains(&index) => found.push(index),
            _ => break,
        }
    }
    found
}

/// Parses an address: `domain:bus:device.function`, where domain and function may be omitted.
///
/// # Errors
///
/// The text is not such an address.
pub(crate) fn bdf(text: &str) -> Result<Bdf> {
    let mut whole = text.to_owned();
    if whole.matches(':').count() == 1 {
        whole.insert_str(0, "0000:");
    }
    if !whole.contains('.') {
        whole.push_str(".0");
    }
    // NVML writes the domain with eight digits.
    let short = whole.split_once(':').map(|(domain, rest)| {
        let digits = domain.trim_start_matches('0');
        format!("{digits:0>4}:{rest}")
    });
    short
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| invalid(format!("{text:?} is not a PCI address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_be_short_or_long() {
        let at = |text: &str| bdf(text).unwrap().to_string();
        for text in ["0000:3b:00.0", "00000000:3b:00.0", "3b:00.0", "3b:00", "0000:3b:00"] {
            assert_eq!(at(text), "0000:3b:00.0", "{text}");
        }
        assert!(bdf("gpu0").is_err() && bdf("").is_err());
    }
}
