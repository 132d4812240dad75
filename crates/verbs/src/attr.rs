//! What a library says of a device and a port, in the terms of this crate.

use std::borrow::Cow;

use device::{DeviceAttr, GidEntry, PortAttr};
use iba::{Guid, Mtu};
use sysverbs::Limits;

/// `IBV_PORT_ACTIVE`.
const ACTIVE: u32 = 4;

pub(crate) fn of_device(limits: &Limits) -> DeviceAttr {
    let c = &limits.attr;
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let mut attr = DeviceAttr::default();
    attr.fw_ver = Cow::Owned(limits.fw_ver.clone());
    attr.node_guid = Guid(u64::from_be(c.node_guid));
    attr.sys_image_guid = Guid(u64::from_be(c.sys_image_guid));
    attr.max_mr_size = c.max_mr_size;
    attr.page_size_cap = c.page_size_cap;
    attr.vendor_id = c.vendor_id;
    attr.vendor_part_id = c.vendor_part_id;
    attr.hw_ver = c.hw_ver;
    attr.max_qp = count(c.max_qp);
    attr.max_qp_wr = count(c.max_qp_wr);
    attr.max_sge = count(c.max_sge);
    attr.max_sge_rd = count(c.max_sge_rd);
    attr.max_cq = count(c.max_cq);
    attr.max_cqe = count(c.max_cqe);
    attr.max_mr = count(c.max_mr);
    attr.max_mw = count(c.max_mw);
    attr.max_pd = count(c.max_pd);
    attr.max_qp_rd_atom = count(c.max_qp_rd_atom);
    attr.max_qp_init_rd_atom = count(c.max_qp_init_rd_atom);
    attr.max_res_rd_atom = count(c.max_res_rd_atom);
    attr.max_ah = count(c.max_ah);
    attr.max_srq = count(c.max_srq);
    attr.max_srq_wr = count(c.max_srq_wr);
    attr.max_srq_sge = count(c.max_srq_sge);
    attr.max_mcast_grp = count(c.max_mcast_grp);
    attr.max_mcast_qp_attach = count(c.max_mcast_qp_attach);
    attr.max_pkeys = c.max_pkeys;
    attr.phys_port_cnt = u32::from(c.phys_port_cnt);
    attr
}

pub(crate) fn of_port(c: &sysverbs::AttrOfPort, gids: &[sysverbs::GidEntry]) -> PortAttr {
    let mut attr = PortAttr::default();
    attr.active = c.state == ACTIVE;
    attr.max_mtu = Mtu::from_code(c.max_mtu).unwrap_or(Mtu::Mtu256);
    attr.active_mtu = Mtu::from_code(c.active_mtu).unwrap_or(Mtu::Mtu256);
    attr.gid_tbl_len = u32::try_from(c.gid_tbl_len).unwrap_or(0);
    attr.max_msg_sz = c.max_msg_sz;
    attr.pkey_tbl_len = c.pkey_tbl_len;
    attr.active_width = c.active_width;
    attr.active_speed = c.active_speed;
    attr.ifindex = gids.iter().map(|gid| gid.ifindex).find(|index| *index != 0).unwrap_or(0);
    attr.netdev = name(attr.ifindex);
    attr
}

/// The name of a netdev; empty if there is none.
fn name(ifindex: u32) -> String {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let name = socket.and_then(|socket| rustix::net::netdevice::index_to_name(socket, ifindex));
    name.unwrap_or_default()
}

/// On RoCE each address is listed for both versions, and peers of this crate speak the second.
pub(crate) fn of_gids(gids: &[sysverbs::GidEntry]) -> Vec<GidEntry> {
    let has_v2 = gids.iter().any(|gid| gid.is_roce_v2);
    let chosen = gids.iter().filter(|gid| gid.is_roce_v2 || !has_v2);
    chosen.map(|gid| GidEntry::new(gid.gid, gid.index, gid.ifindex)).collect()
}
