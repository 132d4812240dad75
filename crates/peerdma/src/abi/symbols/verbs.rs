//! The public symbols of `libibverbs.so.1`, sorted by name.
//!
//! Symbols that rdma-core defines both in `IBVERBS_1.0` and `IBVERBS_1.1` exist here in 1.1 only:
//! version 1.0 of them is the ABI of 2006, with another layout of objects, and nothing built since
//! then binds to it. The node `IBVERBS_1.0` holds only symbols that never got a newer version.

use super::Answer::{In, Never, Refuse};
use super::Refusal::{Errno, Null, Silent};
use super::{Symbol, verb};

const V1_0: &[&str] = &["IBVERBS_1.0"];
const V1_1: &[&str] = &["IBVERBS_1.1"];
const V1_5: &[&str] = &["IBVERBS_1.5"];
const V1_6: &[&str] = &["IBVERBS_1.6"];
const V1_7: &[&str] = &["IBVERBS_1.7"];
const V1_8: &[&str] = &["IBVERBS_1.8"];
const V1_9: &[&str] = &["IBVERBS_1.9"];
const V1_10: &[&str] = &["IBVERBS_1.10"];
const V1_11: &[&str] = &["IBVERBS_1.11"];
const V1_12: &[&str] = &["IBVERBS_1.12"];
const V1_13: &[&str] = &["IBVERBS_1.13"];
const V1_14: &[&str] = &["IBVERBS_1.14"];
const V1_15: &[&str] = &["IBVERBS_1.15"];
const V1_16: &[&str] = &["IBVERBS_1.16"];
const V1_17: &[&str] = &["IBVERBS_1.17"];
const V1_18: &[&str] = &["IBVERBS_1.18"];

const BUF: &str =
    "buffers that the provider allocates are for confidential computing; register ordinary memory";
const DMAH: &str = "the device has no DMA handles: there is no PCIe below it to steer";
const DRIVER: &str = "drivers register for devices of theirs, and this library has none";
const L2: &str = "the device needs no Ethernet addresses: the kernel's own routing finds them";
const KERNEL: &str = "converts structures of the kernel's interface, which is not used here";

/// The public verbs that have a symbol.
pub(crate) const VERBS: &[Symbol] = &[
    verb("_ibv_query_comp_cntr_caps", V1_18, In("comp_cntr")),
    verb("_ibv_query_gid_ex", V1_11, In("device")),
    verb("_ibv_query_gid_table", V1_11, In("device")),
    verb("ibv_ack_async_event", V1_1, In("events")),
    verb("ibv_ack_cq_events", V1_1, In("events")),
    verb("ibv_alloc_buf", V1_17, In("buf")),
    verb("ibv_alloc_dmah", V1_15, Refuse(Null, DMAH)),
    verb("ibv_alloc_pd", V1_1, In("pd")),
    verb("ibv_attach_mcast", V1_1, In("mcast")),
    verb("ibv_close_device", V1_1, In("context")),
    verb("ibv_copy_ah_attr_from_kern", V1_1, Refuse(Silent, KERNEL)),
    verb("ibv_copy_path_rec_from_kern", V1_0, Refuse(Silent, KERNEL)),
    verb("ibv_copy_path_rec_to_kern", V1_0, Refuse(Silent, KERNEL)),
    verb("ibv_copy_qp_attr_from_kern", V1_0, Refuse(Silent, KERNEL)),
    verb("ibv_create_ah", V1_1, In("ah")),
    verb("ibv_create_ah_from_wc", V1_1, In("ah")),
    verb("ibv_create_comp_channel", V1_0, In("cq")),
    verb("ibv_create_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_create_cq", V1_1, In("cq")),
    verb("ibv_create_qp", V1_1, In("qp")),
    verb("ibv_create_srq", V1_1, In("srq")),
    verb("ibv_dealloc_dmah", V1_15, Refuse(Errno, DMAH)),
    verb("ibv_dealloc_pd", V1_1, In("pd")),
    verb("ibv_dereg_mr", V1_1, In("mr")),
    verb("ibv_destroy_ah", V1_1, In("ah")),
    verb("ibv_destroy_comp_channel", V1_0, In("cq")),
    verb("ibv_destroy_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_destroy_cq", V1_1, In("cq")),
    verb("ibv_destroy_qp", V1_1, In("qp")),
    verb("ibv_destroy_srq", V1_1, In("srq")),
    verb("ibv_detach_mcast", V1_1, In("mcast")),
    verb("ibv_dm_export_dmabuf_fd", V1_16, In("dm")),
    verb("ibv_dofork_range", V1_1, In("misc")),
    verb("ibv_dontfork_range", V1_1, In("misc")),
    verb("ibv_event_type_str", V1_1, In("misc")),
    verb(
        "ibv_export_buf_dmabuf_fd",
        V1_18,
        Never(
            "buf",
            "-1, ENODATA",
            "the memory of `ibv_alloc_buf` is ordinary memory and no dma-buf",
        ),
    ),
    verb("ibv_fork_init", V1_1, In("misc")),
    verb("ibv_free_buf", V1_17, In("buf")),
    verb("ibv_free_device_list", V1_1, In("device")),
    verb("ibv_get_async_event", V1_1, In("events")),
    verb("ibv_get_cq_event", V1_1, In("events")),
    verb("ibv_get_device_guid", V1_1, In("device")),
    verb("ibv_get_device_index", V1_9, In("device")),
    verb("ibv_get_device_list", V1_1, In("device")),
    verb("ibv_get_device_name", V1_1, In("device")),
    verb("ibv_get_pkey_index", V1_5, In("device")),
    verb("ibv_get_sysfs_path", V1_0, In("device")),
    verb("ibv_import_device", V1_10, In("import")),
    verb("ibv_import_dm", V1_13, In("import")),
    verb("ibv_import_mr", V1_10, In("import")),
    verb("ibv_import_pd", V1_10, In("import")),
    verb("ibv_inc_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_inc_err_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_init_ah_from_wc", V1_1, In("ah")),
    verb("ibv_is_fork_initialized", V1_13, In("misc")),
    verb("ibv_modify_qp", V1_1, In("qp")),
    verb("ibv_modify_srq", V1_1, In("srq")),
    verb("ibv_node_type_str", V1_1, In("misc")),
    verb("ibv_open_device", V1_1, In("context")),
    verb("ibv_port_state_str", V1_1, In("misc")),
    verb("ibv_qp_attach_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_qp_to_qp_ex", V1_6, In("qp")),
    verb("ibv_query_device", V1_1, In("device")),
    verb("ibv_query_ece", V1_10, Never("qp", "EOPNOTSUPP", "names no vendor: there is none")),
    verb("ibv_query_gid", V1_1, In("device")),
    verb("ibv_query_pkey", V1_1, In("device")),
    verb("ibv_query_port", V1_1, In("device")),
    verb("ibv_query_port_speed", V1_16, In("device")),
    verb("ibv_query_qp", V1_1, In("qp")),
    verb(
        "ibv_query_qp_data_in_order",
        V1_14,
        Never("qp", "0, which is \"no\"", "of a message only the last word is sure to come last"),
    ),
    verb("ibv_query_srq", V1_1, In("srq")),
    verb("ibv_rate_to_mbps", V1_1, In("misc")),
    verb("ibv_rate_to_mult", V1_0, In("misc")),
    verb("ibv_read_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_read_err_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_read_sysfs_file", V1_0, In("device")),
    verb("ibv_reg_buf_mr", V1_17, In("mr")),
    verb("ibv_reg_dmabuf_mr", V1_12, In("mr")),
    verb("ibv_reg_mr", V1_1, In("mr")),
    verb("ibv_reg_mr_ex", V1_15, In("mr")),
    verb("ibv_reg_mr_iova", V1_7, In("mr")),
    verb("ibv_reg_mr_iova2", V1_8, In("mr")),
    Symbol {
        name: "ibv_register_driver",
        nodes: V1_1,
        linkable: false,
        answer: Refuse(Silent, DRIVER),
    },
    verb("ibv_rereg_mr", V1_1, In("mr")),
    verb("ibv_resize_cq", V1_1, In("cq")),
    verb("ibv_resolve_eth_l2_from_gid", V1_1, Refuse(Errno, L2)),
    verb("ibv_set_comp_cntr", V1_18, In("comp_cntr")),
    verb(
        "ibv_set_ece",
        V1_10,
        Never("qp", "EOPNOTSUPP", "there is no vendor whose options could be taken"),
    ),
    verb("ibv_set_err_comp_cntr", V1_18, In("comp_cntr")),
    verb("ibv_unimport_dm", V1_13, In("import")),
    verb("ibv_unimport_mr", V1_10, In("import")),
    verb("ibv_unimport_pd", V1_10, In("import")),
    verb("ibv_wc_status_str", V1_1, In("misc")),
    verb("mbps_to_ibv_rate", V1_1, In("misc")),
    verb("mult_to_ibv_rate", V1_0, In("misc")),
];
