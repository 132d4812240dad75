//! The order in which handlers of a fork are called, in processes of their own: they are registered
//! once in each.
#![allow(unsafe_code, reason = "the test forks")]

use std::env;
use std::hint;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use threads::first::First;
use threads::fork::{Handlers, Section};

const THREADS: usize = 3;
const PROCESSES: u32 = 200;
/// Says that this process is one of them.
const ROLE: &str = "THREADS_HANDLERS_ROLE";
/// Far longer than a thread takes to begin a section.
const LONG: Duration = Duration::from_secs(2);

/// Whether another thread could go on while a handler prepared the fork.
static WENT_ON: AtomicBool = AtomicBool::new(false);

/// Waits for another thread, as the handler of devices does for one that closes a device.
extern "C" fn prepare() {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        drop(Section::begin());
        let _ = tell.send(());
    });
    WENT_ON.store(told.recv_timeout(LONG).is_ok(), Ordering::Relaxed);
}

/// Threads come at the same time, each the first for all it knows, and then the process forks.
fn forks_after_a_race() -> bool {
    static REGISTERED: First = First::new();
    // They spin: a barrier would let them go one after the other.
    let to_come = AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                to_come.fetch_sub(1, Ordering::SeqCst);
                while to_come.load(Ordering::SeqCst) > 0 {
                    hint::spin_loop();
                }
                REGISTERED.call(|| {
                    Handlers { prepare: Some(prepare), ..Handlers::default() }.register();
                });
            });
        }
    });
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child of above; the status is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    WENT_ON.load(Ordering::Relaxed)
}

#[test]
fn a_handler_may_wait_for_threads_in_sections_whoever_came_first() {
    if env::var_os(ROLE).is_some() {
        assert!(forks_after_a_race(), "the fork held up what its handler waits for");
        return;
    }
    let own = env::current_exe().expect("a path");
    for number in 0..PROCESSES {
        let ended = Command::new(&own).env(ROLE, "one").output().expect("it starts");
        assert!(ended.status.success(), "process {number}: {ended:?}");
    }
}
