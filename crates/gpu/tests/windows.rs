//! A dma-buf that shows a part of a buffer.

mod common;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use common::{MB, Miss, Mr, Nic, Refused, config, open, pattern};
use dmabuf::{DmaBuf, ExporterErrorKind, ImporterClass, MmapError};
use gpu::{Domain, Place, Preset};
use rustix::fs::OFlags;
use rustix::io::Errno;

const PAGE: u64 = 4096;

#[test]
fn a_window_begins_and_ends_where_it_was_asked_to() {
    let (gpu, tree) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.write(3 * PAGE, &pattern(1, 8192)).expect("inside");
    let (window, other) = (
        bo.export_range(3 * PAGE, 2 * PAGE).expect("whole pages"),
        bo.export_range(3 * PAGE, 2 * PAGE).expect("whole pages"),
    );
    assert_eq!((window.size(), window.exporter_name()), (2 * PAGE, "nv_dmabuf"));
    assert!(!window.is_same(&other) && !window.is_same(&bo.export().expect("exported")));
    assert!(DmaBuf::import(window.fd()).expect("ours").is_same(&window));
    // As a device sees it.
    let mr = Mr::register(&Nic::new(ImporterClass::Dynamic, &tree), &window).expect("served");
    let mut seen = vec![0; 8192];
    mr.read(0, &mut seen).expect("mapped");
    assert!(seen == pattern(1, 8192));
    mr.write(PAGE, &[7; 16]).expect("mapped");
    // As the CPU sees it.
    let mapping = other.map(PAGE, 100).expect("nvidia lets it be mapped");
    let mut seen = [0; 16];
    let umem = umem::Umem::dmabuf(mapping, 0, 100).expect("inside");
    umem.read(0, &mut seen).expect("there");
    assert_eq!(seen, [7; 16]);
    bo.read(4 * PAGE, &mut seen).expect("inside");
    assert_eq!(seen, [7; 16]);
    let beyond = other.map(PAGE, 2 * PAGE).expect_err("a page too far");
    assert!(matches!(beyond, MmapError::OutOfRange { .. }), "{beyond}");
}

#[test]
fn a_window_is_whole_pages_of_its_buffer() {
    let (gpu, _) = open(&config(Preset::Xe));
    let bo = gpu.alloc(4 * PAGE, Place::VRAM).expect("room");
    let wrong = [(0, 0), (1, PAGE), (0, 1), (4 * PAGE, PAGE), (PAGE, 4 * PAGE), (PAGE, u64::MAX)];
    for (offset, len) in wrong {
        let refusal = bo.export_range(offset, len).expect_err("no window");
        assert_eq!(refusal.kind, ExporterErrorKind::Invalid, "{offset:#x} {len:#x}: {refusal}");
    }
    bo.export_range(3 * PAGE, PAGE).expect("the last page");
}

#[test]
fn every_window_is_told_of_a_move_and_follows_it() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(0, &pattern(2, 3 * 4096)).expect("inside");
    let nic = || Nic::new(ImporterClass::Dynamic, &tree);
    let windows: Vec<_> = (0..3)
        .map(|page| bo.export_range(page * PAGE, PAGE).expect("whole pages"))
        .map(|window| Mr::register(&nic(), &window).expect("served"))
        .collect();
    let whole = Mr::register(&nic(), &bo.export().expect("exported")).expect("served");
    gpu.evict(&bo).expect("nothing pins it");
    for (mr, page) in windows.iter().zip(0..) {
        assert!(!mr.is_mapped());
        mr.map().expect("mapped again");
        let mut seen = vec![0; 4096];
        mr.read(0, &mut seen).expect("mapped");
        assert!(seen == pattern(2, 3 * 4096)[page * 4096..][..4096]);
    }
    assert!(!whole.is_mapped());
    // One pin of one window holds them all.
    let firm = bo.export_range(PAGE, PAGE).expect("whole pages");
    let firm = Mr::register(&Nic::new(ImporterClass::Pinned, &tree), &firm).expect("served");
    assert_eq!(gpu.evict(&bo).unwrap_err().kind, ExporterErrorKind::Busy);
    drop(firm);
}

#[test]
fn every_window_loses_its_memory_with_a_reset() {
    let (gpu, tree) = open(&config(Preset::Vfio));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let nic = || Nic::new(ImporterClass::PinnedRevocable, &tree);
    let windows: Vec<_> = (0..3)
        .map(|page| bo.export_range(page * PAGE, PAGE).expect("whole pages"))
        .map(|window| Mr::register(&nic(), &window).expect("served"))
        .collect();
    assert_eq!(gpu.reset(), Vec::<String>::new());
    for mr in &windows {
        assert_eq!(mr.read(0, &mut [0; 8]), Err(Miss::NotMapped));
        assert_eq!(mr.map(), Err(Refused::Revoked));
    }
}

#[test]
fn a_window_keeps_the_memory_when_the_program_drops_the_buffer() {
    let (gpu, tree) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.write(PAGE, b"still here").expect("inside");
    let window = bo.export_range(PAGE, PAGE).expect("whole pages");
    drop(bo);
    assert_eq!(gpu.used(Domain::Vram), MB);
    let mr = Mr::register(&Nic::new(ImporterClass::Dynamic, &tree), &window).expect("served");
    let mut seen = [0; 10];
    mr.read(0, &mut seen).expect("mapped");
    assert_eq!(&seen, b"still here");
    drop((mr, window));
    gpu.wait_idle();
    assert_eq!(gpu.used(Domain::Vram), 0);
}

/// An exporter that kept its windows would also keep their descriptors.
#[test]
fn windows_that_are_gone_leave_no_descriptor() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    let shown = |buf: &DmaBuf| {
        let ino = rustix::fs::fstat(buf.fd()).expect("a file").st_ino;
        let list = dmabuf::host_buffers().buffers;
        list.into_iter().find(|known| known.ino == ino)
    };
    let window = bo.export_range(PAGE, PAGE).expect("whole pages");
    let known = shown(&window).expect("listed");
    assert_eq!(known.name, format!("{}+0x1000", bo.name()));
    drop(window);
    let list = dmabuf::host_buffers().buffers;
    assert!(list.iter().all(|other| other.ino != known.ino), "{list:?}");
}

#[test]
fn a_descriptor_keeps_the_buffer_until_its_last_copy_is_closed() {
    let (gpu, tree) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.write(PAGE, b"kept").expect("inside");
    let fd = bo.export_range(PAGE, PAGE).and_then(|window| {
        dmabuf::give(window, OFlags::RDWR | OFlags::CLOEXEC)
            .map_err(|error| panic!("a free descriptor: {error}"))
    });
    let fd = fd.expect("whole pages");
    drop(bo);
    dmabuf::sweep();
    let copy = fd.try_clone().expect("a free descriptor");
    drop(fd);
    dmabuf::sweep();
    let buf = DmaBuf::import(copy.as_fd()).expect("still a buffer");
    let mr = Mr::register(&Nic::new(ImporterClass::Dynamic, &tree), &buf).expect("served");
    let mut seen = [0; 4];
    mr.read(0, &mut seen).expect("mapped");
    assert_eq!(&seen, b"kept");
    drop(copy);
    dmabuf::sweep();
    mr.read(0, &mut seen).expect("a device has it");
    drop((mr, buf));
    dmabuf::sweep();
    gpu.wait_idle();
    assert_eq!(gpu.used(Domain::Vram), 0);
}

/// Without the library in between: a file that cannot show the bytes shows nothing.
#[test]
fn the_file_of_a_buffer_has_a_size_and_no_zeros_to_read() {
    let (gpu, _) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let file = File::from(buf.dup_fd(true).expect("a free descriptor"));
    assert_eq!((&file).seek(SeekFrom::End(0)).expect("a size"), MB);
    (&file).seek(SeekFrom::Start(0)).expect("the beginning");
    let error = |result: std::io::Result<usize>| result.expect_err("no bytes").raw_os_error();
    assert_eq!(error((&file).read(&mut [0; 8])), Some(Errno::BADF.raw_os_error()));
    assert_eq!(error((&file).write(&[1; 8])), Some(Errno::PERM.raw_os_error()));
    let mapped = umem::HostBuf::received(std::os::fd::OwnedFd::from(file), MB as usize);
    assert!(mapped.is_err(), "nor to map");
    // The same holds for a read-only descriptor.
    let fd = dmabuf::give(buf, OFlags::CLOEXEC).expect("a free descriptor");
    let buf = DmaBuf::import(fd.as_fd()).expect("a buffer");
    assert!(!buf.map(0, MB).expect("offered").is_writable());
    assert!(umem::HostBuf::received_read_only(fd, MB as usize).is_err());
}
