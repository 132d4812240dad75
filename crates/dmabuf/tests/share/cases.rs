//! The cases.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dmabuf::{DmaBuf, GateError, ImportError, ImporterClass, Sharing, Stale, Timeline, Usage};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Signal;

use crate::bo::{self, SIZE};
use crate::child::Child;
use crate::importer::{Attached, fds};

/// A case returns the reason if it cannot run.
type Case = fn() -> Result<(), String>;

pub(crate) const ALL: &[(&str, Case)] = &[
    ("a_buffer_is_imported_with_its_exporters_class", facts),
    ("no_stale_byte_under_moves", traffic),
    ("a_pinned_importer_keeps_the_buffer_where_it_is", pinned),
    ("a_static_importer_pins_by_its_map", static_class),
    ("a_map_waits_for_a_move_that_is_under_way", kernel_fence),
    ("a_revocation_reaches_another_process", revocation),
    ("what_is_over_leaves_nothing", leaks),
    ("a_revocable_importer_is_told_once", revocable),
    ("refusals_come_with_the_exporters_words", refusals),
    ("a_dead_importer_is_detached", dead_importer),
    ("a_stopped_importer_blocks_no_move", stopped_importer),
    ("an_importer_stopped_inside_is_waited_for_and_named", stopped_inside),
    ("memory_of_a_dead_exporter_stays", dead_exporter_kept),
    ("memory_of_a_dead_exporter_is_revoked", dead_exporter_revoked),
    ("an_exporter_that_dies_in_a_move_revokes", dead_mover),
    ("moves_and_maps_in_both_directions", crossing),
    ("a_forged_name_is_no_dma_buf", forged),
    ("another_users_process_is_refused_in_words", other_user),
];

fn importer(buf: &DmaBuf, class: &str) -> Child {
    let mut child = Child::start("importer", Some(buf.fd()));
    child.must("import");
    child.must(&format!("attach {class}"));
    child
}

fn facts() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = Child::start("importer", Some(buf.fd()));
    assert_eq!(child.must("import"), format!("bo {SIZE} test-gpu true"));
    child.must("forget");
    // The other way to pass a descriptor.
    child.say("receive");
    child.send(buf.fd());
    assert_eq!(child.hear(), format!("ok bo {SIZE} test-gpu true"));
    child.must("attach dynamic");
    assert_eq!(bo.attached.load(Ordering::SeqCst), 1);
    let shown = dmabuf::bufinfo().to_string();
    let line = format!("nic of process {}", child.pid());
    assert!(shown.contains(&line), "{shown}");
    child.must("forget");
    soon(|| bo.attached.load(Ordering::SeqCst) == 0);
    Ok(())
}

fn traffic() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "dynamic");
    let here = Attached::new(&buf, ImporterClass::Dynamic, "local").expect("welcome");
    child.say("traffic");
    for _ in 0..300 {
        bo.relocate(&buf).expect("nobody pins");
        here.map().expect("not revoked");
        here.access().expect("nobody else moves it");
        std::thread::sleep(Duration::from_micros(300));
    }
    child.say("stop");
    let answer = child.hear();
    let numbers: Vec<u64> = answer
        .strip_prefix("ok ")
        .unwrap_or_else(|| panic!("{answer}"))
        .split(' ')
        .map(|number| number.parse().expect("a number"))
        .collect();
    assert!(numbers[0] > 10 && numbers[1] > 10, "accesses and maps: {answer}");
    // One more round checks what was written to the places that it has left.
    for _ in 0..4 {
        bo.relocate(&buf).expect("nobody pins");
    }
    Ok(())
}

fn pinned() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "pinned");
    assert_eq!(child.ask("map"), "err nic is a pinned importer and must pin before it maps");
    child.must("pin");
    child.must("map");
    assert_eq!(bo.relocate(&buf).expect_err("pinned").to_string(), "the buffer is pinned");
    child.must("access");
    child.must("unpin");
    soon(|| bo.relocate(&buf).is_ok());
    Ok(())
}

fn static_class() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "static");
    child.must("map");
    child.must("access");
    assert!(bo.relocate(&buf).is_err(), "the map pins");
    child.must("unpin");
    soon(|| bo.relocate(&buf).is_ok());
    Ok(())
}

/// Fences stay in the exporter's process, so a map waits there for a move in progress.
fn kernel_fence() -> Result<(), String> {
    let (_bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "dynamic");
    let engine = Timeline::new("test-gpu", "copy");
    let fence = engine.point();
    let resv = buf.resv().lock();
    resv.reserve_fences(1).expect("room");
    resv.add_fence(&fence, Usage::Kernel).expect("reserved");
    drop(resv);
    child.say("map");
    // An answer before the signal would always be wrong; that none has come so far proves
    // nothing.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!child.has_answered(), "the move is not done");
    engine.signal(1);
    assert!(child.hear().starts_with("ok"));
    Ok(())
}

fn revocation() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "dynamic");
    child.must("map");
    child.must("access");
    bo.revoke(&buf);
    // Either the gate stops it, or it was told already and has no map.
    let stopped = child.ask("access");
    assert!(stopped.starts_with("err the buffer was"), "{stopped}");
    assert!(child.ask("map").ends_with("the BO was revoked"));
    soon(|| child.must("told") == "1");
    // The address is invalid after the importer was told.
    let mut whose = String::new();
    soon(|| {
        whose = child.ask("whose");
        whose != "err nobody's"
    });
    let of = format!("ok test-gpu of process {}", std::process::id());
    assert!(whose.starts_with(&of), "{whose}");
    assert!(whose.contains("the exporter moved or revoked it"), "{whose}");
    Ok(())
}

/// Neither side keeps a descriptor or a thread of a connection that has ended.
fn leaks() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = Child::start("importer", Some(buf.fd()));
    let count = |words: &str| words.parse::<usize>().expect("a number");
    let before = (fds(), count(&child.must("fds")));
    for _ in 0..20 {
        child.must("import");
        child.must("attach dynamic");
        child.must("map");
        bo.relocate(&buf).expect("nobody pins");
        child.must("forget");
    }
    // Leftovers of earlier cases may disappear meanwhile; a leak would show twenty times.
    soon(|| fds() <= before.0 && count(&child.must("fds")) <= before.1);
    assert_eq!(bo.attached.load(Ordering::SeqCst), 0);
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux tells").count();
    // The thread that accepts connections stays.
    soon(|| threads() == 2);
    Ok(())
}

fn revocable() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "revocable");
    child.must("pin");
    child.must("map");
    bo.revoke(&buf);
    soon(|| child.must("told") == "1");
    assert!(child.ask("map").ends_with("the buffer was revoked from nic"));
    assert!(child.ask("pin").ends_with("the buffer was revoked from nic"));
    Ok(())
}

fn refusals() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = Child::start("importer", Some(buf.fd()));
    child.must("import");
    let refused = child.ask("attach unwelcome");
    let words = format!(
        "err test-gpu refuses to attach unwelcome: unwelcome of process {} is not welcome",
        child.pid()
    );
    assert_eq!(refused, words);
    assert_eq!(
        child.ask("mmap"),
        "err test-gpu refuses to be mapped by the CPU: 0x1000 bytes at 0x0 are not for the CPU"
    );
    assert_eq!(bo.attached.load(Ordering::SeqCst), 0);
    Ok(())
}

fn dead_importer() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "pinned");
    child.must("pin");
    child.must("map");
    // Also if it died in the middle of an access.
    child.must("inside");
    child.kill();
    soon(|| bo.attached.load(Ordering::SeqCst) == 0);
    bo.relocate(&buf).expect("neither its pin nor its slot is there");
    Ok(())
}

fn stopped_importer() -> Result<(), String> {
    /// More than fits in a socket.
    const ATTACHMENTS: usize = 400;
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "dynamic");
    for _ in 1..ATTACHMENTS {
        child.must("attach dynamic");
    }
    child.must("map");
    child.stop();
    let start = Instant::now();
    for _ in 0..4 {
        bo.relocate(&buf).expect("nobody pins, nobody is inside");
    }
    assert!(start.elapsed() < dmabuf::gate::PATIENCE, "nothing was waited for");
    child.signal(Signal::CONT);
    soon(|| child.must("told") == ATTACHMENTS.to_string());
    child.must("map");
    child.must("access");
    Ok(())
}

fn stopped_inside() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "dynamic");
    child.must("map");
    child.must("inside");
    child.stop();
    let held = bo.gate().close_within(Duration::from_millis(20)).expect_err("it is inside");
    let GateError::Held { pid, .. } = &held else { panic!("{held}") };
    assert_eq!(*pid, Some(child.pid()));
    child.signal(Signal::CONT);
    child.must("access");
    child.kill();
    bo.relocate(&buf).expect("the dead are not waited for");
    Ok(())
}

fn exporter(sharing: &str) -> (Child, DmaBuf, Attached) {
    let mut child = Child::start("exporter", None);
    child.must(&format!("export {sharing}"));
    child.say("send");
    let fd = child.receive();
    assert_eq!(child.hear(), "ok");
    let buf = DmaBuf::import(fd.as_fd()).expect("its exporter answers");
    assert_eq!(buf.exporter_process(), Some(child.pid()));
    let nic = Attached::new(&buf, ImporterClass::Dynamic, "nic").expect("welcome");
    nic.map().expect("not revoked");
    (child, buf, nic)
}

fn dead_exporter_kept() -> Result<(), String> {
    let (mut child, buf, nic) = exporter("kept");
    child.must("move");
    let epoch = nic.map().expect("not revoked");
    child.kill();
    // Once the end of the connection was noticed:
    soon(|| Attached::new(&buf, ImporterClass::Dynamic, "late").is_err());
    assert_eq!(nic.access(), Ok(epoch), "the memory is where it was");
    let refused = Attached::new(&buf, ImporterClass::Dynamic, "late").err().expect("gone");
    assert!(refused.ends_with("which exports the buffer, is gone"), "{refused}");
    let fd = buf.fd().try_clone_to_owned().expect("a descriptor");
    drop((nic, buf));
    // Until the last user in this process has released it, it is found here.
    let mut words = String::new();
    soon(|| {
        words = DmaBuf::import(fd.as_fd()).err().map(|error| error.to_string()).unwrap_or_default();
        !words.is_empty()
    });
    assert!(words.ends_with("the process that exported it is gone"), "{words}");
    Ok(())
}

fn dead_exporter_revoked() -> Result<(), String> {
    let (mut child, _buf, nic) = exporter("revoked");
    nic.access().expect("mapped");
    child.kill();
    soon(|| nic.nic.told.load(Ordering::SeqCst) == 1);
    assert_eq!(nic.access(), Err(Stale::Moved), "there is no map any more");
    let refused = nic.map().expect_err("revoked");
    assert!(refused.ends_with("taken away when its exporter's process ended"), "{refused}");
    Ok(())
}

fn dead_mover() -> Result<(), String> {
    let (mut child, _buf, nic) = exporter("kept");
    child.must("close");
    assert_eq!(nic.access(), Err(Stale::Closed));
    child.kill();
    soon(|| nic.nic.told.load(Ordering::SeqCst) == 1);
    let refused = nic.map().expect_err("revoked");
    assert!(refused.ends_with("taken away when its exporter's process ended"), "{refused}");
    Ok(())
}

/// Each process moves its own buffer while it maps the other's.
fn crossing() -> Result<(), String> {
    let (bo, buf) = bo::new(Sharing::HostKept);
    let mut child = importer(&buf, "dynamic");
    child.say("export");
    let fd = child.receive();
    let theirs = DmaBuf::import(fd.as_fd()).expect("its exporter answers");
    let nic = Attached::new(&theirs, ImporterClass::Dynamic, "nic").expect("welcome");
    child.say("go");
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            for _ in 0..200 {
                bo.relocate(&buf).expect("nobody pins");
            }
        });
        for _ in 0..200 {
            nic.map().expect("not revoked");
        }
        moving.join().expect("no panic");
    });
    assert_eq!(child.hear(), "ok");
    Ok(())
}

fn forged() -> Result<(), String> {
    let (_bo, buf) = bo::new(Sharing::HostKept);
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&buf.fd()));
    let name = std::fs::read_link(link).expect("ours");
    let name = name.to_str().expect("ASCII").strip_prefix("/memfd:").expect("a memfd");
    let name = name.strip_suffix(" (deleted)").expect("a memfd").to_owned();
    let forge = |name: &str| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).expect("memory exists");
        rustix::fs::ftruncate(&fd, SIZE).expect("memory exists");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("sealable");
        match DmaBuf::import(fd.as_fd()) {
            Err(ImportError::NoExporter { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let reason = forge(&name);
    assert!(reason.ends_with("or its file is another"), "{reason}");
    let reason = forge("peerdma:bo@0123456789abcdef.1");
    assert_eq!(reason, "the process that exported it is gone");
    Ok(())
}

fn other_user() -> Result<(), String> {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return Err("only root can become another user".to_owned());
    }
    // Where other users may not read the build directory, a copy that any user may run.
    let program = std::env::temp_dir().join(format!("peerdma-share-{}", std::process::id()));
    let own = std::env::current_exe().expect("Linux tells");
    std::fs::copy(&own, &program).map_err(|error| format!("a copy of the program: {error}"))?;
    let (bo, buf) = bo::new(Sharing::HostKept);
    let started = Child::start_as("importer", Some(buf.fd()), Some(NOBODY), program.clone());
    let removed = std::fs::remove_file(&program);
    let mut child = started.map_err(|error| format!("a child of another user: {error}"))?;
    removed.expect("ours");
    let words = child.ask("import");
    assert!(
        words.ends_with("is a buffer of a process of user 0, and this one belongs to user 65534"),
        "{words}"
    );
    assert_eq!(bo.attached.load(Ordering::SeqCst), 0);
    Ok(())
}

/// Waits for the effect of something that another process does at its own pace.
fn soon(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came to pass");
        std::thread::sleep(Duration::from_millis(1));
    }
}
