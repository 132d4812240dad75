//! A queue pair: its queues, its three machines, and the calls that drive them.

use std::collections::VecDeque;
use std::time::Duration;

use iba::{QpAttr, QpCap, QpEvent, QpState, QpType, Qpn};
use wire::{Opcode, Service};

use crate::ack_delay::AckDelay;
use crate::congestion::Congestion;
use crate::env::{Completion, Counter, Env, Rx, Side};
use crate::pace::Pace;
use crate::path::{MEMORY_WINDOW, PathCaps};
use crate::req::Requester;
use crate::resp::{Responder, Step};
use crate::time::Time;
use crate::window::Window;
use crate::wqe::{Failure, Wqe};
use crate::wr::{RecvWr, SendWr};

/// What a QP is created with.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct QpInit {
    /// Its number.
    pub qpn: Qpn,
    /// Its transport service.
    pub qp_type: QpType,
    /// Whether every send completes visibly, whatever its flags say.
    pub sq_sig_all: bool,
    /// The size of its queues.
    pub cap: QpCap,
    /// Whether receives come from a shared receive queue.
    pub has_srq: bool,
}

/// What [`Qp::poll_transmit`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the device handles each")]
#[must_use = "a QP that says More or Blocked has to be polled again"]
pub enum Poll {
    /// There is nothing to send until something else happens.
    Idle,
    /// The carrier has no room. Poll again when it has.
    Blocked,
    /// The budget is used up. Poll again.
    More,
}

/// A queue pair.
///
/// See the [crate](crate) for how to drive it. It is a few hundred bytes; its queues allocate when
/// they are first used.
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) sq_sig_all: bool,
    /// Whether each send is counted when it is done.
    pub(crate) is_counted: bool,
    pub(crate) has_srq: bool,
    /// Whether [`QpEvent::CommEst`] was raised.
    pub(crate) comm_est: bool,
    pub(crate) cap: QpCap,
    /// `state` is the state of the QP; the sequence numbers are the initial ones, not the current
    /// ones.
    pub(crate) attr: QpAttr,
    pub(crate) path: PathCaps,
    /// How many packets may be unacknowledged.
    pub(crate) window: Window,
    pub(crate) congestion: Congestion,
    pub(crate) pace: Pace,
    pub(crate) ack_delay: AckDelay,
    pub(crate) sq: VecDeque<Wqe>,
    pub(crate) rq: VecDeque<RecvWr>,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
}

/// The outcome of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Nothing to send.
    Nothing,
    /// This many packets were sent, at least one; a work request that was carried out without a
    /// packet counts as one.
    Packets(u32),
    /// The carrier has no room.
    Blocked,
}

impl Sent {
    /// How much of the packet budget it used.
    const fn cost(self) -> usize {
        match self {
            Self::Nothing | Self::Blocked => 0,
            Self::Packets(packets) => packets as usize,
        }
    }
}

impl Qp {
    /// A QP in RESET.
    pub fn new(init: QpInit) -> Self {
        let attr = QpAttr::default();
        Self {
            qpn: init.qpn,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            is_counted: false,
            has_srq: init.has_srq,
            comm_est: false,
            cap: init.cap,
            path: PathCaps::wire(attr.path_mtu),
            window: Window::wire(attr.path_mtu),
            congestion: Congestion::default(),
            pace: Pace::default(),
            ack_delay: AckDelay::default(),
            attr,
            sq: VecDeque::new(),
            rq: VecDeque::new(),
            req: Requester::default(),
            resp: Responder::default(),
        }
    }

    /// Sets the path of the packets. Moving a connected QP to RTR sets a wire with the path MTU
    /// given there; a datagram QP starts with 4,096 bytes. Call this after that and before the
    /// first packet, or in SQD once drained.
    pub fn set_path(&mut self, path: PathCaps) {
        self.path = path.rounded();
        self.window =
            if path.reliable { Window::fixed(MEMORY_WINDOW) } else { Window::wire(path.path_mtu) };
    }

    /// Sets how many packets may be unacknowledged, instead of the default of the path: at least 1,
    /// at most 2^22.
    pub fn set_window(&mut self, packets: u32) {
        self.window = Window::fixed(packets.clamp(1, MEMORY_WINDOW));
    }

    /// Handles a packet for this QP.
    ///
    /// A packet that breaks a rule is dropped or refused as the standard says, and counted; none
    /// causes a panic.
    pub fn handle_packet<E: Env>(&mut self, env: &mut E, now: Time, rx: &Rx<'_, E::Payload>) {
        let opcode = rx.headers.bth.opcode;
        if opcode.service() == Service::Cnp {
            return self.handle_cnp(env, rx);
        }
        if !self.state().receives() || Some(opcode.service()) != Service::of(self.qp_type) {
            if opcode.service() == Service::Manufacturer {
                return self.handle_sack(env, now, rx);
            }
            return env.count(Counter::DroppedPacket);
        }
        if self.state() == QpState::Rtr && self.qp_type.is_connected() && !self.comm_est {
            // IBA 11.6.3.1: so that a consumer need not wait for the last message of the connection
            // manager.
            self.comm_est = true;
            env.event(QpEvent::CommEst);
        }
        if rx.marked {
            self.note_mark(env, now);
        }
        let operation = opcode.operation();
        // With XRC, one side only sends requests and the other only answers them.
        if operation.is_request() && self.qp_type != QpType::XrcSend {
            self.respond(env, rx);
        } else if operation.is_response() && self.qp_type != QpType::XrcRecv {
            self.handle_answer(env, now, rx);
        } else {
            env.count(Counter::DroppedPacket);
        }
    }

    /// Whether a packet that [consumes a receive](crate::consumes_receive) would be lost because
    /// there is none: on an unreliable service nobody sends it again. A carrier that can hold
    /// packets back may wait for a receive instead. For a QP with a shared queue, the answer
    /// assumes that the queue is empty.
    pub fn is_starved(&self, opcode: Opcode) -> bool {
        !self.qp_type.is_reliable()
            && self.state().receives()
            && Some(opcode.service()) == Service::of(self.qp_type)
            && self.resp.recv.is_none()
            && self.rq.is_empty()
    }

    /// Sends up to `budget` packets: answers to the peer and requests in turn. An acknowledgement
    /// that may wait ([`AckPolicy`](crate::AckPolicy)) stays if there is no request to travel with
    /// it and no other answer; one that waited follows the requests.
    ///
    /// Work requests that were posted in an error state are flushed here too, as posting does not
    /// have an [`Env`].
    pub fn poll_transmit<E: Env>(&mut self, env: &mut E, now: Time, budget: usize) -> Poll {
        match self.state() {
            QpState::Err => self.flush(env),
            QpState::Sqe => self.flush_sends(env),
            _ => {}
        }
        if self.owes_report() && self.transmit_report(env) == Sent::Blocked {
            return Poll::Blocked;
        }
        // An acknowledgement that did not wait goes first: a later packet may be refused and end
        // the connection at the peer, which would then never learn that its own request was done.
        if (self.ack_delay.has_stayed() || self.ack_delay.is_on()) && self.owes_only_ack() {
            return self.transmit_ack_last(env, now, budget);
        }
        self.ack_delay.end();
        let mut left = budget.max(1);
        loop {
            let answer = if self.resp.has_answers() {
                self.transmit_answer(env, now, left)
            } else {
                Sent::Nothing
            };
            left = left.saturating_sub(answer.cost());
            let request =
                if left > 0 { self.transmit_request(env, now, left) } else { Sent::Nothing };
            left = left.saturating_sub(request.cost());
            if left == 0 {
                return Poll::More;
            }
            if answer.cost() + request.cost() == 0 {
                let blocked = answer == Sent::Blocked || request == Sent::Blocked;
                return if blocked { Poll::Blocked } else { Poll::Idle };
            }
        }
    }

    /// Sends requests, and then the acknowledgement: as it is shorter than the requests, it can end
    /// their train, while before them it would be a train of its own.
    fn transmit_ack_last<E: Env>(&mut self, env: &mut E, now: Time, budget: usize) -> Poll {
        let most = budget.saturating_sub(1).max(1);
        let mut left = most;
        let mut request = Sent::Packets(1);
        while left > 0 && request.cost() > 0 {
            request = self.transmit_request(env, now, left);
            left = left.saturating_sub(request.cost());
        }
        let stays = self.ack_delay.is_on() && left == most && self.owes_only_ack();
        let answer = if stays {
            self.ack_delay.stay();
            Sent::Nothing
        } else {
            self.ack_delay.end();
            self.transmit_answer(env, now, 1)
        };
        if request == Sent::Blocked || answer == Sent::Blocked {
            Poll::Blocked
        } else if left == 0 {
            Poll::More
        } else {
            Poll::Idle
        }
    }

    /// Whether the peer is owed a single acknowledgement and nothing else.
    fn owes_only_ack(&self) -> bool {
        self.resp.owes_only_ack() && !self.owes_report()
    }

    /// Whether there are requests that were not sent yet, or must be sent again. If not, polling
    /// does not depend on the time.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.req.index < self.sq.len() || self.req.gaps.executed.is_some()
    }

    /// Whether its carrier had no room for its next request, and nothing else is to be done.
    #[inline]
    pub fn waits_for_room(&self) -> bool {
        self.req.blocked && self.has_unsent() && self.only_requests()
    }

    /// Whether it may send requests, and owes no answer.
    fn only_requests(&self) -> bool {
        self.state() == QpState::Rts && !self.owes_answers()
    }

    /// Whether its next request is a message, which a packet must carry, and nothing else is to be
    /// done.
    #[inline]
    pub fn has_message(&self) -> bool {
        let next = self.sq.get(self.req.index).filter(|_| self.only_requests());
        next.is_some_and(|wqe| wqe.takes_receive())
    }

    /// Whether answers to the peer wait to be sent. One that [stays](Qp::holds_ack) does not.
    pub fn owes_answers(&self) -> bool {
        self.resp.owes_answers() && !self.holds_ack() || self.owes_report()
    }

    /// When [`Qp::handle_timeout`] wants to be called, if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let earlier = |one: Option<Time>, other: Option<Time>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let req = &self.req;
        let ack = self.ack_delay.deadline();
        earlier(ack, earlier(req.ack_timer, earlier(req.rnr_until, req.paced_until)))
    }

    /// The least time that it waits for an acknowledgement; `None` if it waits forever.
    pub fn ack_timeout(&self) -> Option<Duration> {
        self.attr.timeout.duration()
    }

    /// Its number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its transport service.
    pub const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its state.
    pub const fn state(&self) -> QpState {
        self.attr.state
    }

    /// The size of its queues.
    pub const fn cap(&self) -> QpCap {
        self.cap
    }

    /// What carries its packets.
    pub const fn path(&self) -> PathCaps {
        self.path
    }

    /// Whether every send completes visibly.
    pub const fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    /// Send work requests that have not completed.
    pub fn sends(&self) -> usize {
        self.sq.len()
    }

    /// The last `count` requests of the send queue that have not completed, the oldest first, each
    /// with the length of its message.
    pub fn last_sends(&self, count: usize) -> impl Iterator<Item = (&SendWr, u32)> {
        let before = self.sq.len().saturating_sub(count);
        self.sq.range(before..).map(|wqe| (&wqe.wr, wqe.length))
    }

    /// Receive work requests that have not completed, including one that a message is filling.
    pub fn receives(&self) -> usize {
        self.rq.len() + usize::from(self.resp.recv.is_some())
    }

    /// The step at which the responder last refused or dropped a packet.
    pub const fn last_refusal(&self) -> Option<Step> {
        self.resp.refusal
    }

    /// Completes and counts. A reference, so that a completion that was just built is not copied:
    /// on the fast path, the copy would wait for the stores before it, which go to a cache line
    /// that the peer holds.
    #[inline]
    pub(crate) fn complete<E: Env>(env: &mut E, completion: &Completion) {
        match (completion.side, completion.status) {
            (_, iba::WcStatus::Success) => {}
            (Side::Send, iba::WcStatus::WrFlushErr) => env.count(Counter::ReqCqeFlushError),
            (Side::Send, _) => env.count(Counter::ReqCqeError),
            (Side::Recv, iba::WcStatus::WrFlushErr) => env.count(Counter::RespCqeFlushError),
            (Side::Recv, _) => env.count(Counter::RespCqeError),
        }
        Self::count_receive(env, completion);
        env.complete(completion);
    }

    /// Completes a request of the send queue.
    pub(crate) fn complete_send<E: Env>(env: &mut E, wqe: &Wqe, failure: Option<Failure>) {
        Self::count_send(env, wqe, failure);
        if let Some(completion) = wqe.completion(failure) {
            Self::complete(env, &completion);
        }
    }

    /// Moves to ERR and flushes. Answers to the peer that are queued still go out: the last of them
    /// gives the reason.
    pub(crate) fn enter_error<E: Env>(&mut self, env: &mut E) {
        self.attr.state = QpState::Err;
        env.entered_error();
        self.req.stop();
        self.resp.take_up_answers();
        self.flush(env);
        if self.has_srq {
            // IBA 11.6.3.1: no receive of the shared queue will complete on this QP any more.
            env.event(QpEvent::LastWqeReached);
        }
    }

    /// Completes everything in both queues as flushed (IBA 10.3.1, error state), in order.
    pub(crate) fn flush<E: Env>(&mut self, env: &mut E) {
        self.flush_sends(env);
        self.flush_receives(env);
    }

    pub(crate) fn flush_sends<E: Env>(&mut self, env: &mut E) {
        while let Some(wqe) = self.sq.pop_front() {
            Self::complete_send(env, &wqe, Some(Failure::FLUSHED));
        }
    }
}
