//! The importing process's connection to one exporting process.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use descriptors::PrivateFd;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::message::{AT_THE_DOOR, MESSAGE_MAX, NO_ANSWER, Note, Reply, Request};
use super::proxy::Proxy;
use super::socket::{self, Bell, Received};
use crate::attachment::Attachment;
use crate::exporter::{ExporterError, ExporterErrorKind};
use crate::shared::Shared;
use crate::sys;
use crate::zap::Zap;

/// A connection. It ends with its last buffer.
#[derive(Debug)]
pub(super) struct Link {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The exporting process, if it has a pid here.
    pid: Option<u32>,
    socket: PrivateFd,
    notes: PrivateFd,
    /// Wakes the thread that listens to notes.
    bell: Bell,
    is_gone: AtomicBool,
    limit: Duration,
    /// Held from a request to its answer.
    channel: Mutex<Channel>,
    /// Messages without an answer for which the other side has no room at present.
    backlog: Mutex<VecDeque<Request>>,
    bufs: Mutex<BTreeMap<u64, Import>>,
    /// The handles by which that process takes away what the CPU has mapped here, by the numbers of
    /// the holds.
    zaps: Mutex<BTreeMap<u64, Zap>>,
}

#[derive(Debug)]
struct Channel {
    next: u64,
    buffer: Vec<u8>,
}

/// A buffer of that process, imported here.
#[derive(Clone, Debug)]
struct Import {
    shared: Weak<Shared>,
    proxy: Weak<Proxy>,
}

impl Link {
    pub(super) fn new(
        socket: OwnedFd,
        notes: OwnedFd,
        pid: Option<u32>,
        limit: Duration,
    ) -> Result<Self, Errno> {
        let inner = Inner {
            pid,
            socket: PrivateFd::new(socket),
            notes: PrivateFd::new(notes),
            bell: Bell::new()?,
            is_gone: AtomicBool::new(false),
            limit,
            channel: Mutex::new(Channel { next: 1, buffer: vec![0; MESSAGE_MAX] }),
            backlog: Mutex::default(),
            bufs: Mutex::default(),
            zaps: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Listens to notes, in a thread of its own.
    pub(super) fn listen(&self) -> std::io::Result<()> {
        let inner = Arc::clone(&self.inner);
        sys::spawn("peerdma-dmabuf", move || inner.listen())?;
        Ok(())
    }

    /// The exporting process, if it has a pid here.
    pub(super) fn pid(&self) -> Option<u32> {
        self.inner.pid
    }

    /// Whether the other end is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.inner.socket.is_husk() || self.inner.is_gone.load(Ordering::Acquire)
    }

    /// From now on, notes for this buffer reach it, and so does the end of the connection.
    pub(super) fn register(&self, buf: u64, shared: &Arc<Shared>, proxy: &Arc<Proxy>) {
        let import = Import { shared: Arc::downgrade(shared), proxy: Arc::downgrade(proxy) };
        let mut bufs = self.inner.bufs();
        bufs.retain(|_, import| import.shared.strong_count() > 0);
        bufs.insert(buf, import);
        drop(bufs);
        if self.is_gone() {
            proxy.end(shared);
        }
    }

    /// From now on, that process can take away what is mapped under a hold.
    pub(super) fn expect_zap(&self, hold: u64) -> Zap {
        let zap = Zap::default();
        self.inner.zaps().insert(hold, zap.clone());
        zap
    }

    /// The hold is over.
    pub(super) fn forget_zap(&self, hold: u64) {
        self.inner.zaps().remove(&hold);
    }

    /// Sends a request and waits for the answer. If that does not come in time, `undo` is sent
    /// after the request, so that its effect does not persist on the other side.
    pub(super) fn call(
        &self,
        request: &Request,
        undo: Option<Request>,
    ) -> Result<(Reply, Vec<OwnedFd>), ExporterError> {
        match self.ask(request, undo, &[])? {
            (Reply::Refused(error), _) => Err(error),
            answer => Ok(answer),
        }
    }

    /// Sends a message that has no answer. Never waits.
    pub(super) fn post(&self, message: Request) {
        if self.is_gone() {
            return;
        }
        self.inner.backlog().push_back(message);
        if self.inner.flush() {
            self.inner.bell.ring();
        }
    }

    /// Ends the connection, because a message on it made no sense.
    pub(super) fn lied(&self, what: &str) -> ExporterError {
        tracing::warn!("{} exports buffers to us and is cut off: {what}", self.inner.who());
        self.inner.hang_up();
        self.inner.gone()
    }

    /// As [`call`](Self::call), with descriptors and without a check of the answer.
    pub(super) fn ask(
        &self,
        request: &Request,
        undo: Option<Request>,
        fds: &[OwnedFd],
    ) -> Result<(Reply, Vec<OwnedFd>), ExporterError> {
        let inner = &*self.inner;
        if self.is_gone() {
            return Err(inner.gone());
        }
        let mut channel = inner.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Channel { next, buffer } = &mut *channel;
        let deadline = Instant::now() + inner.limit;
        let late = || {
            let what = format!("{} did not answer for {:?}", inner.who(), inner.limit);
            ExporterError::new(ExporterErrorKind::Busy, what)
        };
        let number = *next;
        *next += 1;
        let bytes = request.encode(number);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // Earlier posts are sent first: a pin may need the slot of a pin that was given up.
        while inner.flush() || inner.is_full(socket::send(&inner.socket, &bytes, &fds))? {
            let [ready] = socket::wait([(inner.socket.as_fd(), PollFlags::OUT)], Some(deadline));
            if ready.is_empty() && Instant::now() >= deadline {
                return Err(late());
            }
        }
        loop {
            match socket::recv(&inner.socket, buffer) {
                Received::Packet(len, fds) => match Reply::decode(&buffer[..len]) {
                    Ok((at, reply)) if at == number => return Ok((reply, fds)),
                    // Turned away before we sent anything.
                    Ok((AT_THE_DOOR, reply)) => return Ok((reply, fds)),
                    // An answer to a request that was given up.
                    Ok((at, _)) if at < number => {}
                    Ok(_) => return Err(self.lied("it answered what was not asked")),
                    Err(bad) => return Err(self.lied(&bad.to_string())),
                },
                Received::Bad(bad) => return Err(self.lied(&bad.to_string())),
                Received::Closed => return Err(inner.gone()),
                Received::Nothing => {
                    let socket = (inner.socket.as_fd(), PollFlags::IN);
                    let [ready] = socket::wait([socket], Some(deadline));
                    if ready.is_empty() && Instant::now() >= deadline {
                        undo.into_iter().for_each(|undo| self.post(undo));
                        return Err(late());
                    }
                }
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inner.hang_up();
    }
}

impl Inner {
    /// Receives notes, and sends what had no room before, until the connection ends.
    fn listen(&self) {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            let ask = if self.flush() { PollFlags::OUT } else { PollFlags::empty() };
            let fds = [
                (self.notes.as_fd(), PollFlags::IN),
                (self.bell.as_fd(), PollFlags::IN),
                (self.socket.as_fd(), ask),
            ];
            let [_, rung, requests] = socket::wait(fds, None);
            if rung.contains(PollFlags::IN) {
                self.bell.hush();
            }
            match socket::recv(&self.notes, &mut buffer) {
                Received::Packet(len, _) => match Note::decode(&buffer[..len]) {
                    Ok(Note::Invalidate { buf, attachment }) => self.invalidate(buf, attachment),
                    Ok(Note::Zap { hold }) => {
                        let zap = self.zaps().get(&hold).cloned();
                        if let Some(zap) = zap {
                            zap.zap();
                        }
                    }
                    Err(bad) => {
                        tracing::warn!("{} is cut off: {bad}", self.who());
                        break;
                    }
                },
                Received::Nothing if requests.intersects(PollFlags::HUP | PollFlags::ERR) => break,
                Received::Nothing => {}
                Received::Closed | Received::Bad(_) => break,
            }
        }
        self.hang_up();
        let imports: Vec<_> = self.bufs().values().cloned().collect();
        for Import { shared, proxy } in imports {
            if let (Some(shared), Some(proxy)) = (shared.upgrade(), proxy.upgrade()) {
                proxy.end(&shared);
            }
        }
    }

    /// Tells one of our importers. The exporter does not wait for this: nothing can be accessed by
    /// the old addresses any more.
    fn invalidate(&self, buf: u64, attachment: u64) {
        let import = self.bufs().get(&buf).cloned();
        let Some(Import { shared, proxy }) = import else { return };
        let (Some(shared), Some(proxy)) = (shared.upgrade(), proxy.upgrade()) else { return };
        let resv = shared.resv().lock();
        if proxy.is_late(attachment) {
            return;
        }
        let attachments: Vec<_> = shared.attachments().iter().filter_map(Weak::upgrade).collect();
        let meant = attachments.into_iter().map(Attachment::from_inner);
        for attachment in meant.filter(|one| one.info().id() == attachment) {
            attachment.invalidate(&resv);
        }
    }

    /// Sends the backlog, and returns whether anything remains.
    fn flush(&self) -> bool {
        let mut backlog = self.backlog();
        while let Some(message) = backlog.front() {
            match socket::send(&self.socket, &message.encode(NO_ANSWER), &[]) {
                Ok(()) => {
                    backlog.pop_front();
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return true,
                Err(_) => backlog.clear(),
            }
        }
        false
    }

    fn is_full(&self, sent: Result<(), Errno>) -> Result<bool, ExporterError> {
        match sent {
            Ok(()) => Ok(false),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Ok(true),
            Err(Errno::MFILE | Errno::NFILE) => {
                let what = "no file descriptors are left for a connection";
                Err(ExporterError::new(ExporterErrorKind::NoMemory, what))
            }
            Err(_) => Err(self.gone()),
        }
    }

    /// Ends the connection. The thread notices.
    fn hang_up(&self) {
        if self.socket.is_husk() || self.is_gone.swap(true, Ordering::AcqRel) {
            return;
        }
        for socket in [&self.socket, &self.notes] {
            if !socket.is_ours() {
                continue;
            }
            // An error means that the other side was first.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        self.bell.ring();
    }

    fn gone(&self) -> ExporterError {
        let what = if self.socket.is_husk() {
            "the import belongs to the process that this one was forked from".to_owned()
        } else {
            format!("{}, which exports the buffer, is gone", self.who())
        };
        ExporterError::new(ExporterErrorKind::NoDevice, what)
    }

    fn who(&self) -> String {
        self.pid.map_or_else(
            || "a process of another pid namespace".to_owned(),
            |pid| format!("process {pid}"),
        )
    }

    fn backlog(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn zaps(&self) -> MutexGuard<'_, BTreeMap<u64, Zap>> {
        self.zaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bufs(&self) -> MutexGuard<'_, BTreeMap<u64, Import>> {
        self.bufs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
