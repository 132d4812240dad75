//! Raw packet QPs: Ethernet frames of the port.
//!
//! ```text
//!   post_send -> QP -> QpEnv::transmit_frame -> Sender (packet socket) -> netdev
//!   netdev -> Listener (packet socket) -> rules by priority -> QP, or RSS QP -> table -> work queue
//! ```
//!
//! The packet sockets are opened when they are needed: the first when a QP is created, as that is
//! what needs CAP_NET_RAW (`create_qp` of the kernel's `ib_core`), the second with the first rule.
//! A QP receives what a rule gives it, and nothing without a rule.
//!
//! **Frames of this host.** A NIC's embedded switch loops back frames to a group, or to the port's
//! own address. The kernel also shows outgoing frames to listeners, which is where such frames are
//! found, whichever process sent them.

mod receive;
mod steer;
mod wq;

use iba::SendFlags;
use link::ether::{self, OpenError};
use transport::env::{Counter, Env, Source, TransmitError};
use wire::frame::checksum;

use super::Engine;
use super::common::Common;
use super::env::QpEnv;
use crate::carrier::loopback::LoopPayload;
use crate::refusal::{Kind, Refusal, Result, refuse};

pub use self::wq::WqState;

impl Engine {
    /// Opens the port for another raw packet QP.
    pub(super) fn open_sender(&mut self) -> Result<()> {
        if !self.common.nic.attr.has_raw_packets {
            refuse!(NotSupported, "create_qp: a NIC of this preset has no raw packet QPs");
        }
        let port = self.common.ether_port();
        self.common.out.ether.open(port).map_err(|error| cannot_open("create_qp", &error))
    }

    /// Notes that a raw packet QP was destroyed.
    pub(super) fn close_sender(&mut self) {
        self.common.out.ether.close();
    }
}

impl Common {
    fn ether_port(&self) -> ether::Port {
        ether::Port {
            ifindex: self.nic.port.ifindex,
            is_loopback: self.nic.port.is_loopback,
            mtu: self.nic.port.link_mtu,
        }
    }
}

impl QpEnv<'_, '_> {
    /// Sends a frame through the port. A frame that the netdev does not accept is lost, as on a
    /// wire.
    pub(super) fn send_frame(
        &mut self,
        frame: &Source<'_>,
        flags: SendFlags,
    ) -> core::result::Result<(), TransmitError> {
        let LoopPayload::Bytes(mut bytes) = self.loop_payload_present(frame)? else {
            unreachable!("payloads of unreliable QPs are copied")
        };
        if flags.contains(SendFlags::IP_CSUM) {
            checksum::fill(&mut bytes);
        }
        let Some(sent) = self.common.out.ether.send(&bytes) else {
            self.count(Counter::DroppedPacket);
            return Ok(());
        };
        match sent {
            Ok(()) => {
                let counters = self.counters();
                counters.tx_raw_packets += 1;
                counters.tx_bytes += bytes.len() as u64;
            }
            Err(ether::SendError::WouldBlock) => return Err(TransmitError::Blocked),
            Err(error) => {
                tracing::debug!(
                    target: "peerdma::drop", qpn = %self.context.qpn, length = bytes.len(), "{error}"
                );
                self.count(Counter::DroppedPacket);
            }
        }
        Ok(())
    }
}

/// The refusal if the port cannot be opened.
fn cannot_open(who: &str, error: &OpenError) -> Refusal {
    let kind = match error {
        OpenError::NotPermitted(_) => Kind::NotPermitted,
        _ => Kind::NoMemory,
    };
    Refusal::new(kind, format!("{who}: raw packets: {error}"))
}
