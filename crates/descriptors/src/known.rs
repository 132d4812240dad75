//! Descriptors that are recognised, whatever the program did to their numbers.
//!
//! A program may close every descriptor from 3 on, as daemons do (`closefrom(3)`), or put files of
//! its own in place of ours (`dup2`). Our numbers then lead nowhere, or to the program's files. So
//! each descriptor that is kept for long
//!
//! * has a number above those that a program gets for the files it opens;
//! * remembers which file it is of, and is closed only while it still is of that one. Otherwise the
//!   number belongs to the program;
//! * is checked ([`Known::look`]) before something is written that could harm a file of the
//!   program's, where a check is cheap compared with the write.
//!
//! A file is known by the numbers of its device and its inode. Eventfds, epoll sets and their kind
//! share one inode: where /proc is mounted an eventfd is known by its own number, and the others by
//! their kind alone. To ask /proc takes ten times as long as to make the eventfd. One that programs
//! have many of is made with a mark instead ([`Known::marked`]): the signal that a file would raise
//! for `O_ASYNC`, which eventfds cannot do. The kernel keeps it with the file. A program that sets
//! it all the same is left with a descriptor that is not closed.

#![allow(unsafe_code, reason = "drops an owner by hand, and closes by number")]

use std::ffi::c_int;
use std::fs;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, fstat};
use rustix::io::{DupFlags, Errno};
use rustix::process::{Resource, getrlimit};

/// Ours begin here, or at half of what the process may have if that is less. Programs can still
/// `select(2)` on one of ours: it takes numbers up to 1023.
const FIRST: u64 = 512;

/// A descriptor with the file that it is of.
#[derive(Debug)]
pub struct Known<T: AsFd = OwnedFd> {
    owner: ManuallyDrop<T>,
    file: File,
}

/// What a descriptor is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    inode: u64,
    /// Of those without an inode of their own.
    anonymous: Option<Anonymous>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Anonymous {
    /// An eventfd that was marked.
    Marked(c_int),
    /// An eventfd, with its number, where there was a descriptor free to ask for it.
    Eventfd(Option<u64>),
    /// The kind of any other.
    Kind(PathBuf),
}

impl<T: AsFd> Known<T> {
    /// Takes charge of a descriptor that was just made, and gives it a high number if one is free.
    pub fn new(owner: T) -> Self
    where
        T: From<OwnedFd> + Into<OwnedFd>,
    {
        Self::at_its_number(match dup_high(owner.as_fd()) {
            Ok(high) => T::from(high),
            // The limit is low, or reached.
            Err(_) => owner,
        })
    }

    /// Takes charge of a descriptor whose number others know.
    pub fn at_its_number(owner: T) -> Self {
        Self { file: File::of(owner.as_fd()), owner: ManuallyDrop::new(owner) }
    }

    /// Whether the number still leads to its file.
    pub fn is_ours(&self) -> bool {
        self.file.has_inode_of(self.owner.as_fd())
    }

    /// Checks whether the number still leads to its file. It costs a system call.
    ///
    /// # Errors
    ///
    /// EBADF, as the kernel reports for a closed descriptor.
    pub fn look(&self) -> Result<(), Errno> {
        if self.is_ours() {
            return Ok(());
        }
        let fd = self.owner.as_fd().as_raw_fd();
        tracing::debug!(
            target: "peerdma::descriptors", fd, "the program closed a descriptor of ours, or replaced it"
        );
        Err(Errno::BADF)
    }

    /// For the child of a fork, which has the descriptor too, and not its owner.
    pub fn inherited(&self) -> Inherited {
        Inherited { fd: self.owner.as_fd().as_raw_fd(), file: self.file.clone() }
    }
}

impl Known {
    /// Takes charge of an eventfd, as [`Known::new`], and marks its file. A mark that the file has
    /// stays, and where it cannot be marked it is known as any other. Not for files that another
    /// party made: it could change the mark.
    pub fn marked(eventfd: OwnedFd) -> Self {
        let fd = dup_high(eventfd.as_fd()).unwrap_or(eventfd);
        let mut file = File::inode_of(fd.as_fd());
        let mark = mark(fd.as_fd()).map(Anonymous::Marked);
        file.anonymous = mark.or_else(|| Anonymous::of(fd.as_fd()));
        Self { owner: ManuallyDrop::new(fd), file }
    }

    /// Puts another file in its place, at the same number.
    ///
    /// # Errors
    ///
    /// EBADF if the number is the program's by now; otherwise the error of dup3(2).
    pub fn replace(&mut self, with: impl AsFd) -> Result<(), Errno> {
        self.look()?;
        rustix::io::dup3(with, &mut self.owner, DupFlags::CLOEXEC)?;
        self.file = File::of(self.owner.as_fd());
        Ok(())
    }
}

impl<T: AsFd> Deref for Known<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.owner
    }
}

impl<T: AsFd> AsFd for Known<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.owner.as_fd()
    }
}

impl<T: AsFd> AsRawFd for Known<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.owner.as_fd().as_raw_fd()
    }
}

impl<T: AsFd> Drop for Known<T> {
    fn drop(&mut self) {
        if self.file.is_that_of(self.owner.as_fd()) {
            // SAFETY: this runs once, and the value goes away.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        } else {
            let fd = self.owner.as_fd().as_raw_fd();
            tracing::debug!(
                target: "peerdma::descriptors", fd, "not closed: the number is the program's by now"
            );
        }
    }
}

impl From<OwnedFd> for Known {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd)
    }
}

/// A descriptor in the child of a fork, where nobody owns it.
#[derive(Clone, Debug)]
pub struct Inherited {
    fd: RawFd,
    file: File,
}

impl Inherited {
    /// The number.
    pub fn number(&self) -> RawFd {
        self.fd
    }

    /// Closes it, if it still is what it was.
    ///
    /// # Safety
    ///
    /// The former owner is forgotten, and neither uses nor closes the number later.
    pub unsafe fn close(self) {
        // SAFETY: it is only queried, and a number that is not open is an error.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        if self.file.is_that_of(fd) {
            // SAFETY: as the caller promises.
            unsafe { rustix::io::close(self.fd) };
        }
    }
}

impl File {
    fn of(fd: BorrowedFd<'_>) -> Self {
        let Ok(stat) = fstat(fd) else { return Self::NONE };
        let is_anonymous = FileType::from_raw_mode(stat.st_mode) == FileType::Unknown;
        let anonymous = if is_anonymous { Anonymous::of(fd) } else { None };
        Self { device: stat.st_dev, inode: stat.st_ino, anonymous }
    }

    fn inode_of(fd: BorrowedFd<'_>) -> Self {
        let Ok(stat) = fstat(fd) else { return Self::NONE };
        Self { device: stat.st_dev, inode: stat.st_ino, anonymous: None }
    }

    /// No file is like it: it will not be closed.
    const NONE: Self = Self { device: u64::MAX, inode: u64::MAX, anonymous: None };

    fn has_inode_of(&self, fd: BorrowedFd<'_>) -> bool {
        fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }

    fn is_that_of(&self, fd: BorrowedFd<'_>) -> bool {
        let is_alike = |was: &Anonymous| match was {
            Anonymous::Marked(mark) => mark_of(fd) == Some(*mark),
            // Where nothing tells what is there now (no /proc, as after chroot), it is taken for
            // what it was.
            was => Anonymous::of(fd).is_none_or(|is| was.is_like(&is)),
        };
        self.has_inode_of(fd) && self.anonymous.as_ref().is_none_or(is_alike)
    }
}

impl Anonymous {
    fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        // Its number tells what kind it is of.
        if let Some((number, _)) = crate::fdinfo::eventfd(fd) {
            return Some(Self::Eventfd(Some(number)));
        }
        let kind = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let is_eventfd = kind == Path::new("anon_inode:[eventfd]");
        Some(if is_eventfd { Self::Eventfd(None) } else { Self::Kind(kind) })
    }

    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Eventfd(one), Self::Eventfd(other)) => {
                one.zip(*other).is_none_or(|(one, other)| one == other)
            }
            (one, other) => one == other,
        }
    }
}

/// Of `fcntl(2)`; the same on all architectures.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
/// Numbers of signals end here.
const SIGNALS: c_int = 64;

/// The mark of a file; 0 if it has none.
fn mark_of(fd: BorrowedFd<'_>) -> Option<c_int> {
    // SAFETY: the call has no argument, and only asks.
    let mark = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETSIG) };
    (mark >= 0).then_some(mark)
}

/// Marks a file, unless it is marked, and says with what. Neighbours have different marks.
fn mark(fd: BorrowedFd<'_>) -> Option<c_int> {
    let found = mark_of(fd)?;
    if found != 0 {
        return Some(found);
    }
    let mark = 1 + fd.as_raw_fd() % SIGNALS;
    // SAFETY: the argument is an integer, and the file raises no signal.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, mark) };
    (done == 0).then_some(mark)
}

/// The same file at a high number.
fn dup_high(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let first = RawFd::try_from(FIRST.min(most / 2)).expect("it is at most FIRST");
    if fd.as_raw_fd() >= first {
        return Err(Errno::INVAL);
    }
    rustix::io::fcntl_dupfd_cloexec(fd, first)
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
    }

    /// Puts `file` in place of a known descriptor, as a program does with `dup2`.
    fn replace(known: &Known, file: impl AsFd) -> OwnedFd {
        // SAFETY: the number is given back by the caller, who does not use it as anything else
        // meanwhile.
        let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(known.as_raw_fd()) });
        rustix::io::dup3(file.as_fd(), &mut place, DupFlags::CLOEXEC).expect("open");
        ManuallyDrop::into_inner(place)
    }

    #[test]
    fn numbers_are_above_those_that_a_program_gets() {
        let known = Known::new(event());
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(known.as_raw_fd() as u64 >= FIRST.min(most / 2), "{known:?}");
        assert!(known.is_ours());
    }

    #[test]
    fn what_was_put_in_its_place_is_neither_ours_nor_closed() {
        let file = memfd_create("known", MemfdFlags::CLOEXEC).expect("memory exists");
        let known = Known::new(event());
        let place = replace(&known, &file);
        assert_eq!(known.look(), Err(Errno::BADF));
        drop(known);
        assert!(fstat(&place).is_ok(), "it was closed");
    }

    #[test]
    fn an_eventfd_or_an_epoll_set_of_the_program_is_told_from_ours_before_it_is_closed() {
        let set = || epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
        for (ours, theirs) in [(event(), event()), (event(), set()), (set(), event())] {
            let known = Known::new(ours);
            let place = replace(&known, &theirs);
            drop(known);
            assert!(fstat(&place).is_ok(), "it was closed");
        }
    }

    #[test]
    fn an_eventfd_of_the_program_is_told_from_one_that_is_marked() {
        let known = Known::marked(event());
        assert!(matches!(known.file.anonymous, Some(Anonymous::Marked(1..=SIGNALS))), "{known:?}");
        assert!(known.is_ours());
        let place = replace(&known, event());
        drop(known);
        assert!(fstat(&place).is_ok(), "it was closed");
    }

    #[test]
    fn a_mark_belongs_to_the_file_and_stays() {
        let first = Known::marked(event());
        let second = Known::marked(first.try_clone().expect("a descriptor"));
        assert_eq!(first.file, second.file);
        let number = second.as_raw_fd();
        let file = second.inherited();
        drop(second);
        // SAFETY: it is only queried.
        assert!(!file.file.is_that_of(unsafe { BorrowedFd::borrow_raw(number) }), "it was closed");
        assert!(first.file.is_that_of(first.as_fd()));
    }

    #[test]
    fn one_that_is_still_ours_is_closed() {
        let known = Known::new(event());
        let number = known.as_raw_fd();
        let file = known.inherited();
        drop(known);
        // SAFETY: it is only queried.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        assert!(!file.file.is_that_of(fd));
    }
}
