//! What fired.

use std::fmt;
use std::time::Duration;

use crate::gpu::GpuStrike;
use crate::plan::{Action, Rule};

/// The outcome of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired {
    /// The rule.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// Packets, operations or times that met its conditions other than `nth`, `every`,
    /// `probability` and `times`.
    pub met: u64,
    /// How often it fired.
    pub times: u64,
    /// How many of these are still to happen: the rule was triggered, but the time has not come.
    pub waiting: u64,
    /// When it first did, since the program opened the device.
    pub first: Option<Duration>,
    /// When it last did.
    pub last: Option<Duration>,
    /// The target that it last fired on.
    pub on: Option<String>,
    /// The effect, if others report it.
    pub came: Option<String>,
    /// The kind of its trigger.
    by: &'static str,
}

impl Fired {
    pub(crate) fn new(rule: &Rule) -> Self {
        let by = match (rule.is_of_operations(), rule.period()) {
            (true, _) => "operation",
            (_, Some(_)) => "time",
            _ => "packet",
        };
        Self::of(rule.name.clone(), rule.action, by)
    }

    /// For a rule that a packet triggers on a NIC: the NIC counts the packets.
    pub(crate) fn of_packet_elsewhere(strike: &GpuStrike) -> Self {
        Self::of(strike.name.clone(), strike.act.action(), "packet")
    }

    fn of(name: String, action: Action, by: &'static str) -> Self {
        let (met, times, waiting) = (0, 0, 0);
        let (first, last, on, came) = (None, None, None, None);
        Self { name, action, met, times, waiting, first, last, on, came, by }
    }

    pub(crate) fn fire(&mut self, at: Duration, on: Option<String>) {
        self.times += 1;
        self.first.get_or_insert(at);
        self.last = Some(at);
        self.on = on.or(self.on.take());
    }
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, action, met, times, waiting, by, .. } = self;
        write!(f, "{name}: ")?;
        if name != action.name() {
            write!(f, "{action} ")?;
        }
        match times {
            0 => write!(f, "never fired")?,
            1 => write!(f, "fired once")?,
            _ => write!(f, "fired {times} times")?,
        }
        if *waiting > 0 {
            write!(f, " ({waiting} still to come)")?;
        }
        if *met > 0 {
            write!(f, ", of {met} {by}s that met its conditions")?;
        } else if *times == 0 {
            write!(f, ": no {by} met its conditions")?;
        }
        if let Some(first) = self.first {
            write!(f, "; first after {first:.1?}")?;
        }
        if let Some(last) = self.last.filter(|_| *times > 1) {
            write!(f, ", last after {last:.1?}")?;
        }
        if let Some(on) = &self.on {
            write!(f, " ({on})")?;
        }
        if let Some(came) = &self.came {
            write!(f, ": {came}")?;
        }
        Ok(())
    }
}
