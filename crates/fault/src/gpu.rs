//! Faults of GPUs: actions on their buffers and on the GPUs themselves.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use crate::plan::{Action, Rule, Way};
use crate::quantity::{Every, Span};

/// The slowest rate of copies, in bytes per second, so that every copy ends.
const SLOWEST: u64 = 1 << 20;

/// A kind of memory that buffers are in.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "there are two")]
pub enum Domain {
    /// The GPU's own memory.
    Vram,
    /// System memory that the GPU uses.
    Gtt,
}

/// What to do to GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the caller carries it out")]
pub struct GpuStrike {
    /// The number of the rule in the file, from 1.
    pub rule: u64,
    /// Its name.
    pub name: String,
    /// The action.
    pub act: GpuAct,
    /// The GPU; all GPUs of the process if none is named.
    pub gpu: Option<String>,
    /// Its buffers, counted from 1 in the order of creation in the process; all of them if none are
    /// given.
    pub buffers: Option<Span>,
}

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the caller carries out each")]
pub enum GpuAct {
    /// Buffers move.
    Move(Domain),
    /// Buffers move out of VRAM.
    Evict,
    /// The owner revokes its buffers.
    Revoke,
    /// The GPU is reset.
    Reset,
    /// The GPU is unplugged.
    Unplug,
    /// VRAM is filled to this many millionths, for this long.
    Fill(u32, Option<Duration>),
    /// Copies run at this many bytes per second, for this long. At 0 they run at full speed again.
    Throttle(u64, Option<Duration>),
}

impl GpuAct {
    /// What plans call it.
    pub(crate) const fn action(self) -> Action {
        match self {
            Self::Move(_) => Action::Move,
            Self::Evict => Action::Evict,
            Self::Revoke => Action::Revoke,
            Self::Reset => Action::Reset,
            Self::Unplug => Action::Unplug,
            Self::Fill(..) => Action::Fill,
            Self::Throttle(..) => Action::Throttle,
        }
    }
}

/// Functions of a runtime; in a file, one name or a list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations(Vec<String>);

impl Operations {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a function is one of them. Versions of a function count as the same.
    pub(crate) fn include(&self, name: &str) -> bool {
        self.0.iter().any(|known| *known == name || known == plain(name))
    }
}

/// The name of a function without its version suffix: `cuMemAlloc_v2`, `cuMemcpyAsync_ptsz`.
fn plain(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((plain, version)) if version.bytes().all(|b| b.is_ascii_digit()) => plain,
        _ => name,
    }
}

impl<'de> Deserialize<'de> for Operations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Operations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a function, or a list of such names")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Operations, E> {
                Ok(Operations(vec![function(name).map_err(E::custom)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Operations, A::Error> {
                let mut all = Vec::new();
                while let Some(name) = names.next_element::<String>()? {
                    all.push(function(&name).map_err(A::Error::custom)?);
                }
                Ok(Operations(all))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

fn function(name: &str) -> Result<String, String> {
    let is_ours = ["cu", "nvml", "ze", "hsa_"].iter().any(|prefix| name.starts_with(prefix));
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if is_ours && is_name {
        Ok(name.to_owned())
    } else {
        Err(format!("{name:?} is not a function of CUDA, NVML, Level Zero or HSA"))
    }
}

impl Rule {
    /// Whether it is about GPUs. A `revoke` that names neither a GPU nor a buffer concerns the
    /// NIC's regions.
    pub(crate) fn is_of_gpus(&self) -> bool {
        self.action.is_of_gpus()
            || self.action == Action::Revoke && (self.gpu.is_some() || self.buffer.is_some())
    }

    /// Its action on GPUs, if it has one.
    pub(crate) fn gpu_strike(&self, index: u64) -> Option<GpuStrike> {
        let act = match self.action {
            Action::Move => GpuAct::Move(self.to?),
            Action::Evict => GpuAct::Evict,
            Action::Revoke if self.is_of_gpus() => GpuAct::Revoke,
            Action::Reset => GpuAct::Reset,
            Action::Unplug => GpuAct::Unplug,
            // CAST: from 0 to a million.
            Action::Fill => GpuAct::Fill((self.share? * 1e6) as u32, self.lasts),
            Action::Throttle => GpuAct::Throttle(self.rate?, self.lasts),
            _ => return None,
        };
        let (name, gpu) = (self.name.clone(), self.gpu.clone());
        Some(GpuStrike { rule: index + 1, name, act, gpu, buffers: self.buffer })
    }

    /// Whether it is triggered by a function of a runtime.
    pub(crate) fn is_of_operations(&self) -> bool {
        !self.operation.is_empty()
    }

    pub(crate) fn check_gpu(&self) -> Result<(), &'static str> {
        let of = |actions: &[Action]| actions.contains(&self.action);
        if !self.is_of_gpus() {
            let useless = [
                (
                    self.gpu.is_some() || self.buffer.is_some(),
                    "`gpu` and `buffer` are for faults of GPUs",
                ),
                (self.is_of_operations(), "`operation` is for faults of GPUs"),
                (self.period().is_some(), "`every` is a number of packets here"),
            ];
            if let Some((_, why)) = useless.into_iter().find(|(is_given, _)| *is_given) {
                return Err(why);
            }
        }
        let keys = [
            (
                self.to.is_some(),
                Action::Move,
                "does not say where: to = \"gtt\"",
                "`to` is for move",
            ),
            (
                self.share.is_some(),
                Action::Fill,
                "does not say how much: share = 0.9",
                "`share` is for fill",
            ),
            (
                self.rate.is_some(),
                Action::Throttle,
                "does not say how fast: rate = \"1G\"",
                "`rate` is for throttle",
            ),
        ];
        for (is_given, action, needed, useless) in keys {
            match (is_given, self.action == action) {
                (false, true) => return Err(needed),
                (true, false) => return Err(useless),
                _ => {}
            }
        }
        if self.share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err("a share of VRAM is from 0 to 1");
        }
        if self.rate.is_some_and(|rate| rate != 0 && rate < SLOWEST) {
            return Err("the slowest rate is \"1M\"; 0 is full speed");
        }
        if self.buffer.is_some_and(|buffer| buffer.first == 0) {
            return Err("buffers are counted from 1");
        }
        if self.buffer.is_some() && !of(&[Action::Move, Action::Evict, Action::Revoke]) {
            return Err("this is done to a GPU: `buffer` is for move, evict and revoke");
        }
        if self.mr.is_some() && self.is_of_gpus() {
            return Err(
                "`mr` is a region of a NIC, `gpu` and `buffer` are of a GPU: give one of them",
            );
        }
        let of_packets = !self.opcode.is_empty()
            || self.psn.is_some()
            || self.qp.is_some()
            || self.qpn.is_some()
            || self.way == Way::In
            || self.nic.is_some();
        if of_packets && self.is_of_operations() {
            return Err("it is triggered by packets or by operations, not by both");
        }
        if of_packets && self.period().is_some() {
            return Err("it is triggered by packets or by time, not by both");
        }
        if self.is_of_operations() && self.period().is_some() {
            return Err("it is triggered by operations or by time, not by both");
        }
        Ok(())
    }

    /// Its period, if time alone triggers it.
    pub(crate) fn period(&self) -> Option<Duration> {
        match self.every {
            Some(Every::Time(period)) => Some(period),
            _ => None,
        }
    }
}
