//! Commands of I/O queues: between the host's memory and the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use storage::Completion;

use super::queue::remote;
use super::slow::{Done, Job};
use super::{End, Outgoing, Response, Session, Stage};
use crate::target::io::{self, IN_CAPSULE, Op, Plan};
use crate::target::subsystem::Namespace;
use crate::wire::{Descriptor, Status};

impl Session {
    /// Takes the next step of a command, or makes it wait.
    pub(super) fn advance(&mut self, slot: u16) -> Result<(), End> {
        let (command, there, stage) = {
            let request = self.request(slot);
            (request.command, request.there, request.stage)
        };
        let plan = match stage {
            Stage::New => {
                let namespace = self.shared.subsystem.namespace(command.nsid.get());
                let geometry = namespace.as_ref().map(|namespace| namespace.geometry);
                match io::plan(&command, there, |_| geometry) {
                    Ok(plan) => {
                        self.request(slot).namespace = namespace;
                        match self.is_reserved(slot, plan.op) {
                            Ok(()) => plan,
                            Err(status) => return self.finish(slot, status.into()),
                        }
                    }
                    Err(status) => return self.finish(slot, status.into()),
                }
            }
            Stage::Pulled(plan) => return self.submit_to_disk(slot, plan),
            _ => return Ok(()),
        };
        match (plan.op, plan.data) {
            (Op::Flush | Op::WriteZeroes, _) => self.give_to_slow(slot, plan),
            (Op::Deallocate { .. } | Op::Reserve { .. }, _) => self.fetch_list(slot, plan),
            (Op::Report, _) => self.report(slot, &plan),
            (Op::Write, Descriptor::InCapsule { .. }) => self.submit_to_disk(slot, plan),
            (Op::Read, _) => match self.has_piece(slot) {
                // With FUA, only durable data may be read.
                Ok(true) if plan.fua => self.give_to_slow(slot, plan),
                Ok(true) => self.submit_to_disk(slot, plan),
                Ok(false) => Ok(()),
                Err(error) => self.disk_failed(slot, &error, plan.op),
            },
            (Op::Write, _) => match self.has_piece(slot) {
                Ok(true) => self.pull_data(slot, plan),
                Ok(false) => Ok(()),
                Err(error) => self.disk_failed(slot, &error, plan.op),
            },
        }
    }

    /// Whether another host keeps this one from its command.
    fn is_reserved(&mut self, slot: u16, op: Op) -> Result<(), Status> {
        let Some(access) = op.access() else { return Ok(()) };
        let host = self.host()?;
        self.namespace(slot).reservations().check(&host, access)
    }

    pub(super) fn namespace(&mut self, slot: u16) -> Arc<Namespace> {
        let namespace = self.request(slot).namespace.as_ref();
        Arc::clone(namespace.expect("the plan was made for it"))
    }

    /// Finds memory for the data, and keeps it there; without any the command waits.
    fn has_piece(&mut self, slot: u16) -> storage::Result<bool> {
        if self.request(slot).piece.is_some() {
            return Ok(true);
        }
        if let Some(piece) = self.shared.memory.take() {
            match piece.hold() {
                Ok(Some(kept)) => {
                    self.request(slot).piece = Some((kept, piece));
                    return Ok(true);
                }
                Ok(None) => {}
                Err(error) => {
                    self.shared.memory.gone(&piece);
                    return Err(error);
                }
            }
        }
        self.waiting.push_back(slot);
        Ok(false)
    }

    fn pull_data(&mut self, slot: u16, plan: Plan) -> Result<(), End> {
        let from = remote(plan.data).expect("the data are not in the capsule");
        let (kept, piece) = self.request(slot).piece.take().expect("there is one");
        if !kept.stayed() {
            drop((kept, piece));
            return self.memory_went(slot);
        }
        let pulled = self.pull(slot, piece.slice(plan.data.len()), from);
        self.request(slot).piece = Some((kept, piece));
        if pulled? {
            self.request(slot).stage = Stage::Pulling(plan);
        } else {
            self.waiting.push_back(slot);
        }
        Ok(())
    }

    /// The memory was not kept until the command was done.
    fn memory_went(&mut self, slot: u16) -> Result<(), End> {
        self.request(slot).piece = None;
        self.finish(slot, Status::DATA_TRANSFER_ERROR.into())
    }

    /// A READ completed.
    pub(super) fn pulled(&mut self, slot: u16) -> Result<(), End> {
        match self.request(slot).stage {
            Stage::Connecting => self.connect_pulled(slot),
            Stage::Pulling(plan) => {
                self.request(slot).stage = Stage::Pulled(plan);
                match plan.op {
                    Op::Deallocate { .. } | Op::Reserve { .. } => self.list_pulled(slot, &plan),
                    _ => self.submit_to_disk(slot, plan),
                }
            }
            _ => Err(End::Failed("an unexpected READ completed".to_owned())),
        }
    }

    /// Submits a command to the disk.
    fn submit_to_disk(&mut self, slot: u16, plan: Plan) -> Result<(), End> {
        let (file, id) = (self.namespace(slot).file().clone(), u64::from(slot));
        // CAST: at most MAX_DATA.
        let len = plan.len as u32;
        let asked = match (&self.request(slot).piece, plan.op) {
            (Some((kept, _)), Op::Write) if !kept.stayed() => return self.memory_went(slot),
            (Some((_, piece)), op) => {
                let (buffer, at) = piece.buffer();
                let (buffer, disk) = (buffer.clone(), &self.disk);
                match op {
                    Op::Read => disk.read(id, &file, plan.offset, &buffer, at, len),
                    _ => disk.write(id, &file, plan.offset, &buffer, at, len),
                }
            }
            (None, _) => {
                let at = self.capsule_data(slot, plan.data)?;
                self.disk.write(id, &file, plan.offset, &self.data.2, at, len)
            }
        };
        match asked {
            Ok(()) => {
                self.disk_busy += 1;
                self.request(slot).stage = Stage::OnDisk(plan);
                Ok(())
            }
            Err(storage::Error::Full { .. }) => {
                self.waiting.push_back(slot);
                Ok(())
            }
            Err(error) => self.disk_failed(slot, &error, plan.op),
        }
    }

    /// The offset of a capsule's data, which must be at the beginning of their place, for direct
    /// I/O.
    fn capsule_data(&self, slot: u16, data: Descriptor) -> Result<u64, End> {
        let (base, len) = (u64::from(slot) * u64::from(IN_CAPSULE), data.len() as usize);
        let Descriptor::InCapsule { offset: offset @ 1.., .. } = data else { return Ok(base) };
        let mut bytes = vec![0; len];
        let memory = &self.data.0;
        let moved = memory
            .read((base + offset) as usize, &mut bytes)
            .and_then(|()| memory.write(base as usize, &bytes));
        moved.map_err(|fault| End::Failed(fault.to_string()))?;
        Ok(base)
    }

    pub(super) fn disk_done(
        &mut self,
        Completion { id, result, .. }: Completion,
    ) -> Result<(), End> {
        self.disk_busy -= 1;
        // CAST: the place of a capsule.
        let slot = id as u16;
        let Stage::OnDisk(plan) = self.request(slot).stage else {
            return Err(End::Failed("the disk completed an unknown request".to_owned()));
        };
        let got = match result {
            Ok(got) => got,
            Err(error) => return self.disk_failed(slot, &error, plan.op),
        };
        if got != plan.len {
            // The file ends before the namespace does. What else is in the piece is not the
            // host's.
            let status = match plan.op {
                Op::Read => Status::UNRECOVERED_READ_ERROR,
                _ => Status::WRITE_FAULT,
            };
            return self.finish(slot, status.into());
        }
        if plan.op == Op::Write && plan.fua {
            // The disk has the data.
            self.request(slot).piece = None;
            return self.give_to_slow(slot, plan);
        }
        self.end_well(slot, &plan)
    }

    /// The disk did its part.
    fn end_well(&mut self, slot: u16, plan: &Plan) -> Result<(), End> {
        if plan.op == Op::Read {
            return self.send_data(slot, plan);
        }
        self.count(plan);
        self.request(slot).piece = None;
        self.finish(slot, Response::done(0))
    }

    /// Sends what was read.
    fn send_data(&mut self, slot: u16, plan: &Plan) -> Result<(), End> {
        let (kept, piece) = self.request(slot).piece.take().expect("it was read into one");
        if !kept.stayed() {
            return self.memory_went(slot);
        }
        self.count(plan);
        // CAST: at most MAX_DATA.
        let data = Some(Outgoing { kept, piece, len: plan.len as u32 });
        self.finish(slot, Response { data, ..Response::done(0) })
    }

    fn disk_failed(&mut self, slot: u16, error: &storage::Error, op: Op) -> Result<(), End> {
        tracing::warn!(target: "nvmet", "queue {}: {error}", self.shape.qid);
        let piece = self.request(slot).piece.take();
        if let (Some((_, piece)), storage::Error::Gone { .. }) = (&piece, error) {
            self.shared.memory.gone(piece);
        }
        self.finish(slot, io::status_of(error, op).into())
    }

    fn count(&self, plan: &Plan) {
        let Some(joined) = &self.joined else { return };
        let counts = &joined.controller.counts;
        let add = |count: &AtomicU64, more: u64| {
            count.fetch_add(more, Ordering::Relaxed);
        };
        match plan.op {
            Op::Read => {
                add(&counts.reads, 1);
                add(&counts.bytes_read, plan.len);
            }
            _ => {
                add(&counts.writes, 1);
                add(&counts.bytes_written, plan.len);
            }
        }
    }

    /// Hands a command to the thread for what takes long.
    fn give_to_slow(&mut self, slot: u16, plan: Plan) -> Result<(), End> {
        self.give_ranges_to_slow(slot, plan, Vec::new())
    }

    /// The same, with ranges that are to be deallocated.
    pub(super) fn give_ranges_to_slow(
        &mut self,
        slot: u16,
        plan: Plan,
        ranges: Vec<(u64, u64)>,
    ) -> Result<(), End> {
        let namespace = self.namespace(slot);
        if !self.slow.give(Job { slot, plan, namespace, ranges }) {
            return self.finish(slot, Status::INTERNAL_ERROR.into());
        }
        self.request(slot).stage = Stage::Slow;
        Ok(())
    }

    /// What took long is done: the command ends, or a read begins.
    pub(super) fn slow_done(&mut self, Done { slot, plan, result }: Done) -> Result<(), End> {
        match (plan.op, result) {
            (Op::Read | Op::Write, Err(error)) => self.disk_failed(slot, &error, plan.op),
            (Op::Read, Ok(())) => {
                self.request(slot).stage = Stage::Pulled(plan);
                self.submit_to_disk(slot, plan)
            }
            (Op::Write, Ok(())) => self.end_well(slot, &plan),
            (_, result) => self.finish(slot, answer(result, plan.op)),
        }
    }
}

fn answer(result: storage::Result<()>, op: Op) -> Response {
    match result {
        Ok(()) => Response::done(0),
        Err(error) => io::status_of(&error, op).into(),
    }
}
