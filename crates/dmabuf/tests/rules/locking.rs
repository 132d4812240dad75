//! What may not be called with the reservation lock held, by the rules of `docs/semantics.md` 1.5.

use std::io::SeekFrom;
use std::time::Duration;

use crate::actors::{importer, memory, words};
use dmabuf::{Direction, Fence, ImporterClass, PollEvents, RwFlags, SyncFile};

#[test]
fn calls_that_take_the_lock_say_so_when_it_is_held() {
    let (buf, _) = memory();
    let nic = importer("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&nic).expect("anybody may attach");
    let mapping = buf.map(0, 4096).expect("offered");
    let file = SyncFile::new(&Fence::signaled_stub()).expect("a free fd");
    type Call<'a> = (&'static str, Box<dyn Fn() + 'a>);
    let calls: Vec<Call<'_>> = vec![
        ("attach", Box::new(|| drop(buf.attach(&nic)))),
        ("export", Box::new(|| drop(crate::actors::memory_with(buf.resv().clone())))),
        ("mmap", Box::new(|| drop(buf.map(0, 4096)))),
        ("begin_cpu_access", Box::new(|| drop(mapping.begin_cpu_access(Direction::ToDevice)))),
        ("map_unlocked", Box::new(|| drop(attachment.map_unlocked(Direction::ToDevice)))),
        ("vmap_unlocked", Box::new(|| drop(buf.vmap_unlocked()))),
        ("poll", Box::new(|| assert!(!buf.poll_wait(PollEvents::READ, None).is_empty()))),
        ("export_sync_file", Box::new(|| drop(buf.export_sync_file(RwFlags::READ)))),
        ("import_sync_file", Box::new(|| drop(buf.import_sync_file(RwFlags::READ, &file)))),
        ("revoke", Box::new(|| buf.revoke(|_| (), None).expect("not mapped"))),
        (
            "wait_unmapped",
            Box::new(|| buf.wait_unmapped(Some(Duration::ZERO)).expect("not mapped")),
        ),
    ];
    let resv = buf.resv().lock();
    // Without debug assertions they would wait for themselves, or panic as in the last test here.
    for (name, call) in calls.iter().filter(|_| cfg!(debug_assertions)) {
        let text = words(call);
        let expected = format!("{name} is called without the reservation lock, and this thread");
        assert!(text.starts_with(&expected), "{name}: {text}");
    }
    // These use nothing that the lock guards.
    assert_eq!(buf.seek(SeekFrom::End(0)), Ok(crate::actors::SIZE));
    assert_eq!(buf.info().attached.len(), 1);
    buf.set_name("any time").expect("short");
    drop(resv);
    for (_, call) in &calls {
        call();
    }
}

#[test]
fn an_access_that_ends_under_the_lock_is_told() {
    let (buf, _) = memory();
    let mapping = buf.map(0, 4096).expect("offered");
    let access = mapping.begin_cpu_access(Direction::ToDevice).expect("permitted");
    let resv = buf.resv().lock();
    if cfg!(debug_assertions) {
        let text = words(|| drop(access.end()));
        assert!(
            text.starts_with("end_cpu_access is called without the reservation lock"),
            "{text}"
        );
    }
    drop(resv);
}

#[test]
fn a_second_lock_of_the_same_thread_does_not_hang() {
    let (buf, _) = memory();
    let resv = buf.resv().lock();
    // As in a callback. This is checked even if assertions are off, since the thread would
    // otherwise wait forever.
    let text = words(|| drop(buf.resv().lock()));
    assert!(text.starts_with("this thread holds the reservation lock already"), "{text}");
    drop(resv);
}
