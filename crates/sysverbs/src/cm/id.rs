//! Identifiers.

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iba::{AttrMask, QpAttr, QpState, Qpn};
use libc::sockaddr;
use verbs_abi::qp as c;
use verbs_abi::rdma::{self, port_space};
use verbs_abi::sockaddr::{from_c, to_c};

use super::channel::CmChannel;
use super::event::{CmEventKind, UdSaid};
use super::library::{CmLibrary, Functions};
use crate::attr;
use crate::context::Context;
use crate::error::{Error, Result};

/// Which services an identifier connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_port_space")]
#[non_exhaustive]
pub enum PortSpace {
    /// Reliable connections.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp,
    /// Datagrams.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
}

/// The parameters that this side of a connection sends.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "rdma_conn_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct ConnParam<'a> {
    /// Data for the program at the other end.
    pub private_data: &'a [u8],
    /// READs and atomics that this side takes at once.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at once.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// Retries while the peer has no receive.
    pub rnr_retry_count: u8,
    /// This side's QP.
    pub qpn: Qpn,
    /// Whether it has a shared receive queue.
    pub srq: bool,
}

/// An option of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmOption {
    /// IP type of service.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    Tos(u8),
    /// Another one that does not listen may have the same port.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddr(bool),
    /// An IPv6 wildcard does not include IPv4.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AfOnly(bool),
    /// How long to wait for an acknowledgement, `4.096 us * 2^code`.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeout(u8),
}

/// An identifier. Clones are the same one; the last one destroys it, which ends its connection.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct CmId(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    raw: NonNull<rdma::CmId>,
    library: &'static CmLibrary,
    /// Where its events go. Held while the identifier is used, since moving changes it.
    channel: Mutex<CmChannel>,
}

// SAFETY: librdmacm may be called from any thread; the mutex keeps calls of one identifier apart.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // No event finds it from now on. One that is being taken was taken by a thread that
        // acknowledges it without waiting for this one, and the library waits for that.
        self.library.ids().remove(&(self.raw.as_ptr() as usize));
        let destroy = self.library.functions.rdma_destroy_id;
        // SAFETY: this is the last clone.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

/// The status of a call of librdmacm, which sets errno.
fn check(call: &'static str, returned: c_int) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(Error::last(call)) }
}

/// How much longer than the library's own bound an event is waited for.
const SLACK: Duration = Duration::from_secs(5);

impl CmChannel {
    /// Makes an identifier.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, space: PortSpace) -> Result<CmId> {
        let create = self.functions().rdma_create_id;
        let space = match space {
            PortSpace::Tcp => port_space::TCP,
            PortSpace::Udp => port_space::UDP,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, and there is room for a pointer.
        let made = unsafe { create(self.raw(), &raw mut raw, ptr::null_mut(), space) };
        check("rdma_create_id", made)?;
        // SAFETY: the library made it for this call.
        Ok(unsafe { CmId::adopt(self, raw) })
    }
}

impl CmId {
    /// Takes over an identifier.
    ///
    /// # Safety
    ///
    /// The library made it on this channel, and nobody else has it.
    pub(super) unsafe fn adopt(channel: &CmChannel, raw: *mut rdma::CmId) -> Self {
        let library = channel.library();
        let place = NonNull::new(raw).expect("the library made an identifier");
        let inner = Inner { raw: place, library, channel: Mutex::new(channel.clone()) };
        let inner = Arc::new(inner);
        let own = Arc::downgrade(&inner);
        library.ids().insert(raw as usize, own);
        Self(inner)
    }

    /// The identifier with this C structure, unless it is about to be destroyed.
    pub(super) fn find(library: &CmLibrary, raw: *mut rdma::CmId) -> Option<Self> {
        library.ids().get(&(raw as usize))?.upgrade()?.downcast().ok().map(Self)
    }

    fn functions(&self) -> &'static Functions {
        &self.0.library.functions
    }

    /// The identifier for one call, and where its events go.
    fn lock(&self) -> (*mut rdma::CmId, MutexGuard<'_, CmChannel>) {
        let channel = self.0.channel.lock().unwrap_or_else(PoisonError::into_inner);
        (self.0.raw.as_ptr(), channel)
    }

    /// A number that no other identifier has while this one exists.
    pub fn number(&self) -> usize {
        self.0.raw.as_ptr() as usize
    }

    /// Binds it to an address, or to a port of all addresses.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, addr: SocketAddr) -> Result<()> {
        let (raw, _channel) = self.lock();
        let bind = self.functions().rdma_bind_addr;
        let mut addr = to_c(addr);
        let addr = (&raw mut addr).cast::<sockaddr>();
        // SAFETY: the identifier exists, and the address is as long as its family says.
        check("rdma_bind_addr", unsafe { bind(raw, addr) })
    }

    /// Takes requests from now on.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let (raw, _channel) = self.lock();
        let listen = self.functions().rdma_listen;
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier exists.
        check("rdma_listen", unsafe { listen(raw, backlog) })
    }

    /// Resolves address and route of a peer, each within `timeout`; the events of it go to a
    /// channel of their own.
    ///
    /// # Errors
    ///
    /// The library's, or what the event says.
    #[doc(alias("rdma_resolve_addr", "rdma_resolve_route"))]
    pub fn resolve(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let (raw, mut channel) = self.lock();
        let own = self.0.library.create_channel()?;
        self.migrate_raw(raw, &channel, &own)?;
        let done = self.resolve_on(raw, &own, from, to, timeout);
        let back = self.migrate_raw(raw, &own, &channel);
        if back.is_err() {
            // It refers to its channel, which must not end before it.
            *channel = own;
        }
        done.and(back)
    }

    fn resolve_on(
        &self,
        raw: *mut rdma::CmId,
        own: &CmChannel,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let mut from = from.map(to_c);
        let from = from.as_mut().map_or(ptr::null_mut(), |from| (&raw mut *from).cast());
        let mut to = to_c(to);
        let to = (&raw mut to).cast::<sockaddr>();
        let resolve = self.functions().rdma_resolve_addr;
        // SAFETY: the identifier exists, and the addresses are as long as their families say.
        check("rdma_resolve_addr", unsafe { resolve(raw, from, to, millis) })?;
        loop {
            match own.wait("rdma_resolve_addr", timeout.saturating_add(SLACK))?.kind {
                CmEventKind::AddrResolved => break,
                CmEventKind::AddrError(error) => return Err(error),
                CmEventKind::DeviceRemoval => {
                    return Err(Error::new("rdma_resolve_addr", libc::ENODEV));
                }
                _ => {}
            }
        }
        let resolve = self.functions().rdma_resolve_route;
        // SAFETY: the identifier exists.
        check("rdma_resolve_route", unsafe { resolve(raw, millis) })?;
        loop {
            match own.wait("rdma_resolve_route", timeout.saturating_add(SLACK))?.kind {
                CmEventKind::RouteResolved => return Ok(()),
                CmEventKind::RouteError(error) => return Err(error),
                CmEventKind::DeviceRemoval => {
                    return Err(Error::new("rdma_resolve_route", libc::ENODEV));
                }
                _ => {}
            }
        }
    }

    /// Sends its events, and those that wait, to another channel.
    ///
    /// # Errors
    ///
    /// EINVAL for a channel of another library, or the library's.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &CmChannel) -> Result<()> {
        if !ptr::eq(self.0.library, to.library()) {
            return Err(Error::new("rdma_migrate_id", libc::EINVAL));
        }
        let (raw, mut channel) = self.lock();
        if channel.is_same(to) {
            return Ok(());
        }
        self.migrate_raw(raw, &channel, to)?;
        *channel = to.clone();
        Ok(())
    }

    fn migrate_raw(&self, raw: *mut rdma::CmId, from: &CmChannel, to: &CmChannel) -> Result<()> {
        let migrate = self.functions().rdma_migrate_id;
        // While an event is taken, the library reads what this changes.
        let turn = from.turn();
        // SAFETY: the identifier and both channels exist.
        let done = check("rdma_migrate_id", unsafe { migrate(raw, to.raw()) });
        drop(turn);
        done
    }

    /// Requests a connection.
    ///
    /// # Errors
    ///
    /// The library's, and EINVAL for private data of more than 255 bytes.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        let (raw, _channel) = self.lock();
        let connect = self.functions().rdma_connect;
        let mut param = param_to_c("rdma_connect", param)?;
        // SAFETY: the identifier exists, and the parameters are valid for the call.
        check("rdma_connect", unsafe { connect(raw, &raw mut param) })
    }

    /// Accepts the request that it was made for.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        let (raw, _channel) = self.lock();
        let accept = self.functions().rdma_accept;
        let mut param = param_to_c("rdma_accept", param)?;
        // SAFETY: the identifier exists, and the parameters are valid for the call.
        check("rdma_accept", unsafe { accept(raw, &raw mut param) })
    }

    /// Refuses the request that it was made for.
    ///
    /// # Errors
    ///
    /// The library's, and EINVAL for private data of more than 255 bytes.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_by("rdma_reject", self.functions().rdma_reject, private_data)
    }

    /// The same because of the options that the peer's vendor asks for.
    ///
    /// # Errors
    ///
    /// As [`reject`](Self::reject), and EOPNOTSUPP if the library has no such function.
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "rdma_reject_ece";
        let reject = self.functions().rdma_reject_ece.ok_or(Error::absent(CALL))?;
        self.reject_by(CALL, reject, private_data)
    }

    fn reject_by(
        &self,
        call: &'static str,
        reject: unsafe extern "C" fn(*mut rdma::CmId, *const c_void, u8) -> c_int,
        private_data: &[u8],
    ) -> Result<()> {
        let (raw, _channel) = self.lock();
        let length = length(call, private_data)?;
        // SAFETY: the identifier exists, and the data is as long as said.
        check(call, unsafe { reject(raw, private_data.as_ptr().cast(), length) })
    }

    /// Tells the peer that this side's QP is ready: the answer to
    /// [`CmEventKind::ConnectResponse`].
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<()> {
        let (raw, _channel) = self.lock();
        let establish = self.functions().rdma_establish;
        // SAFETY: the identifier exists.
        check("rdma_establish", unsafe { establish(raw) })
    }

    /// Tells the connection manager that the QP got a message before the connection was
    /// established.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<()> {
        let (raw, _channel) = self.lock();
        let notify = self.functions().rdma_notify;
        // SAFETY: the identifier exists.
        check("rdma_notify", unsafe { notify(raw, iba::EventType::CommEst as u32) })
    }

    /// Ends the connection, or confirms its end.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        let (raw, _channel) = self.lock();
        let disconnect = self.functions().rdma_disconnect;
        // SAFETY: the identifier exists.
        check("rdma_disconnect", unsafe { disconnect(raw) })
    }

    /// The attributes of its QP for the transition to a state.
    ///
    /// # Errors
    ///
    /// The library's: EINVAL if they are not known yet.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        let (raw, _channel) = self.lock();
        let init = self.functions().rdma_init_qp_attr;
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut found: c::QpAttr = unsafe { mem::zeroed() };
        found.qp_state = state as u32;
        let mut mask: c_int = 0;
        // SAFETY: the identifier exists, and there is room for both.
        check("rdma_init_qp_attr", unsafe { init(raw, &raw mut found, &raw mut mask) })?;
        // Old kernels set bits that are not for user space (`ucma_modify_qp_rtr`).
        let mask = AttrMask::from_bits_truncate(mask.cast_unsigned() & 0x1f_ffff);
        Ok((attr::from_c(&found), mask))
    }

    /// Sets an option.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "rdma_set_option")]
    pub fn set_option(&self, option: CmOption) -> Result<()> {
        /// `RDMA_OPTION_ID`.
        const LEVEL: c_int = 0;
        let (raw, _channel) = self.lock();
        let set = self.functions().rdma_set_option;
        let (mut byte, mut number) = (0_u8, 0 as c_int);
        let (name, is_byte) = match option {
            CmOption::Tos(tos) => {
                byte = tos;
                (0, true)
            }
            CmOption::ReuseAddr(yes) => {
                number = yes.into();
                (1, false)
            }
            CmOption::AfOnly(yes) => {
                number = yes.into();
                (2, false)
            }
            CmOption::AckTimeout(code) => {
                byte = code;
                (3, true)
            }
        };
        let (value, length) = if is_byte {
            ((&raw mut byte).cast::<c_void>(), size_of::<u8>())
        } else {
            ((&raw mut number).cast::<c_void>(), size_of::<c_int>())
        };
        // SAFETY: the identifier exists, and the value is as long as said.
        check("rdma_set_option", unsafe { set(raw, LEVEL, name, value, length) })
    }

    /// Joins a group, and waits until it is joined. For an identifier of datagrams that is bound
    /// and does nothing else.
    ///
    /// # Errors
    ///
    /// The library's, or what the event says; EOPNOTSUPP for a library that cannot only send.
    #[doc(alias("rdma_join_multicast", "rdma_join_multicast_ex"))]
    pub fn join(&self, group: SocketAddr, send_only: bool, timeout: Duration) -> Result<UdSaid> {
        const CALL: &str = "rdma_join_multicast";
        /// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `_JOIN_FLAGS`, and
        /// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
        const ADDRESS_AND_FLAGS: u32 = 0b11;
        const SEND_ONLY: u32 = 1;
        let (raw, channel) = self.lock();
        let mut group = to_c(group);
        let addr = (&raw mut group).cast::<sockaddr>();
        if send_only {
            let join = self.functions().rdma_join_multicast_ex.ok_or(Error::absent(CALL))?;
            let mut how =
                rdma::JoinMcAttrEx { comp_mask: ADDRESS_AND_FLAGS, join_flags: SEND_ONLY, addr };
            // SAFETY: the identifier exists, and the structures are valid for the call.
            check(CALL, unsafe { join(raw, &raw mut how, ptr::null_mut()) })?;
        } else {
            let join = self.functions().rdma_join_multicast;
            // SAFETY: the identifier exists, and the address is as long as its family says.
            check(CALL, unsafe { join(raw, addr, ptr::null_mut()) })?;
        }
        loop {
            match channel.wait(CALL, timeout)?.kind {
                CmEventKind::MulticastJoin(found) => return Ok(found),
                CmEventKind::MulticastError(error) => return Err(error),
                CmEventKind::DeviceRemoval => return Err(Error::new(CALL, libc::ENODEV)),
                _ => {}
            }
        }
    }

    /// Leaves a group.
    ///
    /// # Errors
    ///
    /// The library's: EADDRNOTAVAIL for one that was not joined.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&self, group: SocketAddr) -> Result<()> {
        let (raw, _channel) = self.lock();
        let leave = self.functions().rdma_leave_multicast;
        let mut group = to_c(group);
        let addr = (&raw mut group).cast::<sockaddr>();
        // SAFETY: the identifier exists, and the address is as long as its family says.
        check("rdma_leave_multicast", unsafe { leave(raw, addr) })
    }

    /// Its own address, once it is bound.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let (raw, _channel) = self.lock();
        // SAFETY: the identifier exists, and calls that change it hold the lock.
        from_c(unsafe { &(*raw).route.addr.src_storage })
    }

    /// The peer's address, once it is resolved or has sent its request.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let (raw, _channel) = self.lock();
        // SAFETY: as above.
        from_c(unsafe { &(*raw).route.addr.dst_storage })
    }

    /// The name of the device that it uses; `None` while it is bound to none.
    pub fn device(&self) -> Option<String> {
        let (raw, _channel) = self.lock();
        // SAFETY: as above.
        let verbs = NonNull::new(unsafe { (*raw).verbs })?;
        // SAFETY: librdmacm keeps the device open while an identifier uses it.
        let device = NonNull::new(unsafe { (*verbs.as_ptr()).device })?;
        // SAFETY: a device lives as long as its context.
        let name = unsafe { &raw const (*device.as_ptr()).name };
        // SAFETY: the field is a string of C (`struct ibv_device`).
        let name = unsafe { CStr::from_ptr(name.cast()) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Whether it uses the same device as a context; `None` while it is bound to none.
    pub fn is_of(&self, context: &Context) -> Option<bool> {
        self.device().map(|device| device == context.name())
    }
}

fn length(call: &'static str, private_data: &[u8]) -> Result<u8> {
    u8::try_from(private_data.len()).map_err(|_| Error::new(call, libc::EINVAL))
}

fn param_to_c(call: &'static str, param: &ConnParam<'_>) -> Result<rdma::ConnParam> {
    Ok(rdma::ConnParam {
        private_data: param.private_data.as_ptr().cast(),
        private_data_len: length(call, param.private_data)?,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq.into(),
        qp_num: param.qpn.value(),
    })
}
