//! Directories that look like the `/sys` of a machine, from a description in a few lines.
//!
//! ```text
//! cpu ven0002fam0019          the processor, as in modalias
//! nodes 0-1                   NUMA nodes
//! host 0000:00 node=0 cpus=0-63
//!   00.0 1022:1480 0600       device.function, IDs, class
//!   01.1 1022:1483 0604 root  a port: root, up, down; acs=1d sets its ACS control register
//!     01:00.0 10de:20b0 0302 bar0=16M bar1=64G,pref bar3=1G,unset driver=nvidia
//! ```
//!
//! Indentation says what lies below what; the bus is that of the host bridge unless it is written.
//! What follows the class: `barN=SIZE`, `resizeN=MASK`, `driver=`, `net=`, `infiniband=`, `nvme=`
//! (names, with commas), `p2pmem=BYTES`, `vram=BYTES`, `vf`, `hidden` (64 bytes of configuration
//! space), `group` (an IOMMU group).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A directory that looks like `/sys`; removed when dropped.
pub(crate) struct Machine(PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Machine {
    /// Makes the directory. The name keeps it apart from those of other tests.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let root = std::env::temp_dir().join(format!("peerdma-topo-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bus/pci/devices")).expect("a temporary directory");
        let machine = Self(root);
        let mut host = Host::default();
        // The indentation and the directory of each function above the line.
        let mut above: Vec<(usize, PathBuf)> = vec![];
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let indent = line.len() - line.trim_start().len();
            let words: Vec<_> = line.split_whitespace().collect();
            match words[0] {
                "cpu" => {
                    let alias = format!("cpu:type:x86,{}mod0001:feature:,0000", words[1]);
                    machine.write(Path::new("devices/system/cpu/modalias"), &alias);
                }
                "nodes" => machine.write(Path::new("devices/system/node/online"), words[1]),
                "host" => {
                    host = Host::new(&words);
                    above = vec![(indent, Path::new("devices").join(format!("pci{}", host.bus)))];
                }
                _ => {
                    above.retain(|(other, _)| *other < indent);
                    let (_, parent) = above.last().expect("a host bridge above");
                    let place = machine.function(parent, &host, &words);
                    above.push((indent, place));
                }
            }
        }
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    fn write(&self, path: &Path, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("writable");
        fs::write(path, format!("{text}\n")).expect("writable");
    }

    fn function(&self, parent: &Path, host: &Host, words: &[&str]) -> PathBuf {
        let (ids, class, rest) = (words[1], words[2], &words[3..]);
        let (domain, root_bus) = host.bus.split_once(':').expect("domain:bus");
        let at = match words[0].contains(':') {
            true => format!("{domain}:{}", words[0]),
            false => format!("{domain}:{root_bus}:{}", words[0]),
        };
        let place = parent.join(&at);
        let (vendor, device) = ids.split_once(':').expect("vendor:device");
        let write = |name: &str, text: &str| self.write(&place.join(name), text);
        write("vendor", &format!("0x{vendor}"));
        write("device", &format!("0x{device}"));
        write("class", &format!("0x{class}00"));
        write("numa_node", &host.node);
        write("local_cpulist", &host.cpus);
        let mut bars = vec!["0x0 0x0 0x0".to_owned(); 6];
        let (mut kind, mut acs, mut hidden) = (0, 0, false);
        for word in rest {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "root" => kind = 4,
                "up" => kind = 5,
                "down" => kind = 6,
                "acs" => acs = u16::from_str_radix(value, 16).expect("hex"),
                "hidden" => hidden = true,
                "group" => fs::create_dir(self.0.join(&place).join("iommu_group")).expect("new"),
                "vf" => symlink("..", self.0.join(&place).join("physfn")).expect("new"),
                "driver" => {
                    let driver = Path::new("bus/pci/drivers").join(value);
                    fs::create_dir_all(self.0.join(&driver)).expect("writable");
                    let link = self.0.join(&place).join("driver");
                    symlink(self.0.join(driver), link).expect("new");
                }
                "net" | "infiniband" | "nvme" => {
                    for name in value.split(',') {
                        let dir = self.0.join(&place).join(key).join(name);
                        fs::create_dir_all(dir).expect("writable");
                    }
                }
                "p2pmem" => write("p2pmem/size", value),
                "vram" => write("mem_info_vram_total", value),
                key if key.starts_with("resize") => {
                    write(&format!("resource{}_resize", &key[6..]), value);
                }
                key => {
                    let number: usize = key.strip_prefix("bar").expect(key).parse().expect("0-5");
                    bars[number] = bar(value);
                }
            }
        }
        write("resource", &bars.join("\n"));
        if kind != 0 {
            write("max_link_speed", "16.0 GT/s PCIe");
        }
        if class == "0604" {
            let mut config = port(kind, acs);
            config.truncate(if hidden { 64 } else { 4096 });
            fs::write(self.0.join(&place).join("config"), config).expect("writable");
        }
        symlink(self.0.join(&place), self.0.join("bus/pci/devices").join(at)).expect("new");
        place
    }
}

/// The host bridge of the lines below it.
#[derive(Default)]
struct Host {
    bus: String,
    node: String,
    cpus: String,
}

impl Host {
    fn new(words: &[&str]) -> Self {
        let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
        Self {
            bus: words[1].to_owned(),
            node: value("node=").unwrap_or("-1").to_owned(),
            cpus: value("cpus=").unwrap_or("0-7").to_owned(),
        }
    }
}

/// A line of `resource` for `64G,pref` or `16G,unset`.
fn bar(text: &str) -> String {
    const BASE: u64 = 1 << 40;
    let (size, mut flags) = (text.split(',').next().expect("a size"), 0x200);
    let size = pci::parse_size(size).expect("a size");
    let mut base = BASE;
    for flag in text.split(',').skip(1) {
        match flag {
            "pref" => flags |= 0x2000,
            "unset" => (base, flags) = (0, flags | 0x2000_2000),
            other => panic!("{other}: pref, unset"),
        }
    }
    format!("{base:#018x} {:#018x} {flags:#018x}", base + size - 1)
}

/// Configuration space of a port: its type, and its ACS control register.
fn port(kind: u8, acs: u16) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x34] = 0x40;
    config[0x40..0x44].copy_from_slice(&[0x10, 0, kind << 4 | 2, 0]);
    config[0x100..0x104].copy_from_slice(&0x1_000d_u32.to_le_bytes());
    config[0x106..0x108].copy_from_slice(&acs.to_le_bytes());
    config
}
