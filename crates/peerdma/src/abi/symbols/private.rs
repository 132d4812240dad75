//! The private symbols of `libibverbs.so.1`: what a vendor library (`libmlx5.so.1`, `libefa.so.1`,
//! a plug-in) calls to send commands to the kernel driver of its device.
//!
//! Such a library binds all of them when it is loaded, so they must exist, in the version node of
//! the rdma-core it was built with, for the program that links it to start at all. It then
//! registers a driver for devices that do not exist here, and calls nothing else.

use super::Answer::{Byte, In, Refuse};
use super::Refusal::{Errno, MinusOne, Null, Silent};
use super::{Symbol, verb};

/// In every generation.
const SINCE_34: &[&str] = &[
    "IBVERBS_PRIVATE_34",
    "IBVERBS_PRIVATE_57",
    "IBVERBS_PRIVATE_59",
    "IBVERBS_PRIVATE_64",
    "IBVERBS_PRIVATE_65",
];
/// rdma-core 34 to 56.
const ONLY_34: &[&str] = &["IBVERBS_PRIVATE_34"];
/// rdma-core 57 and 58.
const ONLY_57: &[&str] = &["IBVERBS_PRIVATE_57"];
/// From rdma-core 59.
const SINCE_59: &[&str] = &["IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65"];
/// rdma-core 59 to 63.
const ONLY_59: &[&str] = &["IBVERBS_PRIVATE_59"];
/// From rdma-core 64.
const SINCE_64: &[&str] = &["IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65"];
/// rdma-core 64.
const ONLY_64: &[&str] = &["IBVERBS_PRIVATE_64"];
/// From rdma-core 65.
const SINCE_65: &[&str] = &["IBVERBS_PRIVATE_65"];

const KERNEL: &str = "commands go to a kernel driver, and there is none below this library";
const DRIVER: &str = "drivers register for devices of theirs, and this library has none";

/// What vendor libraries bind at load.
pub(crate) const PRIVATE: &[Symbol] = &[
    verb("__ioctl_final_num_attrs", SINCE_34, Refuse(Silent, KERNEL)),
    verb("__verbs_log", SINCE_34, Refuse(Silent, KERNEL)),
    verb("_verbs_init_and_alloc_context", SINCE_34, Refuse(Null, KERNEL)),
    verb("execute_ioctl", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_advise_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_alloc_dm", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_alloc_dmah", SINCE_59, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_alloc_mw", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_alloc_pd", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_attach_mcast", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_close_xrcd", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_ah", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_counters", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_cq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_cq_ex", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_cq_ex2", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_flow", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_flow_action_esp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_qp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_qp_ex", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_qp_ex2", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_rwq_ind_table", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_srq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_srq_ex", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_create_wq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_dealloc_mw", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_dealloc_pd", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_dereg_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_ah", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_counters", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_cq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_flow", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_flow_action", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_qp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_rwq_ind_table", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_srq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_destroy_wq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_detach_mcast", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_export_dmabuf_fd", SINCE_59, Refuse(MinusOne, KERNEL)),
    verb("ibv_cmd_free_dm", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_free_dmah", SINCE_59, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_get_context", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_inc_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_inc_err_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_modify_cq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_modify_flow_action_esp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_modify_qp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_modify_qp_ex", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_modify_srq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_modify_wq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_open_qp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_open_xrcd", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_poll_cq", SINCE_34, Refuse(MinusOne, KERNEL)),
    verb("ibv_cmd_post_recv", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_post_send", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_post_srq_recv", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_qp_attach_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_comp_cntr_caps", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_context", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_device", ONLY_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_device_any", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_port", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_port_speed", SINCE_59, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_qp", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_query_srq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_read_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_read_counters", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_read_err_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_reg_dm_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_reg_dmabuf_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_reg_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_reg_mr_ex", SINCE_59, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_req_notify_cq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_rereg_mr", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_resize_cq", SINCE_34, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_set_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_cmd_set_err_comp_cntr", SINCE_65, Refuse(Errno, KERNEL)),
    verb("ibv_dmabuf_heap_alloc", SINCE_64, Refuse(Null, KERNEL)),
    verb("ibv_dmabuf_heap_cc_shared_init", SINCE_64, Refuse(Null, KERNEL)),
    verb("ibv_dmabuf_heap_destroy", SINCE_64, Refuse(Silent, KERNEL)),
    verb("ibv_dmabuf_heap_free", SINCE_64, Refuse(Silent, KERNEL)),
    verb("ibv_query_gid_type", SINCE_34, In("device")),
    verb("ibv_read_ibdev_sysfs_file", SINCE_34, Refuse(MinusOne, KERNEL)),
    verb("ibv_wr_opcode_str", SINCE_34, In("misc")),
    verb("verbs_allow_disassociate_destroy", SINCE_34, Byte),
    verb("verbs_init_cq", SINCE_34, Refuse(Silent, KERNEL)),
    verb("verbs_open_device", SINCE_34, Refuse(Null, KERNEL)),
    verb("verbs_register_driver_34", ONLY_34, Refuse(Silent, DRIVER)),
    verb("verbs_register_driver_57", ONLY_57, Refuse(Silent, DRIVER)),
    verb("verbs_register_driver_59", ONLY_59, Refuse(Silent, DRIVER)),
    verb("verbs_register_driver_64", ONLY_64, Refuse(Silent, DRIVER)),
    verb("verbs_register_driver_65", SINCE_65, Refuse(Silent, DRIVER)),
    verb("verbs_set_ops", SINCE_34, Refuse(Silent, KERNEL)),
    verb("verbs_uninit_context", SINCE_34, Refuse(Silent, KERNEL)),
];
