//! Where a panic stops.
//!
//! Unwinding into C is not possible; without a boundary the process would abort. A call that panics
//! fails with EIO, as with failed hardware, and the whole device fails with it: every context gets
//! `IBV_EVENT_DEVICE_FATAL`, and later calls fail with EIO, too ([`device::fail_all`]). So nobody
//! continues with a queue that was left in the middle of a work request.

use std::panic::{AssertUnwindSafe, catch_unwind};

use std::ffi::c_int;

use super::errno;
use super::object::BadArgument;
use crate::logging;

/// The return type of a call. What it returns for EIO shows its convention: the errno, its
/// negative, or a value that is no errno.
pub(crate) trait Answer: Copy {
    /// What the call returns for this errno; `self` is what it returns for EIO.
    fn refused(self, _errno: c_int) -> Self {
        self
    }

    /// The errno that the call returns, if it returns one, where `broken` is its answer to EIO;
    /// else 0.
    fn errno(self, _broken: Self) -> c_int {
        0
    }
}

impl Answer for c_int {
    fn refused(self, errno: c_int) -> Self {
        match self {
            libc::EIO => errno,
            other if other == -libc::EIO => -errno,
            other => other,
        }
    }

    #[inline]
    fn errno(self, broken: Self) -> c_int {
        match broken {
            libc::EIO if self > 0 => self,
            broken if broken == -libc::EIO && self < 0 => -self,
            _ => 0,
        }
    }
}

impl Answer for isize {
    fn refused(self, errno: c_int) -> Self {
        if self == -(libc::EIO as Self) { -(errno as Self) } else { self }
    }

    fn errno(self, broken: Self) -> c_int {
        // CAST: the negative of an errno.
        if broken == -(libc::EIO as Self) && self < 0 { -self as c_int } else { 0 }
    }
}

macro_rules! the_same {
    ($($type:ty),*) => {
        $(impl Answer for $type {})*
    };
}

the_same!((), u8, u16, u32, u64, i64, bool);

impl<T> Answer for *const T {}

impl<T> Answer for *mut T {}

/// Runs the body of a control call. On a panic, errno is EIO and the result is `broken`. A call
/// that returns an errno sets `errno` too: with the kernel it would have been a system call, and
/// programs print `%m`.
pub(crate) fn control<T: Answer>(verb: &'static str, broken: T, body: impl FnOnce() -> T) -> T {
    logging::init();
    let answer = caught(verb, broken, body);
    match answer.errno(broken) {
        0 => {}
        errno => errno::set(errno),
    }
    answer
}

/// Runs the body of a call of the data path, and nothing else. An empty queue (ENOENT) is no error
/// there, and too frequent to do more than return it.
#[inline]
pub(crate) fn data<T: Answer>(verb: &'static str, broken: T, body: impl FnOnce() -> T) -> T {
    let answer = caught(verb, broken, body);
    match answer.errno(broken) {
        0 | libc::ENOENT => {}
        errno => errno::set(errno),
    }
    answer
}

#[inline]
fn caught<T: Answer>(verb: &'static str, broken: T, body: impl FnOnce() -> T) -> T {
    // What the body held is either behind the engine's lock, and is never read again, or the
    // caller's own structure, which a failed call leaves undefined anyway.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(panic) => {
            if let Some(BadArgument { kind, what }) = panic.downcast_ref() {
                tracing::info!(target: "peerdma::refusal", "{verb}: {what}");
                let errno = errno::of(*kind);
                errno::set(errno);
                return broken.refused(errno);
            }
            device::fail_all(verb, &*panic);
            errno::set(libc::EIO);
            broken
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::mem;
    use std::ptr;

    use super::*;
    use crate::abi::own::context::opened;
    use crate::abi::types::context::Context;
    use crate::abi::types::cq::Cq;
    use crate::abi::types::event::AsyncEvent;
    use crate::abi::types::pd::Pd;
    use crate::abi::{context, cq, device as devices, events, pd, poll};

    /// What a program calls. The test keeps the contract (`SAFETY: contract`): it uses nothing that
    /// it has destroyed.
    struct Program;

    impl Program {
        fn open() -> *mut Context {
            // SAFETY: contract.
            let list = unsafe { devices::ibv_get_device_list(ptr::null_mut()) };
            assert!(!list.is_null(), "there is always a device");
            // SAFETY: contract: the list has a device.
            let device = unsafe { *list };
            // SAFETY: contract.
            let opened = unsafe { context::ibv_open_device(device) };
            // SAFETY: contract.
            unsafe { devices::ibv_free_device_list(list) };
            assert!(!opened.is_null(), "the device can be opened");
            opened
        }

        fn close(context: *mut Context) -> c_int {
            // SAFETY: contract.
            unsafe { context::ibv_close_device(context) }
        }

        fn alloc_pd(context: *mut Context) -> *mut Pd {
            // SAFETY: contract.
            unsafe { pd::ibv_alloc_pd(context) }
        }

        fn create_cq(context: *mut Context) -> *mut Cq {
            let (null, channel) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: contract.
            unsafe { cq::ibv_create_cq(context, 1, null, channel, 0) }
        }

        /// The type of the next asynchronous event, or the errno.
        fn event(context: *mut Context) -> Result<u32, c_int> {
            // SAFETY: contract.
            let fd = unsafe { (*context).async_fd };
            // SAFETY: the descriptor is open.
            unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
            // SAFETY: the structure is made of integers and a union of pointers and an integer.
            let mut event: AsyncEvent = unsafe { mem::zeroed() };
            // SAFETY: contract.
            let answer = unsafe { events::ibv_get_async_event(context, &raw mut event) };
            if answer != 0 {
                return Err(errno());
            }
            // SAFETY: contract.
            unsafe { events::ibv_ack_async_event(&raw mut event) };
            Ok(event.event_type)
        }
    }

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().expect("a call failed")
    }

    /// `IBV_EVENT_DEVICE_FATAL`.
    const DEVICE_FATAL: u32 = 8;

    /// One test, since a panic fails every device of the process.
    #[test]
    fn a_panic_becomes_eio_and_is_the_end_of_the_device() {
        let (one, other) = (Program::open(), Program::open());
        let (domain, queue) = (Program::alloc_pd(one), Program::create_cq(one));
        assert!(!domain.is_null() && !queue.is_null());

        let answer = control("ibv_example", -1, || {
            // SAFETY: contract.
            let engine = unsafe { opened(one) }.hca.lock();
            panic!("with {} bytes of memory locked", engine.device_attr().max_mr_size)
        });
        assert_eq!((answer, errno()), (-1, libc::EIO));
        for context in [one, other] {
            assert_eq!(Program::event(context), Ok(DEVICE_FATAL));
            assert_eq!(Program::event(context), Err(libc::EAGAIN), "once");
        }
        let _: c_int = data("ibv_example", -1, || panic!("once more"));
        assert_eq!(Program::event(one), Err(libc::EAGAIN), "once for all panics");

        assert!(Program::alloc_pd(other).is_null());
        assert_eq!(errno(), libc::EIO);
        assert!(Program::create_cq(one).is_null());
        assert_eq!(errno(), libc::EIO);
        // SAFETY: the structure is made of integers.
        let mut wc = unsafe { mem::zeroed() };
        // SAFETY: contract.
        assert_eq!(unsafe { poll::poll_cq(queue, 1, &raw mut wc) }, -libc::EIO);
        // SAFETY: contract.
        assert_eq!(unsafe { cq::req_notify_cq(queue, 0) }, libc::EIO);

        // A device that is opened again works, beside what is left of the old one.
        let fresh = Program::open();
        let usable = Program::alloc_pd(fresh);
        assert!(!usable.is_null());
        // SAFETY: contract.
        assert_eq!(unsafe { pd::ibv_dealloc_pd(usable) }, 0);
        assert_eq!(Program::close(fresh), 0);

        // SAFETY: contract.
        assert_eq!(unsafe { cq::ibv_destroy_cq(queue) }, 0);
        // SAFETY: contract.
        assert_eq!(unsafe { pd::ibv_dealloc_pd(domain) }, 0);
        assert_eq!((Program::close(one), Program::close(other)), (0, 0));
    }
}
