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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_kernel_have_the_words_of_rdma() {
        let types = [0, 1, 2, 3, 4, 8, 9, 10].map(qp_type_name);
        assert_eq!(types, ["SMI", "GSI", "RC", "UC", "UD", "RAW_PACKET", "XRC_INI", "XRC_TGT"]);
        assert_eq!([0, 3, 6].map(qp_state_name), ["RESET", "RTS", "ERR"]);
        assert_eq!([0, 5, 8, 10].map(cm_state_name), ["IDLE", "CONNECT", "LISTEN", "DESTROYING"]);
        let spaces = [0x0002, 0x0106, 0x0111, 0x013f].map(port_space_name);
        assert_eq!(spaces, ["IPOIB", "TCP", "UDP", "IB"]);
    }

    #[test]
    fn a_number_that_another_process_made_up_is_unknown() {
        for number in [5, 7, 11, u8::MAX] {
            assert_eq!(qp_type_name(number), "UNKNOWN");
        }
        assert_eq!((qp_state_name(7), qp_state_name(u8::MAX)), ("UNKNOWN", "UNKNOWN"));
        assert_eq!((cm_state_name(11), port_space_name(0)), ("UNKNOWN", "UNKNOWN"));
    }
}
