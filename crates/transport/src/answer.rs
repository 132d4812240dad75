//! What the responder must send: acknowledgements, refusals, READ responses and the results of
//! atomics.
//!
//! Answers wait in the order of their sequence numbers. An acknowledgement confirms that everything
//! before it is done, so the last of several that wait is enough: this is where ACKs are coalesced
//! (IBA 9.7.5).

mod absent;
mod queued;

use iba::{CompCntrOps, Psn, QpEvent};
use wire::bth::pad_for;
use wire::{Aeth, AtomicAckEth, Headers, NakCode, Operation, Position, Syndrome};

use crate::count::Ended;
use crate::env::{Counter, Env, RemoteError, Skipped, Source, To, TransmitError};
use crate::qp::{Qp, Sent};
use crate::resp::{Responder, Step};
use crate::time::Time;

pub(crate) use self::queued::Answer;
use self::queued::Kind;

impl Responder {
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether there is an answer to send, and the peer need not ask for it again first.
    pub(crate) fn owes_answers(&self) -> bool {
        self.answers.front().is_some_and(|answer| !answer.is_put_off())
    }

    /// Whether a single acknowledgement is all there is.
    pub(crate) fn owes_only_ack(&self) -> bool {
        self.answers.len() == 1 && matches!(self.answers[0].kind, Kind::Ack)
    }

    /// The number of that acknowledgement.
    pub(crate) fn only_ack(&self) -> Option<Psn> {
        self.owes_only_ack().then(|| self.answers[0].psn)
    }

    pub(crate) fn forget_answers(&mut self) {
        self.answers.clear();
    }

    /// Acknowledges everything up to and including `psn`, unless a waiting answer does so already.
    pub(crate) fn push_ack(&mut self, psn: Psn) {
        if let Some(last) = self.answers.back_mut() {
            if !last.end().is_before(psn.add(1)) {
                return;
            }
            if matches!(last.kind, Kind::Ack) {
                last.psn = psn;
                return;
            }
        }
        self.answers.push_back(Answer { psn, kind: Kind::Ack });
    }

    /// Refuses `psn`, and with that acknowledges everything before it.
    pub(crate) fn push_nak(&mut self, psn: Psn, syndrome: Syndrome) {
        if self.answers.back().is_some_and(|last| !last.is_data()) {
            self.answers.pop_back();
        }
        self.answers.push_back(Answer { psn, kind: Kind::Nak(syndrome) });
    }

    /// Queues an answer that was sent before. A READ that is still being answered goes back to this
    /// point; one that was put off continues here, as the peer has all before it.
    pub(crate) fn answer_again(&mut self, answer: Answer, limit: usize) {
        self.take_up(&answer);
        if let Some(same) =
            self.answers.iter_mut().find(|queued| queued.is_data() && queued.end() == answer.end())
        {
            if (same.is_put_off() || answer.psn.is_before(same.psn))
                && let (Kind::Read(queued), Kind::Read(mut again)) = (same.kind, answer.kind)
            {
                (again.is_new, again.counts) = (queued.is_new, queued.counts);
                *same = Answer { psn: answer.psn, kind: Kind::Read(again) };
            }
            return;
        }
        // A peer can ask again any number of times; it is answered only as often as there is room.
        if self.answers.iter().filter(|queued| queued.is_data()).count() >= 2 * limit {
            return;
        }
        let at = self.answers.iter().position(|queued| queued.psn.is_after(answer.psn));
        self.answers.insert(at.unwrap_or(self.answers.len()), answer);
    }

    /// Keeps the result of an atomic, and forgets the oldest if that makes more than `limit`.
    pub(crate) fn save_result(&mut self, psn: Psn, value: u64, limit: usize) {
        while self.results.len() >= limit.max(1) {
            self.results.pop_front();
        }
        self.results.push_back((psn, value));
    }

    /// Keeps the first and last number of a granted READ, and forgets the oldest if that makes more
    /// than `limit`.
    pub(crate) fn save_granted(&mut self, first: Psn, end: Psn, limit: usize) {
        while self.granted.len() >= limit.max(1) {
            self.granted.pop_front();
        }
        self.granted.push_back((first, end));
    }

    /// Whether this is part of a READ that was granted recently.
    pub(crate) fn was_granted(&self, psn: Psn, end: Psn) -> bool {
        let holds = |(first, last): &(Psn, Psn)| !psn.is_before(*first) && !end.is_after(*last);
        self.granted.iter().any(holds)
    }

    pub(crate) fn saved_result(&self, psn: Psn) -> Option<u64> {
        self.results.iter().find(|(saved, _)| *saved == psn).map(|(_, value)| *value)
    }
}

impl Qp {
    /// Sends the next packet of the first answer, or up to `most` packets that are alike.
    pub(crate) fn transmit_answer<E: Env>(&mut self, env: &mut E, now: Time, most: usize) -> Sent {
        let first = self.resp.answers.front().filter(|answer| !answer.is_put_off());
        let Some(answer) = first else { return Sent::Nothing };
        let mut aeth = Aeth { syndrome: Syndrome::ACK, msn: self.resp.msn };
        let (mut operation, mut position) = (Operation::Ack, Position::Only);
        // The old value that an atomic found.
        let mut found = None;
        let mut source = Source::Empty;
        // How much of a READ this packet carries, and the packets after it that are alike.
        let (mut chunk, mut run) = (0, 1);
        let mut is_last = true;
        let mut counts = None;
        match answer.kind {
            Kind::Ack => {}
            Kind::Nak(syndrome) => aeth.syndrome = syndrome,
            Kind::Atomic { value, .. } => {
                operation = Operation::AtomicAck;
                found = Some(AtomicAckEth { orig: value });
            }
            Kind::Read(read) => {
                chunk = read.left.min(self.path.segment);
                is_last = chunk == read.left;
                counts = read.counts;
                operation = Operation::ReadResponse;
                position = Position::new(!read.begun, is_last);
                if self.may_run() && position == Position::Middle {
                    run = ((read.left - 1) / chunk).min(most as u32).max(1);
                }
                if chunk > 0 {
                    let length = chunk * run;
                    source = Source::Remote { rkey: read.rkey, addr: read.addr, length };
                }
            }
        }
        let opcode = self.opcode(operation, position);
        let mut headers = Headers::new(opcode, self.attr.dest_qpn, answer.psn);
        headers.bth.pad = pad_for(chunk as usize);
        // A middle packet has none.
        headers.set_aeth(aeth);
        if let Some(found) = found {
            headers.set_atomic_ack_eth(found);
        }

        let sent = if run > 1 {
            env.transmit_run(&headers, source, run)
        } else {
            env.transmit(To::Peer, &headers, source, Skipped::default()).map(|()| 1)
        };
        match sent {
            Ok(sent) => (run, chunk) = (sent, chunk * sent),
            Err(TransmitError::Blocked) => return Sent::Blocked,
            Err(TransmitError::Remote(RemoteError::NotPresent)) => {
                return self.await_memory(env, now, answer.psn);
            }
            Err(TransmitError::Memory(_) | TransmitError::Remote(_)) => {
                if counts.is_some() {
                    env.ended(CompCntrOps::REMOTE_RDMA_READ, Ended::InError);
                }
                self.refuse_read(env, headers.bth.psn);
                return Sent::Packets(1);
            }
        }

        if is_last {
            self.resp.answers.pop_front();
            if let Some(bytes) = counts {
                env.ended(CompCntrOps::REMOTE_RDMA_READ, Ended::Well { bytes });
            }
        } else if let Some(answer) = self.resp.answers.front_mut()
            && let Kind::Read(read) = &mut answer.kind
        {
            answer.psn = answer.psn.add(self.path.path_mtu.packets(chunk));
            read.addr = read.addr.wrapping_add(u64::from(chunk));
            read.left -= chunk;
            read.begun = true;
        }
        Sent::Packets(run)
    }

    /// The memory of a granted READ is gone: sends a NAK in place of the packet, and ends the QP.
    pub(crate) fn refuse_read<E: Env>(&mut self, env: &mut E, psn: Psn) {
        self.resp.answers.retain(|answer| answer.psn.is_before(psn));
        self.resp.push_nak(psn, Syndrome::Nak(NakCode::RemoteAccess));
        self.resp.refusal = Some(Step::ErrRkeyViolation);
        env.count(Counter::RespRemoteAccessErrors);
        env.event(QpEvent::AccessErr);
        self.enter_error(env);
    }
}

#[cfg(test)]
mod tests {
    use iba::RKey;
    use wire::Reth;

    use super::*;

    fn psns(responder: &Responder) -> Vec<u32> {
        responder.answers.iter().map(|answer| answer.psn.value()).collect()
    }

    fn read(psn: u32, packets: u32, is_new: bool) -> Answer {
        let reth = Reth { va: 0, rkey: RKey(1), dma_len: packets * 256 };
        Answer::read(Psn::new(psn), packets, reth, is_new)
    }

    #[test]
    fn the_last_ack_is_enough() {
        let mut responder = Responder::default();
        for psn in [0xff_fffe, 0xff_ffff, 0, 1] {
            responder.push_ack(Psn::new(psn));
        }
        assert_eq!(psns(&responder), [1]);
    }

    #[test]
    fn an_ack_is_implied_by_what_comes_after_it() {
        let mut responder = Responder::default();
        responder.push_ack(Psn::new(4));
        responder.answers.push_back(read(5, 3, true));
        responder.push_ack(Psn::new(7));
        assert_eq!(psns(&responder), [4, 5]);
        responder.push_ack(Psn::new(8));
        assert_eq!(psns(&responder), [4, 5, 8]);
    }

    #[test]
    fn a_nak_takes_the_place_of_an_ack_but_not_the_other_way_round() {
        let mut responder = Responder::default();
        responder.push_ack(Psn::new(4));
        responder.push_nak(Psn::new(5), Syndrome::Nak(NakCode::PsnSequence));
        responder.push_ack(Psn::new(4));
        assert_eq!(psns(&responder), [5]);
        assert!(matches!(responder.answers[0].kind, Kind::Nak(_)));
        responder.push_ack(Psn::new(5));
        assert_eq!(psns(&responder), [5, 5]);
    }

    #[test]
    fn repeated_requests_keep_the_order() {
        let mut responder = Responder::default();
        responder.answers.push_back(read(20, 10, true));
        responder.answer_again(read(10, 10, false), 4);
        responder.answer_again(Answer::atomic(Psn::new(5), 1, false), 4);
        assert_eq!(psns(&responder), [5, 10, 20]);
        responder.answers[2].psn = Psn::new(25);
        responder.answer_again(read(22, 8, false), 4);
        assert_eq!(psns(&responder), [5, 10, 22]);
        assert!(responder.answers[2].is_new_data(), "going back keeps the resource");
    }

    #[test]
    fn repeated_requests_are_bounded() {
        let mut responder = Responder::default();
        for psn in 0..100 {
            responder.answer_again(read(psn, 1, false), 4);
        }
        assert_eq!(responder.answers.len(), 8);
    }
}
