//! The file `resource` of a function in sysfs: its BARs, as the kernel placed them.

const IO: u64 = 0x100;
const MEM: u64 = 0x200;
const PREFETCH: u64 = 0x2000;
const DISABLED: u64 = 0x1000_0000;
const UNSET: u64 = 0x2000_0000;

/// One BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Its number, 0 to 5.
    pub(crate) index: u8,
    /// The CPU address; meaningless if it is not placed.
    pub(crate) addr: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
    flags: u64,
}

impl Resource {
    pub(crate) fn is_memory(&self) -> bool {
        self.flags & MEM != 0
    }

    /// Whether reading it has no effect, as of memory and unlike of most registers.
    pub(crate) fn is_prefetchable(&self) -> bool {
        self.is_memory() && self.flags & PREFETCH != 0
    }

    /// Whether it has an address. It has none where the windows of the bridges above it have no
    /// room for it.
    #[doc(alias = "IORESOURCE_UNSET")]
    pub(crate) fn is_placed(&self) -> bool {
        self.flags & (DISABLED | UNSET) == 0
    }
}

/// The first six lines are the BARs; an unused BAR is all zeros. `None` for text of another form.
pub(crate) fn parse(text: &str) -> Option<Vec<Resource>> {
    let mut resources = vec![];
    for (index, line) in text.lines().take(6).enumerate() {
        let mut numbers = line
            .split_whitespace()
            .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
        let mut next = || numbers.next()?.ok();
        let (addr, end, flags) = (next()?, next()?, next()?);
        if end == 0 || flags & (IO | MEM) == 0 {
            continue;
        }
        let size = end.checked_sub(addr)?.checked_add(1)?;
        // CAST: below six.
        resources.push(Resource { index: index as u8, addr, size, flags });
    }
    Some(resources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_without_an_address_is_told_from_one_that_is_not_used() {
        let text = "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n\
                    0x0000000000000000 0x00000003ffffffff 0x000000002014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x000000000000e000 0x000000000000e07f 0x0000000000040101\n";
        let bars = parse(text).expect("well-formed");
        let seen: Vec<_> = bars.iter().map(|bar| (bar.index, bar.size, bar.is_placed())).collect();
        assert_eq!(seen, [(0, 16 << 20, true), (1, 16 << 30, false), (3, 128, true)]);
        assert!(!bars[0].is_prefetchable() && bars[1].is_prefetchable());
        assert!(bars[0].is_memory() && !bars[2].is_memory());
        assert_eq!(parse("0x10 0x1\n"), None);
    }
}
