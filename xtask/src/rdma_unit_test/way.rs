//! The ways in which the suite is run.

use std::fs;
use std::path::PathBuf;

use crate::sh::{Outcome, target_dir};

/// A way of running the suite.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Way {
    /// The preset of the device.
    preset: &'static str,
    ipv6: bool,
    /// The path MTU.
    mtu: u16,
    /// Whether packets go out of the one port and come back, as between hosts.
    is_wire: bool,
}

/// Both presets, both families, both MTUs and both carriers; for any two of these, all four
/// combinations occur.
pub(crate) const WAYS: [Way; 5] = [
    Way { preset: "mlx5", ipv6: false, mtu: 1024, is_wire: false },
    Way { preset: "mlx5", ipv6: false, mtu: 4096, is_wire: true },
    Way { preset: "mlx5", ipv6: true, mtu: 1024, is_wire: true },
    Way { preset: "rxe", ipv6: false, mtu: 1024, is_wire: true },
    Way { preset: "rxe", ipv6: true, mtu: 4096, is_wire: false },
];

impl Way {
    /// Its name in words, as in `on` in the list of expectations.
    pub(crate) fn words(&self) -> String {
        let family = if self.ipv6 { "ipv6" } else { "ipv4" };
        let carrier = if self.is_wire { "wire" } else { "host" };
        format!("{} {family} {} {carrier}", self.preset, self.mtu)
    }

    /// The flags of the suite's programs. The suite gives a completion 2 seconds, and `patience`
    /// times as much by a flag for devices that need it.
    pub(crate) fn flags(&self, patience: u32) -> Vec<String> {
        let mut flags = vec![
            format!("--verbs_mtu={}", self.mtu),
            format!("--completion_wait_multiplier={patience}"),
        ];
        if !self.ipv6 {
            flags.push("--ipv4_only".to_owned());
        }
        flags
    }

    /// The configuration of the device.
    pub(crate) fn config(&self) -> Outcome<PathBuf> {
        let dir = target_dir().join("suites/rdma-unit-test");
        fs::create_dir_all(&dir).map_err(|err| format!("{}: {err}", dir.display()))?;
        let file = dir.join(format!("{}.toml", self.words().replace(' ', "-")));
        let text = format!("[[nic]]\npreset = \"{}\"\nforce_udp = {}\n", self.preset, self.is_wire);
        fs::write(&file, text).map_err(|err| format!("{}: {err}", file.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_properties_are_met_in_every_combination() {
        let properties = |way: &Way| [way.preset == "rxe", way.ipv6, way.mtu == 4096, way.is_wire];
        for (a, b) in (0..4).flat_map(|a| (0..a).map(move |b| (a, b))) {
            for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
                let has = |way| properties(way)[a] == left && properties(way)[b] == right;
                assert!(WAYS.iter().any(has), "{a} {left}, {b} {right}");
            }
        }
    }
}
