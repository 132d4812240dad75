//! Builds the tree from the section: bus numbers are assigned depth first, as firmware does.

use std::collections::{BTreeMap, BTreeSet};

use super::{ConfigError, DeviceConfig, HostBridgeConfig, PciConfig, StorageConfig, SwitchConfig};
use crate::Bdf;
use crate::tree::{Acs, Bar, BarKind, Function, FunctionKind, Ids, PciTree, RootBus};

/// The IDs of a host bridge that is on the allowlist.
const LISTED: Ids = Ids { vendor: 0x8086, device: 0x2020 };
/// The IDs of ports and devices of a modelled machine: those of Red Hat for virtual hardware.
const ROOT_PORT: Ids = Ids { vendor: 0x1b36, device: 0x000c };
const SWITCH_PORT: Ids = Ids { vendor: 0x104c, device: 0x8232 };
const ENDPOINT: Ids = Ids { vendor: 0x1b36, device: 0x0100 };
/// The address of the first BAR of a modelled machine, above all memory.
const BAR_BASE: u64 = 1 << 40;

impl PciConfig {
    /// Builds the tree. `devices` are the machine's devices. Those that the section does not
    /// mention go below the first switch, or below the first host bridge if there is no switch.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn build(&self, devices: &[&str]) -> Result<PciTree, ConfigError> {
        self.build_with(devices, &[])
    }

    /// The same with NVMe controllers, which come behind the other devices.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn build_with(
        &self,
        devices: &[&str],
        storage: &[StorageConfig],
    ) -> Result<PciTree, ConfigError> {
        if let Some(sysfs) = &self.sysfs {
            let mut tree = PciTree::from_sysfs(sysfs, self.processor())?;
            for device in &self.devices {
                let name = &device.name;
                let bdf = match &device.bdf {
                    Some(bdf) if device.is_bare() => bdf,
                    _ => return Err(ConfigError::Bdf { name: name.clone() }),
                };
                let bdf = bdf
                    .parse()
                    .map_err(|error| ConfigError::BadBdf { name: name.clone(), error })?;
                tree.set_name(name, bdf)?;
            }
            return Ok(tree);
        }
        let names = storage.iter().map(|storage| storage.name.as_str());
        let devices: Vec<_> = devices.iter().copied().chain(names).collect();
        let whole = self.completed(&devices, storage)?;
        let mut numbers = Numbers { config: &whole, next_bus: 0, next_addr: BAR_BASE, out: vec![] };
        let mut names = BTreeMap::new();
        for bridge in &whole.host_bridges {
            numbers.host_bridge(bridge, &mut names)?;
        }
        // An entry without a number at this point is below itself.
        let below = |name: &str, under: &Option<String>| ConfigError::Under {
            name: name.to_owned(),
            under: under.clone().unwrap_or_default(),
        };
        if let Some(lost) = whole.devices.iter().find(|device| !names.contains_key(&device.name)) {
            return Err(below(&lost.name, &lost.under));
        }
        let mut tree = PciTree::new(self.processor(), numbers.out)?;
        for device in &whole.devices {
            tree.set_name(&device.name, names[&device.name])?;
        }
        Ok(tree)
    }

    /// The section, completed with the defaults for what it leaves out.
    fn completed(&self, devices: &[&str], storage: &[StorageConfig]) -> Result<Self, ConfigError> {
        let mut whole = self.clone();
        if whole.host_bridges.is_empty() {
            let (name, id) = ("root0".to_owned(), Some(LISTED));
            whole.host_bridges.push(HostBridgeConfig { name, id, ..HostBridgeConfig::default() });
            if whole.switches.is_empty() {
                let name = "switch0".to_owned();
                whole.switches.push(SwitchConfig { name, ..SwitchConfig::default() });
            }
        }
        for name in devices {
            if !whole.devices.iter().any(|device| device.name == *name) {
                let name = (*name).to_owned();
                whole.devices.push(DeviceConfig { name, ..DeviceConfig::default() });
            }
        }
        for controller in storage {
            let its = whole.devices.iter_mut().find(|device| device.name == controller.name);
            controller.complete(its.expect("it was added above"))?;
        }
        let root = whole.host_bridges[0].name.clone();
        let usual = whole.switches.first().map_or_else(|| root.clone(), |s| s.name.clone());
        for switch in &mut whole.switches {
            switch.under.get_or_insert_with(|| root.clone());
        }
        for device in whole.devices.iter_mut().filter(|device| device.function_of.is_none()) {
            device.under.get_or_insert_with(|| usual.clone());
        }
        whole.check()?;
        Ok(whole)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let mut bridges = BTreeSet::new();
        let above = self.host_bridges.iter().map(|bridge| ("host bridge", &bridge.name));
        for (what, name) in above.chain(self.switches.iter().map(|s| ("switch", &s.name))) {
            if name.is_empty() || !bridges.insert(name.as_str()) {
                return Err(ConfigError::Name { what, name: name.clone() });
            }
        }
        let under = |name: &String, under: &Option<String>| match under {
            Some(under) if !bridges.contains(under.as_str()) => {
                Err(ConfigError::Under { name: name.clone(), under: under.clone() })
            }
            _ => Ok(()),
        };
        let mut devices = BTreeSet::new();
        for device in &self.devices {
            let name = &device.name;
            if name.is_empty() || !devices.insert(name) {
                return Err(ConfigError::Name { what: "device", name: name.clone() });
            }
            if device.bdf.is_some() {
                return Err(ConfigError::Bdf { name: name.clone() });
            }
            under(name, &device.under)?;
            let first = |other: &&DeviceConfig| other.function_of.is_none();
            if let Some(other) = &device.function_of
                && (device.under.is_some()
                    || !self.devices.iter().filter(first).any(|first| first.name == *other))
            {
                return Err(ConfigError::FunctionOf { name: name.clone(), device: other.clone() });
            }
            for &size in &device.bars {
                if !size.is_power_of_two() || !(16..=1 << 48).contains(&size) {
                    return Err(ConfigError::BarSize { name: name.clone(), size });
                }
            }
        }
        for switch in &self.switches {
            under(&switch.name, &switch.under)?;
            // Each switch must lead up to a host bridge, not back to itself.
            let mut above = switch.under.as_ref();
            for _ in 0..=self.switches.len() {
                let Some(next) = self.switches.iter().find(|s| Some(&s.name) == above) else {
                    break;
                };
                above = next.under.as_ref();
            }
            if self.switches.iter().any(|s| Some(&s.name) == above) {
                let under = switch.under.clone().unwrap_or_default();
                return Err(ConfigError::Under { name: switch.name.clone(), under });
            }
        }
        Ok(())
    }
}

impl DeviceConfig {
    /// Whether only name and address are given.
    fn is_bare(&self) -> bool {
        let Self { name: _, under, function_of, bdf: _, bars, acs } = self;
        under.is_none() && function_of.is_none() && bars.is_empty() && acs.is_empty()
    }
}

/// Assigns bus numbers and addresses.
struct Numbers<'a> {
    config: &'a PciConfig,
    next_bus: u16,
    next_addr: u64,
    out: Vec<Function>,
}

/// The place of the next functions.
#[derive(Clone, Copy)]
struct Spot {
    root: RootBus,
    bus_offset: i64,
    upstream: Option<Bdf>,
    bus: u8,
}

type Names = BTreeMap<String, Bdf>;

impl Numbers<'_> {
    fn host_bridge(
        &mut self,
        bridge: &HostBridgeConfig,
        names: &mut Names,
    ) -> Result<(), ConfigError> {
        let bus = self.bus(&bridge.name)?;
        let root = RootBus { domain: self.config.domain, bus };
        let spot = Spot { root, bus_offset: bridge.bus_offset, upstream: None, bus };
        if let Some(ids) = bridge.id {
            self.add(spot, 0, FunctionKind::HostBridge, ids, Acs::empty());
        }
        self.ports(&bridge.name, spot, FunctionKind::RootPort, bridge.acs, names)
    }

    /// One port for each entry below `name`.
    fn ports(
        &mut self,
        name: &str,
        spot: Spot,
        kind: FunctionKind,
        acs: Acs,
        names: &mut Names,
    ) -> Result<(), ConfigError> {
        let config = self.config;
        let is_root = kind == FunctionKind::RootPort;
        let mut slot = u8::from(is_root);
        let ids = if is_root { ROOT_PORT } else { SWITCH_PORT };
        let mut port = |numbers: &mut Self, name: &str| {
            if slot == 32 {
                return Err(ConfigError::Full { name: name.to_owned() });
            }
            let port = numbers.add(spot, slot, kind, ids, acs);
            slot += 1;
            Ok(Spot { upstream: Some(port), bus: numbers.bus(name)?, ..spot })
        };
        let under = |under: &Option<String>| under.as_deref() == Some(name);
        for switch in config.switches.iter().filter(|switch| under(&switch.under)) {
            let spot = port(self, &switch.name)?;
            let up = self.add(spot, 0, FunctionKind::UpstreamPort, SWITCH_PORT, Acs::empty());
            let inside = Spot { upstream: Some(up), bus: self.bus(&switch.name)?, ..spot };
            self.ports(&switch.name, inside, FunctionKind::DownstreamPort, switch.acs, names)?;
        }
        for device in config.devices.iter().filter(|device| under(&device.under)) {
            let spot = port(self, &device.name)?;
            let others = config.devices.iter();
            let others = others.filter(|other| other.function_of.as_ref() == Some(&device.name));
            for (number, function) in std::iter::once(device).chain(others).enumerate() {
                if number == 8 {
                    let (name, device) = (function.name.clone(), device.name.clone());
                    return Err(ConfigError::FunctionOf { name, device });
                }
                // CAST: below eight.
                let bdf = Bdf::new(spot.root.domain, spot.bus, 0, number as u8);
                let bars = self.bars(&function.bars, spot.bus_offset);
                self.out.push(Function {
                    bdf,
                    kind: FunctionKind::Endpoint,
                    upstream: spot.upstream,
                    root: spot.root,
                    ids: ENDPOINT,
                    acs: function.acs,
                    bars,
                });
                names.insert(function.name.clone(), bdf);
            }
        }
        Ok(())
    }

    fn add(&mut self, spot: Spot, slot: u8, kind: FunctionKind, ids: Ids, acs: Acs) -> Bdf {
        let bdf = Bdf::new(spot.root.domain, spot.bus, slot, 0);
        let Spot { root, upstream, .. } = spot;
        self.out.push(Function { bdf, kind, upstream, root, ids, acs, bars: vec![] });
        bdf
    }

    fn bus(&mut self, name: &str) -> Result<u8, ConfigError> {
        let bus =
            u8::try_from(self.next_bus).map_err(|_| ConfigError::Full { name: name.to_owned() })?;
        self.next_bus += 1;
        Ok(bus)
    }

    fn bars(&mut self, sizes: &[u64], bus_offset: i64) -> Vec<Bar> {
        let bars = sizes.iter().take(6).enumerate().map(|(index, &size)| {
            let addr = self.next_addr.next_multiple_of(size);
            self.next_addr = addr + size;
            // CAST: below six.
            Bar { index: index as u8, addr, size, bus_offset, kind: BarKind::Memory }
        });
        bars.collect()
    }
}
