//! Multicast groups.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iba::{AttrMask, Av, Gid, QKey, QpAttr, QpType, Qpn};
use verbs_abi::rdma::UDP_QKEY;

use crate::arm::{Arm, refused};
use crate::context::is_link_local;
use crate::{Context, GidEntry, Kind, Pd, Qp, Refusal, Result};

/// The QP number that every datagram to a group carries.
pub const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// How long a library may take to join.
const PATIENCE: Duration = Duration::from_secs(10);

/// A multicast group that the port has joined, until the last clone is dropped.
///
/// A group of RoCE is an IP address. To receive, [`attach`](Self::attach) a datagram QP; to send,
/// no QP need be attached:
///
/// ```no_run
/// use verbs::SendRequest;
/// use verbs::cm::{Group, MULTICAST_QPN};
/// # fn send(pd: &verbs::Pd, qp: &verbs::Qp, mr: &verbs::Mr) -> Result<(), Box<dyn std::error::Error>> {
/// let group = Group::join(pd.context(), "239.1.2.3".parse()?)?;
/// let everyone = pd.create_ah(group.av())?;
/// let hello = SendRequest::send(1, &[mr.slice(0, 5)]);
/// qp.post_send(&hello.to(&everyone, MULTICAST_QPN, group.qkey()))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[doc(alias("rdma_join_multicast", "rdma_leave_multicast"))]
pub struct Group(Arc<Member>);

#[derive(Debug)]
struct Member {
    addr: IpAddr,
    av: Av,
    qkey: QKey,
    /// An identifier of a library that does nothing but be a member.
    member: Option<sysverbs::CmId>,
    attached: Mutex<Vec<Qp>>,
    context: Context,
}

impl Member {
    fn attached(&self) -> MutexGuard<'_, Vec<Qp>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detach(&self, qp: &Qp) -> Result<()> {
        qp.detach_mcast(Gid::from(self.addr))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        for qp in &*self.attached() {
            // Fails only for one that is not attached.
            let _ = self.detach(qp);
        }
        if let Some(member) = &self.member {
            // Dropping the identifier leaves the group in any case.
            let _ = member.leave(SocketAddr::new(self.addr, 0));
        }
    }
}

/// The address of a GID, with its link where it needs one.
fn address(gid: &GidEntry) -> SocketAddr {
    match gid.gid.to_ip() {
        IpAddr::V6(ip) if is_link_local(ip.into()) => {
            SocketAddrV6::new(ip, 0, 0, gid.ifindex).into()
        }
        ip => SocketAddr::new(ip, 0),
    }
}

impl Group {
    /// Joins a group from the port's first address of the same family, one that leaves the link if
    /// there is any.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for an address that is no group's, [`Kind::NotFound`] if the port has no
    /// address of that family, or what the library says.
    pub fn join(context: &Context, addr: IpAddr) -> Result<Self> {
        const CALL: &str = "rdma_join_multicast";
        if !addr.is_multicast() {
            let what = format!("{CALL}: {addr} is no group");
            return Err(Refusal::new(Kind::Invalid, what));
        }
        let gids = context.gids();
        let of_the_family = gids.iter().filter(|gid| gid.gid.to_ip().is_ipv4() == addr.is_ipv4());
        let Some(own) = of_the_family.min_by_key(|gid| is_link_local(gid.gid.to_ip())) else {
            let what = format!("{CALL}: the port has no address of the family of {addr}");
            return Err(Refusal::new(Kind::NotFound, what));
        };
        let (av, qkey, member) = match context.arm() {
            Arm::Soft(_) => {
                let av = Av {
                    dgid: Gid::from(addr),
                    sgid_index: u8::try_from(own.index).unwrap_or(0),
                    // Groups do not leave the network (`cma_iboe_join_multicast` of the kernel).
                    hop_limit: 1,
                    port_num: context.port(),
                    is_global: true,
                    ..Av::default()
                };
                (av, QKey(UDP_QKEY), None)
            }
            Arm::Hard(hard) => {
                let library = hard.library().connections().map_err(|why| {
                    Refusal::new(Kind::NotSupported, format!("{CALL}: no librdmacm: {why}"))
                })?;
                let join = || {
                    let channel = library.create_channel()?;
                    let member = channel.create_id(sysverbs::PortSpace::Udp)?;
                    member.bind(address(own))?;
                    let found = member.join(SocketAddr::new(addr, 0), false, PATIENCE)?;
                    Ok((found.av, QKey(found.qkey), Some(member)))
                };
                join().map_err(refused)?
            }
        };
        let (attached, context) = (Mutex::default(), context.clone());
        Ok(Self(Arc::new(Member { addr, av, qkey, member, attached, context })))
    }

    /// The group's address.
    pub fn addr(&self) -> IpAddr {
        self.0.addr
    }

    /// Where to send to reach it, for [`Pd::create_ah`].
    pub fn av(&self) -> Av {
        self.0.av
    }

    /// The Q_Key of its datagrams.
    #[doc(alias = "RDMA_UDP_QKEY")]
    pub fn qkey(&self) -> u32 {
        self.0.qkey.0
    }

    /// The device that joined.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// A datagram QP receives what is sent to the group from now on, until it is detached or the
    /// group is dropped. The QP, which is in INIT or RTS, takes the group's Q_Key: peers that send
    /// to the QP itself use that one, too.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for a QP of another device, or not of datagrams, or in another state.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, qp: &Qp) -> Result<()> {
        const CALL: &str = "ibv_attach_mcast";
        self.0.context.check_same(Pd::context(qp.pd()), CALL, "QP")?;
        if qp.spec().qp_type != QpType::Ud {
            return Err(Refusal::new(Kind::Invalid, format!("{CALL}: the QP is not UD")));
        }
        let state = qp.query()?.state;
        let attr = QpAttr { state, qkey: self.0.qkey, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE | AttrMask::QKEY)?;
        let mut attached = self.0.attached();
        qp.attach_mcast(Gid::from(self.0.addr))?;
        attached.push(qp.clone());
        Ok(())
    }

    /// A QP no longer receives what is sent to the group.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for one that is not attached.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, qp: &Qp) -> Result<()> {
        let mut attached = self.0.attached();
        let Some(place) = attached.iter().position(|other| other.qpn() == qp.qpn()) else {
            let what = format!("ibv_detach_mcast: QP {} is not attached", qp.qpn());
            return Err(Refusal::new(Kind::Invalid, what));
        };
        self.0.detach(qp)?;
        attached.remove(place);
        Ok(())
    }
}
