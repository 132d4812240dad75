//! What the kernel has mapped in a range of addresses, without an allocation.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;

/// Parts of the range that can differ. A program that takes the rights from more pieces of its
/// blocks has all of them with all rights in the child of a fork.
pub(crate) const MOST: usize = 256;

/// A part of the range with the same rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) rights: u32,
}

/// Parts in a row.
pub(crate) struct Vmas {
    found: [Vma; MOST],
    count: usize,
}

impl Vmas {
    const NONE: Self = Self { found: [Vma { start: 0, end: 0, rights: 0 }; MOST], count: 0 };

    pub(crate) fn all(&self) -> &[Vma] {
        &self.found[..self.count]
    }

    fn push(&mut self, vma: Vma) -> Result<(), Errno> {
        *self.found.get_mut(self.count).ok_or(Errno::NOBUFS)? = vma;
        self.count += 1;
        Ok(())
    }
}

/// The shared mappings of the file with this inode between two addresses.
pub(crate) fn of_file(inode: u64, from: usize, to: usize) -> Result<Vmas, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = rustix::fs::open(c"/proc/self/maps", flags, Mode::empty())?;
    let mut found = Vmas::NONE;
    // A line has at most a path behind its numbers.
    let (mut text, mut len) = ([0_u8; 8192], 0);
    loop {
        match rustix::io::read(&maps, &mut text[len..]) {
            Ok(0) => return Ok(found),
            Ok(more) => len += more,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let mut at = 0;
        while let Some(end) = text[at..len].iter().position(|byte| *byte == b'\n') {
            let line = &text[at..at + end];
            at += end + 1;
            let Some((start, end, rights, of)) = parse(line) else { continue };
            if of == Some(inode) && start < to && end > from {
                found.push(Vma { start: start.max(from), end: end.min(to), rights })?;
            }
        }
        text.copy_within(at..len, 0);
        len -= at;
        if len == text.len() {
            return Err(Errno::NAMETOOLONG);
        }
    }
}

/// `START-END PERMS OFFSET MAJOR:MINOR INODE PATH`: both addresses, the rights, and the inode if
/// the mapping is shared.
fn parse(line: &[u8]) -> Option<(usize, usize, u32, Option<u64>)> {
    // Paths have any bytes.
    let numbers = line.utf8_chunks().next()?.valid();
    let mut words = numbers.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let perms = words.next()?.as_bytes();
    let inode = words.nth(2)?.parse().ok()?;
    let names = [
        (b'r', MprotectFlags::READ.bits()),
        (b'w', MprotectFlags::WRITE.bits()),
        (b'x', MprotectFlags::EXEC.bits()),
    ];
    let has = |(name, bit)| if perms.contains(&name) { bit } else { 0 };
    let rights = names.into_iter().map(has).fold(0, |all, bit| all | bit);
    Some((hex(start)?, hex(end)?, rights, perms.contains(&b's').then_some(inode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_addresses_rights_and_the_inode_of_what_is_shared() {
        let line = b"7f12a000-7f12b000 rw-s 00003000 00:01 1234    /memfd:peerdma-heap (deleted)";
        assert_eq!(parse(line), Some((0x7f12_a000, 0x7f12_b000, 3, Some(1234))));
        let line = b"7f12a000-7f12b000 r-xp 00003000 fe:01 1234    /usr/lib/x\xff.so";
        assert_eq!(parse(line), Some((0x7f12_a000, 0x7f12_b000, 5, None)));
        assert_eq!(
            parse(b"7f12a000-7f12b000 ---p 00000000 00:00 0"),
            Some((0x7f12_a000, 0x7f12_b000, 0, None))
        );
    }

    #[test]
    fn a_process_without_mappings_of_a_file_has_none() {
        assert!(of_file(u64::MAX, 0, usize::MAX).expect("every line is read").all().is_empty());
    }
}
