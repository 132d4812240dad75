//! The SIGSEGV and SIGBUS handler: turns a fault inside a guarded routine into a failure return,
//! and passes every other fault to the handler that was installed before ours.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::arch;

unsafe extern "C" {
    static peerdma_umem_guard_start: u8;
    static peerdma_umem_guard_end: u8;
    static peerdma_umem_guard_fixup: u8;
}

/// The signals that an access to vanished memory can raise: SIGSEGV for an unmapped page, SIGBUS
/// for a page past the end of its file.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The action of each of [`SIGNALS`] before ours. Null until known; the handler takes null as the
/// default action.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] =
    [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())];

/// Installs the handler; called once per process. If the program replaces it later, the program's
/// handler stays: see [`is_ours`].
pub(super) fn install() {
    for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
        install_one(signal, previous);
    }
}

/// Whether both signals are still delivered to us.
pub(super) fn is_ours() -> bool {
    SIGNALS.into_iter().all(|signal| {
        current(signal).is_some_and(|action| action.sa_sigaction == handler_address())
    })
}

fn install_one(signal: c_int, previous: &AtomicPtr<libc::sigaction>) {
    let Some(before) = current(signal) else { return };
    // The previous action must be known before the first fault can reach us, so it is stored
    // first. It is leaked on purpose: a handler on another thread may read it at any time until the
    // process ends.
    previous.store(Box::into_raw(Box::new(before)), Ordering::Release);

    let mut action = empty_action();
    action.sa_sigaction = handler_address();
    // SA_ONSTACK: the fault may be a stack overflow that an earlier handler wants to see, and Go
    // requires the flag of foreign handlers. SA_NODEFER: the previous handler decides the mask
    // while we chain to it. SA_RESTART follows the previous handler, so that a signal sent by
    // `kill` interrupts system calls as it did before.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    action.sa_flags |=
        if has_handler(&before) { before.sa_flags & libc::SA_RESTART } else { libc::SA_RESTART };
    let mut replaced = empty_action();
    // SAFETY: both point to initialised structures; the handler has the signature that SA_SIGINFO
    // asks for and calls only async-signal-safe functions.
    let rc = unsafe { libc::sigaction(signal, &action, &mut replaced) };
    if rc == 0 && replaced.sa_sigaction != before.sa_sigaction {
        previous.store(Box::into_raw(Box::new(replaced)), Ordering::Release);
    }
}

fn current(signal: c_int) -> Option<libc::sigaction> {
    let mut action = empty_action();
    // SAFETY: a null new action only queries; the old action points to a valid structure.
    let rc = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    (rc == 0).then_some(action)
}

fn empty_action() -> libc::sigaction {
    // SAFETY: `sigaction` is plain data for which all zeros is valid: SIG_DFL, no flags, an empty
    // mask.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn has_handler(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

fn handler_address() -> usize {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
    handler as usize
}

/// Whether `pc` is inside the guarded routines.
fn is_guarded(pc: usize) -> bool {
    let start = (&raw const peerdma_umem_guard_start).addr();
    let end = (&raw const peerdma_umem_guard_end).addr();
    (start..end).contains(&pc)
}

/// The function to call for faults that are the program's own.
static EXPLAIN: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// See [`explain_strays`](super::explain_strays).
pub(super) fn set_explainer(explain: fn(usize)) {
    EXPLAIN.store(explain as *mut (), Ordering::Release);
}

// Everything below runs in signal context: no allocation, no lock, no logging.

extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let context: *mut ucontext_t = context.cast();
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler, and nobody changes it
    // meanwhile.
    let fault = unsafe { &*info };
    let code = fault.si_code;
    // Codes above zero come from the processor. A SIGSEGV that `kill` sent while a guarded routine
    // ran is no fault.
    let is_fault = code > 0;
    // SAFETY: the kernel passes a valid context to an SA_SIGINFO handler.
    let pc = unsafe { arch::program_counter(context) };
    if is_fault && is_guarded(pc) {
        // SAFETY: the information is that of a fault signal, for which the field is defined.
        let at = unsafe { fault.si_addr() }.addr();
        let fixup = (&raw const peerdma_umem_guard_fixup).addr();
        // SAFETY: the context is valid as above; every guarded routine is a leaf without a stack
        // frame, so the fixup may return to its caller from any instruction.
        unsafe { arch::resume_at(context, fixup, at) };
        return;
    }
    if is_fault && let Some(explain) = explainer() {
        // SAFETY: the information is that of a fault signal, for which the field is defined.
        explain(unsafe { fault.si_addr() }.addr());
    }
    chain(signal, info, context.cast(), is_fault);
}

/// The function that [`set_explainer`] set.
fn explainer() -> Option<fn(usize)> {
    let explain = EXPLAIN.load(Ordering::Acquire);
    // SAFETY: null, or a function of this type.
    (!explain.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), fn(usize)>(explain) })
}

/// Does what would have happened without our handler.
fn chain(signal: c_int, info: *mut siginfo_t, context: *mut c_void, is_fault: bool) {
    let slot = if signal == libc::SIGSEGV { &PREVIOUS[0] } else { &PREVIOUS[1] };
    let pointer = slot.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that is never freed or changed.
    let Some(previous) = (unsafe { pointer.as_ref() }) else {
        return default_action(signal, info, is_fault);
    };
    if !has_handler(previous) {
        // The kernel does not let a fault be ignored: it resets the action to the default and
        // kills. A signal sent by another process is ignored when the program asked for that.
        if is_fault || previous.sa_sigaction == libc::SIG_DFL {
            default_action(signal, info, is_fault);
        }
        return;
    }
    let handler = previous.sa_sigaction;
    let flags = previous.sa_flags;
    let mut mask = previous.sa_mask;
    if flags & libc::SA_RESETHAND != 0 {
        // A one-shot handler: the next signal takes the default action. We stay installed.
        slot.store(ptr::null_mut(), Ordering::Release);
    }
    if flags & libc::SA_NODEFER == 0 {
        // SAFETY: `mask` is a valid set and the signal number is one of ours.
        unsafe { libc::sigaddset(&mut mask, signal) };
    }
    // The mask needs no restoring: `sigreturn` loads the one of the interrupted context, and a
    // handler that leaves by `siglongjmp` restores its own.
    // SAFETY: `mask` is a valid set; a null old set is permitted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &mask, ptr::null_mut()) };
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: an action with SA_SIGINFO holds a function of this type, and the address is not
        // null (SIG_DFL).
        let call: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        call(signal, info, context);
    } else {
        // SAFETY: an action without SA_SIGINFO holds a function of this type, and the address is
        // not null (SIG_DFL).
        let call: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        call(signal);
    }
}

/// Restores the default action and lets the signal happen again, so that the process ends as it
/// would have without us: same signal, same core dump.
fn default_action(signal: c_int, info: *mut siginfo_t, is_fault: bool) {
    let action = empty_action();
    // SAFETY: `action` is SIG_DFL with an empty mask; a null old action is permitted.
    unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
    if is_fault {
        // The faulting instruction runs again when we return.
        return;
    }
    // A sent signal would not come back by itself.
    // SAFETY: a plain system call without arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    // SAFETY: as above.
    let process = unsafe { libc::getpid() };
    // SAFETY: a plain system call; `info` is the information the kernel gave us, which a thread may
    // queue to itself.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}
