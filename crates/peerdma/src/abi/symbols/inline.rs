//! The verbs that have no symbol: `<infiniband/verbs.h>` defines them inline, as a call through a pointer that the library
//! stored in an object.

use super::Answer::{In, Refuse};
use super::Inline;
use super::Refusal::{Errno, Null};

const COUNTERS: &str = "the device has no flow counters";
const FLOW: &str = "the device steers no raw packets";
const RATE: &str = "the device does not pace packets";
const RAW: &str = "the device has no raw packet QPs";
const WQ: &str = "the device has no receive side scaling";

const fn inline(name: &'static str, through: &'static str, answer: super::Answer) -> Inline {
    Inline { name, through, answer }
}

/// Verbs that the header turns into a call through a pointer, sorted by name.
pub(crate) const INLINE: &[Inline] = &[
    inline("ibv_advise_mr", "verbs_context.advise_mr", In("mr")),
    inline("ibv_alloc_dm", "verbs_context.alloc_dm", In("dm")),
    inline("ibv_alloc_mw", "ibv_context.ops.alloc_mw", In("mw")),
    inline("ibv_alloc_null_mr", "verbs_context.alloc_null_mr", In("mr")),
    inline("ibv_alloc_parent_domain", "verbs_context.alloc_parent_domain", In("domain")),
    inline("ibv_alloc_td", "verbs_context.alloc_td", In("domain")),
    inline(
        "ibv_attach_counters_point_flow",
        "verbs_context.attach_counters_point_flow",
        Refuse(Errno, COUNTERS),
    ),
    inline("ibv_bind_mw", "ibv_context.ops.bind_mw", In("mw")),
    inline("ibv_close_xrcd", "verbs_context.close_xrcd", In("xrc")),
    inline("ibv_create_counters", "verbs_context.create_counters", Refuse(Null, COUNTERS)),
    inline("ibv_create_cq_ex", "verbs_context.create_cq_ex", In("cq")),
    inline("ibv_create_flow", "verbs_context.ibv_create_flow", Refuse(Null, FLOW)),
    inline(
        "ibv_create_flow_action_esp",
        "verbs_context.create_flow_action_esp",
        Refuse(Null, FLOW),
    ),
    inline("ibv_create_qp_ex", "verbs_context.create_qp_ex", In("qp")),
    inline("ibv_create_rwq_ind_table", "verbs_context.create_rwq_ind_table", Refuse(Null, WQ)),
    inline("ibv_create_srq_ex", "verbs_context.create_srq_ex", In("srq")),
    inline("ibv_create_wq", "verbs_context.create_wq", Refuse(Null, WQ)),
    inline("ibv_dealloc_mw", "ibv_context.ops.dealloc_mw", In("mw")),
    inline("ibv_dealloc_td", "verbs_context.dealloc_td", In("domain")),
    inline("ibv_destroy_counters", "verbs_context.destroy_counters", Refuse(Errno, COUNTERS)),
    inline("ibv_destroy_flow", "verbs_context.ibv_destroy_flow", Refuse(Errno, FLOW)),
    inline("ibv_destroy_flow_action", "verbs_context.destroy_flow_action", Refuse(Errno, FLOW)),
    inline("ibv_destroy_rwq_ind_table", "verbs_context.destroy_rwq_ind_table", Refuse(Errno, WQ)),
    inline("ibv_destroy_wq", "verbs_context.destroy_wq", Refuse(Errno, WQ)),
    inline("ibv_end_poll", "ibv_cq_ex.end_poll", In("poll")),
    inline("ibv_free_dm", "verbs_context.free_dm", In("dm")),
    inline("ibv_get_srq_num", "verbs_context.get_srq_num", In("xrc")),
    inline("ibv_memcpy_from_dm", "ibv_dm.memcpy_from_dm", In("dm")),
    inline("ibv_memcpy_to_dm", "ibv_dm.memcpy_to_dm", In("dm")),
    inline("ibv_modify_cq", "verbs_context.modify_cq", In("cq")),
    inline(
        "ibv_modify_flow_action_esp",
        "verbs_context.modify_flow_action_esp",
        Refuse(Errno, FLOW),
    ),
    inline("ibv_modify_qp_rate_limit", "verbs_context.modify_qp_rate_limit", Refuse(Errno, RATE)),
    inline("ibv_modify_wq", "verbs_context.modify_wq", Refuse(Errno, WQ)),
    inline("ibv_next_poll", "ibv_cq_ex.next_poll", In("poll")),
    inline("ibv_open_qp", "verbs_context.open_qp", In("qp")),
    inline("ibv_open_xrcd", "verbs_context.open_xrcd", In("xrc")),
    inline("ibv_poll_cq", "ibv_context.ops.poll_cq", In("poll")),
    inline("ibv_post_recv", "ibv_context.ops.post_recv", In("post")),
    inline("ibv_post_send", "ibv_context.ops.post_send", In("post")),
    inline("ibv_post_srq_ops", "verbs_context.post_srq_ops", In("tm")),
    inline("ibv_post_srq_recv", "ibv_context.ops.post_srq_recv", In("post")),
    inline("ibv_post_wq_recv", "ibv_wq.post_recv", Refuse(Errno, WQ)),
    inline("ibv_query_device_ex", "verbs_context.query_device_ex", In("device")),
    inline("ibv_query_port", "verbs_context.query_port", In("device")),
    inline("ibv_query_rt_values_ex", "verbs_context.query_rt_values", In("context")),
    inline("ibv_read_counters", "verbs_context.read_counters", Refuse(Errno, COUNTERS)),
    inline("ibv_reg_dm_mr", "verbs_context.reg_dm_mr", In("dm")),
    inline("ibv_req_notify_cq", "ibv_context.ops.req_notify_cq", In("cq")),
    inline("ibv_start_poll", "ibv_cq_ex.start_poll", In("poll")),
    inline("ibv_wc_read_byte_len", "ibv_cq_ex.read_byte_len", In("poll")),
    inline("ibv_wc_read_completion_ts", "ibv_cq_ex.read_completion_ts", In("poll")),
    inline(
        "ibv_wc_read_completion_wallclock_ns",
        "ibv_cq_ex.read_completion_wallclock_ns",
        In("poll"),
    ),
    inline("ibv_wc_read_cvlan", "ibv_cq_ex.read_cvlan", Refuse(Errno, RAW)),
    inline("ibv_wc_read_dlid_path_bits", "ibv_cq_ex.read_dlid_path_bits", In("poll")),
    inline("ibv_wc_read_flow_tag", "ibv_cq_ex.read_flow_tag", Refuse(Errno, RAW)),
    inline("ibv_wc_read_imm_data", "ibv_cq_ex.read_imm_data", In("poll")),
    inline("ibv_wc_read_invalidated_rkey", "ibv_cq_ex.read_imm_data", In("poll")),
    inline("ibv_wc_read_opcode", "ibv_cq_ex.read_opcode", In("poll")),
    inline("ibv_wc_read_qp_num", "ibv_cq_ex.read_qp_num", In("poll")),
    inline("ibv_wc_read_sl", "ibv_cq_ex.read_sl", In("poll")),
    inline("ibv_wc_read_slid", "ibv_cq_ex.read_slid", In("poll")),
    inline("ibv_wc_read_src_qp", "ibv_cq_ex.read_src_qp", In("poll")),
    inline("ibv_wc_read_tm_info", "ibv_cq_ex.read_tm_info", In("poll")),
    inline("ibv_wc_read_vendor_err", "ibv_cq_ex.read_vendor_err", In("poll")),
    inline("ibv_wc_read_wc_flags", "ibv_cq_ex.read_wc_flags", In("poll")),
    inline("ibv_wr_abort", "ibv_qp_ex.wr_abort", In("wr")),
    inline("ibv_wr_atomic_cmp_swp", "ibv_qp_ex.wr_atomic_cmp_swp", In("wr")),
    inline("ibv_wr_atomic_fetch_add", "ibv_qp_ex.wr_atomic_fetch_add", In("wr")),
    inline("ibv_wr_atomic_write", "ibv_qp_ex.wr_atomic_write", In("wr")),
    inline("ibv_wr_bind_mw", "ibv_qp_ex.wr_bind_mw", In("wr")),
    inline("ibv_wr_complete", "ibv_qp_ex.wr_complete", In("wr")),
    inline("ibv_wr_flush", "ibv_qp_ex.wr_flush", In("wr")),
    inline("ibv_wr_local_inv", "ibv_qp_ex.wr_local_inv", In("wr")),
    inline("ibv_wr_rdma_read", "ibv_qp_ex.wr_rdma_read", In("wr")),
    inline("ibv_wr_rdma_write", "ibv_qp_ex.wr_rdma_write", In("wr")),
    inline("ibv_wr_rdma_write_imm", "ibv_qp_ex.wr_rdma_write_imm", In("wr")),
    inline("ibv_wr_send", "ibv_qp_ex.wr_send", In("wr")),
    inline("ibv_wr_send_imm", "ibv_qp_ex.wr_send_imm", In("wr")),
    inline("ibv_wr_send_inv", "ibv_qp_ex.wr_send_inv", In("wr")),
    inline("ibv_wr_send_tso", "ibv_qp_ex.wr_send_tso", Refuse(Errno, RAW)),
    inline("ibv_wr_set_inline_data", "ibv_qp_ex.wr_set_inline_data", In("wr")),
    inline("ibv_wr_set_inline_data_list", "ibv_qp_ex.wr_set_inline_data_list", In("wr")),
    inline("ibv_wr_set_sge", "ibv_qp_ex.wr_set_sge", In("wr")),
    inline("ibv_wr_set_sge_list", "ibv_qp_ex.wr_set_sge_list", In("wr")),
    inline("ibv_wr_set_ud_addr", "ibv_qp_ex.wr_set_ud_addr", In("wr")),
    inline("ibv_wr_set_xrc_srqn", "ibv_qp_ex.wr_set_xrc_srqn", In("wr")),
    inline("ibv_wr_start", "ibv_qp_ex.wr_start", In("wr")),
];
