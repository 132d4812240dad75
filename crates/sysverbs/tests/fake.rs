//! What a library may refuse, and where it may wait: shown with one of C that does both, which
//! `tests/c/fake.c` is.
#![expect(unsafe_code, reason = "memory is registered by its address")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::{env, fs, process};

use iba::Access;
use sysverbs::{Context, Library};

/// The device of the library. `None` if the library cannot be built here, which is reported, and
/// fails if `PEERDMA_REQUIRE` is set.
fn open() -> Option<Context> {
    static LIBRARY: OnceLock<Option<&Library>> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let built = build()?;
        let library = Library::open(Some(&built)).unwrap();
        fs::remove_file(built).unwrap();
        Some(library)
    });
    if library.is_none() {
        let why = "no C compiler or no <infiniband/verbs.h>";
        assert!(env::var_os("PEERDMA_REQUIRE").is_none(), "{why}");
        eprintln!("SKIPPED: {why}");
    }
    let device = library?.devices().unwrap().remove(0);
    assert_eq!(device.name(), "fake0");
    Some(device.open().unwrap())
}

fn build() -> Option<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{}.so", process::id()));
    let cc = || Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let mut header = cc();
    header.args(["-include", "infiniband/verbs.h", "-fsyntax-only", "-x", "c"]);
    if !header.arg("/dev/null").output().ok()?.status.success() {
        return None;
    }
    let mut link = cc();
    link.args(["-Wall", "-Werror", "-shared", "-fPIC"]).arg(sources.join("fake.c"));
    link.arg(format!("-Wl,--version-script={}", sources.join("fake.map").display()));
    assert!(link.arg("-o").arg(&built).status().unwrap().success(), "fake.c compiles");
    Some(built)
}

/// Memory that the library keeps in use if it has one byte.
#[test]
fn memory_is_given_back_only_if_the_region_is_gone() {
    let Some(context) = open() else { return };
    let pd = context.alloc_pd().unwrap();
    for (length, left) in [(2, 1), (1, 2)] {
        let mut memory = vec![0_u8; length];
        let addr = NonNull::new(memory.as_mut_ptr()).unwrap();
        let memory = Arc::new(memory);
        // SAFETY: the owner keeps the memory, which nobody reads or writes.
        let mr = unsafe { pd.reg_owned(addr, length, Access::LOCAL_WRITE, memory.clone()) };
        let mr = mr.unwrap();
        let clone = mr.clone();
        drop(mr);
        assert_eq!(Arc::strong_count(&memory), 2, "a clone is left");
        drop(clone);
        assert_eq!(Arc::strong_count(&memory), left, "of {length} bytes");
    }
}

/// The destructor of a real library waits for the acknowledgement of every event that was taken.
#[test]
fn an_event_is_acknowledged_when_it_is_taken() {
    let Some(context) = open() else { return };
    let channel = context.create_channel().unwrap();
    let cq = context.create_cq(1, &channel).unwrap();
    for _ in 0..3 {
        assert!(!channel.take_event().unwrap());
        cq.req_notify(false).unwrap();
        assert!(channel.take_event().unwrap());
    }
    drop(cq); // it would abort
}
