//! Work requests in a trace: posts, completions, and what ends without one.

use iba::Qpn;
use perfetto::Kind;
use transport::Time;
use transport::env::{Completion, Side};
use transport::wr::{RecvWr, SendWr};

use super::names::{self, Arg, Category, Event};
use super::queue::{Open, Queue};
use super::{OfQp, Tracer};
use crate::ids::SrqId;
use crate::qp::QpContext;

impl Tracer {
    /// A send was posted.
    pub(crate) fn send(&mut self, now: Time, context: &QpContext, wr: &SendWr, length: u32) {
        let open = self.open_request(now, wr.wr_id, names::of_request(wr.opcode), length.into());
        let (qp, trace) = self.qp(context);
        qp.sends.post(trace, open);
    }

    /// A receive was posted to the queue of a QP: its `wr_id`, and its room.
    pub(crate) fn receive(&mut self, now: Time, context: &QpContext, (wr_id, room): (u64, u64)) {
        let open = self.open_request(now, wr_id, Event::Receive as u64, room);
        let (qp, trace) = self.qp(context);
        qp.receives.post(trace, open);
    }

    /// A receive was posted to a shared queue.
    pub(crate) fn shared_receive(&mut self, now: Time, srq: SrqId, wr: &RecvWr) {
        let open = self.open_request(now, wr.wr_id, Event::Receive as u64, wr.room());
        let (trace, nic) = (&mut self.trace, self.tracks.nic);
        let queue = self.srqs.entry(srq).or_insert_with(|| {
            Queue::new(trace.track(nic, &format!("SRQ {}", srq.handle()), 0), "receives")
        });
        queue.post(trace, open);
    }

    /// A request completed on a CQ.
    pub(crate) fn completed(&mut self, now: Time, context: &QpContext, completion: &Completion) {
        let at = self.times.at(now);
        let Completion { side, wr_id, status, byte_len, .. } = *completion;
        let (cq, queue) = match (side, context.srq) {
            (Side::Send, _) => {
                (context.send_cq, self.qps.get_mut(&context.qpn).map(|qp| &mut qp.sends))
            }
            (Side::Recv, Some(srq)) => (context.recv_cq, self.srqs.get_mut(&srq)),
            (Side::Recv, None) => {
                (context.recv_cq, self.qps.get_mut(&context.qpn).map(|qp| &mut qp.receives))
            }
        };
        let trace = &mut self.trace;
        let request = queue.and_then(|queue| queue.end(trace, wr_id, at, names::of_status(status)));
        let nic = self.tracks.nic;
        let name = || format!("CQ {}", cq.handle());
        let track = *self.cqs.entry(cq).or_insert_with(|| trace.track(nic, &name(), 0));
        let mut event = trace.event(at, Kind::Instant, track, names::of_status(status));
        event
            .category(Category::Completion as u64)
            .hex(Arg::Qp as u64, context.qpn.value().into())
            .hex(Arg::WrId as u64, wr_id)
            .number(Arg::Bytes as u64, byte_len.into());
        if let Some(Open { flow, .. }) = request {
            event.last_of_flow(flow).correlation(flow);
        }
        // One acknowledgement may complete several.
        if let Some(flow) = self.handled {
            event.flow(flow);
        }
        if let Some(why) = self.why.take() {
            event.text(Arg::Why as u64, &why);
        }
    }

    /// The oldest send of a QP ended well, without a completion.
    pub(crate) fn ended_silently(&mut self, now: Time, qpn: Qpn) {
        let at = self.times.at(now);
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.sends.end_first(&mut self.trace, at, names::NO_COMPLETION);
        }
    }

    /// A request fails, for this reason; its completion follows.
    pub(crate) fn fails(&mut self, why: &str) {
        self.why = Some(why.to_owned());
    }

    /// The requests of a QP ended without completions: it was reset, or destroyed.
    pub(crate) fn emptied(&mut self, now: Time, qpn: Qpn, why: &str) {
        let at = self.times.at(now);
        if let Some(qp) = self.qps.remove(&qpn) {
            qp.sends.end_all(&mut self.trace, at, why);
            qp.receives.end_all(&mut self.trace, at, why);
        }
    }

    /// A shared queue was destroyed.
    pub(crate) fn emptied_srq(&mut self, now: Time, srq: SrqId) {
        let at = self.times.at(now);
        if let Some(queue) = self.srqs.remove(&srq) {
            queue.end_all(&mut self.trace, at, "destroyed");
        }
    }

    /// The queues of a QP, and the trace to which they write.
    fn qp(&mut self, context: &QpContext) -> (&mut OfQp, &mut perfetto::Trace) {
        let (trace, nic) = (&mut self.trace, self.tracks.nic);
        let qp = self.qps.entry(context.qpn).or_insert_with(|| {
            let name = format!("QP {} {}", context.qpn, context.qp_type);
            let track = trace.track(nic, &name, 0);
            OfQp { sends: Queue::new(track, "sends"), receives: Queue::new(track, "receives") }
        });
        (qp, trace)
    }

    fn open_request(&mut self, now: Time, wr_id: u64, name: u64, bytes: u64) -> Open {
        self.posted += 1;
        let flow = perfetto::id(&[self.tracks.nic, self.times.origin, self.posted]);
        let posted = self.times.at(now);
        Open { flow, wr_id, name, bytes, posted, lane: None }
    }
}
