//! What a buffer reports about itself.

use std::io::SeekFrom;
use std::os::fd::AsFd;

use crate::actors::{add, importer, memory};
use dmabuf::{
    Direction, DmaBuf, ExportError, ImporterClass, Memory, NameError, SeekError, Timeline, Usage,
    bufinfo,
};

#[test]
fn a_name_has_room_for_31_bytes_and_a_nul() {
    let (buf, _) = memory();
    let full = "n".repeat(31);
    let rows = [
        ("frame", Ok(())),
        ("", Ok(())),
        (&full, Ok(())),
        (&"n".repeat(32), Err(NameError::TooLong { name: "n".repeat(32) })),
        ("a\0b", Err(NameError::Nul { name: "a\0b".to_owned() })),
    ];
    for (name, expected) in rows {
        assert_eq!(buf.set_name(name), expected, "{name:?}");
    }
    assert_eq!(buf.name(), full, "what was refused changed nothing");
    // At any time: while a device is attached, and through any handle.
    let nic = importer("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&nic).expect("anybody may attach");
    DmaBuf::import(buf.fd()).expect("ours").set_name("late").expect("short");
    assert_eq!(buf.name(), "late");
    drop(attachment);
}

#[test]
fn a_buffer_is_sought_to_its_ends_only() {
    let (buf, _) = memory();
    let rows = [
        (SeekFrom::End(0), Ok(crate::actors::SIZE)),
        (SeekFrom::Start(0), Ok(0)),
        (SeekFrom::End(-1), Err(SeekError)),
        (SeekFrom::Start(1), Err(SeekError)),
        (SeekFrom::Current(0), Err(SeekError)),
    ];
    for (to, expected) in rows {
        assert_eq!(buf.seek(to), expected, "{to:?}");
    }
}

#[test]
fn an_fd_is_closed_by_an_exec_if_that_was_asked_for() {
    let (buf, _) = memory();
    for cloexec in [true, false] {
        let fd = buf.dup_fd(cloexec).expect("a free fd");
        let flags = rustix::io::fcntl_getfd(fd.as_fd()).expect("open");
        assert_eq!(flags.contains(rustix::io::FdFlags::CLOEXEC), cloexec);
        assert!(DmaBuf::import(fd.as_fd()).expect("ours").is_same(&buf));
    }
}

#[test]
fn the_list_shows_what_debugfs_would() {
    let (buf, _) = memory();
    let engine = Timeline::new("gpu", "copy0");
    add(&buf, &engine.point(), Usage::Kernel);
    add(&buf, &Timeline::new("gpu", "gone").point(), Usage::Read);
    let hidden = Timeline::new("gpu", "flush");
    add(&buf, &hidden.point(), Usage::Bookkeep);
    let nic = importer("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&nic).expect("anybody may attach");
    let map = attachment.map_unlocked(Direction::ToDevice).expect("mapped");

    let info = buf.info();
    let ino = rustix::fs::fstat(buf.fd()).expect("open").st_ino;
    assert_eq!((info.size, info.ino, info.flags & 3, info.mode), (crate::actors::SIZE, ino, 2, 7));
    assert_eq!((&*info.exporter, &*info.name), ("memory", "test"));
    assert_eq!(info.fences, [(Usage::Kernel, "gpu copy0 seq 1 unsignalled".to_owned())]);
    assert_eq!(info.attached[0].class(), ImporterClass::Dynamic);
    assert_eq!(info.count, 2, "this handle, and the attachment");
    assert_eq!(info.fdinfo(), "size:\t8192\ncount:\t1\nexp_name:\tmemory\nname:\ttest\n");

    let list = bufinfo();
    let ours = list.buffers.iter().find(|other| other.ino == ino).expect("listed");
    assert_eq!(
        ours.to_string(),
        format!(
            "00008192\t00000002\t00000007\t00000002\tmemory\t{ino:08}\ttest\n\
         \tkernel fence:gpu copy0 seq 1 unsignalled\n\
         \tAttached Devices:\n\tmlx5_0\nTotal 1 devices attached\n\n"
        )
    );
    let bytes: u64 = list.buffers.iter().map(|info| info.size).sum();
    let text = list.to_string();
    assert!(
        text.starts_with("\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name")
    );
    assert!(text.ends_with(&format!("\nTotal {} objects, {bytes} bytes\n", list.buffers.len())));
    drop((map, attachment, buf));
    assert!(bufinfo().buffers.iter().all(|info| info.ino != ino), "nobody has it");
}

#[test]
fn memory_comes_from_where_it_is_asked_for_or_not_at_all() {
    let memfd = DmaBuf::export_from(&Memory::Memfd, 1, "plain").expect("memory exists");
    assert!(!memfd.is_kernel());
    assert_eq!((memfd.exporter_name(), memfd.size()), ("peerdma memfd", 4096));
    let absent = Memory::Heap("no such heap".to_owned());
    let text = DmaBuf::export_from(&absent, 1, "x").unwrap_err().to_string();
    assert!(text.starts_with("open of /dev/dma_heap for a buffer of 0x1 bytes failed"), "{text}");
    for heap in ["", "../udmabuf", ".", "a\0b"] {
        let refused = DmaBuf::export_from(&Memory::Heap(heap.to_owned()), 1, "x").unwrap_err();
        assert_eq!(refused, ExportError::BadHeap { heap: heap.to_owned() });
    }
    assert_eq!(DmaBuf::export_from(&Memory::Best, 0, "x").unwrap_err(), ExportError::Empty);
    let long = "n".repeat(201);
    assert!(matches!(DmaBuf::export(1, &long), Err(ExportError::BadName { .. })));
    let huge = DmaBuf::export(u64::MAX, "x").unwrap_err().to_string();
    assert!(huge.contains("for a buffer of 0xffffffffffffffff bytes failed"), "{huge}");
}
