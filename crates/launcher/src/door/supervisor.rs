//! The supervisor: starts the program, answers its notifications, reports its end, and stays for as
//! long as any process uses the filter.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use super::backing::Backing;
use super::channel::{self, Channel, Message, SharedDoor};
use super::counters::{Counter, Counting};
use super::listener::{Answer, Listener};
use super::netlink::{Sockets, StillSockets};
use super::preload::{CounterFiles, Netlink};
use super::process::{self, Mask, Signals};
use super::{Launch, program, remote, serve};
use crate::live::Live;

/// A byte at the same address in the program until it execs: if we can read it there, we can read
/// the program's memory.
static PROBE: u8 = 1;

/// The door, while a process uses it.
pub(super) struct Door {
    listener: Listener,
    backing: Backing,
    live: Arc<Live>,
    sockets: Sockets,
    /// The thread that counts, once a counter was opened.
    counting: Option<Counting>,
}

impl Door {
    pub(super) fn new(listener: OwnedFd, backing: Backing, live: Arc<Live>) -> io::Result<Self> {
        let (listener, sockets) = (Listener::new(listener)?, Sockets::default());
        Ok(Self { listener, backing, live, sockets, counting: None })
    }

    /// Answers what has arrived. False when no process uses the filter any more, or it cannot be
    /// served.
    pub(super) fn serve(&mut self, ready: PollFlags) -> bool {
        if !ready.contains(PollFlags::IN) {
            return !ready.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        }
        let notification = match self.listener.receive() {
            Ok(Some(notification)) => notification,
            Ok(None) => return true,
            Err(error) => {
                tracing::error!(%error, "door: the listener fails");
                return false;
            }
        };
        let Self { listener, backing, live, sockets, .. } = self;
        let answer = match serve::answer(backing, listener, sockets, live, &notification) {
            Answer::Counter { counter, file, cloexec } => {
                if self.count(notification.id, counter, cloexec) {
                    return true;
                }
                Answer::File { file, cloexec }
            }
            answer => answer,
        };
        if let Err(error) = self.listener.answer(notification.id, answer) {
            tracing::warn!(%error, ?notification, "door: no answer could be given");
        }
        true
    }

    /// Leaves a call to the thread that counts. False if there is none.
    fn count(&mut self, id: u64, counter: Counter, cloexec: bool) -> bool {
        if self.counting.is_none() {
            self.counting = Counting::start(Arc::clone(&self.live), self.listener.share())
                .inspect_err(|error| tracing::warn!(%error, "door: counters read zero"))
                .ok();
        }
        let counting = self.counting.as_ref();
        counting.is_some_and(|counting| counting.answer(id, counter, cloexec))
    }

    /// Whether a process uses the filter. The kernel releases it before its last user can be
    /// reaped.
    fn is_used(&self) -> bool {
        let mut polled = [PollFd::new(self, PollFlags::empty())];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut polled, Some(&now));
        !polled[0].revents().contains(PollFlags::HUP)
    }

    /// The end: no process uses the filter.
    pub(super) fn close(self) {
        self.backing.remove();
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Runs the supervisor. The program blocks the signals in `mask`; `adopt` makes the supervisor the
/// parent of orphans.
pub(super) fn run(
    launch: Launch,
    front: Channel,
    mask: &Mask,
    adopt: bool,
) -> io::Result<ExitCode> {
    if adopt {
        process::adopt_orphans()?;
    }
    let children = Signals::take(&[libc::SIGCHLD])?;
    let (here, there) = channel::pair()?;
    let program = match process::fork()? {
        Some(program) => program,
        None => {
            drop((here, front, children));
            mask.restore();
            program::run(launch, &there)
        }
    };
    drop(there);
    let handle = rustix::process::pidfd_open(program, PidfdFlags::empty())?;
    process::ignore_stops();
    let _ = rustix::thread::set_name(c"peerdma-door");
    let keep = [front.as_fd(), here.as_fd(), children.as_fd(), handle.as_fd()];
    process::let_go(&keep, process::is_explaining());

    let live = Arc::clone(&launch.live);
    let (door, left) = open(&launch, &here, program)?;
    drop(here);
    if door.is_some() || left.is_some() {
        live.keep();
    }
    // The front may have been killed by now, which the poll below will show; the program must be
    // looked after even then.
    let shared = door.as_ref().and_then(|door| share(door).ok());
    let _ = front.send(&Message::Started { program: handle, door: shared });
    let (front, program) = (Some(front), Some(program));
    Supervisor { front, children, program, live, door, left }.stay();
    Ok(ExitCode::SUCCESS)
}

/// Learns whether the program has a filter, and lets it continue. Returns the door, and what is for
/// the preload library if the program uses that.
fn open(
    launch: &Launch,
    channel: &Channel,
    program: Pid,
) -> io::Result<(Option<Door>, Option<Left>)> {
    let (listener, backing) = match channel.receive()? {
        Some(Message::Filtered(listener)) => (Some(listener), behind(launch, program)),
        Some(Message::Unfiltered(errno)) => (None, Err(io::Error::from_raw_os_error(errno))),
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let (backing, left) = match backing {
        Ok(backing) => (Some(backing), None),
        Err(error) => {
            if launch.seccomp {
                let hint = sandbox::HINT;
                tracing::warn!(%error, "door: no seccomp user notification here{hint}");
            }
            (None, fall_back(launch))
        }
    };
    let live = || Arc::clone(&launch.live);
    let door = match (listener, backing) {
        (None, _) => None,
        (Some(listener), Some(backing)) => Some(Door::new(listener, backing, live())?),
        // The filter cannot be removed: processes behind it find nothing of ours, and every call
        // continues.
        (Some(listener), None) => Some(Door::new(listener, Backing::empty()?, live())?),
    };
    let left = left.map(|backing| Left::new(backing, &launch.live));
    channel.send(&Message::Go(left.as_ref().and_then(Left::sys)))?;
    Ok((door, left))
}

/// What is there for the preload library.
struct Left {
    /// The tree, until the program has ended.
    backing: Option<Backing>,
    netlink: Option<Netlink>,
    counters: Option<CounterFiles>,
}

impl Left {
    fn new(backing: Backing, live: &Arc<Live>) -> Self {
        let directory = backing.named();
        let netlink = directory.and_then(|directory| {
            Netlink::open(directory, Arc::clone(live))
                .inspect_err(|error| tracing::info!(%error, "door: no netlink for the program"))
                .ok()
        });
        let counters = directory.and_then(|directory| {
            CounterFiles::open(directory, Arc::clone(live))
                .inspect_err(|error| tracing::info!(%error, "door: counters read zero"))
                .ok()
        });
        Self { backing: Some(backing), netlink, counters }
    }

    /// The directory that stands for `/sys`.
    fn sys(&self) -> Option<PathBuf> {
        Some(self.backing.as_ref()?.named()?.join("sys"))
    }

    /// Answers programs that have connected.
    fn serve(&mut self) {
        self.netlink.iter().for_each(Netlink::accept);
        self.counters.iter_mut().for_each(CounterFiles::accept);
    }

    /// Where they connect.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let counters = self.counters.iter().map(AsFd::as_fd);
        self.netlink.iter().map(AsFd::as_fd).chain(counters)
    }
}

/// What is behind the door: a tree, if this process may read the paths that the program will name.
fn behind(launch: &Launch, program: Pid) -> io::Result<Backing> {
    let probe = (&raw const PROBE) as u64;
    remote::read(program.as_raw_nonzero().get(), probe, &mut [0])?;
    Backing::create(&launch.tree)
}

/// A directory for the preload library, if that library exists.
fn fall_back(launch: &Launch) -> Option<Backing> {
    let Some(preload) = &launch.preload else {
        tracing::warn!("door: libpeerdma-preload.so is missing too: /sys stays as it is");
        return None;
    };
    tracing::info!(library = %preload.display(), "door: by preload");
    Backing::create_named(&launch.tree)
        .inspect_err(|error| tracing::warn!(%error, "door: /sys stays as it is"))
        .ok()
}

fn share(door: &Door) -> io::Result<SharedDoor> {
    Ok(SharedDoor {
        listener: door.listener.as_fd().try_clone_to_owned()?,
        root: door.backing.root().try_clone_to_owned()?,
        named: door.backing.named().map(ToOwned::to_owned),
    })
}

struct Supervisor {
    /// The front, until it has the program's status or is gone.
    front: Option<Channel>,
    children: Signals,
    /// The program, until it is reaped.
    program: Option<Pid>,
    live: Arc<Live>,
    door: Option<Door>,
    left: Option<Left>,
}

impl Supervisor {
    /// Until the program has ended and no process uses the filter.
    fn stay(mut self) {
        while self.program.is_some() || self.door.is_some() {
            if !self.step() {
                break;
            }
        }
    }

    fn step(&mut self) -> bool {
        let (front_ready, door_ready, left_ready, keeper_ready) = {
            let fds = (self.front.as_ref(), self.door.as_ref());
            let mut polled = vec![PollFd::new(&self.children, PollFlags::IN)];
            polled.extend(fds.1.map(|door| PollFd::new(door, PollFlags::IN)));
            polled.extend(fds.0.map(|front| PollFd::new(front, PollFlags::IN)));
            let before = polled.len();
            let left = self.left.iter().flat_map(Left::fds);
            polled.extend(left.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let lefts = polled.len() - before;
            let keepers = self.live.keepers();
            polled.extend(keepers.map(|keeper| PollFd::new(keeper, PollFlags::IN)));
            match rustix::event::poll(&mut polled, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "door: poll");
                    return false;
                }
            }
            let mut ready = polled.iter().skip(1).map(PollFd::revents);
            let door = fds.1.and_then(|_| ready.next()).unwrap_or(PollFlags::empty());
            let front = fds.0.and_then(|_| ready.next()).unwrap_or(PollFlags::empty());
            let left = ready.by_ref().take(lefts).filter(|left| !left.is_empty()).count() > 0;
            (front, door, left, ready.any(|keeper| !keeper.is_empty()))
        };
        if left_ready {
            self.left.iter_mut().for_each(Left::serve);
        }
        if keeper_ready {
            self.live.hear();
        }
        if let Some(door) = &mut self.door
            && !door.serve(door_ready)
            && let Some(door) = self.door.take()
        {
            door.close();
        }
        if !front_ready.is_empty() {
            self.hear_front();
        }
        while self.children.next().is_some() {}
        while let Some((pid, status)) = process::reap() {
            if self.program == Some(pid) {
                self.program = None;
                self.tell_end(status);
            }
        }
        true
    }

    fn hear_front(&mut self) {
        let message = self.front.as_ref().map(Channel::receive);
        let signal = match message {
            Some(Ok(Some(Message::Signal(signal)))) => signal,
            // The front never closes its end before it has the status, so it was killed: the
            // program goes with it.
            _ => {
                self.front = None;
                self.let_go();
                libc::SIGKILL
            }
        };
        if let Some(program) = self.program {
            // SAFETY: the program is our child and not reaped, so the number is its own.
            unsafe {
                libc::kill(program.as_raw_nonzero().get(), signal);
            };
        }
    }

    fn tell_end(&mut self, status: i32) {
        if let Some(backing) = self.left.as_mut().and_then(|left| left.backing.take()) {
            backing.remove();
        }
        if self.door.as_ref().is_some_and(|door| !door.is_used())
            && let Some(door) = self.door.take()
        {
            door.close();
        }
        if let Some(front) = self.front.take() {
            let end = if self.door.is_some() { Message::Left } else { Message::Ended };
            let _ = front.send(&end(status));
        }
        self.let_go();
    }

    /// Closes what this process does not need any more, while no other thread of it opens anything.
    fn let_go(&self) {
        let _still = self.live.keep_still();
        let sockets = self.door.as_ref().map(|door| door.sockets.keep_still());
        let netlink = self.left.as_ref().and_then(|left| left.netlink.as_ref());
        let others = netlink.map(|netlink| netlink.sockets.keep_still());
        let mut keep = self.fds();
        keep.extend(sockets.iter().chain(&others).flat_map(StillSockets::fds));
        process::let_go(&keep, false);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.children.as_fd()];
        fds.extend(self.front.as_ref().map(AsFd::as_fd));
        fds.extend(self.left.iter().flat_map(Left::fds));
        fds.extend(self.live.keepers().map(AsFd::as_fd));
        if let Some(door) = &self.door {
            fds.extend([door.as_fd(), door.backing.root()]);
        }
        fds
    }
}
