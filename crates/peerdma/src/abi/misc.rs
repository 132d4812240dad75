//! Calls that need no device: names of codes, rates, and calls about `fork`.
//!
//! The names are those of rdma-core: people search for them, and scripts match them.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::size_t;

use super::types::{CEnum, CSignedEnum};

/// Rates: the code of IBA, the multiple of 2.5 Gbit/s if it is one by name, and Mbit/s.
const RATES: [(CEnum, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// No limit: what an unknown rate becomes.
#[doc(alias = "IBV_RATE_MAX")]
const RATE_MAX: CEnum = 0;

/// `fork` breaks nothing here, so programs need not prepare for it.
#[doc(alias = "IBV_FORK_UNNEEDED")]
const FORK_UNNEEDED: CEnum = 2;

pub(crate) extern "C" fn ibv_rate_to_mult(rate: CEnum) -> c_int {
    let found = RATES.iter().find(|(code, ..)| *code == rate);
    found.and_then(|(_, mult, _)| *mult).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> CEnum {
    RATES.iter().find(|(_, known, _)| *known == Some(mult)).map_or(RATE_MAX, |(code, ..)| *code)
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: CEnum) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, _, mbps)| *mbps)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> CEnum {
    RATES.iter().find(|(.., known)| *known == mbps).map_or(RATE_MAX, |(code, ..)| *code)
}

pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> CEnum {
    FORK_UNNEEDED
}

pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_node_type_str(node_type: CSignedEnum) -> *const c_char {
    const NAMES: [&CStr; 7] = [
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, i64::from(node_type) - 1, c"unknown")
}

pub(crate) extern "C" fn ibv_port_state_str(state: CEnum) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(&NAMES, i64::from(state), c"unknown")
}

pub(crate) extern "C" fn ibv_event_type_str(event: CEnum) -> *const c_char {
    const NAMES: [&CStr; 21] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    name(&NAMES, i64::from(event), c"unknown")
}

pub(crate) extern "C" fn ibv_wc_status_str(status: CEnum) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, i64::from(status), c"unknown")
}

pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: CEnum) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    name(&NAMES, i64::from(opcode), c"unknown")
}

pub(crate) extern "C" fn rdma_event_str(event: CEnum) -> *const c_char {
    const NAMES: [&CStr; 18] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    ];
    name(&NAMES, i64::from(event), c"UNKNOWN EVENT")
}

fn name(names: &[&'static CStr], index: i64, unknown: &'static CStr) -> *const c_char {
    let found = usize::try_from(index).ok().and_then(|index| names.get(index));
    found.copied().unwrap_or(unknown).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_convert_both_ways() {
        for (code, mult, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(mbps), code);
            assert_eq!(ibv_rate_to_mbps(code), mbps);
            assert_eq!(ibv_rate_to_mult(code), mult.unwrap_or(-1));
            if let Some(mult) = mult {
                assert_eq!(mult_to_ibv_rate(mult), code);
            }
        }
        assert_eq!(ibv_rate_to_mbps(99), -1);
        assert_eq!(mult_to_ibv_rate(3), RATE_MAX);
    }

    #[test]
    fn unknown_numbers_have_a_name_too() {
        let text = |name: *const c_char| {
            // SAFETY: every name is a C string with static lifetime.
            unsafe { CStr::from_ptr(name) }
        };
        assert_eq!(text(ibv_node_type_str(-1)), c"unknown");
        assert_eq!(text(ibv_node_type_str(1)), c"InfiniBand channel adapter");
        assert_eq!(text(ibv_wc_status_str(12)), c"transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(24)), c"unknown");
        assert_eq!(text(rdma_event_str(9)), c"RDMA_CM_EVENT_ESTABLISHED");
    }
}
