//! Buffers as file descriptors.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use dmabuf::{Direction, DmaBuf, ImportError, ImporterClass, MEMFD_PREFIX, MmapError};
use rustix::fs::{MemfdFlags, SealFlags};

#[test]
fn a_buffer_is_found_again_by_its_fd_and_outlives_it() {
    let buf = DmaBuf::export(5000, "frame").expect("memory exists");
    assert_eq!(buf.size(), 8192, "whole pages");
    let fd = buf.fd().try_clone_to_owned().expect("a free fd");
    let again = DmaBuf::import(fd.as_fd()).expect("ours");
    drop(fd);
    assert!(again.is_same(&buf));
    assert_eq!(again.size(), 8192);
    assert!(again.name().ends_with("frame"));
}

#[test]
fn a_buffer_whose_exporter_left_is_still_memory() {
    let buf = DmaBuf::export(4096, "orphan").expect("memory exists");
    let fd = buf.fd().try_clone_to_owned().expect("a free fd");
    drop(buf);
    let again = DmaBuf::import(fd.as_fd()).expect("the fd keeps the memory");
    assert_eq!(again.size(), 4096);
}

#[test]
fn other_files_are_no_dma_bufs() {
    let null: OwnedFd = std::fs::File::open("/dev/null").expect("exists").into();
    assert_not_a_dma_buf(null);
    // On Linux, a memfd is not a dma-buf either.
    let memfd = memfd("frame", SealFlags::SHRINK);
    let text = DmaBuf::import(memfd.as_fd()).unwrap_err().to_string();
    assert!(
        text.ends_with("is not a dma-buf: neither the kernel's nor a memfd named peerdma:NAME"),
        "{text}"
    );
    assert_not_a_dma_buf(memfd);
}

#[test]
fn a_memfd_that_can_shrink_is_refused() {
    let fd = memfd(&format!("{MEMFD_PREFIX}frame"), SealFlags::GROW);
    assert!(matches!(DmaBuf::import(fd.as_fd()), Err(ImportError::CanShrink { .. })));
}

#[test]
fn a_mapping_need_not_be_page_aligned_but_must_be_inside() {
    let buf = DmaBuf::export(8192, "frame").expect("memory exists");
    let mapping = buf.map(5000, 100).expect("inside");
    assert_eq!(mapping.addr() % 4096, 5000 % 4096);
    assert_eq!((mapping.offset(), mapping.len()), (5000, 100));
    assert!(mapping.is_writable());
    assert!(matches!(buf.map(8192, 1), Err(MmapError::OutOfRange { .. })));
    assert!(matches!(buf.map(u64::MAX, 2), Err(MmapError::OutOfRange { .. })));
    assert!(matches!(buf.map(0, 0), Err(MmapError::Empty)));
    drop(buf);
    let access = mapping.begin_cpu_access(Direction::Bidirectional).expect("the mapping keeps it");
    access.end().expect("plain memory");
}

#[test]
fn an_fd_open_for_reading_gives_a_mapping_for_reading() {
    let file = memfd(&format!("{MEMFD_PREFIX}frame"), SealFlags::SHRINK);
    let buf = DmaBuf::import(file.as_fd()).expect("marked and sealed");
    assert!(buf.map(0, 4096).expect("writable").is_writable());
    let path = format!("/proc/self/fd/{}", buf.fd().as_raw_fd());
    let read_only: OwnedFd = std::fs::File::open(path).expect("ours").into();
    let again = DmaBuf::import(read_only.as_fd()).expect("the same file");
    assert!(again.is_same(&buf));
    assert!(!again.map(0, 4096).expect("readable").is_writable());
}

#[test]
fn a_device_maps_plain_memory_whatever_its_class() {
    let buf = DmaBuf::export(4096, "frame").expect("memory exists");
    assert!(!buf.is_dynamic(), "these pages never move");
    let importer: Arc<dyn dmabuf::Importer> = Arc::new(Nic);
    let attachment = buf.attach(&importer).expect("anybody may");
    let resv = buf.resv().lock();
    let pin = attachment.pin(&resv).expect("pages that never move are always pinned");
    let one = attachment.map(&resv, Direction::Bidirectional).expect("mapped");
    let two = attachment.map(&resv, Direction::FromDevice).expect("mapped again");
    assert_eq!(one.table(), two.table());
    assert_eq!(one.table().len(), 4096);
    drop((resv, pin));
}

fn assert_not_a_dma_buf(fd: OwnedFd) {
    assert!(matches!(DmaBuf::import(fd.as_fd()), Err(ImportError::NotADmaBuf { .. })));
}

fn memfd(name: &str, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .expect("memfd");
    rustix::fs::ftruncate(&fd, 4096).expect("memory exists");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("sealable");
    fd
}

struct Nic;

impl dmabuf::Importer for Nic {
    fn name(&self) -> &str {
        "nic"
    }

    fn class(&self) -> ImporterClass {
        ImporterClass::Pinned
    }
}
