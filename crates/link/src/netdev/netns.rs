//! Network namespaces for tests: each lives as long as its descriptor, so a test that is killed
//! leaves none behind.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::{panic, thread};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::{Netdev, Watch};

/// A network namespace; new ones hold a `lo` that is down.
pub(crate) struct Netns(File);

impl Netns {
    /// Creates a namespace, and leaves the calling thread in it.
    fn new() -> std::io::Result<Self> {
        #[allow(unsafe_code, reason = "the call is unsafe for file descriptor tables only")]
        // SAFETY: NEWNET changes neither the descriptor table nor anything else that Rust relies
        // on.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
        File::open("/proc/thread-self/ns/net").map(Self)
    }

    /// Runs `body` with the calling thread in this namespace. The thread stays there.
    pub(crate) fn enter<R>(&self, body: impl FnOnce() -> R) -> R {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("a thread that may unshare may also return");
        body()
    }

    /// Runs `ip` with `arguments` in this namespace.
    pub(crate) fn ip(&self, arguments: &str) {
        self.enter(|| {
            let done = Command::new("ip").args(arguments.split_whitespace()).output();
            let done = done.expect("iproute2 is installed wherever namespace tests are wanted");
            let error = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "ip {arguments}: {error}");
        });
    }

    /// A path by which `ip link set ... netns PATH` finds this namespace.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Runs `body` with `N` fresh namespaces on a thread of its own, which is in the last of them.
///
/// Where namespaces are not permitted, the test is reported as not run, or fails if
/// `PEERDMA_REQUIRE` lists `netns`.
pub(crate) fn with_namespaces<const N: usize>(body: impl FnOnce([Netns; N]) + Send + 'static) {
    let thread =
        thread::spawn(move || match (0..N).map(|_| Netns::new()).collect::<Result<Vec<_>, _>>() {
            Ok(all) => body(all.try_into().ok().expect("N were made")),
            Err(error) => not_run("netns", &format!("no network namespace: {error}")),
        });
    if let Err(panic) = thread.join() {
        panic::resume_unwind(panic);
    }
}

/// Reports that the calling test cannot run here, or fails it if `PEERDMA_REQUIRE` lists `what` or
/// `all`.
pub(crate) fn not_run(what: &str, why: &str) {
    let required = std::env::var("PEERDMA_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|item| item == what || item == "all");
    assert!(!is_required, "{what} is required: {why}");
    eprintln!("NOT RUN: {why}");
}

/// Joins two namespaces by a veth pair: `left` has 10.77.0.1 and fd77::1 on `veth0`, `right` has .2
/// and ::2.
pub(crate) fn join_by_veth(left: &Netns, right: &Netns) {
    left.ip(&format!("link add veth0 type veth peer name veth0 netns {}", right.path()));
    let watch = right.enter(Watch::new).expect("rtnetlink groups are open to all");
    for (end, host) in [(left, 1), (right, 2)] {
        end.ip("link set lo up");
        end.ip(&format!("addr add 10.77.0.{host}/24 dev veth0"));
        end.ip("link set veth0 up");
        if has_ipv6() {
            end.ip(&format!("addr add fd77::{host}/64 dev veth0 nodad"));
        }
    }
    // The carrier appears a moment later, and packets sent before that are lost.
    while !right.enter(|| Netdev::named("veth0")).expect("it was made").is_running {
        let mut poll = [rustix::event::PollFd::new(&watch, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).expect("descriptors can be waited for");
        watch.drain().expect("readable");
    }
    while !left.enter(|| Netdev::named("veth0")).expect("it was made").is_running {
        thread::yield_now();
    }
}

/// Whether this kernel has IPv6.
pub(crate) fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Whether `::1` can be used in the namespace of the calling thread.
pub(crate) fn has_ipv6_loopback() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}
