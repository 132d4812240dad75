//! Opening and closing devices.

use std::ffi::c_int;
use std::mem::{self, offset_of};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Once};

use descriptors::Known;
use device::ids::CtxId;
use device::{Hca, Refusal};
use libc::timespec;

use super::boundary::control;
use super::import::{self, Opening};
use super::object::{Object, bad, given_mut};
use super::pointers::Pointers;
use super::types::context::{ABI_IS_EXTENDED, Context, ValuesEx, VerbsContext};
use super::types::device::Device;
use super::{
    cq, device as devices, dm, domain, errno, flow, mr, mw, poll, post, qp, report, rsocket, srq,
    tm, wq, xrc,
};

/// An open device, as the library knows it.
pub(crate) struct Open {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: CtxId,
    /// The last context of an opening closes it.
    _opening: Arc<Opening>,
    /// A descriptor that programs may duplicate, pass and import.
    _cmd_fd: Known,
}

type ContextObject = Object<VerbsContext, Open>;

/// The contexts that programs hold. A context lies inside of its object, at a distance from the
/// beginning that no other object has, so what a pointer is cannot be read before it.
static CONTEXTS: Pointers = Pointers::new();

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
    if !CONTEXTS.has(context.addr()) {
        bad(format!("{context:p} is no open context"));
    }
    // SAFETY: the caller promises that the context lies within one of ours.
    unsafe { context.byte_sub(offset_of!(VerbsContext, context)) }.cast()
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    control("ibv_open_device", ptr::null_mut(), || {
        watch_forks();
        // SAFETY: contract: the device is one of ours.
        let nic = unsafe { devices::nic(device) };
        watch_the_end();
        report::begin();
        errno::or_null(Hca::open(&nic).and_then(|hca| open(device, hca)))
    })
}

/// Sees to it that a program that ends without closing its devices leaves nothing out of its
/// capture, and says what was counted and what fired of its fault plan.
pub(crate) fn watch_the_end() {
    static WATCH: Once = Once::new();
    extern "C" fn at_the_end() {
        device::finish_records();
        gpu::weather::report();
        // The report needs storage of the thread, and that which ends the process may have lost its
        // own.
        if let Ok(thread) = threads::spawn("peerdma-report", report::finish) {
            let _ = thread.join();
        }
    }
    device::set_weather(gpu::weather::struck);
    // SAFETY: the function has the signature that atexit asks for, touches no argument, and is not
    // unloaded: the library is linked with `-z nodelete`. If it cannot be noted, the last packets
    // may be missing.
    WATCH.call_once(|| unsafe {
        libc::atexit(at_the_end);
    });
}

fn open(device: *mut Device, hca: Arc<Hca>) -> Result<*mut Context, Refusal> {
    let id = hca.alive()?.open_ctx()?;
    let (opening, cmd_fd) = import::register(hca, id, device.expose_provenance())?;
    Ok(create(device, opening, cmd_fd))
}

/// A context of a device that is open, with the descriptor that becomes its own.
pub(crate) fn create(device: *mut Device, opening: Arc<Opening>, cmd_fd: Known) -> *mut Context {
    let (hca, id) = (Arc::clone(&opening.hca), opening.id);
    let engine = hca.lock();
    let async_fd = engine.async_fd(id).expect("the context was opened just now").as_raw_fd();
    let vectors = engine.device_attr().num_comp_vectors;
    drop(engine);

    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex (`PTHREAD_MUTEX_INITIALIZER`).
    let mut c: VerbsContext = unsafe { mem::zeroed() };
    c.query_port = Some(devices::query_port);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    c.modify_cq = Some(cq::modify_cq);
    c.alloc_null_mr = Some(mr::alloc_null_mr);
    c.advise_mr = Some(mr::advise_mr);
    c.get_srq_num = Some(xrc::get_srq_num);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.alloc_parent_domain = Some(domain::alloc_parent_domain);
    c.dealloc_td = Some(domain::dealloc_td);
    c.alloc_td = Some(domain::alloc_td);
    c.query_rt_values = Some(query_rt_values);
    c.create_cq_ex = Some(cq::create_cq_ex);
    c.query_device_ex = Some(devices::query_device_ex);
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
    c.sz = size_of::<VerbsContext>();
    c.context.device = device;
    c.context.ops._compat_query_device = Some(devices::ibv_query_device);
    c.context.ops._compat_query_port = Some(devices::ibv_query_port);
    c.context.ops.alloc_mw = Some(mw::alloc_mw);
    c.context.ops.bind_mw = Some(mw::bind_mw);
    c.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.context.ops.poll_cq = Some(poll::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_srq_recv = Some(post::post_srq_recv);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    c.context.cmd_fd = cmd_fd.as_raw_fd();
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = c_int::try_from(vectors).unwrap_or(c_int::MAX);
    c.context.abi_compat = ABI_IS_EXTENDED;
    let whole = ContextObject::create(c, Open { hca, id, _opening: opening, _cmd_fd: cmd_fd });
    // SAFETY: the object was created just now.
    let context = unsafe { &raw mut (*whole).context };
    CONTEXTS.add(context.addr());
    context
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    control("ibv_close_device", -1, || {
        // SAFETY: contract: the context is one of ours.
        let whole = unsafe { whole(context) };
        CONTEXTS.remove(context.addr());
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { ContextObject::destroy(whole) });
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
        let values = unsafe { given_mut(values) };
        if values.comp_mask & !RAW_CLOCK != 0 {
            return libc::EINVAL;
        }
        if values.comp_mask & RAW_CLOCK != 0 {
            // The clock counts nanoseconds, and its value is read as ticks
            // (`ibv_query_rt_values_ex(3)`).
            let ticks = open.hca.lock().clock_nanos();
            values.raw_clock = timespec { tv_sec: 0, tv_nsec: ticks as libc::c_long };
        }
        0
    })
}

/// From the first open on, devices know of forks.
fn watch_forks() {
    extern "C" fn prepare() {
        rsocket::fork_prepare();
        device::fork::prepare();
    }
    extern "C" fn parent() {
        device::fork::parent();
        rsocket::fork_parent();
    }
    extern "C" fn child() {
        device::fork::child();
        rsocket::fork_child();
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // An engine takes locks of buffers, and never the other way round.
        dmabuf::watch_forks();
        // SAFETY: the functions live as long as the library, which is linked never to be unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if refused != 0 {
            tracing::warn!(target: "peerdma::fork", "pthread_atfork: errno {refused}");
        }
    });
}
