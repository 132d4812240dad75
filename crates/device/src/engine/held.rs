//! Short WRITEs and READs that wait, so that several are carried out in one system call, and
//! packets for other hosts that wait for others of their train.
//!
//! An operation on ordinary memory of another process costs a system call, of which most is the
//! same for one operation and for many (`bench/README.md`). A program that posts many of them
//! before it looks for completions gains much if they go together. One that waits for each, or that
//! waits in another way (it spins on memory that the peer writes in answer), must not lose. So an
//! operation waits only
//!
//! * if the program posted [`POSTS_AT_ONCE`] of them since it last polled, or was right to be
//!   trusted before and has completions that it has not taken;
//! * until [`transport::RUN`] wait at its QP, a poll finds nothing, a queue is armed, the QP is
//!   given anything else to do, is changed or destroyed, or the process ends. If none of that
//!   happens the background thread carries it out after [`LONGEST_HOLD`].
//!
//! If the thread has to, the program does not poll for what it posts, and its next
//! [`Held::doubt`] operations do not wait. That number doubles each time.
//!
//! Nothing can overtake what waits: it stays in the send queue, and the queue is served from its
//! front.
//!
//! A packet for another host was built when its request was posted, and costs a system call, too,
//! unless it shares one with others of its train. So the last train waits by the same rules, and
//! until no more packets fit.

use transport::{RUN, Time};

use super::Engine;
use crate::ids::QpId;
use crate::objects::cq::Armed;
use crate::qp::QpEntry;
use crate::thresholds::{LONGEST_HOLD, POSTS_AT_ONCE};

/// After the first time that the thread had to carry operations out, this many do not wait.
const DOUBT: u32 = 64;
/// The most.
const MOST_DOUBT: u32 = 1 << 24;

/// The QPs whose operations wait.
#[derive(Debug)]
pub(crate) struct Held {
    qps: Vec<QpId>,
    /// Whether a train of datagrams waits.
    has_train: bool,
    since: Time,
    /// Operations posted since the last poll of the program.
    posts: u32,
    /// Whether the program polled, or posted many more, when operations last waited.
    is_trusted: bool,
    /// How many operations do not wait, since the program was waiting for something else.
    doubt: u32,
    next_doubt: u32,
    /// Whether operations have waited since the background thread last asked.
    waited: bool,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            qps: Vec::new(),
            has_train: false,
            since: Time::default(),
            posts: 0,
            is_trusted: false,
            doubt: 0,
            next_doubt: DOUBT,
            waited: false,
        }
    }
}

/// What ended the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The program: it polled, or did something else with the device.
    Program,
    /// As many waited as may.
    Many,
    /// Nothing but time.
    Time,
}

impl Held {
    /// When the background thread carries out what waits.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.is_empty()).then(|| self.since + LONGEST_HOLD)
    }

    /// Whether nothing waits.
    #[inline]
    fn is_empty(&self) -> bool {
        self.qps.is_empty() && !self.has_train
    }

    /// The program polls.
    #[inline]
    pub(crate) fn note_poll(&mut self) {
        self.posts = 0;
    }

    /// Whether operations have waited since the last call.
    pub(crate) fn take_waited(&mut self) -> bool {
        std::mem::take(&mut self.waited)
    }

    /// Whether the next operation may wait.
    fn may_begin(&mut self, has_completions: bool) -> bool {
        self.posts = self.posts.saturating_add(1);
        if self.doubt > 0 {
            self.doubt -= 1;
            return false;
        }
        self.posts > POSTS_AT_ONCE || (self.is_trusted && has_completions)
    }

    fn judge(&mut self, end: End) {
        self.is_trusted = end != End::Time;
        match end {
            End::Program => {}
            End::Many => self.next_doubt = DOUBT,
            End::Time => {
                self.doubt = self.next_doubt;
                self.next_doubt = self.next_doubt.saturating_mul(2).min(MOST_DOUBT);
            }
        }
    }
}

impl Engine {
    /// Whether the request that was just posted to a QP waits. Otherwise the QP is to be served
    /// now, with all that waits there.
    #[inline]
    pub(super) fn holds(&mut self, id: QpId) -> bool {
        let Self { common, qps, held, .. } = self;
        let Some(QpEntry { qp, context, .. }) = qps.get(id) else { return false };
        let Some(vf) = context.route.peer() else { return false };
        let (op, sends) = (qp.last_that_may_wait(), qp.sends());
        if let Some(index) = held.qps.iter().position(|other| *other == id) {
            if op.is_some() && sends < RUN {
                return true;
            }
            held.qps.swap_remove(index);
            if op.is_some() {
                held.judge(End::Many);
            }
            self.note_held();
            return false;
        }
        // Others that do not wait cannot be carried out yet.
        let may_wait = op.is_some_and(|op| sends == 1 && common.out.shm.gathers(vf, op.rkey));
        if !may_wait || !self.begins_to_wait(id) {
            return false;
        }
        self.held.qps.push(id);
        self.note_held();
        true
    }

    /// Whether the program is about to post more to this QP, and then look for completions. What
    /// was just posted waits from now on, unless something did before.
    #[inline]
    fn begins_to_wait(&mut self, id: QpId) -> bool {
        let Self { common, qps, held, clock, .. } = self;
        let Some(QpEntry { context, .. }) = qps.get(id) else { return false };
        let Some(cq) = common.objects.cqs.get(context.send_cq.index()) else { return false };
        if !held.may_begin(!cq.is_empty()) || cq.armed != Armed::No {
            return false;
        }
        if held.is_empty() {
            held.since = clock.now();
        }
        true
    }

    /// Whether the train that a packet of this QP just joined waits for more. Otherwise it is to be
    /// sent now.
    #[inline]
    pub(super) fn holds_train(&mut self, id: QpId) -> bool {
        let Self { common, held, delayed_acks, .. } = self;
        if common.out.udp.has_full() || !delayed_acks.is_empty() {
            if std::mem::take(&mut held.has_train) {
                held.judge(End::Many);
                self.note_held();
            }
            return false;
        }
        if held.has_train {
            return true;
        }
        if !self.begins_to_wait(id) {
            return false;
        }
        self.held.has_train = true;
        self.note_held();
        true
    }

    /// The train that waited is on its way, together with others.
    #[inline]
    pub(super) fn forget_train(&mut self) {
        if std::mem::take(&mut self.held.has_train) {
            self.note_held();
        }
    }

    /// Carries out what waits, as the program did something else than to post more.
    #[inline]
    pub(crate) fn carry_out_held(&mut self) -> bool {
        let has_held = !self.held.is_empty();
        if has_held {
            self.carry_out(End::Program);
        }
        has_held
    }

    /// Carries out what has waited for too long.
    pub(super) fn carry_out_overdue(&mut self) -> bool {
        let is_due = self.held.deadline().is_some_and(|due| due <= self.common.now);
        if is_due {
            self.carry_out(End::Time);
        }
        is_due
    }

    #[cold]
    fn carry_out(&mut self, end: End) {
        self.held.judge(end);
        self.common.now = self.clock.now();
        self.held.has_train = false;
        for id in std::mem::take(&mut self.held.qps) {
            self.transmit(id);
        }
        self.note_held();
        self.after_transmit();
    }

    /// Tells the background thread whether operations wait.
    fn note_held(&mut self) {
        let waits = self.common.out.shm.waits();
        if self.held.is_empty() {
            waits.set_held(false);
        } else if waits.set_held(true)
            && !std::mem::replace(&mut self.held.waited, true)
            && self.is_alarm_off()
        {
            // It may sleep for a lease, which is too long.
            waits.wake();
        }
    }
}
