//! Numbers of the kernel in words, as `rdma` prints them.

/// The name of a type of queue pair (`enum ib_qp_type`).
pub fn qp_type_name(kind: u8) -> &'static str {
    match kind {
        0 => "SMI",
        1 => "GSI",
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 => "XRC_INI",
        10 => "XRC_TGT",
        _ => "UNKNOWN",
    }
}

/// The name of a state of a queue pair (`enum ib_qp_state`).
pub fn qp_state_name(state: u8) -> &'static str {
    ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
        .get(usize::from(state))
        .copied()
        .unwrap_or("UNKNOWN")
}

/// The name of a state of an identifier (`enum rdma_cm_state`).
pub fn cm_state_name(state: u8) -> &'static str {
    [
        "IDLE",
        "ADDR_QUERY",
        "ADDR_RESOLVED",
        "ROUTE_QUERY",
        "ROUTE_RESOLVED",
        "CONNECT",
        "DISCONNECT",
        "ADDR_BOUND",
        "LISTEN",
        "DEVICE_REMOVAL",
        "DESTROYING",
    ]
    .get(usize::from(state))
    .copied()
    .unwrap_or("UNKNOWN")
}

/// The name of a port space (`enum rdma_ucm_port_space`).
pub fn port_space_name(space: u32) -> &'static str {
    match space {
        0x0002 => "IPOIB",
        0x0106 => "TCP",
        0x0111 => "UDP",
        0x013f => "IB",
        _ => "UNKNOWN",
    }
}
