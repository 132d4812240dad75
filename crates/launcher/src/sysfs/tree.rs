//! Names below `/sys` and `/dev`, and how they are created as real files.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// The directory of character devices.
pub(crate) const DEVICES: &str = "/dev/infiniband";

/// The directory in which our classes are listed next to the kernel's.
pub(super) const CLASSES: &str = "/sys/class";

/// The directory of PCI functions, likewise.
pub(super) const PCI_FUNCTIONS: &str = "/sys/bus/pci/devices";

/// The directory of DRM's devices, likewise.
pub(super) const DRM: &str = "/sys/class/drm";

/// The directory of accelerators, likewise.
pub(super) const ACCEL: &str = "/sys/class/accel";

/// The directory of VFIO's devices, likewise.
pub(super) const VFIO: &str = "/sys/class/vfio-dev";

/// Directories with names of ours and of the kernel's.
pub(crate) const LISTINGS: [&str; 5] = [CLASSES, PCI_FUNCTIONS, DRM, ACCEL, VFIO];

/// One name in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A directory.
    Dir,
    /// An attribute and its text.
    File(String),
    /// An attribute of bytes.
    Bytes(Vec<u8>),
    /// A symbolic link and its target.
    Link(String),
    /// The stand-in for a driver's character device. Creating a device needs privilege, so this is
    /// a socket that no process listens on: it has a device's permissions, and opening it fails
    /// with ENXIO, as for a device without a driver. `stat` shows it as a
    /// [`Device`](super::Device).
    Device,
}

/// The names below `/sys`, by absolute path; a directory sorts before its contents.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(super) nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Adds a link for each name that this machine's kernel has in the [`LISTINGS`], so that they
    /// show all names.
    pub(crate) fn add_kernel_names(&mut self) {
        for directory in LISTINGS {
            if !self.nodes.contains_key(directory) {
                continue;
            }
            let Ok(entries) = std::fs::read_dir(directory) else { continue };
            for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
                let path = format!("{directory}/{name}");
                self.nodes.entry(path.clone()).or_insert(Node::Link(path));
            }
        }
    }

    /// The text of an attribute.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match self.nodes.get(path)? {
            Node::File(text) => Some(text),
            _ => None,
        }
    }

    /// The contents of an attribute of bytes.
    #[cfg(test)]
    pub(super) fn contents(&self, path: &str) -> Option<&[u8]> {
        match self.nodes.get(path)? {
            Node::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Creates every name below `root`, which stands for `/`.
    pub(crate) fn materialise(&self, root: BorrowedFd<'_>) -> io::Result<()> {
        for (path, node) in &self.nodes {
            let path = path.trim_start_matches('/');
            match node {
                Node::Dir => rustix::fs::mkdirat(root, path, Mode::from_raw_mode(0o755))?,
                Node::Link(target) => rustix::fs::symlinkat(target.as_str(), root, path)?,
                Node::Device => {
                    let mode = Mode::from_raw_mode(0o666);
                    rustix::fs::mknodat(root, path, FileType::Socket, mode, 0)?;
                    // Restores the permissions that the process's umask removed.
                    rustix::fs::chmodat(root, path, mode, AtFlags::empty())?;
                }
                Node::File(text) => write(root, path, text.as_bytes())?,
                Node::Bytes(bytes) => write(root, path, bytes)?,
            }
        }
        Ok(())
    }

    /// Adds a directory and its parents.
    pub(super) fn dir(&mut self, path: &str) {
        for (at, _) in path.match_indices('/').filter(|&(at, _)| at > 0) {
            self.nodes.entry(path[..at].to_owned()).or_insert(Node::Dir);
        }
        self.nodes.entry(path.to_owned()).or_insert(Node::Dir);
    }

    /// Adds an attribute; like the kernel's, its text ends in a newline, if there is any.
    pub(super) fn file(&mut self, path: &str, text: impl std::fmt::Display) {
        self.parents(path);
        let mut text = text.to_string();
        if !text.is_empty() {
            text.push('\n');
        }
        self.nodes.insert(path.to_owned(), Node::File(text));
    }

    /// Adds an attribute of bytes.
    pub(super) fn bytes(&mut self, path: &str, bytes: Vec<u8>) {
        self.parents(path);
        self.nodes.insert(path.to_owned(), Node::Bytes(bytes));
    }

    /// Adds a character device that is only a name.
    pub(super) fn device(&mut self, path: &str) {
        self.parents(path);
        self.nodes.insert(path.to_owned(), Node::Device);
    }

    /// Adds a symbolic link to an absolute path of this tree, written relative as the kernel does.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.nodes.insert(path.to_owned(), Node::Link(relative(path, target)));
    }

    fn parents(&mut self, path: &str) {
        let (parent, _) = path.rsplit_once('/').expect("paths of the tree are absolute");
        self.dir(parent);
    }
}

fn write(root: BorrowedFd<'_>, path: &str, contents: &[u8]) -> io::Result<()> {
    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, create, Mode::from_raw_mode(0o444))?;
    match rustix::io::write(file.as_fd(), contents)? == contents.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The relative target by which a link at `from` names `to`; both paths are absolute and
/// normalised.
pub(super) fn relative(from: &str, to: &str) -> String {
    let (parent, _) = from.rsplit_once('/').expect("paths of the tree are absolute");
    let from: Vec<&str> = parent.split('/').collect();
    let to: Vec<&str> = to.split('/').collect();
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let mut steps = vec![".."; from.len() - common];
    steps.extend(&to[common..]);
    steps.join("/")
}
