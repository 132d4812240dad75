use super::*;
use crate::fence::{FenceArray, FenceChain, Timeline};
use crate::resv::Usage;
use crate::{DmaBuf, Memory, RwFlags};

fn buffer() -> DmaBuf {
    DmaBuf::export_from(&Memory::Memfd, 4096, "sync").expect("memory exists")
}

fn add(buf: &DmaBuf, fence: &Fence, usage: Usage) {
    let resv = buf.resv().lock();
    resv.reserve_fences(1).expect("memory");
    resv.add_fence(fence, usage).expect("reserved");
}

fn is_ready(file: &impl AsFd) -> bool {
    poll_one(file.as_fd(), PollFlags::IN, Some(Duration::ZERO)).contains(PollFlags::IN)
}

#[test]
fn a_file_is_readable_when_its_fence_is_signaled() {
    let engine = Timeline::new("gpu", "copy0");
    let fence = engine.point();
    let file = SyncFile::new(&fence).expect("a free fd");
    assert!(!is_ready(&file));
    assert_eq!(file.status(), Ok(FenceStatus::Active));
    assert_eq!(file.wait(Some(Duration::ZERO)), Err(TimedOut));
    // The fd alone is enough.
    let fd = file.dup_fd().expect("a free fd");
    drop(file);
    engine.fail(&fence, Errno::IO).expect("in time");
    assert!(is_ready(&fd));
    // Reading does not make it unready.
    rustix::io::read(&fd, &mut [0; 8]).expect("an eventfd");
    assert!(is_ready(&fd));
}

#[test]
fn a_file_is_recognised_by_its_fd() {
    let engine = Timeline::new("gpu", "copy0");
    let fence = engine.point();
    let fd = SyncFile::new(&fence).expect("a free fd").dup_fd().expect("a free fd");
    let again = SyncFile::from_fd(fd.as_fd()).expect("ours");
    assert!(again.fence().expect("ours").is_same(&fence));
    drop(again);
    engine.signal(1);
    let again = SyncFile::from_fd(fd.as_fd()).expect("it was signaled");
    assert_eq!(again.status(), Ok(FenceStatus::Signaled));

    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a free fd");
    assert!(matches!(SyncFile::from_fd(event.as_fd()), Err(SyncFileError::NotASyncFile { .. })));
    let buf = buffer();
    assert!(matches!(SyncFile::from_fd(buf.fd()), Err(SyncFileError::NotASyncFile { .. })));
}

#[test]
fn a_merged_file_waits_for_both() {
    let (left, right) = (Timeline::new("gpu", "left"), Timeline::new("nic", "right"));
    let file = |fence: &Fence| SyncFile::new(fence).expect("a free fd");
    let merged = file(&left.point()).merge(&file(&right.point()), "both").expect("a free fd");
    let info = merged.info().expect("ours");
    assert_eq!((&*info.name, info.status), ("both", FenceStatus::Active));
    let names: Vec<_> =
        info.fences.iter().map(|fence| (&*fence.driver, &*fence.timeline)).collect();
    assert_eq!(names, [("gpu", "left"), ("nic", "right")]);
    left.signal(1);
    assert!(!is_ready(&merged));
    right.signal(1);
    assert!(is_ready(&merged));
    assert!(merged.info().expect("ours").fences.iter().all(|fence| fence.timestamp > 0));
    // Finished work needs no waiting.
    let nothing = file(&left.point());
    left.signal(2);
    assert!(is_ready(&nothing.merge(&merged, "done").expect("a free fd")));
}

#[test]
fn a_deadline_reaches_the_fences() {
    let engine = Timeline::new("gpu", "copy0");
    let soon = Instant::now();
    SyncFile::new(&engine.point()).expect("a free fd").set_deadline(soon).expect("ours");
    assert_eq!(engine.deadline(), Some(soon));
}

#[test]
fn an_exported_file_is_a_snapshot_of_one_class() {
    use FenceStatus::{Active, Signaled};
    let rows = [
        // For a buffer with one fence of this class: what a reader and a writer must wait for.
        (Usage::Kernel, Active, Active),
        (Usage::Write, Active, Active),
        (Usage::Read, Signaled, Active),
        (Usage::Bookkeep, Signaled, Signaled),
    ];
    for (usage, reader, writer) in rows {
        let engine = Timeline::new("gpu", "copy0");
        let buf = buffer();
        add(&buf, &engine.point(), usage);
        let asked = |flags| buf.export_sync_file(flags).expect("a free fd").status();
        assert_eq!(asked(RwFlags::READ), Ok(reader), "{usage:?}");
        assert_eq!(asked(RwFlags::WRITE), Ok(writer), "{usage:?}");
        assert_eq!(asked(RwFlags::READ | RwFlags::WRITE), Ok(writer), "{usage:?}");
    }
}

#[test]
fn an_exported_file_is_a_stub_a_fence_or_an_array() {
    let (left, right) = (Timeline::new("gpu", "left"), Timeline::new("gpu", "right"));
    let buf = buffer();
    let fence = || {
        let file = buf.export_sync_file(RwFlags::WRITE).expect("a free fd");
        file.fence().expect("ours").clone()
    };
    assert!(fence().is_same(&Fence::signaled_stub()));
    let one = left.point();
    add(&buf, &one, Usage::Write);
    assert!(fence().is_same(&one));
    add(&buf, &right.point(), Usage::Read);
    let snapshot = fence();
    assert_eq!(FenceArray::parts(&snapshot).map(<[Fence]>::len), Some(2));
    left.signal(1);
    assert!(!snapshot.is_signaled());
}

#[test]
fn flags_are_reading_writing_or_both() {
    let buf = buffer();
    let file = SyncFile::new(&Fence::signaled_stub()).expect("a free fd");
    for bits in [0, 4, 7, 1 << 31] {
        let flags = RwFlags::from_bits_retain(bits);
        let refused = SyncFileError::BadFlags { flags: bits };
        assert_eq!(buf.export_sync_file(flags).unwrap_err(), refused);
        assert_eq!(buf.import_sync_file(flags, &file), Err(refused));
    }
    for bits in [1, 2, 3] {
        let flags = RwFlags::from_bits_retain(bits);
        assert!(buf.export_sync_file(flags).is_ok() && buf.import_sync_file(flags, &file).is_ok());
    }
}

#[test]
fn an_imported_file_is_unwrapped() {
    let engines: Vec<_> = (0..3).map(|_| Timeline::new("gpu", "any")).collect();
    let array = FenceArray::all(vec![engines[0].point(), engines[1].point()]).expect("two");
    let chain = FenceChain::link(Some(engines[2].point()), array, 1).expect("no chain");
    let buf = buffer();
    let file = SyncFile::new(&chain).expect("a free fd");
    buf.import_sync_file(RwFlags::READ, &file).expect("memory");
    let found = buf.resv().fences(Usage::Bookkeep);
    assert!(found.len() == 3 && found.iter().all(|(_, usage)| *usage == Usage::Read));
    // Again, for work that writes: promoted.
    buf.import_sync_file(RwFlags::WRITE | RwFlags::READ, &file).expect("memory");
    let found = buf.resv().fences(Usage::Bookkeep);
    assert!(found.len() == 3 && found.iter().all(|(_, usage)| *usage == Usage::Write));
}

#[test]
fn a_child_of_a_fork_does_not_signal_for_its_parent() {
    let engine = Timeline::new("gpu", "copy0");
    let file = SyncFile::new(&engine.point()).expect("a free fd");
    let child = crate::sys::in_child(|| {
        // The child's copy of the producer ends; the parent shares the eventfd.
        engine.signal(1);
        let is_known = SyncFile::from_fd(file.as_fd()).is_ok();
        i32::from(is_known || is_ready(&file))
    });
    assert_eq!(child, 0);
    assert!(!is_ready(&file));
    engine.signal(1);
    assert!(is_ready(&file));
}
