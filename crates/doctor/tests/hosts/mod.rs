//! Root directories that look like those of a host, from a description in a few lines.
//!
//! ```text
//! /proc/sys/kernel/osrelease = 6.8.0            a file
//! /proc/self/cgroup = 4:memory:/a|0::/          of several lines
//! /sys/class/infiniband/rxe0/                   a directory
//! /sys/class/net/eth0/device -> /sys/devices/x  a link
//! pci pci0000:00/0000:00:01.0 8086:2030 0604    a PCI function: place, IDs, class, size of BAR 1
//! ```
//!
//! A later line replaces an earlier one, and `- PATH` removes what is there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A root directory; removed when dropped.
pub(crate) struct Root(PathBuf);

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Root {
    /// Makes it of several descriptions. The name keeps it apart from those of other tests.
    pub(crate) fn new(name: &str, texts: &[&str]) -> Self {
        let name = format!("peerdma-doctor-{name}-{}", std::process::id());
        let root = Self(std::env::temp_dir().join(name));
        let _ = fs::remove_dir_all(&root.0);
        let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            root.add(line);
        }
        root
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = self.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("below the root")).expect("writable");
        path
    }

    fn add(&self, line: &str) {
        if let Some(function) = line.strip_prefix("pci ") {
            self.function(&function.split_whitespace().collect::<Vec<_>>());
        } else if let Some(path) = line.strip_prefix("- ") {
            let path = self.at(path);
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).expect("it was there");
        } else if let Some((path, target)) = line.split_once(" -> ") {
            fs::create_dir_all(self.at(target)).expect("writable");
            symlink(self.at(target), self.at(path)).expect("new");
        } else if let Some((path, text)) = line.split_once(" = ") {
            fs::write(self.at(path), text.replace('|', "\n") + "\n").expect("writable");
        } else {
            fs::create_dir_all(self.at(line)).expect("writable");
        }
    }

    fn function(&self, words: &[&str]) {
        let place = format!("/sys/devices/{}", words[0]);
        let (vendor, device) = words[1].split_once(':').expect("vendor:device");
        let size = words.get(3).map_or(0, |size| pci::parse_size(size).expect("a size"));
        let mut bars = ["0x0 0x0 0x0"; 6].map(str::to_owned);
        if size > 0 {
            let base = 1_u64 << 40;
            bars[1] = format!("{base:#x} {:#x} 0x14220c", base + size - 1);
        }
        for (name, text) in [
            ("vendor", format!("0x{vendor}")),
            ("device", format!("0x{device}")),
            ("class", format!("0x{}00", words[2])),
            ("resource", bars.join("\n")),
        ] {
            fs::write(self.at(&format!("{place}/{name}")), text + "\n").expect("writable");
        }
        fs::write(self.at(&format!("{place}/config")), [0; 4096]).expect("writable");
        let name = words[0].rsplit('/').next().expect("an address");
        let link = self.at(&format!("/sys/bus/pci/devices/{name}"));
        symlink(self.at(&place), link).expect("new");
    }
}
