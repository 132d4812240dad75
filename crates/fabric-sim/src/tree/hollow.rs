//! What surrounds a QP of a tree: every memory is there, and has no bytes.

use std::collections::{HashMap, VecDeque};

use iba::{Access, QpEvent, RKey};
use transport::env::{AtomicOp, LocalError, RemoteError, Source, To, TransmitError};
use transport::tm::Taken;
use transport::{Completion, Counter, Env, Rx, Sge, Side, Skipped};
use wire::{Headers, Opcode};

/// The environment of one QP.
#[derive(Debug, Default)]
pub(super) struct Hollow {
    /// Packets to send, and the lengths of their payloads.
    pub(super) out: VecDeque<(Headers, u32)>,
    /// What completed.
    pub(super) completions: Vec<Completion>,
    /// Packets of requests that were sent.
    pub(super) packets: u64,
    counters: HashMap<Counter, u64>,
}

impl Hollow {
    /// How often something was counted.
    pub(super) fn counted(&self, counter: Counter) -> u64 {
        self.counters.get(&counter).copied().unwrap_or(0)
    }
}

impl Env for Hollow {
    type Payload = ();

    fn transmit(
        &mut self,
        _: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        _: Skipped,
    ) -> Result<(), TransmitError> {
        let is_request = !matches!(headers.bth.opcode, Opcode::RcAck | Opcode::Cnp | Opcode::Sack);
        self.packets += u64::from(is_request);
        self.out.push_back((*headers, source.len()));
        Ok(())
    }

    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), LocalError> {
        Ok(())
    }

    fn scatter(&mut self, _: Side, _: &[Sge], _: u64, (): &()) -> Result<(), LocalError> {
        Ok(())
    }

    fn scatter_bytes(&mut self, _: Side, _: &[Sge], _: u64, _: &[u8]) -> Result<(), LocalError> {
        Ok(())
    }

    fn check_remote(&self, _: RKey, _: u64, _: u32, _: Access) -> Result<(), RemoteError> {
        Ok(())
    }

    fn write_remote(&mut self, _: RKey, _: u64, (): &()) -> Result<(), RemoteError> {
        Ok(())
    }

    fn atomic(&mut self, _: RKey, _: u64, _: AtomicOp) -> Result<u64, RemoteError> {
        Ok(0)
    }

    fn invalidate(&mut self, _: RKey) -> Result<(), RemoteError> {
        Ok(())
    }

    fn take_srq(&mut self, _: &Rx<'_, ()>) -> Option<Taken> {
        None
    }

    fn complete(&mut self, completion: &Completion) {
        self.completions.push(*completion);
    }

    fn event(&mut self, _: QpEvent) {}

    fn count(&mut self, counter: Counter) {
        *self.counters.entry(counter).or_default() += 1;
    }
}
