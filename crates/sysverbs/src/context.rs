//! Open devices.

use std::ffi::c_int;
use std::mem;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use iba::{EventType, Gid, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_abi::context::{ABI_IS_EXTENDED, Context as CContext};
use verbs_abi::device::{
    DeviceAttr, DeviceAttrEx, GidEntry as CGidEntry, PortAttr, QueryDeviceExInput,
};
use verbs_abi::event::AsyncEvent as CAsyncEvent;
use verbs_abi::ops::{ContextOps, VerbsContext};

use crate::device::List;
use crate::error::{Error, Result, check};
use crate::library::{Functions, Library};
use crate::queue::QueueId;

/// An open device. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
pub struct Context(Arc<Open>);

#[derive(Debug)]
struct Open {
    raw: NonNull<CContext>,
    name: String,
    /// Asked when they are needed first.
    capabilities: OnceLock<u64>,
    list: Arc<List>,
}

// SAFETY: libibverbs may be called from any thread, and the fields that are read here do not change
// while the device is open.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Drop for Open {
    fn drop(&mut self) {
        let close = self.list.library.functions.ibv_close_device;
        // SAFETY: every object of the context holds it, so none is left.
        unsafe { close(self.raw.as_ptr()) };
    }
}

/// The limits of a device.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_device_attr")]
#[non_exhaustive]
pub struct Limits {
    /// The version of the firmware.
    pub fw_ver: String,
    /// Everything else, as in C.
    pub attr: AttrOfDevice,
}

/// `struct ibv_device_attr`.
pub type AttrOfDevice = DeviceAttr;

/// `struct ibv_port_attr`.
pub type AttrOfPort = PortAttr;

/// A GID of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_gid_entry")]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the table.
    pub index: u32,
    /// The netdev it belongs to; 0 if the library does not say.
    pub ifindex: u32,
    /// Whether packets of it are RoCE version 2; true if the library does not say.
    pub is_roce_v2: bool,
}

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// What it happened to.
    pub source: Source,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(QueueId),
    /// A shared receive queue.
    Srq(QueueId),
    /// A port, from 1.
    Port(u8),
    /// A work queue or the device.
    Other,
}

/// The pointer that the header calls for an operation which was added to the interface later, if
/// the library reaches so far and the provider has it.
macro_rules! later_op {
    ($context:expr, $field:ident) => {{
        match $context.extended() {
            Some((extended, size))
                if size
                    >= $crate::context::reach(std::mem::offset_of!(
                        verbs_abi::ops::VerbsContext,
                        $field
                    )) =>
            {
                // SAFETY: the structure reaches `size` bytes from its end, so this field is in it;
                // it does not change while the device is open.
                unsafe { (*extended.as_ptr()).$field }
            }
            _ => None,
        }
    }};
}
pub(crate) use later_op;

/// How far before its end the structure must reach to have a field at this offset.
pub(crate) const fn reach(offset: usize) -> usize {
    size_of::<VerbsContext>() - offset
}

impl Context {
    pub(crate) fn new(list: Arc<List>, raw: NonNull<CContext>, name: String) -> Result<Self> {
        let open = Self(Arc::new(Open { raw, name, capabilities: OnceLock::new(), list }));
        rustix::io::ioctl_fionbio(&open, true)
            .map_err(|errno| Error::new("ibv_open_device", errno.raw_os_error()))?;
        Ok(open)
    }

    pub(crate) fn raw(&self) -> *mut CContext {
        self.0.raw.as_ptr()
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        &self.0.list.library.functions
    }

    /// The library it is of.
    pub fn library(&self) -> &'static Library {
        self.0.list.library
    }

    /// What the device says that it can do, in bits that its library need not know
    /// (`device_cap_flags_ex`). None if it cannot be asked.
    pub(crate) fn capabilities(&self) -> u64 {
        *self.0.capabilities.get_or_init(|| self.query_capabilities().unwrap_or(0))
    }

    fn query_capabilities(&self) -> Option<u64> {
        let query = later_op!(self, query_device_ex)?;
        let input = QueryDeviceExInput { comp_mask: 0 };
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut attr: DeviceAttrEx = unsafe { mem::zeroed() };
        let size = size_of::<DeviceAttrEx>();
        // SAFETY: the context is open, and there is room for as much as the size says.
        let answer = unsafe { query(self.raw(), &raw const input, &raw mut attr, size) };
        (answer == 0).then_some(attr.device_cap_flags_ex)
    }

    /// The operations that the header's inline functions call.
    pub(crate) fn ops(&self) -> &ContextOps {
        // SAFETY: the context is open.
        let ops = unsafe { &raw const (*self.raw()).ops };
        // SAFETY: the field is this structure under another type (`OpsRoom`); a provider fills it
        // before the context is given out, and it does not change.
        unsafe { &*ops.cast::<ContextOps>() }
    }

    /// The structure around the context, and how far it reaches before its end.
    pub(crate) fn extended(&self) -> Option<(NonNull<VerbsContext>, usize)> {
        // SAFETY: the context is open.
        let compat = unsafe { (*self.raw()).abi_compat };
        if compat != ABI_IS_EXTENDED {
            return None;
        }
        let around = self.raw().wrapping_byte_sub(offset_of!(VerbsContext, context));
        let around = NonNull::new(around.cast::<VerbsContext>())?;
        // SAFETY: the context says that it is the end of such a structure, and `sz` is right before
        // it in every version.
        let size = unsafe { (*around.as_ptr()).sz };
        Some((around, size))
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether both are the same open device, so that objects of one are objects of the other.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The limits of the device.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_query_device")]
    pub fn limits(&self) -> Result<Limits> {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut attr: DeviceAttr = unsafe { mem::zeroed() };
        let query = self.functions().ibv_query_device;
        // SAFETY: the context is open, and the structure is of the size of this version.
        check("ibv_query_device", unsafe { query(self.raw(), &raw mut attr) })?;
        let fw_ver =
            attr.fw_ver.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0);
        let fw_ver = String::from_utf8_lossy(&fw_ver.collect::<Vec<u8>>()).into_owned();
        Ok(Limits { fw_ver, attr })
    }

    /// The state of a port.
    ///
    /// # Errors
    ///
    /// The library's: EINVAL for a port that the device has not.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, port: u8) -> Result<AttrOfPort> {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut attr: PortAttr = unsafe { mem::zeroed() };
        let query = self.functions().ibv_query_port;
        // SAFETY: the context is open; the symbol writes a part of the structure and no more.
        check("ibv_query_port", unsafe { query(self.raw(), port, &raw mut attr) })?;
        Ok(attr)
    }

    /// The GIDs of a port.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        let length = usize::try_from(self.port(port)?.gid_tbl_len).unwrap_or(0);
        match self.functions()._ibv_query_gid_table {
            Some(query) => self.gid_table(query, port, length),
            None => self.gids_one_by_one(port, length),
        }
    }

    fn gid_table(
        &self,
        query: unsafe extern "C" fn(
            *mut CContext,
            *mut CGidEntry,
            usize,
            u32,
            usize,
        ) -> libc::ssize_t,
        port: u8,
        length: usize,
    ) -> Result<Vec<GidEntry>> {
        // The table is that of all ports.
        let ports = usize::from(self.limits()?.attr.phys_port_cnt).max(1);
        let mut table: Vec<CGidEntry> = Vec::with_capacity(length.saturating_mul(ports));
        let room = table.capacity();
        let size = size_of::<CGidEntry>();
        // SAFETY: there is room for as many entries as it says.
        let count = unsafe { query(self.raw(), table.as_mut_ptr(), room, 0, size) };
        let Ok(count) = usize::try_from(count) else {
            let errno = i32::try_from(count.unsigned_abs()).unwrap_or(libc::EIO);
            return Err(Error::new("ibv_query_gid_table", errno));
        };
        // SAFETY: the library wrote that many.
        unsafe { table.set_len(count.min(room)) };
        let here = table.iter().filter(|entry| entry.port_num == u32::from(port));
        Ok(here
            .map(|entry| GidEntry {
                gid: Gid(entry.gid.raw),
                index: entry.gid_index,
                ifindex: entry.ndev_ifindex,
                is_roce_v2: entry.gid_type == ROCE_V2,
            })
            .collect())
    }

    fn gids_one_by_one(&self, port: u8, length: usize) -> Result<Vec<GidEntry>> {
        let query = self.functions().ibv_query_gid;
        let mut gids = Vec::new();
        for index in 0..length {
            let mut gid = verbs_abi::device::Gid { raw: [0; 16] };
            let Ok(number) = c_int::try_from(index) else { break };
            // SAFETY: the context is open, and there is room for a GID.
            check("ibv_query_gid", unsafe { query(self.raw(), port, number, &raw mut gid) })?;
            if gid.raw != [0; 16] {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                gids.push(GidEntry { gid: Gid(gid.raw), index, ifindex: 0, is_roce_v2: true });
            }
        }
        Ok(gids)
    }

    /// The oldest asynchronous event, if one waits. It is acknowledged.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias("ibv_get_async_event", "ibv_ack_async_event"))]
    pub fn async_event(&self) -> Result<Option<AsyncEvent>> {
        if !readable(self, None)? {
            return Ok(None);
        }
        // SAFETY: the structure is made of a pointer and integers, for which zero is a value.
        let mut event: CAsyncEvent = unsafe { mem::zeroed() };
        let get = self.functions().ibv_get_async_event;
        // SAFETY: the context is open, and there is room for an event.
        if unsafe { get(self.raw(), &raw mut event) } != 0 {
            // Another thread may have taken it.
            return match Error::last("ibv_get_async_event") {
                error if error.errno == libc::EAGAIN => Ok(None),
                error => Err(error),
            };
        }
        let source = source(&event);
        let acknowledge = self.functions().ibv_ack_async_event;
        // SAFETY: the event was taken a moment ago.
        unsafe { acknowledge(&raw mut event) };
        Ok(EventType::from_code(event.event_type).map(|event| AsyncEvent { event, source }))
    }
}

impl AsFd for Context {
    /// Readable while an asynchronous event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.raw()).async_fd };
        // SAFETY: the library keeps the descriptor open as long as the context.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// Whether a descriptor is readable now, or within a time.
pub(crate) fn readable(fd: impl AsFd, timeout: Option<Timespec>) -> Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout.unwrap_or(now))) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::new("poll", errno.raw_os_error())),
    }
}

fn source(event: &CAsyncEvent) -> Source {
    use EventType as E;
    match EventType::from_code(event.event_type) {
        Some(
            E::QpFatal
            | E::QpReqErr
            | E::QpAccessErr
            | E::CommEst
            | E::SqDrained
            | E::PathMig
            | E::PathMigErr
            | E::QpLastWqeReached,
        ) => {
            // SAFETY: events of these types are about a QP (`ibv_get_async_event(3)`).
            let qp = unsafe { event.element.qp };
            // SAFETY: a QP is not destroyed before its events are acknowledged.
            let number = unsafe { (*qp).qp_num };
            Source::Qp(Qpn::new(number))
        }
        Some(E::CqErr) => {
            // SAFETY: an event of this type is about a completion queue.
            let cq = unsafe { event.element.cq };
            // SAFETY: a queue is not destroyed before its events are acknowledged.
            let cookie = unsafe { (*cq).cq_context };
            QueueId::of(cookie).map_or(Source::Other, Source::Cq)
        }
        Some(E::SrqErr | E::SrqLimitReached) => {
            // SAFETY: events of these types are about a shared receive queue.
            let srq = unsafe { event.element.srq };
            // SAFETY: as above.
            let cookie = unsafe { (*srq).srq_context };
            QueueId::of(cookie).map_or(Source::Other, Source::Srq)
        }
        Some(
            E::PortActive
            | E::PortErr
            | E::LidChange
            | E::PkeyChange
            | E::SmChange
            | E::ClientReregister
            | E::GidChange,
        ) => {
            // SAFETY: events of these types are about a port.
            let port = unsafe { event.element.port_num };
            Source::Port(u8::try_from(port).unwrap_or(0))
        }
        _ => Source::Other,
    }
}
