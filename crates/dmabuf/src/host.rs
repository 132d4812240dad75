//! The buffers of all processes of this machine, as far as we may see them.
//!
//! debugfs shows the kernel's list to root only, and does not know of our buffers. `/proc` shows
//! every process the files of its user's processes, and buffers are files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::buf::MEMFD_PREFIX;
use crate::share::split_name;
use crate::system::MEMFD;

/// A buffer that some process of this machine has open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostBuf {
    /// Size in bytes.
    pub size: u64,
    /// The file's inode number.
    pub ino: u64,
    /// The exporter: the kernel's name for a kernel dma-buf, and ours for our own.
    pub exporter: String,
    /// Its name; empty if it was never named.
    pub name: String,
    /// Whether the file is a dma-buf of the kernel.
    pub is_kernel: bool,
    /// Whether a process serves it: its memory may move or be taken away.
    pub is_shared: bool,
    /// The processes that have it open.
    pub holders: Vec<Holder>,
}

/// A process that has a buffer open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its pid.
    pub pid: u32,
    /// The name of its program, as the kernel shortens it.
    pub command: String,
    /// How many of its fds refer to the buffer.
    pub fds: usize,
}

/// What was found. Its [`Display`](fmt::Display) is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostBufList {
    /// In the order of their inode numbers.
    pub buffers: Vec<HostBuf>,
    /// Processes that we may not inspect, since they belong to others.
    pub hidden: usize,
}

/// Inspects all processes that it may. A process that mapped a buffer and closed its fd is not
/// found.
pub fn host_buffers() -> HostBufList {
    let mut found = BTreeMap::new();
    let mut hidden = 0;
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        match fs::read_dir(process.path().join("fd")) {
            Ok(fds) => {
                fds.flatten().for_each(|fd| look_at(pid, &process.path(), &fd.path(), &mut found))
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => hidden += 1,
            // The process ended.
            Err(_) => {}
        }
    }
    HostBufList { buffers: found.into_values().collect(), hidden }
}

/// The buffers that processes serve and that some process has open, each by the
/// [token](export_token) of the process that exported it and its name; `None` if there is no
/// `/proc`. Processes that this one cannot see, those of another pid namespace or user, are not
/// counted.
pub fn open_exports() -> Option<BTreeSet<(u64, String)>> {
    let mut found = BTreeSet::new();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let is_number = |name: &str| name.bytes().all(|digit| digit.is_ascii_digit());
    for process in processes.filter(|process| process.file_name().to_str().is_some_and(is_number)) {
        // Processes of other users, and processes that are just ending, cannot be read.
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else { continue };
        for fd in fds.flatten() {
            let Ok(link) = fs::read_link(fd.path()) else { continue };
            if let Some((false, name)) = link.to_str().and_then(buffer_name)
                && let Some((name, address)) = split_name(name)
            {
                found.insert((address.token.number(), name.to_owned()));
            }
        }
    }
    Some(found)
}

/// The token in the names of the buffers that this process exported, once it has exported one that
/// others may import.
pub fn export_token() -> Option<u64> {
    crate::share::token().map(crate::share::Token::number)
}

fn look_at(pid: u32, process: &Path, fd: &Path, found: &mut BTreeMap<(u64, u64), HostBuf>) {
    let Ok(link) = fs::read_link(fd) else { return };
    let Some((is_kernel, name)) = link.to_str().and_then(buffer_name) else { return };
    let Ok(file) = fs::metadata(fd) else { return };
    let buf = found.entry((file.dev(), file.ino())).or_insert_with(|| {
        let address = if is_kernel { None } else { split_name(name) };
        let exporter = match (is_kernel, address.is_some()) {
            (true, _) => exporter_of(process, fd),
            // The driver is one of the holders, and only it knows its name.
            (false, true) => "peerdma driver".to_owned(),
            (false, false) => MEMFD.to_owned(),
        };
        HostBuf {
            size: file.size(),
            ino: file.ino(),
            exporter,
            name: address.as_ref().map_or(name, |(short, _)| *short).to_owned(),
            is_kernel,
            is_shared: address.is_some(),
            holders: Vec::new(),
        }
    });
    match buf.holders.iter_mut().find(|holder| holder.pid == pid) {
        Some(holder) => holder.fds += 1,
        None => {
            let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
            buf.holders.push(Holder { pid, command: command.trim_end().to_owned(), fds: 1 });
        }
    }
}

/// Whether a link of `/proc/PID/fd` is a buffer: whether it is a kernel dma-buf, and its name.
fn buffer_name(link: &str) -> Option<(bool, &str)> {
    if let Some(name) = link.strip_prefix("/dmabuf:") {
        return Some((true, name));
    }
    let name = link.strip_prefix("/memfd:")?.strip_prefix(MEMFD_PREFIX)?;
    Some((false, name.strip_suffix(" (deleted)").unwrap_or(name)))
}

fn exporter_of(process: &Path, fd: &Path) -> String {
    let number = fd.file_name().unwrap_or_default();
    let text = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("exp_name:"));
    line.map_or("unknown exporter", str::trim).to_owned()
}

impl fmt::Display for HostBufList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>14}  {:>10}  {:<16}  {:<24}  held by", "size", "ino", "exporter", "name")?;
        for buf in &self.buffers {
            let name = if buf.name.is_empty() { "<none>" } else { &buf.name };
            let holders: Vec<_> = buf
                .holders
                .iter()
                .map(|Holder { pid, command, fds }| {
                    let s = if *fds == 1 { "" } else { "s" };
                    format!("{pid} ({command}, {fds} fd{s})")
                })
                .collect();
            let HostBuf { size, ino, exporter, .. } = buf;
            writeln!(
                f,
                "{size:>14}  {ino:>10}  {exporter:<16}  {name:<24}  {}",
                holders.join(", ")
            )?;
        }
        let bytes: u64 = self.buffers.iter().map(|buf| buf.size).sum();
        let pids: BTreeSet<_> =
            self.buffers.iter().flat_map(|buf| &buf.holders).map(|holder| holder.pid).collect();
        write!(f, "{} buffers, {bytes} bytes, in {} processes", self.buffers.len(), pids.len())?;
        match self.hidden {
            0 => writeln!(f),
            hidden => writeln!(f, "; {hidden} processes could not be looked into"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DmaBuf, Memory};

    #[test]
    fn a_buffer_is_found_with_every_process_that_has_it() {
        let buf = DmaBuf::export_from(&Memory::Memfd, 5000, "found").expect("memory exists");
        // Other tests fork, and their children also have the buffer for a moment.
        let ours = || {
            let list = host_buffers();
            let text = list.to_string();
            let found = list.buffers.into_iter().find(|other| other.name == "found")?;
            assert!(text.contains("found"));
            let me = std::process::id();
            let fds = found.holders.iter().find(|holder| holder.pid == me)?.fds;
            Some((found, fds))
        };
        let (found, before) = ours().expect("listed");
        assert_eq!((found.size, &*found.exporter), (8192, "peerdma memfd"));
        assert!(!found.is_kernel && !found.is_shared);
        let more = buf.dup_fd(true).expect("a free fd");
        assert_eq!(ours().map(|(_, fds)| fds), Some(before + 1));
        drop((more, buf));
        assert_eq!(ours(), None);
    }

    #[test]
    fn links_that_are_buffers() {
        let rows = [
            ("/dmabuf:", Some((true, ""))),
            ("/dmabuf:frame", Some((true, "frame"))),
            ("/memfd:peerdma:frame (deleted)", Some((false, "frame"))),
            ("/memfd:frame (deleted)", None),
            ("anon_inode:sync_file", None),
            ("/tmp/peerdma:frame", None),
        ];
        for (link, expected) in rows {
            assert_eq!(buffer_name(link), expected, "{link}");
        }
    }
}
