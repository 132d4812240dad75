//! Fabrics commands.

use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use super::queue::remote;
use super::{End, Joined, Response, Session, Stage};
use crate::target::area::Kept;
use crate::target::io::IN_CAPSULE;
use crate::wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData, Fabrics};
use crate::wire::{Command, Descriptor, Status};

impl Session {
    pub(super) fn fabrics(&mut self, slot: u16, command: &Command) -> Result<(), End> {
        let parsed = Fabrics::parse(command).and_then(|parsed| Ok((parsed, command.data()?)));
        let (fabrics, data) = match parsed {
            Ok(parsed) => parsed,
            Err(status) => return self.finish(slot, status.into()),
        };
        let out_of_turn = Status::COMMAND_SEQUENCE_ERROR.dnr();
        let response = match (fabrics, &self.joined) {
            (Fabrics::Connect(_), None) => match self.connect_data(slot, data) {
                Ok(response) => match response? {
                    Some(data) => return self.join(slot, command, &data),
                    None => return Ok(()),
                },
                Err(status) => status.into(),
            },
            (Fabrics::PropertyGet { offset, size }, Some(joined)) if self.shape.qid == 0 => {
                match joined.controller.registers(|registers| registers.get(offset, size)) {
                    Ok(value) => Response::done(value),
                    Err(status) => status.into(),
                }
            }
            (Fabrics::PropertySet { offset, size, value }, Some(joined)) if self.shape.qid == 0 => {
                match joined.controller.registers(|registers| registers.set(offset, size, value)) {
                    Ok(()) => Response::done(0),
                    Err(status) => status.into(),
                }
            }
            _ => out_of_turn.into(),
        };
        self.finish(slot, response)
    }

    /// The data of Connect: they are in the capsule, or are fetched. `None` until they are here.
    fn connect_data(
        &mut self,
        slot: u16,
        data: Descriptor,
    ) -> Result<Result<Option<ConnectData>, End>, Status> {
        data.expect_len(CONNECT_DATA_LEN as u64)?;
        let Some(from) = remote(data) else {
            let there = self.request(slot).there;
            let at = slot as usize * IN_CAPSULE as usize + data.in_capsule(there)? as usize;
            let mut bytes = ConnectData::new_zeroed();
            let read = self.data.0.read(at, bytes.as_mut_bytes());
            let read = read.map_err(|fault| End::Failed(fault.to_string()));
            return Ok(read.map(|()| Some(bytes)));
        };
        let piece = self.shared.admin.take().ok_or(Status::INTERNAL_ERROR)?;
        let pulled = self.pull(slot, piece.slice(data.len()), from);
        let request = self.request(slot);
        (request.stage, request.piece) = (Stage::Connecting, Some((Kept::Ours, piece)));
        match pulled {
            // A connection has room for as many as it has places for capsules.
            Ok(is_posted) if is_posted => Ok(Ok(None)),
            Ok(_) => Err(Status::INTERNAL_ERROR),
            Err(end) => Ok(Err(end)),
        }
    }

    /// The data of Connect were fetched.
    pub(super) fn connect_pulled(&mut self, slot: u16) -> Result<(), End> {
        let request = self.request(slot);
        let command = request.command;
        let (_, piece) = request.piece.take().expect("they were fetched into it");
        let (memory, at) = piece.host().expect("memory of this process");
        let mut data = ConnectData::new_zeroed();
        let read = memory.read(at, data.as_mut_bytes());
        read.map_err(|fault| End::Failed(fault.to_string()))?;
        self.join(slot, &command, &data)
    }

    fn join(&mut self, slot: u16, command: &Command, data: &ConnectData) -> Result<(), End> {
        let Ok(Fabrics::Connect(connect)) = Fabrics::parse(command) else {
            return self.finish(slot, Status::INTERNAL_ERROR.into());
        };
        if self.joined.is_some() {
            // Two Connects were outstanding at once.
            return self.finish(slot, Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        let queue = (self.shape.qid, self.shape.depth);
        // A connection has an address for as long as it stands.
        let at = self.id.local_addr().ok_or(End::Left)?;
        let Connect { sqsize, no_flow, .. } = connect;
        match self.shared.controllers.connect(queue, at, &connect, data) {
            Ok(controller) => {
                tracing::info!(
                    target: "nvmet",
                    "{} is connected to {}: controller {}, queue {}",
                    controller.hostnqn(),
                    controller.subsystem().nqn(),
                    controller.cntlid(),
                    self.shape.qid
                );
                let result = controller.cntlid().into();
                let (size, has_flow) = (sqsize + 1, !no_flow);
                self.joined = Some(Joined { controller, has_flow, size, head: 0 });
                self.finish(slot, Response::done(result))
            }
            Err((status, result)) => {
                tracing::warn!(target: "nvmet", "Connect is refused: {status}");
                self.finish(slot, Response { status, result, data: None })
            }
        }
    }
}
