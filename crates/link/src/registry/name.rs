//! The names in the abstract socket namespace.

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::VF_COUNT;

/// Longest name of a nic, in bytes; the kernel's limit for names of network interfaces and RDMA
/// devices is shorter.
pub(super) const NIC_NAME_MAX: usize = 64;

/// Whether `nic` may be part of a socket name: printable, without `/` and blanks, since the names
/// are searched for in /proc/net/unix.
pub(super) fn valid_nic(nic: &str) -> bool {
    !nic.is_empty()
        && nic.len() <= NIC_NAME_MAX
        && nic.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
}

/// The address of VF `vf` of `nic`.
pub(super) fn address(nic: &str, vf: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("peerdma/{nic}/vf/{vf}").as_bytes())
}

/// The VF whose listener a line of /proc/net/unix describes, if it is one of `nic`.
pub(super) fn vf_of_line(line: &str, nic: &str) -> Option<u16> {
    let (flags, vf) = parse(line, nic)?;
    // Accepted sockets carry the name of their listener; only the listener has this flag.
    (flags & SO_ACCEPTCON != 0).then_some(vf)
}

/// The VF whose name a socket of another kind holds, by its line of /proc/net/unix.
pub(super) fn squatted(table: &str, nic: &str) -> Vec<u16> {
    let mut held: Vec<_> = table.lines().filter_map(|l| parse(l, nic)).map(|(_, vf)| vf).collect();
    held.sort_unstable();
    held.dedup();
    let listened: Vec<_> = table.lines().filter_map(|l| vf_of_line(l, nic)).collect();
    held.retain(|vf| !listened.contains(vf));
    held
}

/// The kernel's list of Unix sockets. Anybody can give a socket a name that is not text.
pub(super) fn sockets() -> std::io::Result<String> {
    let table = std::fs::read("/proc/net/unix")?;
    Ok(String::from_utf8(table)
        .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()))
}

fn parse(line: &str, nic: &str) -> Option<(u32, u16)> {
    let (flags, vf) = numbered(line, nic, "vf")?;
    (vf < VF_COUNT).then_some((flags, vf))
}

/// The flags of the socket `peerdma/NIC/KIND/n` that a line of /proc/net/unix describes, and n.
pub(super) fn numbered(line: &str, nic: &str, kind: &str) -> Option<(u32, u16)> {
    // Num RefCount Protocol Flags Type St Inode Path; an abstract path begins with @.
    let mut fields = line.split_ascii_whitespace().skip(3);
    let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(3)?;
    let of_nic = path.strip_prefix("@peerdma/")?.strip_prefix(nic)?.strip_prefix('/')?;
    let text = of_nic.strip_prefix(kind)?.strip_prefix('/')?;
    let number: u16 = text.parse().ok()?;
    // One name per number: "007" and "+7" are not ours.
    (text == format!("{number}")).then_some((flags, number))
}

/// `__SO_ACCEPTCON`, the flag of listening sockets in /proc/net/unix.
pub(super) const SO_ACCEPTCON: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_line() {
        let line = |flags: &str, path: &str| {
            format!("ffff8881: 00000002 00000000 {flags} 0005 01 24567 {path}")
        };
        let vf = |flags, path| vf_of_line(&line(flags, path), "peerdma0");
        assert_eq!(vf("00010000", "@peerdma/peerdma0/vf/17"), Some(17));
        assert_eq!(vf("00000000", "@peerdma/peerdma0/vf/17"), None, "an accepted connection");
        assert_eq!(vf("00010000", "@peerdma/peerdma1/vf/17"), None, "another nic");
        assert_eq!(vf("00010000", "@peerdma/peerdma0/vf/017"), None, "not our spelling");
        assert_eq!(vf("00010000", "@peerdma/peerdma0/vf/1024"), None, "out of range");
        assert_eq!(vf("00010000", "/run/peerdma0/vf/1"), None, "a path in the file system");
        assert_eq!(vf_of_line("Num RefCount Protocol Flags Type St Inode Path", "x"), None);
    }

    #[test]
    fn names_that_would_confuse_are_refused() {
        assert!(valid_nic("peerdma0"));
        for bad in ["", "a/b", "a b", "a\0b", &"x".repeat(65)] {
            assert!(!valid_nic(bad), "{bad:?}");
        }
    }
}
