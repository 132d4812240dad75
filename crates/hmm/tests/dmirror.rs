//! The operations of the kernel's `test_hmm` (lib/test_hmm.c, and hmm-tests.c of its selftests),
//! with the answers that it gives.
#![allow(unsafe_code, reason = "memory that the program unmaps, moves and forks")]

use std::ptr;

use hmm::{DevicePages, Error, Migrated, Mirror, PAGE, Place};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use umem::{HostBuf, Umem};

const PAGES: u64 = 16;
const LEN: u64 = PAGES * PAGE;

fn device() -> DevicePages {
    device_of(PAGES)
}

fn device_of(pages: u64) -> DevicePages {
    DevicePages::new(Umem::host(&HostBuf::anonymous((pages * PAGE) as usize).expect("memory")))
}

fn mirror() -> Mirror {
    Mirror::new(LEN, device()).expect("userfaultfd")
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ (at / PAGE) as u8 ^ seed).collect()
}

fn cpu(mirror: &Mirror) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    mirror.umem().read(0, &mut bytes).expect("it is mapped");
    bytes
}

fn by_device(mirror: &Mirror) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    mirror.read(0, &mut bytes).expect("it is mapped");
    bytes
}

fn all(place: Place) -> Vec<Place> {
    vec![place; PAGES as usize]
}

/// Private anonymous memory of the test's own.
fn map() -> *mut u8 {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            LEN as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    }
    .expect("memory")
    .cast()
}

/// `anon_read`, `anon_write`: the device reads what the CPU wrote, and the other way round.
#[test]
fn the_device_reads_and_writes_the_memory_of_the_process() {
    let mirror = mirror();
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    assert_eq!(by_device(&mirror), pattern(1));
    mirror.write(0, &pattern(2)).expect("mapped");
    assert_eq!(cpu(&mirror), pattern(2));
    assert_eq!(mirror.snapshot(0, LEN).expect("in range"), all(Place::System));
    assert_eq!(mirror.stats().to_device, 0);
}

/// `migrate`: the device has the bytes, and has them alone.
#[test]
fn pages_migrate_to_the_device_with_their_bytes() {
    let mirror = mirror();
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    let migrated = mirror.migrate_to_device(0, LEN).expect("they go");
    assert_eq!(migrated, Migrated { pages: PAGES, skipped: 0 });
    assert_eq!(mirror.snapshot(0, LEN).expect("in range"), all(Place::Device));
    assert_eq!(by_device(&mirror), pattern(1));
    assert_eq!(mirror.stats().faulted_back, 0, "the device needs no page back");
}

/// `migrate_fault`: a touch of the CPU brings a page back, and only that one.
#[test]
fn a_touch_of_the_cpu_brings_one_page_back() {
    let mirror = mirror();
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    mirror.write(3 * PAGE + 8, b"by the device").expect("in place");
    let mut seen = [0; 13];
    mirror.umem().read(3 * PAGE + 8, &mut seen).expect("mapped");
    assert_eq!(&seen, b"by the device");
    let mut want = all(Place::Device);
    want[3] = Place::System;
    assert_eq!(mirror.snapshot(0, LEN).expect("in range"), want);
    assert_eq!(mirror.stats().faulted_back, 1);
    // And it can go again.
    assert_eq!(mirror.migrate_to_device(0, LEN).expect("it goes").pages, PAGES);
}

/// `migrate_back`, by the driver rather than by a fault.
#[test]
fn pages_come_back_on_request() {
    let device = device();
    let mirror = Mirror::new(LEN, device.clone()).expect("userfaultfd");
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    assert_eq!(device.free(), 0);
    mirror.migrate_to_system(0, LEN).expect("they come");
    assert_eq!(mirror.snapshot(0, LEN).expect("in range"), all(Place::System));
    assert_eq!((mirror.stats().brought_back, device.free()), (PAGES, PAGES as usize));
    assert_eq!(cpu(&mirror), pattern(1));
    assert_eq!(mirror.stats().faulted_back, 0);
}

/// `migrate_partial_unmap_fault` begins like this: pages that nobody touched are made in the
/// device.
#[test]
fn untouched_pages_are_made_in_the_device() {
    let mirror = mirror();
    assert_eq!(mirror.snapshot(0, LEN).expect("in range"), all(Place::Nowhere));
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    assert!(by_device(&mirror).iter().all(|byte| *byte == 0));
    mirror.write(0, b"x").expect("in place");
    assert_eq!(cpu(&mirror)[0], b'x');
}

/// `snapshot`: each page has its own answer.
#[test]
fn a_snapshot_says_where_each_page_is_and_moves_none() {
    let mirror = mirror();
    let at = |page: u64| page * PAGE;
    mirror.umem().write(0, &[1; 6 * PAGE as usize]).expect("mapped");
    let _ = mirror.migrate_to_device(at(1), PAGE).expect("it goes");
    let _ = mirror.exclusive(at(2), PAGE).expect("it goes");
    mirror.track_writes(at(3), PAGE).expect("tracked");
    mirror.track_writes(at(4), PAGE).expect("tracked");
    mirror.umem().write(at(4), b"x").expect("mapped");
    let want = [
        Place::System,
        Place::Device,
        Place::Exclusive,
        Place::Unwritten,
        Place::System,
        Place::System,
        Place::Nowhere,
    ];
    for _ in 0..2 {
        assert_eq!(mirror.snapshot(0, at(7)).expect("in range"), want);
    }
}

/// `exclusive`: until the CPU touches a page, the device has it alone.
#[test]
fn exclusive_use_ends_with_the_first_touch_of_the_cpu() {
    let mirror = mirror();
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    assert_eq!(mirror.exclusive(0, LEN).expect("they go").pages, PAGES);
    assert!(mirror.check_exclusive(0, LEN).expect("in range"));
    let mut word = [0; 8];
    mirror.read(PAGE, &mut word).expect("in place");
    mirror.write(PAGE, &(u64::from_ne_bytes(word) + 1).to_ne_bytes()).expect("in place");
    assert!(mirror.check_exclusive(0, LEN).expect("in range"), "the device may do that");
    let seen = cpu(&mirror);
    assert_eq!(seen[PAGE as usize..][..8], (u64::from_ne_bytes(word) + 1).to_ne_bytes());
    assert!(!mirror.check_exclusive(0, PAGE).expect("in range"));
    assert_eq!(mirror.stats().exclusive_ended, PAGES);
}

/// A migration takes no page that the device has for exclusive use, and brings none back; exclusive
/// use takes one that is in the device.
#[test]
fn exclusive_use_and_migration_meet() {
    let mirror = mirror();
    mirror.umem().write(0, &pattern(3)).expect("mapped");
    let _ = mirror.exclusive(0, 4 * PAGE).expect("they go");
    let migrated = mirror.migrate_to_device(0, LEN).expect("the others go");
    assert_eq!(migrated, Migrated { pages: PAGES - 4, skipped: 4 });
    assert!(mirror.check_exclusive(0, 4 * PAGE).expect("in range"));
    mirror.migrate_to_system(0, 8 * PAGE).expect("some come");
    assert!(mirror.check_exclusive(0, 4 * PAGE).expect("in range"));
    let _ = mirror.exclusive(0, LEN).expect("they go");
    assert!(mirror.check_exclusive(0, LEN).expect("in range"));
    assert_eq!(cpu(&mirror), pattern(3));
}

/// `migrate_anon_huge_fault` with HMM_DMIRROR_FLAG_FAIL_ALLOC: what finds no memory stays, whole.
#[test]
fn pages_that_find_no_memory_in_the_device_stay() {
    let device = device_of(4);
    let mirror = Mirror::new(LEN, device.clone()).expect("userfaultfd");
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    let migrated = mirror.migrate_to_device(0, LEN).expect("some go");
    assert_eq!(migrated, Migrated { pages: 4, skipped: PAGES - 4 });
    assert_eq!(cpu(&mirror), pattern(1));
    device.fail_allocations(true);
    assert_eq!(mirror.migrate_to_device(0, LEN).expect("none goes").pages, 0);
    device.fail_allocations(false);
    assert_eq!(mirror.migrate_to_device(0, LEN).expect("some go").pages, 4);
    assert_eq!(mirror.stats().skipped, 2 * (PAGES - 4) + PAGES);
}

/// `anon_teardown`: dropping the mirror leaves the bytes behind.
#[test]
fn memory_of_the_program_has_its_bytes_when_the_mirror_is_gone() {
    let (base, device) = (map(), device());
    // SAFETY: mapped a moment ago, and nobody else's.
    let mirror = unsafe { Mirror::over(base.addr(), LEN, device.clone()) }.expect("userfaultfd");
    mirror.write(0, &pattern(5)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    drop(mirror);
    assert_eq!(device.free(), PAGES as usize);
    // SAFETY: mapped, and nobody writes it.
    let bytes = unsafe { std::slice::from_raw_parts(base, LEN as usize) };
    assert_eq!(bytes, pattern(5));
    // SAFETY: nobody has a reference to it any more.
    unsafe { rustix::mm::munmap(base.cast(), LEN as usize) }.expect("it was mapped");
}

/// `migrate_dirty_page`'s opposite: what the program drops is zeros, wherever it was.
#[test]
fn what_the_program_drops_is_zeros_and_the_device_has_its_page_back() {
    let device = device();
    let mirror = Mirror::new(LEN, device.clone()).expect("userfaultfd");
    mirror.write(0, &pattern(5)).expect("mapped");
    let _ = mirror.migrate_to_device(0, 4 * PAGE).expect("they go");
    // SAFETY: pages of the mirror, of which no byte is needed.
    unsafe { rustix::mm::madvise(ptr_of(mirror.addr()), 8 * PAGE as usize, Advice::LinuxDontNeed) }
        .expect("mapped");
    let seen = cpu(&mirror);
    assert!(seen[..8 * PAGE as usize].iter().all(|byte| *byte == 0));
    assert_eq!(seen[8 * PAGE as usize..], pattern(5)[8 * PAGE as usize..]);
    assert_eq!(device.free(), PAGES as usize);
}

fn ptr_of(addr: usize) -> *mut std::ffi::c_void {
    ptr::with_exposed_provenance_mut(addr)
}

/// `migrate_partial_unmap_fault`: what is unmapped is gone, and the rest comes back.
#[test]
fn what_the_program_unmaps_is_gone_for_the_device_too() {
    let (base, device) = (map(), device());
    // SAFETY: as above.
    let mirror = unsafe { Mirror::over(base.addr(), LEN, device.clone()) }.expect("userfaultfd");
    mirror.write(0, &pattern(5)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    // SAFETY: nobody has a reference to it.
    unsafe { rustix::mm::munmap(base.cast(), 4 * PAGE as usize) }.expect("it was mapped");
    let mut byte = [0];
    let gone = loop {
        // The event is on its way.
        match mirror.read(0, &mut byte) {
            Ok(()) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(gone, Error::Unmapped { offset: 0 }), "{gone}");
    let refused = mirror.migrate_to_device(0, PAGE).expect_err("it is gone");
    assert!(matches!(refused, Error::Unmapped { offset: 0 }), "{refused}");
    let refused = mirror.migrate_to_system(0, PAGE).expect_err("it is gone");
    assert!(matches!(refused, Error::Unmapped { offset: 0 }), "{refused}");
    assert_eq!(
        mirror.snapshot(0, 5 * PAGE).expect("in range")[3..],
        [Place::Unmapped, Place::Device]
    );
    assert_eq!(device.free(), 4);
    // SAFETY: still mapped, and nobody writes it.
    let rest =
        unsafe { std::slice::from_raw_parts(base.wrapping_add(4 * PAGE as usize), PAGE as usize) };
    assert_eq!(rest, &pattern(5)[4 * PAGE as usize..5 * PAGE as usize]);
    drop(mirror);
    // SAFETY: as above.
    unsafe {
        rustix::mm::munmap(base.wrapping_add(4 * PAGE as usize).cast(), (LEN - 4 * PAGE) as usize)
    }
    .expect("it was mapped");
}

/// `anon_write_mremap`-like: the range moves, and its pages with it.
#[test]
fn a_range_that_the_program_moves_is_followed() {
    let (base, device) = (map(), device());
    // SAFETY: as above.
    let mirror = unsafe { Mirror::over(base.addr(), LEN, device) }.expect("userfaultfd");
    mirror.write(0, &pattern(6)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    let target = map();
    let flags = MremapFlags::MAYMOVE;
    // SAFETY: both are mappings of this test, and nobody refers to either.
    let moved = unsafe {
        rustix::mm::mremap_fixed(base.cast(), LEN as usize, LEN as usize, flags, target.cast())
    };
    assert_eq!(moved.expect("it moves"), target.cast());
    // SAFETY: mapped, and nobody writes it.
    let bytes = unsafe { std::slice::from_raw_parts(target, LEN as usize) };
    assert_eq!(bytes, pattern(6));
    drop(mirror);
    // SAFETY: nobody has a reference to it any more.
    unsafe { rustix::mm::munmap(target.cast(), LEN as usize) }.expect("it was mapped");
}

/// A part of the range moves, and its pages are found there.
#[test]
fn a_part_that_the_program_moves_takes_its_pages_along() {
    let (base, device) = (map(), device());
    // SAFETY: as above.
    let mirror = unsafe { Mirror::over(base.addr(), LEN, device.clone()) }.expect("userfaultfd");
    mirror.write(0, &pattern(8)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    let (target, half) = (map(), LEN as usize / 2);
    let flags = MremapFlags::MAYMOVE;
    // SAFETY: both are mappings of this test, and nobody refers to either.
    let moved = unsafe { rustix::mm::mremap_fixed(base.cast(), half, half, flags, target.cast()) };
    assert_eq!(moved.expect("it moves"), target.cast());
    // SAFETY: mapped, and nobody writes it. Half of it is touched, the rest comes when the mirror
    // goes.
    let there = unsafe { std::slice::from_raw_parts(target, half) };
    assert_eq!(there[..half / 2], pattern(8)[..half / 2]);
    let gone = mirror.read(0, &mut [0]).expect_err("it is elsewhere");
    assert!(matches!(gone, Error::Unmapped { offset: 0 }), "{gone}");
    drop(mirror);
    assert_eq!(there, &pattern(8)[..half]);
    assert_eq!(device.free(), PAGES as usize);
    // SAFETY: mapped, and nobody writes it.
    let stayed = unsafe { std::slice::from_raw_parts(base.wrapping_add(half), half) };
    assert_eq!(stayed, &pattern(8)[half..]);
    for part in [target.addr(), base.addr() + half] {
        // SAFETY: nobody has a reference to it any more.
        unsafe { rustix::mm::munmap(ptr_of(part), half) }.expect("it was mapped");
    }
}

/// If the process may receive faults of the kernel, a system call waits for the page. Otherwise it
/// fails, and touching the page before it helps.
#[test]
fn a_system_call_finds_a_page_in_the_device_or_fails() {
    let check = || {
        let mirror = mirror();
        mirror.write(0, b"abc").expect("mapped");
        let _ = mirror.migrate_to_device(0, PAGE).expect("it goes");
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        // SAFETY: mapped, and nobody writes it.
        let bytes = unsafe {
            std::slice::from_raw_parts(ptr_of(mirror.addr()).cast::<u8>().cast_const(), 3)
        };
        let wrote = rustix::io::write(&writer, bytes);
        if mirror.is_user_mode_only() {
            assert_eq!(wrote, Err(rustix::io::Errno::FAULT));
            mirror.migrate_to_system(0, PAGE).expect("it comes");
            assert_eq!(rustix::io::write(&writer, bytes), Ok(3));
        } else {
            assert_eq!(wrote, Ok(3));
        }
        let mut seen = [0; 3];
        assert_eq!(rustix::io::read(&reader, &mut seen), Ok(3));
        assert_eq!(&seen, b"abc");
        mirror.is_user_mode_only()
    };
    check();
    // The same in a thread without privilege, whatever user runs the test.
    let without = std::thread::spawn(move || {
        let mut sets = rustix::thread::capabilities(None).expect("its own");
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).expect("fewer");
        check()
    });
    let is_user_mode_only = without.join().expect("it passed");
    let allows = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let is_allowed = allows.is_ok_and(|word| word.trim() == "1");
    assert_eq!(is_user_mode_only, !is_allowed);
}

#[test]
fn writes_are_tracked_wherever_they_come_from() {
    let mirror = mirror();
    mirror.umem().write(0, &pattern(1)).expect("mapped");
    mirror.track_writes(0, LEN).expect("tracked");
    assert_eq!(mirror.take_written(0, LEN).expect("in range"), Vec::<u64>::new());
    let _ = cpu(&mirror);
    assert_eq!(mirror.take_written(0, LEN).expect("in range"), [], "to read is not to write");
    mirror.umem().write(PAGE, b"cpu").expect("mapped");
    mirror.write(2 * PAGE, b"device").expect("mapped");
    let _ = mirror.migrate_to_device(3 * PAGE, 2 * PAGE).expect("they go");
    mirror.write(3 * PAGE, b"in the device").expect("in place");
    let mut byte = [0];
    mirror.umem().read(4 * PAGE, &mut byte).expect("it comes back");
    let written = mirror.take_written(0, LEN).expect("in range");
    assert_eq!(written, [PAGE, 2 * PAGE, 3 * PAGE]);
    assert_eq!(mirror.take_written(0, LEN).expect("in range"), []);
    mirror.umem().write(4 * PAGE, b"after it came back").expect("mapped");
    assert_eq!(mirror.take_written(0, LEN).expect("in range"), [4 * PAGE]);
}

#[test]
fn ranges_are_whole_pages_inside_the_mirror() {
    let mirror = mirror();
    for (offset, len) in
        [(1, PAGE), (0, 100), (0, LEN + PAGE), (LEN, PAGE), (PAGE, u64::MAX - 4095)]
    {
        let refused = mirror.migrate_to_device(offset, len).expect_err("no such range");
        assert!(matches!(refused, Error::Range { .. }), "{refused}");
    }
    assert!(matches!(mirror.read(LEN - 1, &mut [0; 2]), Err(Error::Range { .. })));
    assert!(matches!(Mirror::new(0, device()), Err(Error::Range { .. })));
    assert!(matches!(Mirror::new(100, device()), Err(Error::Range { .. })));
    assert_eq!(mirror.migrate_to_device(LEN, 0).expect("nothing").pages, 0);
    // SAFETY: nothing is mapped there, which is refused.
    let refused = unsafe { Mirror::over(PAGE as usize, PAGE, device()) }.expect_err("no memory");
    assert!(matches!(refused, Error::System { .. }), "{refused}");
}

#[test]
fn a_range_has_one_mirror() {
    let mirror = mirror();
    // SAFETY: it is refused.
    let refused = unsafe { Mirror::over(mirror.addr(), LEN, device()) }.expect_err("it has one");
    assert!(matches!(refused, Error::System { call: "UFFDIO_REGISTER", .. }), "{refused}");
}
