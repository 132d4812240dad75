//! Copies to and from a child process.

#![allow(unsafe_code, reason = "forks a child and makes holes in the address space")]

use std::ptr;
use std::sync::atomic::Ordering;

use rustix::mm::MprotectFlags;
use umem::{
    Fault, HostBuf, LocalPart, PeerMark, Refused, RemoteFault, RemotePart, RemoteProcess, Touch,
    Umem,
};

const PAGE: usize = 4096;
const SECRET: u64 = 0x7065_6572_646d_6121;

#[test]
fn bytes_arrive_from_several_parts_and_come_back() {
    let len = 700_000;
    let memory = HostBuf::memfd("umem-test", len + 2 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let source = HostBuf::anonymous(len).expect("memory exists");
    let pattern: Vec<u8> = (0..len).map(|i| (i * 31 + i / 256) as u8).collect();
    source.write(0, &pattern).expect("inside");
    let source = Umem::host(&source);
    let cut = 300_001;
    let parts = [
        LocalPart { umem: &source, offset: 0, len: cut },
        LocalPart { umem: &source, offset: 5, len: 0 },
        LocalPart { umem: &source, offset: cut, len: len as u64 - cut },
    ];
    let mut calls = 0;
    let remote = child.address(&memory) + 8 + 3;
    process
        .write(&parts, remote, &mut || {
            calls += 1;
            true
        })
        .expect("permitted and mapped");
    assert_eq!(calls, 2, "asked between three pieces of at most 256 KiB");
    let mut arrived = vec![0; len];
    memory.read(8 + 3, &mut arrived).expect("inside");
    assert!(arrived == pattern, "the file is shared with the child, and holds what was sent");

    let back = HostBuf::anonymous(len).expect("memory exists");
    let target = Umem::host(&back);
    let parts = [
        LocalPart { umem: &target, offset: 0, len: 100 },
        LocalPart { umem: &target, offset: 100, len: len as u64 - 100 },
    ];
    process.read(&parts, remote, &mut || true).expect("permitted and mapped");
    back.read(0, &mut arrived).expect("inside");
    assert!(arrived == pattern);
}

#[test]
fn more_parts_than_one_call_takes_are_copied_too() {
    let memory = HostBuf::memfd("umem-test", 3 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let source = HostBuf::anonymous(PAGE).expect("memory exists");
    let pattern: Vec<u8> = (0..PAGE).map(|i| i as u8).collect();
    source.write(0, &pattern).expect("inside");
    let source = Umem::host(&source);
    let parts: Vec<_> =
        (0..2000).map(|i| LocalPart { umem: &source, offset: 2 * i, len: 2 }).collect();
    process.write(&parts, child.address(&memory) + 8, &mut || true).expect("mapped");
    let mut arrived = vec![0; 4000];
    memory.read(8, &mut arrived).expect("inside");
    assert!(arrived == pattern[..4000]);
    let target = HostBuf::anonymous(PAGE).expect("memory exists");
    let back = Umem::host(&target);
    let parts: Vec<_> =
        (0..2000).map(|i| LocalPart { umem: &back, offset: 2 * i, len: 2 }).collect();
    process.read(&parts, child.address(&memory) + 8, &mut || true).expect("mapped");
    target.read(0, &mut arrived).expect("inside");
    assert!(arrived == pattern[..4000]);
}

#[test]
fn short_copies_go_together() {
    let memory = HostBuf::memfd("umem-test", 3 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let ours = HostBuf::anonymous(PAGE).expect("memory exists");
    let pattern: Vec<u8> = (0..PAGE).map(|i| (i * 31 + i / 256) as u8).collect();
    ours.write(0, &pattern).expect("inside");
    let source = Umem::host(&ours);
    // Every length and offset within a word, cut differently on both sides.
    let lens: Vec<u64> = (0..40).map(|i| i % 19).collect();
    let sum: u64 = lens.iter().sum();
    let there = |i: u64| 16 + 40 * i + i % 8;
    let base = child.address(&memory);
    let remote: Vec<_> =
        (0..40).map(|i| RemotePart { addr: base + there(i), len: lens[i as usize] }).collect();
    let cuts = [0, 7, 7, 50, 51, sum];
    let local: Vec<_> = cuts
        .windows(2)
        .map(|cut| LocalPart { umem: &source, offset: cut[0], len: cut[1] - cut[0] })
        .collect();
    let all = if RemoteProcess::GATHERS { 40 } else { 0 };
    assert_eq!(process.write_each(&local, &remote), all);
    let mut expected = vec![0; 2 * PAGE];
    let mut from = 0;
    for (i, len) in (0..).zip(&lens).take(all) {
        let (at, len) = (there(i) as usize, *len as usize);
        expected[at..at + len].copy_from_slice(&pattern[from..from + len]);
        from += len;
    }
    let mut arrived = vec![0; 2 * PAGE];
    memory.read(16, &mut arrived[16..]).expect("inside");
    assert!(arrived[16..] == expected[16..], "and nothing between them");

    let back = HostBuf::anonymous(PAGE).expect("memory exists");
    let target = Umem::host(&back);
    let local: Vec<_> = local.iter().map(|part| LocalPart { umem: &target, ..*part }).collect();
    assert_eq!(process.read_each(&local, &remote), all);
    back.read(0, &mut arrived[..from]).expect("inside");
    assert!(arrived[..from] == pattern[..from]);
}

#[test]
fn short_copies_before_a_fault_count() {
    let memory = HostBuf::memfd("umem-test", 5 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let marks = HostBuf::memfd("umem-test", PAGE).expect("memory exists");
    marks.store_u64(0, 1, Ordering::Release).expect("inside");
    let process = process.while_marked(PeerMark::new(&marks, 0));
    let ours = HostBuf::anonymous(PAGE).expect("memory exists");
    let ours = Umem::host(&ours);
    // The child cannot touch its last page: see `Child::start`.
    let base = child.address(&memory);
    let remote: Vec<_> =
        (1..7).map(|i| RemotePart { addr: base + i * PAGE as u64 - 100, len: 16 }).collect();
    let local = [LocalPart { umem: &ours, offset: 0, len: 6 * 16 }];
    let some = if RemoteProcess::GATHERS { 4 } else { 0 };
    assert_eq!(process.write_each(&local, &remote), some);
    assert_eq!(process.read_each(&local, &remote), some);
    let outside = [LocalPart { umem: &ours, offset: PAGE as u64 - 16, len: 6 * 16 }];
    assert_eq!(process.write_each(&outside, &remote), 0, "our own side");
    marks.store_u64(0, 0, Ordering::Release).expect("inside");
    assert_eq!(process.write_each(&local, &remote), 0, "the process has ended");
}

#[test]
fn a_fault_names_the_side_it_is_on() {
    let memory = HostBuf::memfd("umem-test", 5 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let base = child.address(&memory);
    let buffer = HostBuf::anonymous(4 * PAGE).expect("memory exists");
    // SAFETY: the buffer outlives the handle and nothing else uses it.
    let local = unsafe { Umem::user(buffer.as_ptr().expose_provenance(), 4 * PAGE as u64) };
    let parts = |len| [LocalPart { umem: &local, offset: 0, len }];

    // The child cannot touch the page after it: see `Child::start`.
    let reach = 2 * PAGE as u64;
    for (touch, result) in [
        (Touch::Write, process.write(&parts(reach), base + 3 * PAGE as u64, &mut || true)),
        (Touch::Read, process.read(&parts(reach), base + 3 * PAGE as u64, &mut || true)),
    ] {
        assert_eq!(
            result,
            Err(RemoteFault::Remote { pid: process.pid(), touch, at: base + 4 * PAGE as u64 })
        );
    }

    // Now a page of ours is gone.
    let hole = ptr::with_exposed_provenance_mut(buffer.as_ptr().expose_provenance() + PAGE);
    // SAFETY: a page of the buffer, which only this test uses.
    unsafe { rustix::mm::mprotect(hole, PAGE, MprotectFlags::empty()) }.expect("ours");
    for result in [
        process.write(&parts(reach), base, &mut || true),
        process.read(&parts(reach), base, &mut || true),
    ] {
        match result {
            Err(RemoteFault::Local(Fault::Page { at, .. })) => {
                assert_eq!(at, hole.addr() as u64);
            }
            other => panic!("the fault is on our side, not {other:?}"),
        }
    }
    let outside = process.write(&parts(5 * PAGE as u64), base, &mut || true);
    assert!(matches!(outside, Err(RemoteFault::Local(Fault::OutOfRange { .. }))));
}

#[test]
fn the_callback_stops_a_copy_between_pieces() {
    let memory = HostBuf::memfd("umem-test", (1 << 20) + PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let source = HostBuf::anonymous(1 << 20).expect("memory exists");
    source.fill(0, 3, 1 << 20).expect("inside");
    let source = Umem::host(&source);
    let parts = [LocalPart { umem: &source, offset: 0, len: (1 << 20) - 8 }];
    let result = process.write(&parts, child.address(&memory) + 8, &mut || false);
    assert_eq!(result, Err(RemoteFault::Stopped { done: umem::remote::PIECE }));
    let mut last = [9];
    memory.read((1 << 20) - 1, &mut last).expect("inside");
    assert_eq!(last, [0], "the last byte never arrived");
}

/// By the pid alone both copies would succeed: the process is alive.
#[test]
fn a_process_whose_mark_is_gone_is_not_touched() {
    let memory = HostBuf::memfd("umem-test", 2 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let marks = HostBuf::memfd("umem-test", PAGE).expect("memory exists");
    let process = process.while_marked(PeerMark::new(&marks, 0));
    let ours = HostBuf::anonymous(PAGE).expect("memory exists");
    ours.fill(0, 7, PAGE).expect("inside");
    let ours = Umem::host(&ours);
    let parts = [LocalPart { umem: &ours, offset: 0, len: 8 }];
    let (there, pid) = (child.address(&memory) + 64, process.pid());
    let ended = || Err(RemoteFault::Refused(Refused::Ended { pid }));

    marks.store_u64(0, 1, Ordering::Release).expect("inside");
    assert_eq!(process.write(&parts, there, &mut || true), Ok(()));
    marks.store_u64(0, 0, Ordering::Release).expect("inside");
    assert_eq!(process.write(&parts, there + 8, &mut || true), ended());
    assert_eq!(process.read(&parts, there, &mut || true), ended());
    assert_eq!(memory.load_u64(64, Ordering::Acquire), Ok(0x0707_0707_0707_0707));
    assert_eq!(memory.load_u64(72, Ordering::Acquire), Ok(0));
}

#[test]
fn a_refusal_is_explained() {
    let memory = HostBuf::memfd("umem-test", 2 * PAGE).expect("memory exists");
    let (child, process) = Child::start(&memory);
    let addr = child.address(&memory);
    let wrong = RemoteProcess::probe(process.pid(), addr, 5).unwrap_err();
    assert!(matches!(wrong, Refused::WrongProcess { .. }), "{wrong}");
    let nowhere = RemoteProcess::probe(process.pid(), 0x10, SECRET).unwrap_err();
    assert!(matches!(nowhere, Refused::WrongProcess { .. }), "{nowhere}");
    assert_eq!(RemoteProcess::probe(0, addr, SECRET).err(), Some(Refused::NotVisible));

    let pid = process.pid();
    drop(child);
    let text = RemoteProcess::probe(pid, addr, SECRET).unwrap_err().to_string();
    assert!(text.starts_with(&format!("no process has pid {pid}")), "{text}");
    let source = Umem::host(&memory);
    let parts = [LocalPart { umem: &source, offset: 0, len: 8 }];
    let result = process.write(&parts, addr, &mut || true);
    assert_eq!(result, Err(RemoteFault::Refused(Refused::NoSuchProcess { pid })));
}

/// A child that does nothing but exist, with a copy of our address space in which the last page of
/// the shared memory may not be touched. Killed and reaped on drop.
struct Child {
    pid: libc::pid_t,
}

impl Child {
    fn start(memory: &HostBuf) -> (Self, RemoteProcess) {
        memory.store_u64(0, SECRET, Ordering::Release).expect("inside");
        let last = memory.as_ptr().wrapping_add(memory.len().next_multiple_of(PAGE) - PAGE);
        // SAFETY: the child only makes async-signal-safe calls, on its own copy of the address
        // space, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // The parent may die without reaching `drop`.
            // SAFETY: a plain system call.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: the child's own mapping, which it does not use.
            unsafe { libc::mprotect(last.cast(), PAGE, libc::PROT_NONE) };
            memory.store_u64(8, 1, Ordering::Release).expect("inside");
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        assert!(pid > 0, "a process can be made");
        while memory.load_u64(8, Ordering::Acquire) != Ok(1) {
            std::thread::yield_now();
        }
        let child = Self { pid };
        let process = RemoteProcess::probe(pid, child.address(memory), SECRET)
            .expect("a parent may reach its child");
        (child, process)
    }

    /// The child has the memory at the same address as we have it.
    fn address(&self, memory: &HostBuf) -> u64 {
        memory.as_ptr().addr() as u64
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet reaped, so the number is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: as above; no status is asked for.
        unsafe { libc::waitpid(self.pid, ptr::null_mut(), 0) };
    }
}
