//! What waits in the queue of UDP goes to its sockets and lines.

use iba::Qpn;
use link::udp::{LineError, SendError};

use super::Engine;
use super::qp::vf_of;
use super::udp::UdpQueue;

impl Engine {
    /// Sends the batches that wait for the socket; what it does not take now waits on.
    pub(crate) fn flush_udp(&mut self) {
        self.send_batches(|_| true);
    }

    /// Sends the batches that will not grow any more.
    pub(crate) fn flush_full_udp(&mut self) {
        self.send_batches(UdpQueue::has_full);
    }

    fn send_batches(&mut self, is_due: impl Fn(&UdpQueue) -> bool) {
        if !self.may_use_udp() {
            return;
        }
        let Self { core, receivers, .. } = self;
        let Some(udp) = receivers.udp.as_mut() else {
            while core.udp.front().is_some() {
                core.udp.pop();
                core.counters.dropped_packets += 1;
            }
            return;
        };
        while is_due(&core.udp)
            && let Some(batch) = core.udp.front()
        {
            let (to, dst) = (batch.to, batch.to.dst.to_ip());
            let segment_size = (batch.count > 1).then_some(batch.segment);
            let sent = if let Some(line) = batch.line {
                // CAST: a batch is no longer than a datagram can be.
                match udp.send_on(line, batch.bytes(), segment_size.map(|size| size as u16)) {
                    Ok(()) => Ok(()),
                    Err(LineError::WouldBlock) => return,
                    Err(error) => {
                        tracing::debug!(target: "peerdma::udp", %dst, "{error}");
                        udp.close_line(line);
                        core.udp.line_broke(line);
                        continue;
                    }
                }
            } else {
                udp.send(link::udp::Transmit {
                    dst,
                    src: to.src.to_ip(),
                    traffic_class: to.traffic_class,
                    hop_limit: to.hop_limit,
                    contents: batch.bytes(),
                    segment_size,
                })
            };
            match sent {
                Ok(()) => {
                    core.counters.tx_udp_packets += batch.count as u64;
                    if core.tap.is_some() {
                        core.tap_batch(udp.source_port(dst));
                    }
                }
                Err(SendError::WouldBlock { sent }) => {
                    core.udp.sent(sent);
                    return;
                }
                Err(SendError::NotSplit { sent }) => {
                    core.counters.tx_udp_packets += 1;
                    core.udp.set_max_segments(1);
                    core.udp.sent(sent);
                    continue;
                }
                Err(error) => {
                    core.counters.dropped_packets += batch.count as u64;
                    tracing::info!(target: "peerdma::udp", %dst, "send: {error}");
                }
            }
            core.udp.pop();
        }
        core.udp.set_max_segments(udp.max_gso_segments(UdpQueue::TYPICAL));
        if core.udp.lines.are_asked_for() {
            core.udp.lines.open_asked(udp);
        }
    }

    /// Closes the lines to the process of a QP.
    #[cold]
    pub(super) fn leave_lines(&mut self, peer: iba::Gid, dest: Qpn) {
        let Self { core, receivers, .. } = self;
        for line in core.udp.lines.leading_to(peer, vf_of(dest)) {
            tracing::info!(target: "peerdma::udp", dst = %peer, "silence: its line is closed");
            if let Some(udp) = &mut receivers.udp {
                udp.close_line(line);
            }
            core.udp.line_broke(line);
        }
    }
}
