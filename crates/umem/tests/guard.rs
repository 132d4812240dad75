//! Memory that vanishes: a fault with a reason, never a signal. Every case runs in both modes,
//! guarded and by system call.

#![allow(unsafe_code, reason = "makes holes in the address space")]

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use umem::guard::{self, Mode};
use umem::{Fault, HostBuf, Pieces, Touch, Umem};

const PAGE: usize = 4096;

#[test]
fn a_hole_at_the_start_in_the_middle_and_at_the_end_is_a_fault() {
    both_ways(|_| {
        for hole in [0, 2, 4] {
            for len in [5 * PAGE, 5 * PAGE - 3] {
                let range = Range::new(5);
                let umem = range.umem();
                umem.fill(0, 0x11, (5 * PAGE) as u64).expect("all there");
                range.punch(hole);
                let at = (range.addr + hole * PAGE) as u64;

                let fault = umem.write(0, &vec![0x22; len]).unwrap_err();
                assert_page(&fault, Touch::Write, at);
                let fault = umem.read(0, &mut vec![0; len]).unwrap_err();
                assert_page(&fault, Touch::Read, at);
                let fault = umem.fill(0, 0x33, len as u64).unwrap_err();
                assert_page(&fault, Touch::Write, at);

                let host = HostBuf::anonymous(len).expect("memory exists");
                assert!(umem.read_to(0, host.foreign()).is_err());
                assert!(umem.write_from(0, host.foreign()).is_err());
                let host = Umem::host(&host);
                let fault = Umem::copy(&host, 0, &umem, 0, len as u64).unwrap_err();
                assert_page(&fault, Touch::Read, at);
                let fault = Umem::copy(&umem, 0, &host, 0, len as u64).unwrap_err();
                assert_page(&fault, Touch::Write, at);

                // The memory next to the hole still works.
                umem.write(PAGE as u64, &[7; PAGE]).expect("there");
                umem.write(3 * PAGE as u64, &[7; PAGE]).expect("there");
            }
        }
    });
}

#[test]
fn a_read_can_give_the_crc_of_what_it_read() {
    both_ways(|_| {
        let range = Range::new(3);
        let (user, host) = (range.umem(), HostBuf::anonymous(3 * PAGE).expect("memory exists"));
        let host = Umem::host(&host);
        let bytes: Vec<u8> = (0..3 * PAGE as u32).map(|i| (i * 13 + i / 251) as u8).collect();
        for umem in [&user, &host] {
            umem.write(0, &bytes).expect("all there");
            let lengths = [0, 1, 63, 64, 255, 256, 257, 511, 512, 1023, 1024, 1151, 4096, 4099];
            for (len, from) in lengths.into_iter().flat_map(|len| [(len, 0), (len, 3), (len, 64)]) {
                for shift in [0, 12, 28] {
                    let mut out = vec![0xee; shift + len + 8];
                    let before = crc32fast::hash(b"what came before");
                    let crc = umem.read_crc32(from, &mut out[shift..shift + len], before);
                    let part = &bytes[from as usize..][..len];
                    let whole = [b"what came before", part].concat();
                    assert_eq!(crc, Ok(crc32fast::hash(&whole)), "{len} bytes at {from}");
                    assert_eq!(&out[shift..shift + len], part);
                    assert!(out[..shift].iter().chain(&out[shift + len..]).all(|b| *b == 0xee));
                }
            }
        }

        range.punch(1);
        let at = (range.addr + PAGE) as u64;
        for (from, len) in [(0, 2 * PAGE), (PAGE as u64 - 256, 512), (PAGE as u64 - 100, 256)] {
            let fault = user.read_crc32(from, &mut vec![0; len], 0).unwrap_err();
            assert_page(&fault, Touch::Read, at);
        }
        let mut last = [0; 512];
        let crc = user.read_crc32(PAGE as u64 - 512, &mut last, 0).expect("before the hole");
        assert_eq!(crc, crc32fast::hash(&bytes[PAGE - 512..PAGE]));
        assert!(user.read_crc32(3 * PAGE as u64 - 8, &mut last, 0).is_err(), "leaves the range");
    });
}

/// Whether the processor copies and checksums in one pass.
fn folds() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("vpclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

#[test]
fn pieces_are_read_and_written_as_each_of_them_would_be() {
    both_ways(|mode| {
        let range = Range::new(5);
        let (user, host) = (range.umem(), HostBuf::anonymous(5 * PAGE).expect("memory exists"));
        let host = Umem::host(&host);
        let bytes: Vec<u8> = (0..5 * PAGE as u32).map(|i| (i * 13 + i / 251) as u8).collect();
        let shapes = [(0, 256, 256, 7), (12, 1024, 1040, 3), (3, 512, 515, 8), (12, 4096, 4112, 4)];
        let shapes =
            shapes.into_iter().chain([(1, 2048, 2064, 1), (12, 1000, 1016, 5), (0, 3, 5, 9)]);
        for (umem, (first, len, stride, count)) in
            shapes.flat_map(|shape| [(&user, shape), (&host, shape)])
        {
            let pieces = Pieces { first, len, stride, count };
            umem.write(0, &bytes).expect("all there");
            let begun: Vec<u32> =
                (0..count as u32).map(|index| index.wrapping_mul(0x9e37_79b9)).collect();
            let expected = |bytes: &[u8]| -> Vec<u32> {
                let each = begun.iter().zip(bytes.chunks(len));
                each.map(|(crc, piece)| {
                    let mut hasher = crc32fast::Hasher::new_with_initial(*crc);
                    hasher.update(piece);
                    hasher.finalize()
                })
                .collect()
            };
            let spread = |bytes: &[u8], around: u8| {
                let mut all = vec![around; first + stride * count];
                for (index, piece) in bytes.chunks(len).enumerate() {
                    all[first + index * stride..][..len].copy_from_slice(piece);
                }
                all
            };
            for from in [0, 1, 64] {
                let (mut out, mut crcs) = (vec![0xee; first + stride * count], begun.clone());
                let part = &bytes[from..][..len * count];
                let done = umem.read_pieces_crc32(from as u64, &mut out, pieces, &mut crcs);
                if done {
                    assert_eq!(out, spread(part, 0xee), "{pieces:?} from {from}");
                    assert_eq!(crcs, expected(part), "{pieces:?} from {from}");
                }
                assert_eq!(done, folds() && mode == Mode::Guarded && len % 256 == 0, "{pieces:?}");

                let (all, mut crcs) = (spread(part, 0x11), begun.clone());
                if umem::crc32_pieces(&all, pieces, &mut crcs) {
                    assert_eq!(crcs, expected(part), "{pieces:?} from {from}");
                }
                umem.fill(0, 0x55, 5 * PAGE as u64).expect("all there");
                umem.write_pieces(from as u64, &all, pieces).expect("all there");
                let mut back = vec![0; from + len * count + 1];
                umem.read(0, &mut back).expect("all there");
                assert_eq!(&back[from..from + len * count], part, "{pieces:?} to {from}");
                assert!(back[..from].iter().chain(back.last()).all(|byte| *byte == 0x55));
                umem.write(0, &bytes).expect("all there");
            }
        }

        // More than there is room for, in the buffer, in the memory and among the CRCs.
        let pieces = Pieces { first: 12, len: 1024, stride: 1040, count: 4 };
        let (mut out, mut crcs) = (vec![0; 4 * 1040], [0; 4]);
        for umem in [&user, &host] {
            let most = 5 * PAGE as u64 - 4096;
            assert!(!umem.read_pieces_crc32(0, &mut out[..4 * 1040 - 5], pieces, &mut crcs));
            assert!(!umem.read_pieces_crc32(0, &mut out, pieces, &mut crcs[..3]));
            assert!(!umem.read_pieces_crc32(most + 1, &mut out, pieces, &mut crcs));
            assert!(umem.write_pieces(most + 1, &out, pieces).is_err());
            umem.write_pieces(most, &out, pieces).expect("just fits");
            let none = Pieces { count: 0, ..pieces };
            assert!(!umem.read_pieces_crc32(0, &mut out, none, &mut []));
            umem.write_pieces(0, &[], none).expect("nothing to do");
        }
        assert!(!umem::crc32_pieces(&out[..4 * 1040 - 5], pieces, &mut crcs));
        assert!(!umem::crc32_pieces(&out, pieces, &mut crcs[..3]));
        assert!(!umem::crc32_pieces(&out, Pieces { stride: 1000, ..pieces }, &mut crcs));
        assert!(!umem::crc32_pieces(&out, Pieces { stride: usize::MAX, ..pieces }, &mut crcs));

        range.punch(1);
        assert!(!user.read_pieces_crc32(PAGE as u64 - 2048, &mut out, pieces, &mut crcs));
        let fault = user.write_pieces(PAGE as u64 - 2048, &out, pieces).unwrap_err();
        assert_page(&fault, Touch::Write, (range.addr + PAGE) as u64);
    });
}

#[test]
fn a_small_access_on_either_side_of_a_hole_is_exact() {
    both_ways(|_| {
        let range = Range::new(3);
        let umem = range.umem();
        range.punch(1);
        for len in 1..70_u64 {
            let bytes = vec![9; len as usize];
            umem.write(PAGE as u64 - len, &bytes).expect("ends where the hole begins");
            umem.write(2 * PAGE as u64, &bytes).expect("begins where the hole ends");
            assert!(umem.write(PAGE as u64 - len + 1, &bytes).is_err(), "{len} bytes reach in");
            assert!(umem.write(2 * PAGE as u64 - 1, &bytes).is_err(), "{len} bytes begin in it");
            assert!(umem.read(2 * PAGE as u64 - 1, &mut vec![0; len as usize]).is_err());
        }
    });
}

#[test]
fn atomics_on_a_hole_and_on_read_only_pages_are_faults() {
    both_ways(|_| {
        let range = Range::new(2);
        let umem = range.umem();
        assert_eq!(umem.fetch_add(8, 5), Ok(0));
        assert_eq!(umem.compare_swap(8, 5, 9), Ok(5));
        assert_eq!(umem.compare_swap(8, 5, 1), Ok(9));
        assert_eq!(umem.fetch_add(8, u64::MAX), Ok(9));

        range.protect(0, MprotectFlags::READ);
        range.punch(1);
        for (page, offset) in [(0, 8), (1, PAGE as u64)] {
            let at = (range.addr + page * PAGE) as u64 + offset % PAGE as u64;
            assert_page(&umem.fetch_add(offset, 1).unwrap_err(), Touch::Atomic, at);
            assert_page(&umem.compare_swap(offset, 0, 1).unwrap_err(), Touch::Atomic, at);
        }
        assert!(matches!(umem.fetch_add(4, 1), Err(Fault::Misaligned { .. })));
        let mut value = [0; 8];
        umem.read(8, &mut value).expect("readable");
        assert_eq!(u64::from_ne_bytes(value), 8);
        assert!(umem.write(8, &value).is_err(), "read-only pages do not take writes");
    });
}

#[test]
fn a_truncated_file_is_a_fault_not_a_sigbus() {
    both_ways(|_| {
        let file = rustix::fs::memfd_create("umem-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&file, 2 * PAGE as u64).expect("memory exists");
        // SAFETY: a new mapping overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                2 * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .expect("address space exists");
        let range = Range { addr: ptr.expose_provenance(), pages: 2 };
        let umem = range.umem();
        umem.write(0, &[1; 2 * PAGE]).expect("there");
        rustix::fs::ftruncate(&file, PAGE as u64).expect("ours");
        let at = (range.addr + PAGE) as u64;
        assert_page(&umem.read(0, &mut [0; 2 * PAGE]).unwrap_err(), Touch::Read, at);
        assert_page(&umem.write(0, &[2; 2 * PAGE]).unwrap_err(), Touch::Write, at);
        assert_page(&umem.fetch_add(PAGE as u64, 1).unwrap_err(), Touch::Atomic, at);
    });
}

#[test]
fn addresses_no_process_can_have_are_faults() {
    both_ways(|_| {
        for addr in [0, 0x1000, 0x8000_0000_0000_0000, usize::MAX - 0xfff] {
            // SAFETY: nothing is there, and nothing depends on it.
            let umem = unsafe { Umem::user(addr, 0xf00) };
            assert!(umem.read(0, &mut [0; 100]).is_err(), "read at {addr:#x}");
            assert!(umem.write(0, &[0; 100]).is_err(), "write at {addr:#x}");
            assert!(umem.fetch_add(0, 1).is_err(), "atomic at {addr:#x}");
        }
    });
}

#[test]
fn leaving_the_range_is_refused_in_words_before_anything_is_touched() {
    let range = Range::new(1);
    let umem = range.umem();
    let text = umem.write(0xff8, &[1; 16]).unwrap_err().to_string();
    let expected = format!(
        "0x10 bytes at offset 0xff8 reach outside the memory of 0x1000 bytes at address {:#x}",
        range.addr
    );
    assert_eq!(text, expected);
    let mut last = [9; 8];
    umem.read(0xff8, &mut last).expect("inside");
    assert_eq!(last, [0; 8]);
}

#[test]
fn atomics_are_atomic_with_the_programs_own() {
    both_ways(|mode| {
        // A system call per operation: fewer rounds show the same.
        let rounds = if mode == Mode::Guarded { 50_000 } else { 5_000 };
        let word = AtomicU64::new(0);
        // SAFETY: the word is only reached through atomics while the handle lives.
        let umem = unsafe { Umem::user(word.as_ptr().expose_provenance(), 8) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..rounds {
                    umem.fetch_add(0, 1).expect("mapped");
                }
            });
            scope.spawn(|| {
                let mut seen = 0;
                for _ in 0..rounds {
                    while let old = umem.compare_swap(0, seen, seen + 1).expect("mapped")
                        && old != seen
                    {
                        seen = old;
                    }
                    seen += 1;
                }
            });
            scope.spawn(|| {
                for _ in 0..rounds {
                    word.fetch_add(1, Ordering::SeqCst);
                }
            });
        });
        assert_eq!(word.load(Ordering::SeqCst), 3 * rounds);
    });
}

/// Programs such as `ib_write_lat` rely on this: once the last byte of a write is visible, all the
/// others are.
#[test]
fn the_last_byte_becomes_visible_last() {
    both_ways(|mode| {
        let rounds = if mode == Mode::Guarded { 400_u32 } else { 50 };
        let memory = HostBuf::anonymous(128 * 1024).expect("memory exists");
        for (offset, len) in [
            (0, 8),
            (3, 8),
            (0, 13),
            (5, 40),
            (60, 64),
            (1, 100),
            (0, 1000),
            (7, 4097),
            (9, 70_001),
        ] {
            memory.fill(0, 0, 128 * 1024).expect("inside");
            // SAFETY: the buffer outlives the handle; it is only reached by copies.
            let umem = unsafe { Umem::user(memory.as_ptr().addr() + offset, len as u64) };
            // SAFETY: inside the buffer, and only used atomically by this reference.
            let last =
                unsafe { AtomicU8::from_ptr(memory.as_ptr().wrapping_add(offset + len - 1)) };
            let seen = AtomicU64::new(0);
            let late = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=rounds {
                        umem.write(0, &vec![mark(round); len]).expect("mapped");
                        while seen.load(Ordering::Acquire) < u64::from(round) {
                            std::thread::yield_now();
                        }
                    }
                });
                scope.spawn(|| {
                    let mut bytes = vec![0; len];
                    for round in 1..=rounds {
                        let mut looks = 0_u32;
                        while last.load(Ordering::Acquire) != mark(round) {
                            looks += 1;
                            assert!(looks < 1 << 30, "the writer is gone");
                            if looks.is_multiple_of(1024) {
                                std::thread::yield_now(); // the writer may want this very core
                            }
                        }
                        // The bytes that are stored late, just before the last byte, are checked
                        // first.
                        let near = len - len.min(64);
                        memory.read(offset + near, &mut bytes[near..]).expect("inside");
                        memory.read(offset, &mut bytes[..near]).expect("inside");
                        let missing = bytes.iter().filter(|byte| **byte != mark(round)).count();
                        late.fetch_add(missing as u64, Ordering::Relaxed);
                        seen.store(u64::from(round), Ordering::Release);
                    }
                });
            });
            assert_eq!(late.into_inner(), 0, "bytes came late in writes of {len} at {offset}");
        }
    });
}

/// A byte that differs from that of the previous round.
fn mark(round: u32) -> u8 {
    round as u8
}

#[test]
fn a_dma_buf_is_memory_too() {
    both_ways(|_| {
        let buf = dmabuf::DmaBuf::export(2 * PAGE as u64, "umem-test").expect("memory exists");
        let umem = Umem::dmabuf(buf.map(100, 8000).expect("inside"), 20, 7000).expect("inside");
        umem.write(0, &[5; 7000]).expect("mapped");
        let host = HostBuf::anonymous(7000).expect("memory exists");
        let access = umem.cpu_access(dmabuf::Direction::FromDevice).expect("coherent");
        access.read_to(0, host.foreign()).expect("mapped");
        drop(access);
        let mut bytes = [0; 7000];
        host.read(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [5; 7000]);
        assert_eq!(umem.fetch_add(0, 1), Ok(0x0505_0505_0505_0505));
        assert!(umem.write(6999, &[1, 2]).is_err());
        match umem.backing() {
            umem::Backing::File { offset, .. } | umem::Backing::DmaBuf { offset, .. } => {
                assert_eq!(offset, 120);
            }
            other => panic!("a dma-buf is a file, not {other:?}"),
        }
    });
}

/// Runs `case` guarded, then by system call. The choice is process-wide, so cases take turns.
fn both_ways(case: impl Fn(Mode)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for mode in [Mode::Guarded, Mode::Kernel] {
        guard::force(Some(mode));
        assert_eq!(guard::mode(), mode);
        case(mode);
    }
    guard::force(None);
}

fn assert_page(fault: &Fault, expected: Touch, address: u64) {
    match fault {
        // The routine reads the last word of the source first, and the kernel names any address of
        // the page.
        Fault::Page { touch, at, .. } if *touch == expected => {
            assert_eq!(at / PAGE as u64, address / PAGE as u64, "{fault}");
        }
        other => panic!("{expected} at {address:#x} gave {other}"),
    }
}

/// Pages of our own that can be taken away.
struct Range {
    addr: usize,
    pages: usize,
}

impl Range {
    fn new(pages: usize) -> Self {
        // SAFETY: a new mapping overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                pages * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .expect("memory exists");
        Self { addr: ptr.expose_provenance(), pages }
    }

    fn umem(&self) -> Umem {
        // SAFETY: the pages are only reached through this handle.
        unsafe { Umem::user(self.addr, (self.pages * PAGE) as u64) }
    }

    /// Takes a page away. A mapping without access stays in its place, because another thread could
    /// get the address.
    fn punch(&self, page: usize) {
        self.protect(page, MprotectFlags::empty());
    }

    fn protect(&self, page: usize, flags: MprotectFlags) {
        assert!(page < self.pages);
        let ptr = ptr::with_exposed_provenance_mut(self.addr + page * PAGE);
        // SAFETY: a page of this range, which nothing else uses.
        unsafe { rustix::mm::mprotect(ptr, PAGE, flags) }.expect("ours");
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let ptr = ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: the whole range, which nothing else uses.
        let _ = unsafe { rustix::mm::munmap(ptr, self.pages * PAGE) };
    }
}
