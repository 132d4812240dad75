//! A fork brings all pages back, of all mirrors of the process: so this test has one of its own.
#![allow(unsafe_code, reason = "fork")]

use std::ptr;

use hmm::{DevicePages, Mirror, PAGE};
use umem::{HostBuf, Umem};

const PAGES: u64 = 16;
const LEN: u64 = PAGES * PAGE;

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ (at / PAGE) as u8 ^ seed).collect()
}

/// `anon_write_child`: the child has every byte, and no mirror.
#[test]
fn a_child_of_fork_has_every_byte() {
    let memory = HostBuf::anonymous(LEN as usize).expect("memory");
    let mirror = Mirror::new(LEN, DevicePages::new(Umem::host(&memory))).expect("userfaultfd");
    mirror.write(0, &pattern(7)).expect("mapped");
    let _ = mirror.migrate_to_device(0, LEN / 2).expect("they go");
    let _ = mirror.exclusive(LEN / 2, LEN / 2).expect("they go");
    let base = ptr::with_exposed_provenance::<u8>(mirror.addr());
    let want = pattern(7);
    // SAFETY: the child calls nothing that another thread may hold a lock of.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: mapped, and nobody else is in the child.
        let same = (0..LEN as usize)
            .all(|at| unsafe { base.wrapping_add(at).read_volatile() } == want[at]);
        let refuses = mirror.migrate_to_device(0, PAGE).is_err();
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(if same && refuses { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the child of above; the status is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw other bytes");
    assert_eq!(mirror.stats().brought_back, PAGES);
    assert_eq!(mirror.migrate_to_device(0, LEN).expect("they go").pages, PAGES);
    let mut bytes = vec![0; LEN as usize];
    mirror.umem().read(0, &mut bytes).expect("mapped");
    assert_eq!(bytes, pattern(7));
}
