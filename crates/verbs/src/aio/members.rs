//! What shared receive queues and their QPs have in the table.

use std::collections::{HashMap, VecDeque};
use std::sync::Weak;
use std::task::Waker;

use iba::{Qpn, WcOpcode, WcStatus};
use slab::Slab;
use transport::env::Reason;

use super::error::{Error, Failure};
use super::inbox::{Arrived, Inbox, arrived};
use super::receives::Home;
use super::table::{After, State};
use super::wakers::Wakers;
use crate::Wc;
use crate::owned::Buffer;

/// What a shared receive queue has in the table.
#[derive(Debug)]
pub(super) struct OfSrq {
    /// Its QPs, by number.
    qps: HashMap<Qpn, usize>,
    /// The QPs that have something for [`Srq::recv`](super::Srq::recv), each once.
    listed: VecDeque<usize>,
    /// In an XRC domain, where it has no QPs: what has arrived.
    arrived: Option<VecDeque<Next>>,
    wakers: Wakers,
    queue: Weak<dyn Home>,
}

/// What a QP is to its shared receive queue.
#[derive(Debug)]
pub(super) struct Member {
    /// The number of the queue in the table.
    srq: usize,
    qpn: Qpn,
    /// How many bytes stand before each of its messages.
    header: usize,
    is_listed: bool,
    /// Whether it may take more receives: until the device says that it took its last.
    takes_more: bool,
}

/// What a QP has for its shared receive queue.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) qpn: Qpn,
    pub(super) header: usize,
    pub(super) result: Result<Arrived, Error>,
}

impl OfSrq {
    pub(super) fn new(queue: Weak<dyn Home>, is_xrc: bool) -> Self {
        let arrived = is_xrc.then(VecDeque::new);
        let (qps, listed, wakers) = (HashMap::new(), VecDeque::new(), Wakers::default());
        Self { qps, listed, arrived, wakers, queue }
    }

    pub(super) fn take_wakers(&mut self) -> Wakers {
        self.wakers.take()
    }
}

impl Member {
    pub(super) fn new(srq: usize, qpn: Qpn, header: usize) -> Self {
        Self { srq, qpn, header, is_listed: false, takes_more: true }
    }

    /// The device says that it took its last receive. True the first time.
    pub(super) fn ends(&mut self) -> bool {
        std::mem::take(&mut self.takes_more)
    }

    /// Has its queue look at it, and takes the tasks that wait there.
    fn list(&mut self, key: usize, srqs: &mut Slab<OfSrq>) -> Wakers {
        let of_srq = &mut srqs[self.srq];
        if !std::mem::replace(&mut self.is_listed, true) {
            of_srq.listed.push_back(key);
        }
        of_srq.wakers.take()
    }
}

impl State {
    /// A QP receives from a shared queue.
    pub(super) fn join(&mut self, key: usize, member: Member) {
        self.srqs[member.srq].qps.insert(member.qpn, key);
        self.qps[key].member = Some(member);
    }

    /// A QP is gone.
    pub(super) fn part(&mut self, member: &Member, key: usize) {
        // The queue itself may be gone, when the last QP goes that held it.
        if let Some(of_srq) = self.srqs.get_mut(member.srq) {
            of_srq.qps.remove(&member.qpn);
            of_srq.listed.retain(|listed| *listed != key);
        }
    }

    /// A receive of a shared queue has completed.
    pub(super) fn arrived(
        &mut self,
        srq: usize,
        wc: Wc,
        why: Option<String>,
        buffer: Buffer,
        after: &mut After,
    ) {
        let of_srq = &mut self.srqs[srq];
        let queue = of_srq.queue.clone();
        let left = if let Some(messages) = &mut of_srq.arrived {
            let (result, left) = if wc.is_success() {
                (Ok(arrived(wc, buffer)), None)
            } else {
                (Err(Failure::new(wc, why, true).into()), Some(buffer))
            };
            messages.push_back(Next { qpn: wc.qpn, header: 0, result });
            after.wakers = of_srq.wakers.take();
            left
        } else if let Some(&key) = of_srq.qps.get(&wc.qpn) {
            let left = self.qps[key].inbox.arrive(wc, why, buffer);
            after.wakers = self.changed(key);
            left
        } else {
            Some(buffer)
        };
        (after.buffer, after.shared) = left.map(|buffer| (buffer, queue)).unzip();
    }

    /// Nothing more arrives at a QP of a shared queue. Returns the tasks that wait for it.
    pub(super) fn end(&mut self, key: usize, why: Option<String>) -> Wakers {
        let of_qp = &mut self.qps[key];
        let Some(member) = &of_qp.member else { return Wakers::default() };
        of_qp.inbox.end(|| Failure::new(flushed(member.qpn), why, true).into());
        self.changed(key)
    }

    /// A QP has something new. Returns the tasks that wait for it.
    fn changed(&mut self, key: usize) -> Wakers {
        let Self { qps, srqs, .. } = self;
        let of_qp = &mut qps[key];
        let mut wakers = of_qp.inbox.wakers.take();
        if let Some(member) = &mut of_qp.member {
            wakers.extend(member.list(key, srqs));
        }
        wakers
    }

    /// What one of the QPs of a shared queue has, in turn; otherwise the task is woken when one
    /// has something.
    pub(super) fn next_of_any(&mut self, srq: usize, task: Option<&Waker>) -> Option<Next> {
        let Self { qps, srqs, .. } = self;
        let of_srq = &mut srqs[srq];
        if let Some(next) = of_srq.arrived.as_mut().and_then(VecDeque::pop_front) {
            return Some(next);
        }
        while let Some(key) = of_srq.listed.pop_front() {
            let of_qp = &mut qps[key];
            let member = of_qp.member.as_mut().expect("it is listed");
            let Some(result) = of_qp.inbox.take_once() else {
                member.is_listed = false;
                continue;
            };
            if of_qp.inbox.has_more() {
                of_srq.listed.push_back(key);
            } else {
                member.is_listed = false;
            }
            return Some(Next { qpn: member.qpn, header: member.header, result });
        }
        of_srq.wakers.add(task);
        None
    }
}

impl Inbox {
    /// As [`take`](Self::take), with the end once.
    fn take_once(&mut self) -> Option<Result<Arrived, Error>> {
        self.pop().map(Ok).or_else(|| self.tell_end().map(Err))
    }
}

/// A receive that would be flushed, if the queue were the QP's own. `wr_id` is no request's.
pub(super) fn flushed(qpn: Qpn) -> Wc {
    Wc {
        wr_id: u64::MAX,
        status: WcStatus::WrFlushErr,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn,
        src_qpn: Qpn::default(),
        has_grh: false,
        time: None,
        reason: Reason::Flushed,
        vendor_err: 0,
    }
}
