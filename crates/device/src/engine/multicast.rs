//! Multicast: groups of datagram QPs (IBA 10.5), each of which is an IP multicast group (RoCEv2
//! Annex A17.4.5).
//!
//! A group with members has a socket of its own ([`link::udp::UdpLink::join`]); the kernel sends
//! the IGMP or MLD report, and gives a copy of each packet to every process that joined. Packets
//! that this host sends come back the same way, so a sender that is attached receives its own
//! messages, as with the kernel's drivers.

use std::net::{IpAddr, SocketAddr};

use iba::{Gid, QpType, Qpn};
use link::udp::BindError;
use transport::env::Rx;

use super::Engine;
use super::common::Common;
use super::observed::deliver;
use crate::carrier::udp::JoinError;
use crate::ids::QpId;
use crate::objects::group::Group;
use crate::payload::InPayload;
use crate::qp::QpTable;
use crate::receiver::Receiver;
use crate::refusal::{Kind, Refusal, Result, refuse};

impl Engine {
    /// Attaches a datagram QP to a group, so that it receives messages to the group. Attaching it
    /// again changes nothing (`ib_uverbs_attach_mcast` of the kernel).
    ///
    /// Refused as [`Invalid`](Kind::Invalid) for a QP that is not UD and a GID that is not a
    /// group's; as [`NoMemory`](Kind::NoMemory) beyond
    /// [`max_mcast_grp`](crate::DeviceAttr::max_mcast_grp) groups or
    /// [`max_mcast_qp_attach`](crate::DeviceAttr::max_mcast_qp_attach) members; as
    /// [`NotPermitted`](Kind::NotPermitted) while the UDP port of RoCEv2 is not ours.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, id: QpId, gid: Gid) -> Result<()> {
        self.check_mcast("attach_mcast", id, gid)?;
        let (max_groups, max_members) = (
            self.common.nic.attr.max_mcast_grp as usize,
            self.common.nic.attr.max_mcast_qp_attach as usize,
        );
        if let Some(group) = self.common.objects.groups.iter_mut().find(|group| group.gid == gid) {
            if group.members.contains(&id) {
                return Ok(());
            }
            if group.members.len() >= max_members {
                refuse!(NoMemory, "attach_mcast: max_mcast_qp_attach is {max_members}");
            }
            group.members.push(id);
            return Ok(());
        }
        if self.common.objects.groups.len() >= max_groups {
            refuse!(NoMemory, "attach_mcast: max_mcast_grp is {max_groups}");
        }
        let waits = self.common.out.shm.waits();
        match self.receivers.udp.join(gid.to_ip(), waits) {
            Ok(()) => {}
            Err(JoinError::NoSocket) => {
                refuse!(NotPermitted, "attach_mcast: this process has no UDP socket");
            }
            Err(JoinError::PortTaken(port)) => {
                refuse!(NotPermitted, "attach_mcast: UDP port {port} belongs to another user");
            }
            Err(JoinError::Refused(error)) => return Err(cannot_join(gid, &error)),
        }
        tracing::debug!(target: "peerdma::path", ?gid, "joined a multicast group");
        self.common.objects.groups.push(Group { gid, members: vec![id] });
        Ok(())
    }

    /// Detaches a QP from a group. When the last member leaves, so does this process.
    ///
    /// Refused as [`Invalid`](Kind::Invalid) if it is not attached, or cannot be.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, id: QpId, gid: Gid) -> Result<()> {
        self.check_mcast("detach_mcast", id, gid)?;
        let is_member = |group: &Group| group.gid == gid && group.members.contains(&id);
        let Some(at) = self.common.objects.groups.iter().position(is_member) else {
            refuse!(Invalid, "detach_mcast: QP {} is not in the group {gid:?}", id.handle());
        };
        self.leave_group(at, id);
        Ok(())
    }

    /// How many groups a QP is in. While it is in one, it cannot be destroyed
    /// (`ibv_attach_mcast(3)`).
    pub(super) fn groups_of(&self, id: QpId) -> usize {
        self.common.objects.groups.iter().filter(|group| group.members.contains(&id)).count()
    }

    /// Removes a QP from every group.
    pub(super) fn leave_groups(&mut self, id: QpId) {
        let is_member = |group: &Group| group.members.contains(&id);
        while let Some(at) = self.common.objects.groups.iter().position(is_member) {
            self.leave_group(at, id);
        }
    }

    fn leave_group(&mut self, at: usize, id: QpId) {
        let group = &mut self.common.objects.groups[at];
        group.members.retain(|member| *member != id);
        if group.members.is_empty() {
            let gid = self.common.objects.groups.swap_remove(at).gid;
            self.receivers.udp.leave(gid.to_ip());
            tracing::debug!(target: "peerdma::path", ?gid, "left a multicast group");
        }
    }

    /// The checks that attaching and detaching share (`ib_attach_mcast` of the kernel).
    fn check_mcast(&self, who: &str, id: QpId, gid: Gid) -> Result<()> {
        let Some(entry) = self.qps.get(id) else {
            refuse!(Invalid, "{who}: there is no QP {}", id.handle());
        };
        if entry.context.qp_type != QpType::Ud {
            let qp_type = entry.context.qp_type;
            refuse!(Invalid, "{who}: QP {} is {qp_type}; only UD has groups", entry.context.qpn);
        }
        if !gid.is_multicast() {
            refuse!(Invalid, "{who}: {gid:?} is not a multicast address");
        }
        Ok(())
    }
}

/// The refusal if the kernel does not grant membership.
fn cannot_join(gid: Gid, error: &BindError) -> Refusal {
    let kind = match error {
        BindError::InUse { .. } | BindError::NotPermitted { .. } => Kind::NotPermitted,
        BindError::NoIp => Kind::Invalid,
        // ENOBUFS: `net.ipv4.igmp_max_memberships`; EMFILE; ENODEV: the netdev is gone.
        _ => Kind::NoMemory,
    };
    Refusal::new(kind, format!("attach_mcast: {gid:?}: {error}"))
}

/// Whether a packet is for a group, by both of its destinations, which must agree (IBA 9.6.1.3.1):
/// `None` if they do not.
pub(super) fn is_for_group(qpn: Qpn, dst: SocketAddr) -> Option<bool> {
    let is_group = dst.ip().is_multicast();
    ((qpn == Qpn::MULTICAST) == is_group).then_some(is_group)
}

/// The port that packets for a group are counted on: that of the member that came first.
pub(super) fn port_of_group(common: &Common, qps: &QpTable, gid: Gid) -> u8 {
    let group = common.objects.groups.iter().find(|group| group.gid == gid);
    let first = group.and_then(|group| qps.get(*group.members.first()?));
    first.map_or(1, |entry| entry.context.port)
}

/// Gives a packet to every member of a group in this process, each of which checks its Q_Key and
/// needs a receive of its own.
pub(super) fn deliver_to_group(
    common: &mut Common,
    qps: &mut QpTable,
    dst: IpAddr,
    rx: &Rx<'_, InPayload<'_>>,
) {
    let gid = Gid::from(dst);
    let port = port_of_group(common, qps, gid);
    common.counters.of(port).rx_multicast_packets += 1;
    let found = common.objects.groups.iter().find(|group| group.gid == gid);
    // A packet from before the last member left, or one that is not a datagram.
    let Some(group) = found.filter(|_| rx.headers.deth().is_some()) else {
        common.counters.first.rx_unknown_qpn += 1;
        tracing::debug!(target: "peerdma::drop", ?gid, "not a datagram for a group of ours");
        return;
    };
    for id in group.members.clone() {
        deliver(common, qps, Receiver::Member(id), rx);
    }
}
