//! Machines with random PCI trees, as arguments of QEMU.
//!
//! Several host bridges, root ports, switches in switches, bridges to conventional PCI, devices of
//! one and several functions, with and without memory, with and without an IOMMU, for processors
//! of several makers. The seed alone decides.

use std::fmt::Write as _;

/// A machine.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Arguments of QEMU.
    pub args: Vec<String>,
    /// Whether it has an IOMMU, so that its kernel switches ACS on.
    pub has_iommu: bool,
    /// How many devices may have virtual functions.
    pub sriov: u32,
}

/// Processors: AMD's forward peer-to-peer traffic from family 0x17 on, and the third is older.
/// QEMU's model of that age, `Opteron_G5`, does not boot Linux 7.2 under emulation.
const PROCESSORS: [&str; 5] = [
    "max,vendor=GenuineIntel",
    "max",
    "max,vendor=AuthenticAMD,family=21,model=2",
    "EPYC",
    "EPYC-Milan",
];

/// Functions at most, or the machine boots too slowly.
const FUNCTIONS: u32 = 44;
/// Bridges with a window of I/O ports at most: there are 16 of 4 KiB, not all of them free.
const IO_WINDOWS: u32 = 4;
/// The last slot of a root bus that is filled at random; others are taken.
const LAST_SLOT: u32 = 0x19;
/// The root bus that QEMU's machine has itself. Only bridges can be on the others.
const MAIN: &str = "pcie.0";
/// Switches below switches.
const DEPTH: u32 = 3;

impl Hardware {
    /// The machine of a seed.
    pub fn random(seed: u64) -> Self {
        let mut build = Build { random: seed, ..Build::default() };
        let processor = build.of(&PROCESSORS);
        build.args.extend(["-cpu".to_owned(), processor.to_owned()]);
        let has_iommu = build.below(2) == 0;
        if has_iommu {
            build.args.extend(["-device".to_owned(), "intel-iommu".to_owned()]);
        }
        // Topologies are shown for disks, and there has to be one.
        build.device("nvme,serial=always,bus=pcie.0,addr=1e.0");
        let more = build.below(4);
        for number in 1..=more {
            let (addr, bus) = (0x1a + number, number * 0x38);
            build
                .device(&format!("pxb-pcie,id=root{number},bus=pcie.0,addr={addr:x},bus_nr={bus}"));
        }
        // The first slot of the others may be free: then a port says what they are, or nothing.
        build.root(MAIN, 2);
        for number in 1..=more {
            let from = build.below(2);
            build.root(&format!("root{number}"), from);
        }
        Self { args: build.args, has_iommu, sriov: build.sriov }
    }
}

#[derive(Debug, Default)]
struct Build {
    random: u64,
    args: Vec<String>,
    names: u32,
    functions: u32,
    io_windows: u32,
    sriov: u32,
}

impl Build {
    /// Devices and ports on a root bus, from slot `from` on.
    fn root(&mut self, bus: &str, from: u32) {
        let mut slot = from;
        for _ in 0..2 + self.below(5) {
            slot += self.below(3);
            if slot > LAST_SLOT || self.functions > FUNCTIONS {
                return;
            }
            match self.below(8) {
                0 | 1 if bus == MAIN => self.endpoint(bus, slot),
                2 if self.io_windows < IO_WINDOWS => self.conventional(bus, slot),
                _ => self.ports(bus, slot),
            }
            slot += 1;
        }
    }

    /// One or several root ports in a slot.
    fn ports(&mut self, bus: &str, slot: u32) {
        let many = if self.below(3) == 0 { 1 + self.below(4) } else { 1 };
        for function in 0..many {
            let name = self.name("port");
            let kind = self.of(&["pcie-root-port", "pcie-root-port", "ioh3420"]);
            let acs = match kind {
                "pcie-root-port" if self.below(4) == 0 => ",disable-acs=on",
                _ => "",
            };
            let number = self.names;
            self.device(&format!(
                "{kind},id={name},bus={bus},addr={slot:x}.{function},multifunction=on,\
                 chassis={number},slot={}{acs}",
                number % 32
            ));
            self.below_port(&name, 0);
        }
    }

    /// What is plugged into a port, if anything.
    fn below_port(&mut self, bus: &str, depth: u32) {
        if self.functions > FUNCTIONS {
            return;
        }
        match self.below(8) {
            0 => {}
            1 if self.io_windows < IO_WINDOWS => self.conventional(bus, 0),
            2..=4 if depth < DEPTH => self.switch(bus, depth),
            _ => self.endpoint(bus, 0),
        }
    }

    fn switch(&mut self, bus: &str, depth: u32) {
        let up = self.name("up");
        self.device(&format!("x3130-upstream,id={up},bus={bus},addr=0.0,multifunction=on"));
        if self.below(4) == 0 {
            // Another function of the switch.
            self.device(&format!("edu,bus={bus},addr=0.1"));
        }
        let mut slot = 0;
        for _ in 0..1 + self.below(4) {
            let down = self.name("down");
            let number = self.names;
            self.device(&format!(
                "xio3130-downstream,id={down},bus={up},addr={slot:x}.0,chassis={number},slot={}",
                number % 32
            ));
            self.below_port(&down, depth + 1);
            slot += 1 + self.below(3);
        }
    }

    /// A bridge to conventional PCI, with devices.
    fn conventional(&mut self, bus: &str, slot: u32) {
        self.io_windows += 1;
        let name = self.name("pci");
        // The second kind is for root buses.
        let kind = match self.below(2) {
            1 if bus == MAIN => "i82801b11-bridge",
            _ => "pcie-pci-bridge",
        };
        self.device(&format!("{kind},id={name},bus={bus},addr={slot:x}.0"));
        let mut slot = 1;
        for _ in 0..1 + self.below(3) {
            self.device(&format!("edu,bus={name},addr={slot:x}.0"));
            slot += 1 + self.below(3);
        }
    }

    /// A device of one or several functions.
    fn endpoint(&mut self, bus: &str, slot: u32) {
        let many = if self.below(3) == 0 { 2 + self.below(3) } else { 1 };
        for function in 0..many {
            let at = format!("bus={bus},addr={slot:x}.{function},multifunction=on");
            let number = self.names;
            self.names += 1;
            match self.below(7) {
                0 | 1 => {
                    let cmb = self.of(&[0, 4, 8]);
                    self.device(&format!("nvme,serial={number},cmb_size_mb={cmb},{at}"));
                }
                2 => {
                    let memory = format!("memory-backend-ram,id=mem{number},size=4M,share=on");
                    self.args.extend(["-object".to_owned(), memory]);
                    self.device(&format!("ivshmem-plain,memdev=mem{number},{at}"));
                }
                3 => self.device(&format!("bochs-display,vgamem=4M,romfile=,{at}")),
                4 => self.device(&format!("virtio-net-pci,disable-legacy=on,romfile=,{at}")),
                // Its virtual functions take the numbers of slots further on.
                5 if many == 1
                    && self.io_windows < IO_WINDOWS
                    && (bus != MAIN || self.sriov == 0) =>
                {
                    self.io_windows += 1;
                    self.sriov += 1;
                    self.device(&format!("igb,romfile=,{at}"));
                }
                _ => self.device(&format!("edu,{at}")),
            }
        }
    }

    fn device(&mut self, device: &str) {
        self.functions += 1;
        self.args.extend(["-device".to_owned(), device.to_owned()]);
    }

    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        let mut name = what.to_owned();
        let _ = write!(name, "{}", self.names);
        name
    }

    /// SplitMix64.
    fn below(&mut self, limit: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // CAST: below a limit of 32 bits.
        ((z ^ (z >> 31)) % u64::from(limit)) as u32
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        // CAST: a few.
        all[self.below(all.len() as u32) as usize]
    }
}
