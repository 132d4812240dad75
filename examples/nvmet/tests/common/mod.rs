//! A target on files that are removed with the test, and hosts for it.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nvmet::host::{Host, HostError, Who};
use nvmet::target::Target;
use nvmet::target::subsystem::{Namespace, Subsystem};
use nvmet::wire::Status;
use orchestrator::Published;
use providers::{Kind, Machine};
use umem::ways::{WayBytes, bytes_by_way};
use verbs::Context;
use verbs::soft::{self, NicConfig};

pub const NQN: &str = "nqn.2026-11.org.example:files";
/// Bytes of each namespace.
pub const SIZE: u64 = 4 << 20;

/// A target with two namespaces, and the other end of its NIC.
pub struct Bench {
    pub target: Target,
    pub host: Context,
    pub machine: Machine,
    pub published: Option<Published>,
    pub began: WayBytes,
    folder: PathBuf,
}

/// Bytes that no wrong offset can produce.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| ((n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Two files with a pattern each.
pub fn two_files(folder: &Path) -> Vec<Namespace> {
    let paths = ["one", "two"].map(|name| folder.join(name));
    for (seed, path) in paths.iter().enumerate() {
        std::fs::write(path, pattern(seed as u64, SIZE as usize)).expect("room");
    }
    paths.iter().map(|path| Namespace::open(path).expect("just made")).collect()
}

impl Bench {
    pub fn new(kind: Kind) -> Self {
        Self::on(kind, two_files)
    }

    pub fn on(kind: Kind, namespaces: impl FnOnce(&Path) -> Vec<Namespace>) -> Self {
        Self::with(namespaces, |machine, nic| machine.publish(kind, nic).expect("it comes up"))
    }

    /// On memory of a provider that `publish` makes.
    pub fn with(
        namespaces: impl FnOnce(&Path) -> Vec<Namespace>,
        publish: impl FnOnce(&Machine, &Context) -> Option<Published>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nvmet-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let namespaces = namespaces(&folder);
        let machine = Machine::new();
        let device = soft::device(NicConfig { name, ..machine.nic() }).expect("a NIC");
        let (ours, host) =
            (device.open().expect("opens"), soft::open_another(&device).expect("opens"));
        let published = publish(&machine, &ours);
        let ip = ours.default_gid().unwrap().gid.to_ip();
        let subsystem = Subsystem::new(NQN, namespaces);
        let target = Target::start(&machine, &ours, (ip, 0).into(), subsystem, 32).expect("starts");
        Self { target, host, machine, published, began: bytes_by_way(), folder }
    }

    pub fn who(&self) -> Who {
        Who::new(self.target.addr(), NQN)
    }

    pub fn connect(&self) -> Host {
        Host::connect_io(&self.host, &self.who(), 1, 32).expect("it connects")
    }

    /// The contents of a namespace's file.
    pub fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it is there")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The status of a command that failed.
#[track_caller]
pub fn status<T: std::fmt::Debug>(result: Result<T, HostError>) -> Status {
    let error = result.expect_err("it fails");
    error.status().unwrap_or_else(|| panic!("{error}"))
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}
