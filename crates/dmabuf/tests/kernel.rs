//! A real dma-buf of the kernel, made by udmabuf.
//!
//! Not every machine has `/dev/udmabuf`, and a test that did not run must not look like one that passed. Therefore this
//! is a program of its own, which says that it tested nothing, or fails if the environment promised the device:
//! `PEERDMA_REQUIRE=udmabuf`.

use dmabuf::{Direction, DmaBuf};

fn main() {
    let required = std::env::var("PEERDMA_REQUIRE")
        .is_ok_and(|list| list.split(',').any(|item| item.trim() == "udmabuf"));
    let buf = DmaBuf::export(8192, "real").expect("memory exists");
    if buf.is_kernel() {
        is_imported_like_any_other(buf);
        println!("kernel dma-buf by udmabuf ... ok");
    } else {
        println!(
            "kernel dma-buf by udmabuf ... NOT TESTED: /dev/udmabuf cannot be used on this machine"
        );
        assert!(!required, "PEERDMA_REQUIRE names udmabuf, and /dev/udmabuf cannot be used");
    }
}

fn is_imported_like_any_other(buf: DmaBuf) {
    let fd = buf.fd().try_clone_to_owned().expect("a free fd");
    drop(buf);
    let again = DmaBuf::import(std::os::fd::AsFd::as_fd(&fd)).expect("a dma-buf of the kernel");
    assert_eq!((again.exporter_name(), again.size()), ("udmabuf", 8192));
    let mapping = again.map(0, 8192).expect("udmabuf can be mapped");
    assert!(mapping.needs_brackets());
    let access = mapping.begin_cpu_access(Direction::Bidirectional).expect("plain memory");
    access.end().expect("plain memory");
}
