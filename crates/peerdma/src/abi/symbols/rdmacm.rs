//! The symbols of `librdmacm.so.1`, sorted by name. They live in this library because the connection manager and the
//! verbs must share one engine.

use super::Answer::{In, Refuse};
use super::Refusal::MinusOne;
use super::{Symbol, verb};

const V1_0: &[&str] = &["RDMACM_1.0"];
const V1_1: &[&str] = &["RDMACM_1.1"];
const V1_2: &[&str] = &["RDMACM_1.2"];
const V1_3: &[&str] = &["RDMACM_1.3"];
const V1_4: &[&str] = &["RDMACM_1.4"];
const V1_5: &[&str] = &["RDMACM_1.5"];

const RSOCKETS: &str = "this library has no rsockets";

/// Connection manager and rsockets.
pub(crate) const RDMACM: &[Symbol] = &[
    verb("raccept", V1_0, In("rsocket::socket")),
    verb("rbind", V1_0, In("rsocket::socket")),
    verb("rclose", V1_0, In("rsocket::socket")),
    verb("rconnect", V1_0, In("rsocket::socket")),
    verb("rdma_accept", V1_0, In("rdmacm::connect")),
    verb("rdma_ack_cm_event", V1_0, In("rdmacm::event")),
    verb("rdma_bind_addr", V1_0, In("rdmacm::addr")),
    verb("rdma_connect", V1_0, In("rdmacm::connect")),
    verb("rdma_create_ep", V1_0, In("rdmacm::ep")),
    verb("rdma_create_event_channel", V1_0, In("rdmacm::channel")),
    verb("rdma_create_id", V1_0, In("rdmacm::id")),
    verb("rdma_create_qp", V1_0, In("rdmacm::qp")),
    verb("rdma_create_qp_ex", V1_0, In("rdmacm::qp")),
    verb("rdma_create_srq", V1_0, In("rdmacm::srq")),
    verb("rdma_create_srq_ex", V1_0, In("rdmacm::srq")),
    verb("rdma_destroy_ep", V1_0, In("rdmacm::ep")),
    verb("rdma_destroy_event_channel", V1_0, In("rdmacm::channel")),
    verb("rdma_destroy_id", V1_0, In("rdmacm::id")),
    verb("rdma_destroy_qp", V1_0, In("rdmacm::qp")),
    verb("rdma_destroy_srq", V1_0, In("rdmacm::srq")),
    verb("rdma_disconnect", V1_0, In("rdmacm::connect")),
    verb("rdma_establish", V1_2, In("rdmacm::connect")),
    verb("rdma_event_str", V1_0, In("misc")),
    verb("rdma_free_devices", V1_0, In("rdmacm::devices")),
    verb("rdma_freeaddrinfo", V1_0, In("rdmacm::info")),
    verb("rdma_get_cm_event", V1_0, In("rdmacm::event")),
    verb("rdma_get_devices", V1_0, In("rdmacm::devices")),
    verb("rdma_get_dst_port", V1_0, In("rdmacm::addr")),
    verb("rdma_get_remote_ece", V1_3, In("rdmacm::option")),
    verb("rdma_get_request", V1_0, In("rdmacm::ep")),
    verb("rdma_get_src_port", V1_0, In("rdmacm::addr")),
    verb("rdma_getaddrinfo", V1_0, In("rdmacm::info")),
    verb("rdma_init_qp_attr", V1_2, In("rdmacm::connect")),
    verb("rdma_join_multicast", V1_0, In("rdmacm::mcast")),
    verb("rdma_join_multicast_ex", V1_1, In("rdmacm::mcast")),
    verb("rdma_leave_multicast", V1_0, In("rdmacm::mcast")),
    verb("rdma_listen", V1_0, In("rdmacm::addr")),
    verb("rdma_migrate_id", V1_0, In("rdmacm::id")),
    verb("rdma_notify", V1_0, In("rdmacm::connect")),
    verb("rdma_query_addrinfo", V1_4, In("rdmacm::info")),
    verb("rdma_reject", V1_0, In("rdmacm::connect")),
    verb("rdma_reject_ece", V1_3, In("rdmacm::connect")),
    verb("rdma_resolve_addr", V1_0, In("rdmacm::addr")),
    verb("rdma_resolve_addrinfo", V1_4, In("rdmacm::info")),
    verb("rdma_resolve_route", V1_0, In("rdmacm::addr")),
    verb("rdma_set_local_ece", V1_3, In("rdmacm::option")),
    verb("rdma_set_option", V1_0, In("rdmacm::option")),
    verb("rdma_write_cm_event", V1_4, In("rdmacm::event")),
    verb("repoll_create", V1_5, Refuse(MinusOne, RSOCKETS)),
    verb("repoll_ctl", V1_5, Refuse(MinusOne, RSOCKETS)),
    verb("repoll_wait", V1_5, Refuse(MinusOne, RSOCKETS)),
    verb("rfcntl", V1_0, In("rsocket::option")),
    verb("rgetpeername", V1_0, In("rsocket::socket")),
    verb("rgetsockname", V1_0, In("rsocket::socket")),
    verb("rgetsockopt", V1_0, In("rsocket::option")),
    verb("riomap", V1_0, In("rsocket::map")),
    verb("riounmap", V1_0, In("rsocket::map")),
    verb("riowrite", V1_0, In("rsocket::map")),
    verb("rlisten", V1_0, In("rsocket::socket")),
    verb("rpoll", V1_0, In("rsocket::poll")),
    verb("rread", V1_0, In("rsocket::io")),
    verb("rreadv", V1_0, In("rsocket::io")),
    verb("rrecv", V1_0, In("rsocket::io")),
    verb("rrecvfrom", V1_0, In("rsocket::io")),
    verb("rrecvmsg", V1_0, In("rsocket::io")),
    verb("rselect", V1_0, In("rsocket::poll")),
    verb("rsend", V1_0, In("rsocket::io")),
    verb("rsendmsg", V1_0, In("rsocket::io")),
    verb("rsendto", V1_0, In("rsocket::io")),
    verb("rsetsockopt", V1_0, In("rsocket::option")),
    verb("rshutdown", V1_0, In("rsocket::socket")),
    verb("rsocket", V1_0, In("rsocket::socket")),
    verb("rwrite", V1_0, In("rsocket::io")),
    verb("rwritev", V1_0, In("rsocket::io")),
];
