//! Opening and closing devices.

use std::ffi::c_int;
use std::mem::{self, offset_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Once};

use device::ids::CtxId;
use device::{Hca, Kind, Refusal};
use libc::timespec;
use rustix::event::{EventfdFlags, eventfd};

use super::boundary::control;
use super::object::Object;
use super::types::context::{ABI_IS_EXTENDED, Context, ValuesEx, VerbsContext};
use super::types::device::Device;
use super::{cq, device as devices, dm, errno, poll, post, qp, srq};

/// An open device, as the library knows it.
pub(crate) struct Open {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: CtxId,
    /// A descriptor that programs may duplicate and close, as they do with that of a kernel's device.
    _cmd_fd: OwnedFd,
}

type ContextObject = Object<VerbsContext, Open>;

/// The library's part of a context.
///
/// # Safety
///
/// `context` is from [`ibv_open_device`] and is not closed before the result is last used.
pub(crate) unsafe fn opened<'a>(context: *mut Context) -> &'a Open {
    // SAFETY: the caller's promise: the context lies within one of ours.
    let whole = unsafe { whole(context) };
    // SAFETY: as above.
    unsafe { ContextObject::own(whole) }
}

/// The structure around the part of it that programs hold.
unsafe fn whole(context: *mut Context) -> *mut VerbsContext {
    // SAFETY: the caller promises that the context lies within one of ours.
    unsafe { context.byte_sub(offset_of!(VerbsContext, context)) }.cast()
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    control("ibv_open_device", ptr::null_mut(), || {
        watch_forks();
        // SAFETY: contract: the device is one of ours.
        let nic = unsafe { devices::nic(device) };
        errno::or_null(Hca::open(&nic).and_then(|hca| open(device, hca)))
    })
}

fn open(device: *mut Device, hca: Arc<Hca>) -> Result<*mut Context, Refusal> {
    let cmd_fd = eventfd(0, EventfdFlags::CLOEXEC)
        .map_err(|error| Refusal::new(Kind::NoMemory, format!("ibv_open_device: {error}")))?;
    let mut engine = hca.lock();
    let id = engine.open_ctx()?;
    let async_fd = engine.async_fd(id).expect("the context was opened just now").as_raw_fd();
    let vectors = engine.device_attr().num_comp_vectors;
    drop(engine);

    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be absent, for all of
    // which zero is a value; so it is for a mutex (`PTHREAD_MUTEX_INITIALIZER`).
    let mut c: VerbsContext = unsafe { mem::zeroed() };
    c.query_port = Some(devices::query_port);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.query_rt_values = Some(query_rt_values);
    c.create_cq_ex = Some(cq::create_cq_ex);
    c.query_device_ex = Some(devices::query_device_ex);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.sz = size_of::<VerbsContext>();
    c.context.device = device;
    c.context.ops._compat_query_device = Some(devices::ibv_query_device);
    c.context.ops._compat_query_port = Some(devices::ibv_query_port);
    c.context.ops.poll_cq = Some(poll::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_srq_recv = Some(post::post_srq_recv);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    c.context.cmd_fd = cmd_fd.as_raw_fd();
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = c_int::try_from(vectors).unwrap_or(c_int::MAX);
    c.context.abi_compat = ABI_IS_EXTENDED;
    let whole = ContextObject::create(c, Open { hca, id, _cmd_fd: cmd_fd });
    // SAFETY: the object was created just now.
    Ok(unsafe { &raw mut (*whole).context })
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    control("ibv_close_device", -1, || {
        // SAFETY: contract: the context is one of ours.
        let whole = unsafe { whole(context) };
        // SAFETY: contract: the program uses it no more.
        let open = unsafe { ContextObject::destroy(whole) };
        open.hca.lock().close_ctx(open.id);
        0
    })
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;

unsafe extern "C" fn query_rt_values(context: *mut Context, values: *mut ValuesEx) -> c_int {
    control("ibv_query_rt_values_ex", libc::EIO, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the structure is valid and the program's alone.
        let values = unsafe { &mut *values };
        if values.comp_mask & !RAW_CLOCK != 0 {
            return libc::EINVAL;
        }
        if values.comp_mask & RAW_CLOCK != 0 {
            // The clock counts nanoseconds, and its value is read as ticks (`ibv_query_rt_values_ex(3)`).
            let ticks = open.hca.lock().clock_nanos();
            values.raw_clock = timespec { tv_sec: 0, tv_nsec: ticks as libc::c_long };
        }
        0
    })
}

/// From the first open on, devices know of forks.
fn watch_forks() {
    extern "C" fn prepare() {
        device::fork::prepare();
    }
    extern "C" fn parent() {
        device::fork::parent();
    }
    extern "C" fn child() {
        device::fork::child();
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the functions live as long as the library, which is linked never to be unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if refused != 0 {
            tracing::warn!(target: "peerdma::fork", "pthread_atfork: errno {refused}");
        }
    });
}
