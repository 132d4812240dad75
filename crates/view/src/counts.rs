//! Counters that are added up.

use std::collections::BTreeMap;

/// Counters by name.
pub type Counts = BTreeMap<String, u64>;

/// Counters by port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByPort(BTreeMap<u32, Counts>);

impl ByPort {
    /// Adds up, by name.
    pub(crate) fn add<'a>(&mut self, port: u32, counts: impl Iterator<Item = (&'a str, u64)>) {
        add(self.0.entry(port).or_default(), counts);
    }

    /// Adds up, by port and name.
    pub(crate) fn merge(&mut self, other: &Self) {
        other.each().for_each(|(port, counts)| self.add(port, pairs(counts)));
    }

    /// Each port that something was counted on, with its counters.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &Counts)> {
        self.0.iter().map(|(port, counts)| (*port, counts))
    }

    /// Those of one port.
    pub(crate) fn port(&self, port: u32) -> impl Iterator<Item = (&str, u64)> {
        self.0.get(&port).into_iter().flat_map(pairs)
    }

    /// Counts everything on the first port.
    pub(crate) fn count_as_one(&mut self) {
        for (_, counts) in std::mem::take(&mut self.0) {
            self.add(1, pairs(&counts));
        }
    }
}

fn pairs(counts: &Counts) -> impl Iterator<Item = (&str, u64)> {
    counts.iter().map(|(name, value)| (name.as_str(), *value))
}

/// Adds up, by name.
pub(crate) fn add<'a>(sum: &mut Counts, counts: impl Iterator<Item = (&'a str, u64)>) {
    for (name, value) in counts {
        let total = sum.entry(name.to_owned()).or_default();
        *total = total.wrapping_add(value);
    }
}
