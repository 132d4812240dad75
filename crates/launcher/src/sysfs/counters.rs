//! The names of counters, as the kernel and mlx5 document them, and ours. Those that nothing counts
//! are zero; the others are zero only in the files, whose place a living value takes when one is
//! opened (`door::counters`).

/// `ports/N/counters`: the port counters of the InfiniBand specification.
pub(super) const PORT: [&str; 22] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
    "qp1_dropped",
];

/// `ports/N/hw_counters`: what the transport counts.
const HARDWARE: [&str; 28] = [
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
];

/// The names of all counters in `hw_counters`, those of mlx5 first.
pub(crate) fn hardware_counters() -> impl Iterator<Item = &'static str> {
    HARDWARE.into_iter().chain(own().filter(|name| !HARDWARE.contains(name)))
}

/// Whether the processes of the port count it, in either directory.
pub(crate) fn is_counted(name: &str) -> bool {
    own().any(|own| own == name) || view::PortTotals::is_made(name)
}

fn own() -> impl Iterator<Item = &'static str> {
    device::Counters::default().iter().map(|(name, _)| name).collect::<Vec<_>>().into_iter()
}
