//! Counters, under the names that mlx5 documents for its hardware counters.

use transport::env::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident $(= $variant:ident)?,)*) => {
        /// The counters of a device since it was opened.
        #[derive(Clone, Copy, Debug, Default)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// Nothing was counted.
            pub(crate) const ZERO: Self = Self { $($field: 0,)* };

            /// Every counter with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }

            /// Adds what another device counted.
            pub(crate) fn merge(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            pub(crate) fn add(&mut self, counter: Counter) {
                match counter {
                    $($(Counter::$variant => self.$field += 1,)?)*
                    _ => {}
                }
            }
        }
    };
}

/// Bytes that a packet between queue pairs of this host counts besides its payload: those of a base
/// transport header and an ICRC.
pub(crate) const STAYS: u64 = 12 + 4;

counters! {
    /// Messages of connection management that were ignored: duplicates, late ones, and invalid
    /// ones.
    cm_ignored,
    /// Repeated requests, which were answered again.
    duplicate_request = DuplicateRequest,
    /// READ responses that showed a loss.
    implied_nak_seq_err = ImpliedNakSeqErr,
    /// Timeouts of the requester.
    local_ack_timeout_err = LocalAckTimeoutErr,
    /// Requests that found no receive.
    out_of_buffer = OutOfBuffer,
    /// Packets that arrived too early.
    out_of_sequence = OutOfSequence,
    /// Sequence NAKs received.
    packet_seq_err = PacketSeqErr,
    /// Congestion notifications sent.
    np_cnp_sent = NpCnpSent,
    /// Packets that a switch marked.
    np_ecn_marked_roce_packets = NpEcnMarkedRocePackets,
    /// Accesses put off because their memory was absent.
    page_faults_pending = PageFaultsPending,
    /// Pages, and moving buffers, that an access found absent.
    page_faults,
    /// Pages faulted in ahead of an access.
    page_prefetch,
    /// Invalidations of a mapping by its exporter, and pages that the kernel took away.
    page_invalidations,
    /// Send completions with an error.
    req_cqe_error = ReqCqeError,
    /// Send completions flushed.
    req_cqe_flush_error = ReqCqeFlushError,
    /// Remote access errors the peer reported.
    req_remote_access_errors = ReqRemoteAccessErrors,
    /// Invalid requests the peer reported.
    req_remote_invalid_request = ReqRemoteInvalidRequest,
    /// Receive completions with an error.
    resp_cqe_error = RespCqeError,
    /// Receive completions flushed.
    resp_cqe_flush_error = RespCqeFlushError,
    /// Messages longer than their receive.
    resp_local_length_error = RespLocalLengthError,
    /// Requests refused access.
    resp_remote_access_errors = RespRemoteAccessErrors,
    /// Requests refused as invalid.
    resp_remote_invalid_request = RespRemoteInvalidRequest,
    /// Receiver-not-ready NAKs beyond the retry count.
    rnr_nak_retry_err = RnrNakRetryErr,
    /// Congestion notifications obeyed.
    rp_cnp_handled = RpCnpHandled,
    /// Congestion notifications without effect: congestion control is off, or the QP has no window.
    rp_cnp_ignored = RpCnpIgnored,
    /// Atomics received.
    rx_atomic_requests = RxAtomicRequests,
    /// READs received.
    rx_read_requests = RxReadRequests,
    /// WRITEs received.
    rx_write_requests = RxWriteRequests,
    /// Receiver-not-ready NAKs sent.
    send_rnr_nak = SendRnrNak,
    /// Datagrams with a wrong key.
    qkey_violation = QkeyViolation,
    /// Packets of another partition.
    pkey_violation,
    /// Packets dropped by a QP's rules, or because there was no path.
    dropped_packets = DroppedPacket,
    /// Packets that no codec accepts.
    rx_malformed_packets,
    /// Packets whose ICRC is wrong.
    rx_icrc_encapsulated,
    /// Packets for a QP that does not exist.
    rx_unknown_qpn,
    /// Packets that do not come from the QP's peer.
    rx_wrong_source,
    /// Packets to an address of this host that is not one of the port.
    rx_wrong_destination,
    /// Packets received over UDP.
    rx_udp_packets,
    /// Packets sent over UDP.
    tx_udp_packets,
    /// Bytes of packets sent: from the base transport header through the ICRC; of Ethernet frames,
    /// all. A packet that stays on this host counts its payload and 16.
    tx_bytes,
    /// The same of packets received. A datagram that is forwarded counts in its process; a
    /// management datagram, which its contents show to be another process's, where it arrived.
    rx_bytes,
    /// Packets received for a multicast group.
    rx_multicast_packets,
    /// Packets sent to a multicast group.
    tx_multicast_packets,
    /// Packets received over UDP and forwarded to their process.
    forwarded_packets,
    /// Packets received from other processes of this host.
    rx_shm_packets,
    /// Packets sent to other processes of this host.
    tx_shm_packets,
    /// Ethernet frames given to raw packet QPs and work queues.
    rx_raw_packets,
    /// Ethernet frames sent.
    tx_raw_packets,
    /// Packets within this process, where they are sent.
    loopback_packets,
    /// The same where they are received, which may be another port.
    rx_loopback_packets,
    /// One-sided operations carried out without the target's engine.
    direct_operations,
    /// Their bytes.
    direct_bytes,
    /// Bytes of dma-bufs read and written by their address on the bus, from device to device. This,
    /// the next four and the stale accesses count all devices of the process together
    /// ([`umem::ways`]).
    dmabuf_bus_address_bytes,
    /// The same through the host bridge, from device to device.
    dmabuf_host_bridge_bytes,
    /// In the host's memory.
    dmabuf_system_bytes,
    /// Through the CPU's mapping of a buffer whose addresses are on no bus of the process.
    dmabuf_cpu_bytes,
    /// Bytes of dma-bufs that were stored in host memory other than in the packets of a carrier.
    /// Only a capture does that, and a fault plan that delays or corrupts a packet.
    dmabuf_bounce_bytes,
    /// Accesses through a bus address that its exporter had retired, by importers that ignored an
    /// invalidation.
    stale_accesses,
    /// Faults that a plan injected into packets, QPs, queues, regions and the port.
    injected_faults,
}

/// The counters of each port of a device.
#[derive(Debug)]
pub(crate) struct PortCounters {
    /// Those of the first port, which also has what belongs to no QP: packets that no codec
    /// accepts, the connection manager, memory.
    pub(crate) first: Counters,
    /// Those of the others. QPs reach as many as a port number of 8 bits has.
    others: Box<[Counters]>,
}

impl PortCounters {
    pub(crate) fn new(ports: u32) -> Self {
        let others = ports.clamp(1, u32::from(u8::MAX)) as usize - 1;
        let others = vec![Counters::default(); others].into_boxed_slice();
        Self { first: Counters::default(), others }
    }

    /// Those of the port with this number; of the first where a QP has no port yet.
    #[inline]
    pub(crate) fn of(&mut self, port: u8) -> &mut Counters {
        if port > 1 { self.of_other(port) } else { &mut self.first }
    }

    #[cold]
    fn of_other(&mut self, port: u8) -> &mut Counters {
        // A QP gets no port that the device does not have.
        self.others.get_mut(usize::from(port) - 2).unwrap_or(&mut self.first)
    }

    /// Whether there is one port alone.
    #[inline]
    pub(crate) fn are_of_one(&self) -> bool {
        self.others.is_empty()
    }

    /// Those of the other ports, from the second on.
    pub(crate) fn others(&self) -> &[Counters] {
        &self.others
    }

    /// Those of all ports together.
    pub(crate) fn sum(&self) -> Counters {
        let mut sum = self.first;
        self.others.iter().for_each(|other| sum.merge(other));
        sum
    }

    /// The datagrams that all ports received.
    pub(crate) fn rx_udp_packets(&self) -> u64 {
        let others = self.others.iter().map(|other| other.rx_udp_packets);
        others.fold(self.first.rx_udp_packets, u64::wrapping_add)
    }
}

impl Counters {
    /// Fills in what is counted for the process and not for a device.
    pub(crate) fn set_of_process(&mut self) {
        let ways = umem::ways::bytes_by_way();
        self.dmabuf_bus_address_bytes = ways.bus_address;
        self.dmabuf_host_bridge_bytes = ways.through_host_bridge;
        self.dmabuf_system_bytes = ways.system;
        self.dmabuf_cpu_bytes = ways.cpu;
        self.dmabuf_bounce_bytes = ways.bounced;
        self.stale_accesses = dmabuf::window::stale_accesses();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_counts_for_itself() {
        let mut counters = PortCounters::new(3);
        counters.of(0).tx_udp_packets += 1;
        counters.of(1).tx_udp_packets += 2;
        counters.of(3).tx_udp_packets += 4;
        let others: Vec<u64> = counters.others().iter().map(|it| it.tx_udp_packets).collect();
        assert_eq!((counters.first.tx_udp_packets, others), (3, vec![0, 4]));
        assert_eq!(counters.sum().tx_udp_packets, 7);
        assert!(!counters.are_of_one() && PortCounters::new(1).are_of_one());
        assert_eq!(PortCounters::new(1024).others().len(), 254, "QPs reach no more");
    }
}
