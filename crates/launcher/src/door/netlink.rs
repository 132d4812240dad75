//! Sockets of NETLINK_RDMA: the program gets one end of a pair of Unix sockets that behaves as such
//! a socket does, and a thread of the supervisor answers at the other end.
//!
//! A packet socket ignores the address that a message is sent to, and shows the address of who sent
//! one: ours has a name as long as a netlink address, in which the port is that of the kernel, 0.
//! What a Unix socket does not know (binding to a netlink address, options of netlink, its own
//! address) is answered here.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::listener::{Answer, Notification};
use super::socket_call::{ADDRESS, Ask};
use super::{preload, remote};
use crate::live::Live;
use crate::netlink;

/// Sockets that programs may have open at a time.
const MOST: usize = 256;

/// The longest request.
const REQUEST: usize = 1 << 16;

/// The sockets of all programs behind the door.
#[derive(Clone, Debug, Default)]
pub(super) struct Sockets(Arc<Mutex<BTreeMap<u64, Socket>>>);

#[derive(Debug)]
struct Socket {
    /// Our end, for as long as its thread needs it.
    ours: Arc<OwnedFd>,
    /// The port by which the program knows itself.
    port: Arc<AtomicU32>,
}

impl Sockets {
    /// Answers a call.
    pub(super) fn answer(&self, live: &Arc<Live>, notification: &Notification, ask: Ask) -> Answer {
        let tid = notification.tid;
        match ask {
            Ask::Open { kind } => self.open(live, tid, kind).unwrap_or_else(Answer::Error),
            Ask::Bind { fd, address } => match self.port_of(tid, fd) {
                Some(port) => bind(tid, address, &port).unwrap_or_else(Answer::Error),
                None => Answer::Continue,
            },
            Ask::Name { fd, address, length } => match self.port_of(tid, fd) {
                Some(port) => {
                    let port = port.load(Ordering::Relaxed);
                    name(tid, address, length, port).unwrap_or_else(Answer::Error)
                }
                None => Answer::Continue,
            },
            Ask::SetOption { fd } => match self.port_of(tid, fd) {
                Some(_) => Answer::Value(0),
                None => Answer::Continue,
            },
        }
    }

    /// While there is what this returns, no socket is opened or closed.
    pub(super) fn keep_still(&self) -> StillSockets<'_> {
        StillSockets(self.lock())
    }

    fn open(&self, live: &Arc<Live>, tid: i32, kind: u64) -> Result<Answer, Errno> {
        // CAST: the type of a socket is an int.
        let kind = kind as i32;
        let (cloexec, nonblock) = (kind & libc::SOCK_CLOEXEC != 0, kind & libc::SOCK_NONBLOCK != 0);
        if !matches!(kind & 0xf, libc::SOCK_RAW | libc::SOCK_DGRAM) {
            return Err(Errno::SOCKTNOSUPPORT);
        }
        let (ours, theirs) = pair()?;
        if nonblock {
            rustix::io::ioctl_fionbio(&theirs, true)?;
        }
        let inode = rustix::fs::fstat(&theirs)?.st_ino;
        // CAST: a thread id is positive; the kernel also takes the process's for a first socket.
        let socket = Socket { ours: Arc::new(ours), port: Arc::new(AtomicU32::new(tid as u32)) };
        let port = Arc::clone(&socket.port);
        self.start(live, inode, socket, move |_| port.load(Ordering::Relaxed))?;
        Ok(Answer::File { file: theirs, cloexec })
    }

    /// Answers at our end of a socket that a program connected.
    pub(super) fn adopt(&self, live: &Arc<Live>, ours: OwnedFd) -> Result<(), Errno> {
        let inode = rustix::fs::fstat(&ours)?.st_ino;
        let socket = Socket { ours: Arc::new(ours), port: Arc::default() };
        self.start(live, inode, socket, preload::port_of_peer)
    }

    /// Starts the thread that answers at our end.
    fn start(
        &self,
        live: &Arc<Live>,
        inode: u64,
        socket: Socket,
        port: impl Fn(BorrowedFd<'_>) -> u32 + Send + 'static,
    ) -> Result<(), Errno> {
        let ours = Arc::clone(&socket.ours);
        {
            let mut sockets = self.lock();
            if sockets.len() >= MOST {
                return Err(Errno::NFILE);
            }
            sockets.insert(inode, socket);
        }
        let (sockets, live) = (self.clone(), Arc::clone(live));
        let serve = move || {
            serve(&live, ours.as_fd(), port);
            let mut sockets = sockets.lock();
            sockets.remove(&inode);
            // Closed while nobody else closes what has no owner.
            drop(ours);
        };
        let thread = std::thread::Builder::new().name("peerdma-netlink".to_owned());
        if thread.spawn(serve).is_err() {
            self.lock().remove(&inode);
            return Err(Errno::NOMEM);
        }
        Ok(())
    }

    /// The port of a descriptor of the program, if it is a socket of ours.
    fn port_of(&self, tid: i32, fd: i32) -> Option<Arc<AtomicU32>> {
        if self.lock().is_empty() {
            return None;
        }
        let link = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some(Arc::clone(&self.lock().get(&inode)?.port))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Socket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sockets of which none is opened or closed.
pub(super) struct StillSockets<'a>(MutexGuard<'a, BTreeMap<u64, Socket>>);

impl StillSockets<'_> {
    /// The descriptors that threads use.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.values().map(|socket| socket.ours.as_fd())
    }
}

/// Our end, which has a name of the length of a netlink address, and the program's.
fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    preload::bind(&ours)?;
    Ok((ours, theirs))
}

/// Answers requests until the program has closed its end.
fn serve(live: &Live, ours: BorrowedFd<'_>, port: impl Fn(BorrowedFd<'_>) -> u32) {
    let mut request = vec![0; REQUEST];
    loop {
        let length = match rustix::net::recv(ours, &mut request[..], RecvFlags::empty()) {
            Ok((0, _)) => return,
            Ok((length, _)) => length,
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(_) => return,
        };
        for answer in netlink::answer(&request[..length], port(ours), live) {
            // A program that does not read holds up nobody else.
            let send = || rustix::net::send(ours, &answer, SendFlags::NOSIGNAL);
            if rustix::io::retry_on_intr(send).is_err() {
                return;
            }
        }
    }
}

fn bind(tid: i32, address: u64, port: &AtomicU32) -> Result<Answer, Errno> {
    let mut bytes = [0; ADDRESS];
    if remote::read(tid, address, &mut bytes)? != ADDRESS {
        return Err(Errno::FAULT);
    }
    let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
    if i32::from(family) != libc::AF_NETLINK {
        return Err(Errno::INVAL);
    }
    let wanted = u32::from_ne_bytes(bytes[4..8].try_into().expect("4 bytes"));
    if wanted != 0 {
        port.store(wanted, Ordering::Relaxed);
    }
    Ok(Answer::Value(0))
}

fn name(tid: i32, address: u64, length: u64, port: u32) -> Result<Answer, Errno> {
    let mut room = [0; 4];
    if remote::read(tid, length, &mut room)? != room.len() {
        return Err(Errno::FAULT);
    }
    let room = i32::from_ne_bytes(room);
    let room = usize::try_from(room).map_err(|_| Errno::INVAL)?;
    let mut bytes = [0; ADDRESS];
    // CAST: families are 16 bits.
    bytes[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&port.to_ne_bytes());
    let fits = room.min(ADDRESS);
    if fits > 0 {
        remote::write(tid, address, &bytes[..fits])?;
    }
    // CAST: 12.
    remote::write(tid, length, &(ADDRESS as i32).to_ne_bytes())?;
    Ok(Answer::Value(0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn what_we_send_comes_from_an_address_as_long_as_the_kernels_with_its_port() {
        let (ours, theirs) = pair().expect("descriptors");
        rustix::net::send(&ours, b"x", SendFlags::NOSIGNAL).expect("room");
        let mut from = [0_u8; 128];
        let mut length = from.len() as libc::socklen_t;
        let mut byte = [0_u8; 1];
        // SAFETY: the buffers are as long as the call is told, and live through it.
        let got = unsafe {
            libc::recvfrom(
                theirs.as_raw_fd(),
                byte.as_mut_ptr().cast(),
                1,
                0,
                from.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!((got, byte, length as usize), (1, *b"x", ADDRESS));
        assert_eq!(from[4..8], [0; 4], "the port of the kernel");
        // A message to an address of netlink goes to us.
        let kernel = [libc::AF_NETLINK as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: as above; both buffers are only read.
        let sent = unsafe {
            libc::sendto(
                theirs.as_raw_fd(),
                b"y".as_ptr().cast(),
                1,
                0,
                kernel.as_ptr().cast(),
                ADDRESS as libc::socklen_t,
            )
        };
        assert_eq!(sent, 1);
        let mut byte = [0_u8; 1];
        rustix::net::recv(&ours, &mut byte, RecvFlags::empty()).expect("it is there");
        assert_eq!(byte, *b"y");
    }

    #[test]
    fn a_socket_answers_until_it_is_closed() {
        let sockets = Sockets::default();
        let live = Arc::new(Live::new(Vec::new()));
        let kind = (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as u64;
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let Ok(Answer::File { file, cloexec: true }) = sockets.open(&live, me, kind) else {
            panic!("no socket")
        };
        assert!(sockets.port_of(me, file.as_raw_fd()).is_some());
        // RDMA_NLDEV_CMD_SYS_GET with an acknowledgement.
        let mut request = vec![16, 0, 0, 0];
        request.extend((5_u16 << 10 | 6).to_ne_bytes());
        request.extend(5_u16.to_ne_bytes());
        request.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        rustix::net::send(&file, &request, SendFlags::NOSIGNAL).expect("room");
        let mut answer = [0; 4096];
        let mut next = || rustix::net::recv(&file, &mut answer[..], RecvFlags::empty());
        assert!(next().expect("the answer").0 > 16);
        assert!(next().expect("its acknowledgement").0 > 16);
        drop(file);
        while !sockets.lock().is_empty() {
            std::thread::yield_now();
        }
    }
}
