//! Requests posted to the queue pair.

use verbs::{RKey, Remote, SendRequest, Slice};
use zerocopy::IntoBytes;

use super::{End, Kind, Outgoing, Sent, Session};
use crate::target::TargetError;
use crate::target::io::IN_CAPSULE;
use crate::wire::capsule::COMMAND_LEN;
use crate::wire::{Completion, Descriptor};

/// The value of the head field if the host asked for no flow control.
const NO_HEAD: u16 = 0xffff;

fn number(kind: Kind, low: u32) -> u64 {
    (kind as u64) << 32 | u64::from(low)
}

/// The host's memory that a descriptor names.
pub(super) fn remote(data: Descriptor) -> Option<Remote> {
    match data {
        Descriptor::Keyed { addr, key, .. } => Some(Remote { addr, rkey: RKey(key) }),
        Descriptor::InCapsule { .. } => None,
    }
}

impl Session {
    /// Posts a place for a capsule, with the command apart from the data after it, so that the data
    /// are aligned.
    pub(super) fn post_receive(&self, slot: u16) -> Result<(), TargetError> {
        let at = u64::from(slot);
        let command = self.commands.1.slice(at * COMMAND_LEN as u64, COMMAND_LEN as u32);
        let data = self.data.1.slice(at * u64::from(IN_CAPSULE), IN_CAPSULE);
        Ok(self.qp.post_recv(number(Kind::Receive, slot.into()), &[command, data])?)
    }

    /// Fetches the host's data. False if there is no room now.
    pub(super) fn pull(&mut self, slot: u16, to: Slice<'_>, from: Remote) -> Result<bool, End> {
        if self.posted + 1 > self.most {
            return Ok(false);
        }
        let read = SendRequest::read(number(Kind::Pull, slot.into()), &[to], from);
        self.qp.post_send(&read.signaled())?;
        self.posted += 1;
        Ok(true)
    }

    /// Sends the answers that there is room for.
    pub(super) fn answer(&mut self) -> Result<(), End> {
        while self.posted + 2 <= self.most {
            let Some((slot, response)) = self.ready.pop_front() else { break };
            let request = self.requests[usize::from(slot)].take().expect("one answer to each");
            // The host may use the place again as soon as it has the answer.
            self.post_receive(slot)?;
            let mut completion =
                Completion::new(request.command.cid.get(), response.status, response.result);
            completion.sq_id = self.shape.qid.into();
            completion.sq_head = self.next_head().into();
            let data = request.command.data().ok();
            let mut work_requests = 1;
            if let (Some(Outgoing { piece, len, .. }), Some(to)) =
                (&response.data, data.and_then(remote))
            {
                let push = number(Kind::Push, self.next_send);
                self.qp.post_send(&SendRequest::write(push, &[piece.slice(*len)], to))?;
                work_requests = 2;
            }
            let name = number(Kind::Send, self.next_send);
            let send = match data.and_then(Descriptor::invalidates) {
                Some(key) => SendRequest::send_with_inv(name, &[], RKey(key)),
                None => SendRequest::send(name, &[]),
            };
            self.qp.post_send(&send.inline(completion.as_bytes()).signaled())?;
            self.sends.insert(self.next_send, Sent { data: response.data, work_requests });
            self.next_send = self.next_send.wrapping_add(1);
            self.posted += work_requests;
        }
        Ok(())
    }

    fn next_head(&mut self) -> u16 {
        match &mut self.joined {
            Some(joined) if joined.has_flow => {
                joined.head = (joined.head + 1) % joined.size;
                joined.head
            }
            Some(_) => NO_HEAD,
            None => 0,
        }
    }
}
