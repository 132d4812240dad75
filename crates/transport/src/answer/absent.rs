//! Granted READs whose memory is absent when it is their turn to be answered.
//!
//! Memory that moves is usually back soon, and then the response continues. Otherwise the peer must
//! be told before it takes the silence for a loss: by an RNR NAK in place of the packet, as NICs
//! with on-demand paging do. It then requests the rest of the READ again after a pause, and
//! everything after it. The response waits for that in its place, with those after it: an executed
//! request is not executed again, and keeps its place and its resource.

use core::time::Duration;

use iba::Psn;
use wire::{Aeth, Headers, Operation, Position, Syndrome};

use super::{Answer, Kind};
use crate::env::{Counter, Env, Skipped, Source, To};
use crate::qp::{Qp, Sent};
use crate::resp::Responder;
use crate::time::Time;

/// How long an answer waits for its memory before the peer is told; less if this end of the
/// connection has a short ACK timeout, as then the other end has one, too.
const PATIENCE: Duration = Duration::from_millis(4);

impl Responder {
    /// Whether answers wait until the peer asks for the first of them again.
    pub(crate) fn is_put_off(&self) -> bool {
        self.answers.front().is_some_and(Answer::is_put_off)
    }

    /// Continues all answers, as the peer is no longer heard.
    pub(crate) fn take_up_answers(&mut self) {
        for answer in &mut self.answers {
            if let Kind::Read(read) = &mut answer.kind {
                read.is_put_off = false;
            }
        }
    }

    /// The peer sent the request with this number: answers before it that it was told to ask for
    /// again, and that it had all of once, are not needed. It ignored that it was told, or will ask
    /// again all the same.
    ///
    /// Others would wait behind them for ever.
    pub(crate) fn drop_unneeded(&mut self, psn: Psn) {
        while let Some(front) = self.answers.front()
            && front.is_put_off()
            && !front.is_new_data()
            && !front.end().is_after(psn)
        {
            self.answers.pop_front();
        }
    }

    /// The peer asks again, for a part of a READ that has another end than the part that was put
    /// off: this one takes its place, or it continues.
    pub(super) fn take_up(&mut self, again: &Answer) {
        self.answers.retain_mut(|answer| {
            let is_about = answer.is_put_off()
                && answer.end() != again.end()
                && answer.psn.is_before(again.end())
                && answer.end().is_after(again.psn);
            if let Kind::Read(read) = &mut answer.kind
                && is_about
            {
                read.is_put_off = false;
                return read.is_new;
            }
            true
        });
    }

    /// Puts the first answer off until it is requested again. The response then begins with First
    /// or Only (IBA 9.7.4).
    fn put_off(&mut self) {
        self.absent = None;
        if let Some(Answer { kind: Kind::Read(read), .. }) = self.answers.front_mut() {
            (read.is_put_off, read.begun) = (true, false);
        }
    }
}

impl Qp {
    /// Handles absent memory for the next packet of the first answer.
    #[cold]
    pub(super) fn await_memory<E: Env>(&mut self, env: &mut E, now: Time, psn: Psn) -> Sent {
        let since = match self.resp.absent {
            Some((at, since)) if at == psn => since,
            _ => {
                env.count(Counter::PageFaultsPending);
                self.resp.absent = Some((psn, now));
                now
            }
        };
        let patience = self.ack_timeout().map_or(PATIENCE, |timeout| PATIENCE.min(timeout / 2));
        // In an error state, the peer's repeated request would not be heard.
        if now.since(since) < patience || !self.state().receives() {
            return Sent::Blocked;
        }
        let opcode = self.opcode(Operation::Ack, Position::Only);
        let mut headers = Headers::new(opcode, self.attr.dest_qpn, psn);
        let syndrome = Syndrome::RnrNak { timer: self.attr.min_rnr_timer };
        headers.set_aeth(Aeth { syndrome, msn: self.resp.msn });
        if env.transmit(To::Peer, &headers, Source::Empty, Skipped::default()).is_err() {
            return Sent::Blocked;
        }
        env.count(Counter::SendRnrNak);
        self.resp.put_off();
        Sent::Packets(1)
    }
}
