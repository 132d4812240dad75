//! What the program's descriptors stand for.
//!
//! One word for each, in memory that is never moved. Two of a program's descriptors may refer to
//! one socket (`dup(2)`): each socket counts them.

#![cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Descriptors above this are left to libc.
const SIZE: usize = 1 << 16;

static ENTRIES: [AtomicU64; SIZE] = [const { AtomicU64::new(0) }; SIZE];
/// How many descriptors stand for a socket.
static USERS: [AtomicU32; SIZE] = [const { AtomicU32::new(0) }; SIZE];

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An rsocket.
    Rsocket,
    /// A kernel socket.
    Kernel,
    /// Not yet known: a kernel socket that becomes an rsocket when both sides agree.
    Undecided(Role),
    /// A kernel epoll instance, with the number of one for rsockets.
    Epoll,
}

/// The state of an undecided socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It neither listens nor connects.
    New,
    /// It listens.
    Listener,
    /// It connected.
    Active,
    /// It was accepted.
    Passive,
}

/// A descriptor's entry: what it stands for, and the number of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) fd: c_int,
}

const KINDS: [Kind; 7] = [
    Kind::Rsocket,
    Kind::Kernel,
    Kind::Undecided(Role::New),
    Kind::Undecided(Role::Listener),
    Kind::Undecided(Role::Active),
    Kind::Undecided(Role::Passive),
    Kind::Epoll,
];

impl Entry {
    /// Never 0.
    fn encode(self) -> u64 {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).map_or(0, |at| at as u64 + 1);
        kind << 32 | u64::from(self.fd.cast_unsigned())
    }

    fn decode(word: u64) -> Option<Self> {
        let kind = KINDS.get((word >> 32).checked_sub(1)? as usize)?;
        Some(Self { kind: *kind, fd: (word as u32).cast_signed() })
    }
}

fn slot<T>(table: &'static [T; SIZE], fd: c_int) -> Option<&'static T> {
    table.get(usize::try_from(fd).ok()?)
}

/// What a descriptor stands for; `None` if it is the kernel's alone.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Entry> {
    // ORDERING: the thread that made the descriptor passed it to this one, which orders the earlier
    // stores.
    Entry::decode(slot(&ENTRIES, fd)?.load(Ordering::Relaxed))
}

/// Whether descriptors of this number can be kept.
pub(crate) fn has_room(fd: c_int) -> bool {
    slot(&ENTRIES, fd).is_some()
}

/// From now on `fd` stands for a socket, which has one more descriptor.
pub(crate) fn add(fd: c_int, entry: Entry) {
    if let (Some(slot), Some(users)) = (slot(&ENTRIES, fd), slot(&USERS, entry.fd)) {
        users.fetch_add(1, Ordering::Relaxed);
        slot.store(entry.encode(), Ordering::Release);
    }
}

/// What `fd` stands for has changed; it is the one descriptor of the old socket and of the new one.
pub(crate) fn replace(fd: c_int, entry: Entry) {
    remove(fd);
    add(fd, entry);
}

/// `fd` no longer stands for anything. Returns what it stood for, if no other descriptor stands for
/// that now.
pub(crate) fn remove(fd: c_int) -> Option<Entry> {
    let entry = Entry::decode(slot(&ENTRIES, fd)?.swap(0, Ordering::AcqRel))?;
    let users = slot(&USERS, entry.fd)?;
    (users.fetch_sub(1, Ordering::AcqRel) == 1).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptor_of_a_socket_is_reported() {
        let entry = Entry { kind: Kind::Rsocket, fd: 70 };
        assert_eq!(get(60), None);
        add(60, entry);
        add(61, entry);
        assert_eq!((get(60), get(61)), (Some(entry), Some(entry)));
        assert_eq!(remove(60), None);
        assert_eq!(get(60), None);
        assert_eq!(remove(61), Some(entry));
        assert_eq!(remove(61), None);
    }

    #[test]
    fn every_kind_survives_a_round_trip() {
        for kind in KINDS {
            let entry = Entry { kind, fd: 65535 };
            assert_eq!(Entry::decode(entry.encode()), Some(entry));
        }
        assert_eq!(Entry::decode(0), None);
        assert_eq!(Entry::decode(99 << 32), None);
    }

    #[test]
    fn numbers_out_of_range_have_no_entry() {
        for fd in [-1, 1 << 16, c_int::MAX] {
            assert!(!has_room(fd));
            add(fd, Entry { kind: Kind::Kernel, fd: 3 });
            assert_eq!((get(fd), remove(fd)), (None, None));
        }
    }
}
