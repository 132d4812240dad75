//! Commands that bring a list which the CPU reads: ranges of Dataset Management, keys of
//! reservations. The list comes first, to memory of this process. And the report of reservations,
//! which goes the other way.

use super::queue::remote;
use super::{End, Outgoing, Response, Session, Stage};
use crate::target::area::Kept;
use crate::target::io::{self, IN_CAPSULE, Op, Plan};
use crate::target::reserve;
use crate::wire::Status;

impl Session {
    /// Fetches the list, unless the capsule has it.
    pub(super) fn fetch_list(&mut self, slot: u16, plan: Plan) -> Result<(), End> {
        let Some(from) = remote(plan.data) else {
            let there = self.request(slot).there;
            let at = match plan.data.in_capsule(there) {
                Ok(at) => usize::from(slot) * IN_CAPSULE as usize + at as usize,
                Err(status) => return self.finish(slot, status.into()),
            };
            let mut list = vec![0; plan.op.list_len()];
            let read = self.data.0.read(at, &mut list);
            read.map_err(|fault| End::Failed(fault.to_string()))?;
            return self.list_is_here(slot, &plan, &list);
        };
        let Some(piece) = self.shared.admin.take() else {
            self.waiting.push_back(slot);
            return Ok(());
        };
        if !self.pull(slot, piece.slice(plan.data.len()), from)? {
            self.waiting.push_back(slot);
            return Ok(());
        }
        let request = self.request(slot);
        (request.stage, request.piece) = (Stage::Pulling(plan), Some((Kept::Ours, piece)));
        Ok(())
    }

    /// The list was fetched.
    pub(super) fn list_pulled(&mut self, slot: u16, plan: &Plan) -> Result<(), End> {
        let (_, piece) = self.request(slot).piece.take().expect("it was fetched into one");
        let (memory, at) = piece.host().expect("memory of this process");
        let mut list = vec![0; plan.op.list_len()];
        memory.read(at, &mut list).map_err(|fault| End::Failed(fault.to_string()))?;
        self.list_is_here(slot, plan, &list)
    }

    fn list_is_here(&mut self, slot: u16, plan: &Plan, list: &[u8]) -> Result<(), End> {
        match plan.op {
            Op::Deallocate { discards, .. } => self.deallocate(slot, plan, list, discards),
            _ => {
                let done = reserve::action(&self.request(slot).command, list).and_then(|action| {
                    let (namespace, host) = (self.namespace(slot), self.host()?);
                    namespace.reservations().act(host, action)
                });
                self.finish(slot, done.map_or_else(Response::from, |()| Response::done(0)))
            }
        }
    }

    fn deallocate(
        &mut self,
        slot: u16,
        plan: &Plan,
        list: &[u8],
        discards: bool,
    ) -> Result<(), End> {
        let namespace = self.namespace(slot);
        match io::ranges(list, namespace.geometry) {
            Err(status) => self.finish(slot, status.into()),
            Ok(_) if discards && !namespace.file().is_writable() => {
                self.finish(slot, Status::NAMESPACE_WRITE_PROTECTED.dnr().into())
            }
            Ok(ranges) if discards => self.give_ranges_to_slow(slot, *plan, ranges),
            // How the host uses blocks makes no difference here.
            Ok(_) => self.finish(slot, Response::done(0)),
        }
    }

    /// Sends the report of reservations; beyond its end there are zeros.
    pub(super) fn report(&mut self, slot: u16, plan: &Plan) -> Result<(), End> {
        let Some(piece) = self.shared.admin.take() else {
            self.waiting.push_back(slot);
            return Ok(());
        };
        let mut report = self.namespace(slot).reservations().report();
        report.resize(plan.data.len() as usize, 0);
        let (memory, at) = piece.host().expect("memory of this process");
        memory.write(at, &report).map_err(|fault| End::Failed(fault.to_string()))?;
        let data = Some(Outgoing { kept: Kept::Ours, piece, len: plan.data.len() });
        self.finish(slot, Response { data, ..Response::done(0) })
    }
}
