//! What fired.

use std::fmt;
use std::time::Duration;

use crate::plan::Action;

/// What became of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired {
    /// The rule.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// Packets that met its conditions but for `nth`, `every`, `probability` and `times`.
    pub met: u64,
    /// How often it fired.
    pub times: u64,
    /// How often of these what it does is still to come: it was triggered, and its time is not there.
    pub waiting: u64,
    /// When it first did, since the program opened the device.
    pub first: Option<Duration>,
    /// When it last did.
    pub last: Option<Duration>,
    /// On what it last did.
    pub on: Option<String>,
}

impl Fired {
    pub(crate) fn new(name: &str, action: Action) -> Self {
        let name = name.to_owned();
        Self { name, action, met: 0, times: 0, waiting: 0, first: None, last: None, on: None }
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
        let Self { name, action, met, times, waiting, .. } = self;
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
            write!(f, ", of {met} packets that met its conditions")?;
        } else if *times == 0 {
            write!(f, ": no packet met its conditions")?;
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
        Ok(())
    }
}
