use std::os::fd::{AsFd, OwnedFd};

use super::*;

const PAGE: u64 = 4096;

fn pool(bytes: &[(u64, u8)]) -> OwnedFd {
    let file = sys::sealed_memfd("pool", 16 * PAGE).expect("memory exists");
    for (page, byte) in bytes {
        rustix::io::pwrite(&file, &[*byte; PAGE as usize], page * PAGE).expect("inside");
    }
    file
}

#[test]
fn a_placement_is_the_pages_of_the_file_and_a_retired_one_is_remembered() {
    let file = pool(&[(1, 0x11)]);
    let window = BusWindow::new(64 * PAGE, Iommu::On).expect("addresses exist");
    let one = window.place(file.as_fd(), PAGE, 2 * PAGE, "BO 1 in VRAM").expect("room");
    let addr = one.addr();
    assert_eq!(sys::peek(addr), Ok(0x11));
    assert!(window.contains(addr) && window.describe(addr).is_none(), "it is in use");

    window.retire(one, "it was moved");
    assert_eq!(sys::peek(addr), Err(Errno::FAULT));
    let retired = describe(addr + 5000).expect("remembered");
    assert_eq!((retired.what.as_str(), retired.why.as_str()), ("BO 1 in VRAM", "it was moved"));
    assert_eq!((retired.addr, retired.len), (addr, 2 * PAGE));
    assert!(describe(addr + 2 * PAGE).is_none(), "the page after it was nobody's");
    let words = retired.to_string();
    assert!(
        words.starts_with("BO 1 in VRAM at 0x") && words.ends_with(": it was moved"),
        "{words}"
    );
}

#[test]
fn without_an_iommu_a_stale_access_reaches_other_bytes() {
    let file = pool(&[(0, 0x11)]);
    let window = BusWindow::new(1 << 30, Iommu::Off).expect("addresses exist");
    let one = window.place(file.as_fd(), 0, PAGE, "BO 1").expect("room");
    let addr = one.addr();
    one.retire("it was moved");
    assert_eq!(sys::peek(addr), Ok(0xA5));
    assert!(describe(addr).is_some());
}

#[test]
fn addresses_are_not_used_again_before_they_are_forgotten() {
    let file = pool(&[]);
    let window = BusWindow::new(1 << 30, Iommu::On).expect("addresses exist");
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..HISTORY {
        let one = window.place(file.as_fd(), 0, PAGE, "BO").expect("room");
        assert!(seen.insert(one.addr()), "round {round}");
    }
    assert!(seen.iter().all(|addr| window.describe(*addr).is_some()));
}

#[test]
fn a_small_window_forgets_sooner_rather_than_refuse() {
    let file = pool(&[]);
    // Room for two placements of three pages, each with the page after it.
    let window = BusWindow::new(8 * PAGE, Iommu::On).expect("addresses exist");
    let held = window.place(file.as_fd(), 0, 3 * PAGE, "held").expect("room");
    for _ in 0..10 {
        let one = window.place(file.as_fd(), 0, 3 * PAGE, "BO").expect("room");
        assert_ne!(one.addr(), held.addr());
    }
    let whole = window.place(file.as_fd(), 0, 4 * PAGE, "BO");
    assert!(matches!(whole, Err(PlaceError::Full { .. })));
    drop(held);
    let whole = window.place(file.as_fd(), 0, 7 * PAGE, "BO");
    assert!(whole.is_ok(), "ranges grow together again");
}

#[test]
fn only_whole_pages_are_placed() {
    let file = pool(&[]);
    let window = BusWindow::new(8 * PAGE, Iommu::On).expect("addresses exist");
    for (offset, len) in [(0, 0), (0, 100), (100, PAGE)] {
        let refused = window.place(file.as_fd(), offset, len, "BO").err();
        assert_eq!(refused, Some(PlaceError::Unaligned { offset, len }));
    }
}
