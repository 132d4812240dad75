//! A fault plan at work: its verdicts, and the packets that it holds back.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::cm::Transmit;
use environment::NamedFile;
use fault::{Injector, Packet, Plan, Verdict, Way, Who};
use iba::{Av, Psn, Qpn};
use transport::Time;
use transport::env::Skipped;
use wire::{Headers, Opcode};

use crate::config::NicConfig;
use crate::ids::QpId;
use crate::mad::Arrived;
use crate::receiver::Receiver;
use crate::refusal::{Kind, Refusal, Result};

/// The most packets held back at once; further ones pass.
pub(crate) const MAX_HELD: usize = 1 << 16;
/// The same for datagrams of QP 1.
const MAX_HELD_MADS: usize = 1 << 10;
/// How long a packet that must be overtaken waits for those that overtake it.
const OVERTAKING: Duration = Duration::from_millis(20);
/// When a packet whose carrier had no room is tried again.
pub(crate) const AGAIN: Duration = Duration::from_millis(1);

/// A datagram of QP 1 that is held back.
#[derive(Debug)]
pub(crate) enum HeldMad {
    Out(Transmit),
    In(Arrived),
}

impl HeldMad {
    /// Which way it goes.
    const fn way(&self) -> Way {
        match self {
            Self::Out(_) => Way::Out,
            Self::In(_) => Way::In,
        }
    }
}

/// A plan at work on a NIC.
#[derive(Debug)]
pub(crate) struct Injected {
    pub(crate) injector: Injector,
    opened: Time,
    /// The verdict on a packet for which its carrier had no room: the packet will come again.
    pub(crate) undone: Option<(Id, Verdict)>,
    pub(crate) held: Vec<Held>,
    /// Datagrams of QP 1: when to send each, how many must still overtake it, and the datagram.
    pub(crate) held_mads: Vec<(Time, u32, HeldMad)>,
    pub(crate) port_down_until: Option<Time>,
    /// Whether the current packet must find no receive.
    pub(crate) withholds: bool,
    /// Whether the current request must be refused.
    pub(crate) refuses: bool,
    title: String,
    is_reported: bool,
    /// The file of the report; standard error if there is none.
    report: Option<PathBuf>,
}

/// Identifies a packet that comes again: our QP, its sequence number and its opcode.
type Id = (Qpn, Psn, Opcode);

/// A packet held back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) qpn: Qpn,
    pub(crate) way: Way,
    pub(crate) due: Time,
    /// How many packets are still to overtake it.
    pub(crate) behind: u32,
    pub(crate) headers: Headers,
    pub(crate) bytes: Vec<u8>,
    pub(crate) rest: Rest,
}

/// The rest of a packet, by its direction.
#[derive(Debug)]
pub(crate) enum Rest {
    Out { id: QpId, av: Option<Av>, skipped: Skipped },
    In { to: Receiver, skipped: Skipped, grh: Option<[u8; 40]>, marked: bool },
}

impl Injected {
    /// The plan that the configuration names, if it has a rule for this NIC and process.
    pub(super) fn open(config: &NicConfig, now: Time) -> Result<Option<Box<Self>>> {
        let Some(path) = &config.fault else { return Ok(None) };
        let refused = |what| Refusal::new(Kind::NoDevice, format!("fault plan {what}"));
        let file = NamedFile::read(path)
            .map_err(|error| refused(format!("{}: {error}", path.display())))?;
        let plan = Plan::parse(file.text()).map_err(|error| refused(file.blame(&error)))?;
        Ok(Self::new(&plan, path, config, now))
    }

    /// A plan, if it has a rule for this NIC and process.
    pub(crate) fn new(
        plan: &Plan,
        path: &Path,
        config: &NicConfig,
        now: Time,
    ) -> Option<Box<Self>> {
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let who = Who { nic: config.name.clone(), program: program.trim_end().to_owned() };
        let injector = Injector::new(plan, &who);
        if injector.is_empty() {
            return None;
        }
        let title = format!(
            "fault plan {} (seed {}) in {}, pid {}, on {}",
            path.display(),
            plan.seed,
            who.program,
            std::process::id(),
            who.nic
        );
        Some(Box::new(Self {
            injector,
            opened: now,
            undone: None,
            held: Vec::new(),
            held_mads: Vec::new(),
            port_down_until: None,
            withholds: false,
            refuses: false,
            title,
            is_reported: false,
            report: config.fault_report.clone(),
        }))
    }

    pub(crate) fn age(&self, now: Time) -> Duration {
        now.since(self.opened)
    }

    /// How much longer a page fault takes now.
    pub(crate) fn page_fault(&self, now: Time) -> Duration {
        self.injector.page_fault(self.age(now))
    }

    /// Notes that a page fault began.
    pub(crate) fn page_faulted(&mut self, now: Time) {
        self.injector.page_faulted(self.age(now));
    }

    /// Whether the port is down.
    pub(crate) fn is_port_down(&self) -> bool {
        self.port_down_until.is_some()
    }

    /// When there is something to do next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let held = self.held.iter().map(|held| held.due);
        let mads = self.held_mads.iter().map(|(due, ..)| *due);
        let strike = self.injector.deadline().map(|age| self.opened + age);
        held.chain(mads).chain(strike).chain(self.port_down_until).min()
    }

    pub(crate) fn judge(&mut self, now: Time, packet: &Packet) -> Verdict {
        let verdict = self.injector.packet(self.age(now), packet);
        if verdict != Verdict::Pass {
            tracing::debug!(
                target: "peerdma::fault-plan", qpn = %packet.qpn, psn = %packet.psn,
                "{verdict:?}: {} on its way {:?}", packet.opcode, packet.way
            );
        }
        verdict
    }

    /// Notes that a packet of this QP passed: those that it had to overtake may be sent.
    pub(crate) fn overtake(&mut self, now: Time, qpn: Qpn, way: Way) {
        for held in self.held.iter_mut().filter(|held| held.qpn == qpn && held.way == way) {
            held.behind = held.behind.saturating_sub(1);
            if held.behind == 0 {
                held.due = held.due.min(now);
            }
        }
    }

    pub(crate) fn hold(&mut self, now: Time, verdict: Verdict, mut held: Held) {
        (held.due, held.behind) = wait(now, verdict).unwrap_or((now, 0));
        self.held.push(held);
    }

    /// Holds back a datagram of QP 1, if the verdict asks for it and not too many are held;
    /// otherwise returns it.
    pub(crate) fn hold_mad(
        &mut self,
        now: Time,
        verdict: Verdict,
        mad: HeldMad,
    ) -> Option<HeldMad> {
        match wait(now, verdict) {
            Some((due, behind)) if self.held_mads.len() < MAX_HELD_MADS => {
                self.held_mads.push((due, behind, mad));
                None
            }
            _ => Some(mad),
        }
    }

    /// Notes that a datagram of QP 1 passed: those that it had to overtake may be sent.
    pub(crate) fn overtake_mads(&mut self, now: Time, way: Way) {
        for (due, behind, _) in self.held_mads.iter_mut().filter(|(.., mad)| mad.way() == way) {
            *behind = behind.saturating_sub(1);
            if *behind == 0 {
                *due = (*due).min(now);
            }
        }
    }

    /// Reports what fired, once.
    pub(super) fn report(&mut self) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let mut words = format!("{}:\n", self.title);
        for fired in self.injector.report() {
            let _ = writeln!(words, "  {fired}");
        }
        let appended = self.report.as_ref().map(|path| {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
            file.write_all(words.as_bytes())
        });
        match appended {
            Some(Ok(())) => {}
            // The report goes to standard error. If that is closed, there is no reader.
            None => drop(std::io::stderr().write_all(format!("peerdma: {words}").as_bytes())),
            Some(Err(error)) => {
                tracing::error!(target: "peerdma::fault-plan", "no report: {error}; {words}");
            }
        }
    }
}

/// Until when a packet is held back, and how many must overtake it.
fn wait(now: Time, verdict: Verdict) -> Option<(Time, u32)> {
    match verdict {
        Verdict::Delay(wait) => Some((now + wait, u32::MAX)),
        Verdict::Reorder(behind) => Some((now + OVERTAKING, behind)),
        _ => None,
    }
}
