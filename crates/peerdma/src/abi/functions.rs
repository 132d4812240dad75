//! The functions that a context points to, which the header's inline functions call.

use super::types::ops::{ContextOps, VerbsContext};
use super::{cq, device, dm, domain, flow, mr, mw, poll, post, qp, srq, tm, values, wq, xrc};

/// Sets the pointers.
pub(crate) fn fill(c: &mut VerbsContext) {
    c.query_port = Some(device::query_port);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    c.modify_cq = Some(cq::modify_cq);
    c.alloc_null_mr = Some(mr::alloc_null_mr);
    c.advise_mr = Some(mr::advise_mr);
    c.get_srq_num = Some(srq::get_srq_num);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.alloc_parent_domain = Some(domain::alloc_parent_domain);
    c.dealloc_td = Some(domain::dealloc_td);
    c.alloc_td = Some(domain::alloc_td);
    c.query_rt_values = Some(values::query_rt_values);
    c.create_cq_ex = Some(cq::create_cq_ex);
    c.query_device_ex = Some(device::query_device_ex);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.post_srq_ops = Some(tm::post_srq_ops);
    c.open_qp = Some(qp::open_qp);
    c.create_wq = Some(wq::create_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.destroy_wq = Some(wq::destroy_wq);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.ibv_create_flow = Some(flow::create_flow);
    c.ibv_destroy_flow = Some(flow::destroy_flow);
    let ops = ContextOps::of(&mut c.context);
    ops._compat_query_device = Some(device::ibv_query_device);
    ops._compat_query_port = Some(device::ibv_query_port);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(poll::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}
