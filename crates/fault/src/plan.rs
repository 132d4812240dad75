//! The file: rules, read and checked.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use wire::{Opcode, Operation};

use crate::gpu::{Domain, Operations};
use crate::quantity::{Every, Span, duration, rate};

/// A whole plan.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Plan {
    /// The seed that decides rules with a probability.
    #[serde(default)]
    pub seed: u64,
    /// The rules. The first one that fires on a packet applies.
    #[serde(default, rename = "fault")]
    pub rules: Vec<Rule>,
}

/// One fault and its conditions. A condition that is not given always holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Rule {
    /// Its name in reports; its action if it has no name.
    #[serde(default)]
    pub name: String,
    /// The action.
    #[serde(rename = "do")]
    pub action: Action,
    /// How long a packet is held back (`delay`), how long a page fault takes (`slow-faults`), or
    /// how long after its packet a region is revoked (`revoke`) or a GPU is struck; at once by
    /// default.
    #[serde(default, deserialize_with = "duration")]
    pub by: Option<Duration>,
    /// How many later packets of the same QP overtake one (`reorder`).
    #[serde(default)]
    pub behind: Option<u32>,
    /// How long the port is down, VRAM is full, or copies are slow.
    #[serde(default, rename = "for", deserialize_with = "duration")]
    pub lasts: Option<Duration>,
    /// The region that `revoke` revokes, counted from 1 in the order of registration.
    #[serde(default)]
    pub mr: Option<u64>,
    /// The GPU that it acts on; every GPU of the process by default. A `revoke` of a GPU's buffers
    /// names the GPU, or a buffer.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Its buffers, counted from 1 in the order of creation in the process; all of them by default.
    #[serde(default)]
    pub buffer: Option<Span>,
    /// Where buffers move to (`move`).
    #[serde(default)]
    pub to: Option<Domain>,
    /// How much of VRAM is then in use (`fill`).
    #[serde(default)]
    pub share: Option<f64>,
    /// How many bytes are copied in a second (`throttle`).
    #[serde(default, deserialize_with = "rate")]
    pub rate: Option<u64>,

    /// Outgoing packets, or incoming packets.
    #[serde(default)]
    pub way: Way,
    /// The opcode: a name of IBA (`RC RDMA WRITE First`) or a kind of packet (`read-response`).
    #[serde(default)]
    pub opcode: Opcodes,
    /// Functions of a runtime, before which it acts (GPUs).
    #[serde(default)]
    pub operation: Operations,
    /// The QP, counted from 1 in the order of creation in the process on this NIC. 0 is QP 1, for
    /// connection management.
    #[serde(default)]
    pub qp: Option<Span>,
    /// The number of the QP.
    #[serde(default)]
    pub qpn: Option<Span>,
    /// The packet sequence number.
    #[serde(default)]
    pub psn: Option<Span>,
    /// Of the packets of one QP that meet the conditions above, the number of this one, from 1.
    #[serde(default)]
    pub nth: Option<Span>,
    /// Of those, every Nth. A time instead of a number, for faults of GPUs: once in that time.
    #[serde(default)]
    pub every: Option<Every>,
    /// Of those, this share, decided by the seed.
    #[serde(default)]
    pub probability: Option<f64>,
    /// Not before, since the program opened the device.
    #[serde(default, deserialize_with = "duration")]
    pub from: Option<Duration>,
    /// Not after.
    #[serde(default, deserialize_with = "duration")]
    pub until: Option<Duration>,
    /// At most this often, over all QPs.
    #[serde(default)]
    pub times: Option<u64>,
    /// On this NIC.
    #[serde(default)]
    pub nic: Option<String>,
    /// In processes of this name, as in `/proc/PID/comm`: at most 15 characters.
    #[serde(default)]
    pub program: Option<String>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// The packet is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// Packets sent after it overtake it.
    Reorder,
    /// It arrives later.
    Delay,
    /// Bits flip in transit: the port that receives it finds the ICRC wrong.
    Corrupt,
    /// Bits of the payload flip where no checksum reveals it, as in broken memory.
    Junk,
    /// It arrives as if a switch had marked it: congestion experienced.
    Mark,
    /// For a request that needs a receive: the QP acts as if none were posted, and answers
    /// "receiver not ready".
    NotReady,
    /// For a request that touches memory: it is refused, and answered "remote access error".
    Refuse,
    /// The QP fails: `IBV_EVENT_QP_FATAL`, and its work requests are flushed.
    QpError,
    /// The completion queue of the QP overruns: `IBV_EVENT_CQ_ERR`.
    CqOverrun,
    /// The port goes down: `IBV_EVENT_PORT_ERR`, packets are lost, and then
    /// `IBV_EVENT_PORT_ACTIVE`.
    PortDown,
    /// The owner revokes a region's memory.
    Revoke,
    /// Page faults take longer.
    SlowFaults,
    /// Buffers of a GPU move.
    Move,
    /// Buffers of a GPU move out of VRAM.
    Evict,
    /// VRAM is filled.
    Fill,
    /// A GPU is reset.
    Reset,
    /// A GPU is unplugged.
    Unplug,
    /// Copies of a GPU are slow.
    Throttle,
}

impl Action {
    /// Its name in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Delay => "delay",
            Self::Corrupt => "corrupt",
            Self::Junk => "junk",
            Self::Mark => "mark",
            Self::NotReady => "not-ready",
            Self::Refuse => "refuse",
            Self::QpError => "qp-error",
            Self::CqOverrun => "cq-overrun",
            Self::PortDown => "port-down",
            Self::Revoke => "revoke",
            Self::SlowFaults => "slow-faults",
            Self::Move => "move",
            Self::Evict => "evict",
            Self::Fill => "fill",
            Self::Reset => "reset",
            Self::Unplug => "unplug",
            Self::Throttle => "throttle",
        }
    }

    /// Whether it acts on an object, so that time alone can trigger it as well as a packet.
    pub(crate) const fn is_strike(self) -> bool {
        matches!(self, Self::QpError | Self::CqOverrun | Self::PortDown | Self::Revoke)
            || self.is_of_gpus()
    }

    /// Whether it concerns GPUs and nothing else.
    pub(crate) const fn is_of_gpus(self) -> bool {
        matches!(
            self,
            Self::Move | Self::Evict | Self::Fill | Self::Reset | Self::Unplug | Self::Throttle
        )
    }

    /// Whether it can act on any packet, including those of QP 1.
    pub(crate) const fn is_of_any_packet(self) -> bool {
        matches!(
            self,
            Self::Drop | Self::Duplicate | Self::Reorder | Self::Delay | Self::Corrupt | Self::Junk
        )
    }

    /// Whether it acts on incoming packets.
    pub(crate) const fn is_of_receiver(self) -> bool {
        matches!(self, Self::Mark | Self::NotReady | Self::Refuse)
    }
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::exhaustive_enums, reason = "there are two")]
pub enum Way {
    /// It leaves the NIC.
    #[default]
    Out,
    /// It arrives at the NIC.
    In,
}

/// Some packets, by what they do; in a file, one name or a list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opcodes(Vec<Kind>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Request,
    Response,
    Send,
    Write,
    Read,
    ReadResponse,
    Atomic,
    Ack,
    Cm,
    /// Exactly this one.
    Opcode(Opcode),
}

/// Kinds of packets, and their names in a file.
const KINDS: &[(&str, Kind)] = &[
    ("request", Kind::Request),
    ("response", Kind::Response),
    ("send", Kind::Send),
    ("write", Kind::Write),
    ("read", Kind::Read),
    ("read-response", Kind::ReadResponse),
    ("atomic", Kind::Atomic),
    ("ack", Kind::Ack),
    ("cm", Kind::Cm),
];

/// A name in a canonical spelling.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn kind(name: &str) -> Result<Kind, String> {
    if let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == name) {
        return Ok(*kind);
    }
    let opcodes = (0..=u8::MAX).map(Opcode::from).filter(|opcode| opcode.is_known());
    let found = opcodes.into_iter().find(|opcode| plain(opcode.name()) == plain(name));
    found.map(Kind::Opcode).ok_or_else(|| {
        let kinds: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
        format!("{name:?} is neither an opcode of IBA nor one of {}", kinds.join(", "))
    })
}

impl<'de> Deserialize<'de> for Opcodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Opcodes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an opcode, or a list of such names")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Opcodes, E> {
                Ok(Opcodes(vec![kind(name).map_err(E::custom)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Opcodes, A::Error> {
                let mut kinds = Vec::new();
                while let Some(name) = names.next_element::<String>()? {
                    kinds.push(kind(&name).map_err(A::Error::custom)?);
                }
                Ok(Opcodes(kinds))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

impl Opcodes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a packet is one of them; every packet is if none is named. `is_cm`: it is a
    /// management datagram.
    pub(crate) fn include(&self, opcode: Opcode, is_cm: bool) -> bool {
        self.0.is_empty() || self.0.iter().any(|kind| kind.is(opcode, is_cm))
    }
}

impl Kind {
    fn is(self, opcode: Opcode, is_cm: bool) -> bool {
        let operation = opcode.operation();
        match self {
            Self::Cm => is_cm,
            _ if is_cm => false,
            Self::Request => operation.is_request(),
            Self::Response => operation.is_response() || operation == Operation::Sack,
            Self::Send => operation.is_send(),
            Self::Write => operation.is_write(),
            Self::Read => operation == Operation::ReadRequest,
            Self::ReadResponse => operation == Operation::ReadResponse,
            Self::Atomic => operation.is_atomic(),
            Self::Ack => matches!(operation, Operation::Ack | Operation::Sack),
            Self::Opcode(known) => known == opcode,
        }
    }
}

/// Why a plan is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It is not TOML of the right form.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A rule is invalid.
    #[error("fault {number} ({name}): {why}")]
    Rule {
        /// Its number, from 1.
        number: usize,
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The NIC and the process whose packets an [`Injector`](crate::Injector) sees.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "the device fills it in")]
pub struct Who {
    /// The NIC.
    pub nic: String,
    /// The process, by its name in `/proc/PID/comm`.
    pub program: String,
}

impl Plan {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut plan: Self = toml::from_str(text)?;
        for (index, rule) in plan.rules.iter_mut().enumerate() {
            if rule.name.is_empty() {
                rule.name = rule.action.name().to_owned();
            }
            if let Err(why) = rule.check() {
                return Err(PlanError::Rule { number: index + 1, name: rule.name.clone(), why });
            }
        }
        Ok(plan)
    }
}

impl Rule {
    /// Whether packets trigger it, rather than the time alone.
    pub(crate) fn is_of_packets(&self) -> bool {
        let counts = self.nth.is_some() || self.every.is_some() || self.probability.is_some();
        !self.opcode.is_empty()
            || self.psn.is_some()
            || counts && !self.is_of_operations() && self.period().is_none()
    }

    /// Whether it can ever fire for this NIC and process.
    pub(crate) fn is_for(&self, who: &Who) -> bool {
        self.nic.as_ref().is_none_or(|nic| *nic == who.nic)
            && self.is_for_program(&who.program)
            && (!self.is_of_gpus() || self.is_of_packets())
    }

    pub(crate) fn is_for_program(&self, program: &str) -> bool {
        self.program.as_ref().is_none_or(|known| known == program)
    }

    fn check(&self) -> Result<(), &'static str> {
        let needs = |given: bool, is_used: bool, needed: &'static str, useless: &'static str| {
            if is_used && !given {
                Err(needed)
            } else if given && !is_used {
                Err(useless)
            } else {
                Ok(())
            }
        };
        let action = self.action;
        self.check_gpu()?;
        let may_be_late = action == Action::Revoke || action.is_of_gpus();
        if !may_be_late {
            needs(
                self.by.is_some(),
                matches!(action, Action::Delay | Action::SlowFaults),
                "does not say how long: by = \"10ms\"",
                "`by` is for delay, slow-faults, revoke and faults of GPUs",
            )?;
        } else if self.by.is_some() && !self.is_of_packets() {
            return Err(
                "`by` is counted from a packet, and no packet triggers this: give `from` alone",
            );
        }
        if !matches!(action, Action::Fill | Action::Throttle) {
            needs(
                self.lasts.is_some(),
                action == Action::PortDown,
                "does not say how long: for = \"3s\"",
                "`for` is for port-down, fill and throttle; use from and until",
            )?;
        }
        if self.behind.is_some() && action != Action::Reorder {
            return Err("`behind` is for reorder");
        }
        if self.behind == Some(0) {
            return Err("a packet that 0 others overtake is not reordered");
        }
        if self.mr.is_some() && action != Action::Revoke {
            return Err("`mr` is for revoke");
        }
        if self.mr == Some(0) {
            return Err("regions are counted from 1");
        }
        if action.is_of_receiver() && self.way != Way::In {
            return Err("this is done to packets that come in: way = \"in\"");
        }
        if self.opcode.0.contains(&Kind::Cm) && !action.is_of_any_packet() {
            return Err(
                "this concerns packets to a QP of the program, which management datagrams are not",
            );
        }
        if action == Action::SlowFaults
            && (self.is_of_packets() || self.qp.is_some() || self.qpn.is_some())
        {
            return Err("page faults belong to no packet: only from and until limit it");
        }
        let is_alone = !self.is_of_packets() && !self.is_of_operations();
        if (matches!(action, Action::PortDown | Action::Revoke) || action.is_of_gpus())
            && is_alone
            && (self.qp.is_some() || self.qpn.is_some())
        {
            return Err(
                "a QP, but no packet of it: give opcode, psn, nth, every or probability as well",
            );
        }
        if self.probability.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err("a probability is from 0 to 1");
        }
        if self.is_of_gpus() && is_alone && self.nic.is_some() {
            return Err(
                "a NIC, but no packet of it: give opcode, psn, nth, every or probability as well",
            );
        }
        if self.every == Some(Every::Nth(0)) || self.period() == Some(Duration::ZERO) {
            return Err("every 0th packet is none, and every 0 seconds is all the time");
        }
        if self.nth.is_some_and(|nth| nth.first == 0) {
            return Err("packets are counted from 1");
        }
        if let (Some(from), Some(until)) = (self.from, self.until)
            && until < from
        {
            return Err("it ends before it begins");
        }
        if action.is_strike() && is_alone && self.period().is_none() && self.until.is_some() {
            return Err("it happens once, at `from`: `until` means nothing");
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
