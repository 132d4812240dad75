//! Faults that are not ours reach the handler that was installed before ours, unchanged.
//!
//! A process has one set of handlers and the guard is installed once, so each case runs in a
//! separate child, forked from a process with one thread that has not installed anything.

#![allow(unsafe_code, reason = "signal handlers and deliberate faults")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, siginfo_t};
use umem::guard::{self, Mode};
use umem::{Fault, Umem};

const PAGE: usize = 4096;

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
}

type Case = (&'static str, fn(), End);

fn main() {
    let cases: &[Case] = &[
        ("a_siginfo_handler_repairs_its_own_fault", siginfo_handler, End::Exit(0)),
        ("a_plain_handler_is_called_with_the_signal", plain_handler, End::Exit(42)),
        ("sigbus_has_its_own_predecessor", sigbus_handler, End::Exit(43)),
        ("the_default_action_kills", default_action, End::Signal(libc::SIGSEGV)),
        ("a_sent_signal_with_default_action_kills", default_sent, End::Signal(libc::SIGSEGV)),
        ("an_ignored_sent_signal_is_ignored", ignored_sent, End::Exit(0)),
        ("an_ignored_fault_kills_all_the_same", ignored_fault, End::Signal(libc::SIGSEGV)),
        ("a_one_shot_handler_runs_once", one_shot, End::Signal(libc::SIGSEGV)),
        ("a_handler_runs_with_its_mask", mask, End::Exit(0)),
        ("a_handler_need_not_return", no_return, End::Exit(0)),
        ("a_replaced_handler_is_noticed_and_left_alone", replaced, End::Exit(0)),
        ("a_replacement_is_noticed_without_being_asked", replaced_silently, End::Exit(0)),
        ("background_threads_keep_the_guard", background_thread, End::Exit(0)),
    ];
    let mut failed = 0;
    for (name, case, expected) in cases {
        let end = in_child(*case);
        if end == *expected {
            println!("test {name} ... ok");
        } else {
            println!("test {name} ... FAILED: {end:?} where {expected:?} was expected");
            failed += 1;
        }
    }
    println!("{} passed, {failed} failed", cases.len() - failed);
    assert_eq!(failed, 0, "see above");
}

fn siginfo_handler() {
    handle(libc::SIGSEGV, repair as *const () as usize, libc::SA_SIGINFO);
    assert_guarded();
    assert_eq!(HANDLED.load(Ordering::Relaxed), 0, "the guard's fault is not the program's");
    let page = forbidden_page();
    touch(page);
    touch(page);
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    assert_guarded();
}

fn plain_handler() {
    handle(libc::SIGSEGV, exit_42 as *const () as usize, 0);
    assert_guarded();
    touch(forbidden_page());
}

fn sigbus_handler() {
    handle(libc::SIGSEGV, exit_42 as *const () as usize, 0);
    handle(libc::SIGBUS, exit_43 as *const () as usize, 0);
    assert_guarded();
    touch(page_behind_the_end());
}

fn default_action() {
    set(libc::SIGSEGV, libc::SIG_DFL);
    assert_guarded();
    touch(forbidden_page());
}

fn default_sent() {
    set(libc::SIGSEGV, libc::SIG_DFL);
    assert_guarded();
    raise(libc::SIGSEGV);
}

fn ignored_sent() {
    set(libc::SIGSEGV, libc::SIG_IGN);
    assert_guarded();
    raise(libc::SIGSEGV);
    assert_guarded();
}

fn ignored_fault() {
    set(libc::SIGSEGV, libc::SIG_IGN);
    assert_guarded();
    touch(forbidden_page());
}

fn one_shot() {
    handle(libc::SIGSEGV, repair as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND);
    assert_guarded();
    touch(forbidden_page());
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    assert_guarded();
    touch(forbidden_page());
}

fn mask() {
    let mut action = action(note_mask as *const () as usize, libc::SA_SIGINFO);
    // SAFETY: a valid set and a valid signal number.
    unsafe { libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1) };
    install(libc::SIGSEGV, &action);
    assert_guarded();
    touch(forbidden_page());
    assert_eq!(BLOCKED.load(Ordering::Relaxed), 0b011, "SIGSEGV and SIGUSR1, not SIGUSR2");
    assert!(!is_blocked(libc::SIGSEGV), "and afterwards as before");
}

fn no_return() {
    handle(libc::SIGSEGV, exit_0 as *const () as usize, libc::SA_SIGINFO);
    assert_guarded();
    touch(forbidden_page());
    panic!("the handler ended the process");
}

fn replaced() {
    set(libc::SIGSEGV, libc::SIG_DFL);
    assert_guarded();
    assert_eq!(guard::mode(), Mode::Guarded);
    let ours = query(libc::SIGSEGV);

    handle(libc::SIGSEGV, exit_42 as *const () as usize, 0);
    let theirs = query(libc::SIGSEGV).sa_sigaction;
    // A registration looks.
    assert_faults(&user(forbidden_page()));
    assert_eq!(guard::mode(), Mode::Kernel);
    assert_eq!(query(libc::SIGSEGV).sa_sigaction, theirs, "the program keeps its handler");

    install(libc::SIGSEGV, &ours);
    assert_eq!(guard::recheck(), Mode::Guarded);
    assert_faults(&user(forbidden_page()));
}

fn replaced_silently() {
    set(libc::SIGSEGV, libc::SIG_DFL);
    let page = readable_page();
    let umem = user(page);
    handle(libc::SIGSEGV, exit_42 as *const () as usize, 0);
    for _ in 0..10_000 {
        umem.read(0, &mut [0; 8]).expect("there");
    }
    assert_eq!(guard::mode(), Mode::Kernel);
    forbid(page);
    assert_faults(&umem);
}

fn background_thread() {
    set(libc::SIGSEGV, libc::SIG_DFL);
    let umem = user(forbidden_page());
    let thread = threads::spawn("background", move || {
        assert!(is_blocked(libc::SIGINT));
        assert_faults(&umem);
    });
    thread.expect("a thread").join().expect("no fault reached the thread");
}

// The handlers of the program.

static HANDLED: AtomicI32 = AtomicI32::new(0);
static BLOCKED: AtomicUsize = AtomicUsize::new(0);

/// Makes the page accessible, so that the access succeeds when it is retried.
extern "C" fn repair(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    if signal != libc::SIGSEGV {
        exit(90);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's information, passed on.
    let info = unsafe { &*info };
    // SAFETY: a fault has an address.
    let addr = unsafe { info.si_addr() };
    let page = addr.map_addr(|addr| addr & !(PAGE - 1));
    // SAFETY: the test's own page.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

extern "C" fn exit_42(signal: c_int) {
    exit(if signal == libc::SIGSEGV { 42 } else { 91 });
}

extern "C" fn exit_43(signal: c_int) {
    exit(if signal == libc::SIGBUS { 43 } else { 91 });
}

extern "C" fn note_mask(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let mut seen = 0;
    for (bit, signal) in [libc::SIGSEGV, libc::SIGUSR1, libc::SIGUSR2].into_iter().enumerate() {
        seen |= usize::from(is_blocked(signal)) << bit;
    }
    BLOCKED.store(seen, Ordering::Relaxed);
    repair(signal, info, context);
}

extern "C" fn exit_0(_signal: c_int, _info: *mut siginfo_t, _context: *mut c_void) {
    exit(0);
}

// The tools.

/// The guard works: a touch of nothing is a fault, and the process lives.
#[track_caller]
fn assert_guarded() {
    assert_faults(&user(forbidden_page()));
    assert_eq!(guard::mode(), Mode::Guarded);
}

#[track_caller]
fn assert_faults(umem: &Umem) {
    assert!(matches!(umem.read(0, &mut [0; 8]), Err(Fault::Page { .. })));
    assert!(matches!(umem.write(0, &[0; 100]), Err(Fault::Page { .. })));
    assert!(matches!(umem.fetch_add(0, 1), Err(Fault::Page { .. })));
}

fn user(page: *mut u8) -> Umem {
    // SAFETY: the page is used for nothing else.
    unsafe { Umem::user(page.expose_provenance(), PAGE as u64) }
}

fn touch(page: *mut u8) {
    // SAFETY: faults on purpose; where it comes back, the page is there.
    unsafe { page.write_volatile(1) };
}

fn forbidden_page() -> *mut u8 {
    let page = readable_page();
    forbid(page);
    page
}

fn readable_page() -> *mut u8 {
    let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping overlaps nothing.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

fn forbid(page: *mut u8) {
    // SAFETY: the test's own page.
    unsafe { libc::mprotect(page.cast(), PAGE, libc::PROT_NONE) };
}

/// A page of a mapping past the end of its file: SIGBUS.
fn page_behind_the_end() -> *mut u8 {
    // SAFETY: a name that ends with NUL.
    let file = unsafe { libc::memfd_create(c"umem-test".as_ptr(), 0) };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping overlaps nothing.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, libc::MAP_SHARED, file, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

fn handle(signal: c_int, handler: usize, flags: c_int) {
    install(signal, &action(handler, flags));
}

fn set(signal: c_int, disposition: usize) {
    install(signal, &action(disposition, 0));
}

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: plain data for which all zeros is valid.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn install(signal: c_int, action: &libc::sigaction) {
    // SAFETY: a valid action whose handler has the signature its flags ask for.
    let rc = unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
    assert_eq!(rc, 0);
}

fn query(signal: c_int) -> libc::sigaction {
    let mut current = action(0, 0);
    // SAFETY: only queries.
    let rc = unsafe { libc::sigaction(signal, ptr::null(), &mut current) };
    assert_eq!(rc, 0);
    current
}

fn is_blocked(signal: c_int) -> bool {
    let mut set = action(0, 0).sa_mask;
    // SAFETY: only queries.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut set) };
    // SAFETY: a valid set and a valid signal number.
    unsafe { libc::sigismember(&set, signal) == 1 }
}

fn raise(signal: c_int) {
    // SAFETY: a plain system call.
    unsafe { libc::raise(signal) };
}

fn exit(code: i32) -> ! {
    // SAFETY: ends the process without running anything.
    unsafe { libc::_exit(code) }
}

fn in_child(case: fn()) -> End {
    // SAFETY: this process has one thread, so the child may do anything.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A deliberate crash must leave no core file, and a dead parent no process.
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
        // SAFETY: a plain system call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let result = std::panic::catch_unwind(case);
        exit(if result.is_ok() { 0 } else { 101 });
    }
    assert!(pid > 0, "a process can be made");
    let mut status = 0;
    // SAFETY: our own child; the status is a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Exit(libc::WEXITSTATUS(status))
    }
}
