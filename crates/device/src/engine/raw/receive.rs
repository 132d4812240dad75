//! Received frames, and their destinations.

use iba::WcFlags;
use link::ether::Listener;
use smallvec::SmallVec;
use wire::frame::{Frame, checksum};

use super::{Engine, cannot_open};
use crate::carrier::ether::Frames;
use crate::engine::common::Common;
use crate::engine::env::QpEnv;
use crate::ids::QpId;
use crate::payload::InPayload;
use crate::qp::QpTable;
use crate::qp::Role;
use crate::refusal::Result;

/// The most frames taken before other packets have their turn.
const BURST: usize = 64;
impl Engine {
    /// Starts listening for frames, unless that has started.
    pub(super) fn listen(&mut self) -> Result<()> {
        if self.receivers.frames.is_some() {
            return Ok(());
        }
        let listener = Listener::open(self.common.ether_port())
            .map_err(|error| cannot_open("create_flow", &error))?;
        self.common.out.shm.waits().add_datagrams(&listener);
        self.receivers.frames = Some(Box::new(Frames::new(listener)));
        Ok(())
    }

    /// Takes frames from the port.
    pub(crate) fn receive_frames(&mut self) -> bool {
        let Self { common, qps, receivers, .. } = self;
        let Some(frames) = &mut receivers.frames else { return false };
        frames.is_holding = false;
        let mut taken = 0;
        while taken < BURST {
            let frame = match frames.listener.receive() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    tracing::info!(target: "peerdma::raw", "receive: {error}");
                    break;
                }
            };
            if frame.is_unfinished {
                checksum::fill_segment(frame.bytes);
            }
            let Some(parsed) = Frame::parse(frame.bytes) else { continue };
            let takers = common.objects.flows.takers(&parsed, frame.passed, common.nic.port.mac);
            let queues: SmallVec<[Taker; 4]> =
                takers.iter().filter_map(|id| queue_for(common, qps, *id, &parsed)).collect();
            let mut waits = false;
            for to in &queues {
                waits |= waits_for_receive(common, qps, to.queue);
            }
            if waits {
                frames.listener.keep();
                frames.is_holding = true;
                break;
            }
            if queues.is_empty() {
                continue;
            }
            taken += 1;
            let flags = if checksum::are_right(frame.bytes) {
                WcFlags::IP_CSUM_OK
            } else {
                WcFlags::empty()
            };
            for to in queues {
                deliver(common, qps, to, frame.bytes, flags);
            }
        }
        common.counters.first.dropped_packets += frames.looked(taken > 0);
        taken > 0
    }
}

/// Where a frame of a QP goes.
#[derive(Clone, Copy)]
struct Taker {
    /// The port of the QP.
    port: u8,
    /// The QP, or the work queue of it.
    queue: QpId,
}

/// The receive queue for a frame of a QP, if the QP accepts frames now.
fn queue_for(common: &Common, qps: &QpTable, id: QpId, frame: &Frame) -> Option<Taker> {
    let entry = qps.get(id)?;
    let port = entry.context.port;
    if let Some(Role::Rss { table, hash }) = entry.context.role.as_deref() {
        let queues = &common.objects.rwq_tables.get(table.index())?.queues;
        // The length is a power of two.
        let at = hash.hash(frame) as usize & (queues.len() - 1);
        let queue = qps.get(queues[at])?;
        return queue.qp.takes_frames().then_some(Taker { port, queue: queues[at] });
    }
    entry.qp.takes_frames().then_some(Taker { port, queue: id })
}

/// Whether a frame waits in its socket for the receive of a queue.
fn waits_for_receive(common: &mut Common, qps: &mut QpTable, id: QpId) -> bool {
    let Some(entry) = qps.get_mut(id) else { return false };
    let has_one = match entry.context.srq {
        Some(srq) => common.objects.srqs.get(srq.index()).is_some_and(|srq| !srq.queue.is_empty()),
        None => entry.qp.receives() > 0,
    };
    entry.context.waits_for_receive(has_one, common.now)
}

/// Gives a frame to a queue, if it has a receive.
fn deliver(common: &mut Common, qps: &mut QpTable, to: Taker, bytes: &[u8], flags: WcFlags) {
    let Some(entry) = qps.get_mut(to.queue) else { return };
    let receive = match entry.context.srq {
        Some(srq) => common.take_srq(srq),
        None => entry.qp.take_receive(),
    };
    let Some(wr) = receive else {
        common.counters.of(to.port).out_of_buffer += 1;
        return;
    };
    let counters = common.counters.of(to.port);
    counters.rx_raw_packets += 1;
    counters.rx_bytes += bytes.len() as u64;
    let mut env = QpEnv::new(common, &mut entry.context);
    entry.qp.receive_frame(&mut env, &wr, &InPayload::Bytes(bytes), bytes.len() as u32, flags);
}
