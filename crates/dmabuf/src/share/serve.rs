//! Serves one importing process.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use descriptors::PrivateFd;
use rustix::event::PollFlags;

use super::answer::{describe, of_map, of_pin, unknown};
use super::message::{
    Attach, Entry, Facts, MESSAGE_MAX, Mapped, NAME_MAX, NO_ANSWER, Note, Reply, Request,
};
use super::socket::{self, Received};
use super::stand_in::{Notes, StandIn};
use super::{ANSWER_LIMIT, server};
use crate::attachment::{AttachError, Attachment};
use crate::exporter::{Direction, ExporterError, ExporterErrorKind, MmapBacking, Reach, Sharing};
use crate::importer::Importer;
use crate::remote::RwFlags;
use crate::resv::Usage;
use crate::shared::Shared;
use crate::sync_file::{SyncFile, SyncFileError};

/// The most attachments of one process, and the most buffers that it may import.
const OBJECTS_MAX: usize = 4096;
/// The most pins, and the most maps, of one attachment.
const HELD_MAX: usize = 1024;

/// Why a connection ends before the other side ends it.
struct Lie(String);

type Answer = Result<Reply, ExporterError>;

struct Connection {
    socket: PrivateFd,
    pid: Option<u32>,
    notes: Option<Arc<Notes>>,
    imports: BTreeMap<u64, Import>,
    attachments: BTreeMap<u64, Remote>,
    /// Its CPU mappings, by its own numbers.
    holds: BTreeMap<u64, Box<dyn Any + Send + Sync>>,
}

/// A buffer that the process has imported, and how many times. This keeps the buffer.
struct Import {
    shared: Arc<Shared>,
    times: usize,
}

/// An importer of the process. What the stand-in holds is dropped before the attachment.
struct Remote {
    stand_in: Arc<StandIn>,
    attachment: Attachment,
}

/// Serves a process until its connection ends. Then everything that it has is given back.
pub(super) fn serve(socket: OwnedFd, pid: Option<u32>) {
    let socket = PrivateFd::new(socket);
    let mut connection = Connection {
        socket,
        pid,
        notes: None,
        imports: BTreeMap::new(),
        attachments: BTreeMap::new(),
        holds: BTreeMap::new(),
    };
    if let Err(Lie(what)) = connection.run() {
        let who = pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        tracing::warn!("{who} imports buffers from us and is cut off: {what}");
    }
}

impl Connection {
    fn run(&mut self) -> Result<(), Lie> {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            if self.is_over() {
                return Ok(());
            }
            match socket::recv(&self.socket, &mut buffer) {
                Received::Nothing => {}
                Received::Closed => return Ok(()),
                Received::Bad(bad) => return Err(Lie(bad.to_string())),
                Received::Packet(len, fds) => {
                    let message = Request::decode(&buffer[..len]);
                    let (number, request) = message.map_err(|bad| Lie(bad.to_string()))?;
                    self.handle(number, request, fds)?;
                }
            }
        }
    }

    /// Waits until there is something to read, and sends notes meanwhile. Returns whether the other
    /// side is gone.
    fn is_over(&self) -> bool {
        let socket = (self.socket.as_fd(), PollFlags::IN);
        let Some(notes) = &self.notes else {
            socket::wait([socket], None);
            return false;
        };
        let ask = if notes.flush() { PollFlags::OUT } else { PollFlags::empty() };
        let bell = (notes.bell().as_fd(), PollFlags::IN);
        let [requests, rung, sent] = socket::wait([socket, bell, (notes.as_fd(), ask)], None);
        if rung.contains(PollFlags::IN) {
            notes.bell().hush();
        }
        let is_gone = sent.intersects(PollFlags::HUP | PollFlags::ERR);
        is_gone && !requests.contains(PollFlags::IN)
    }

    fn handle(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) -> Result<(), Lie> {
        let Some(notes) = self.notes.clone() else {
            return self.greet(number, &request, fds);
        };
        if let Request::ImportSync { buf, flags } = request {
            let answer = self.import_sync(buf, flags, &fds);
            return self.reply(number, &answer.unwrap_or_else(Reply::Refused), &[]);
        }
        if !fds.is_empty() {
            return Err(Lie("it sent descriptors that were not asked for".to_owned()));
        }
        let answer = match request {
            Request::Hello => return Err(Lie("it said hello twice".to_owned())),
            Request::Import { buf, dev, ino } => return self.import(number, buf, (dev, ino)),
            Request::Map { attachment, map, direction } => {
                return self.map(number, attachment, map, direction);
            }
            Request::Release { buf } => {
                self.release(buf);
                return Ok(());
            }
            Request::Detach { attachment } => {
                if let Some(remote) = self.attachments.remove(&attachment) {
                    remote.give_back();
                }
                return Ok(());
            }
            Request::Unpin { attachment, pin } => {
                // The number is unknown if the memory was taken away before the unpin, or if the
                // pin was refused.
                let remote = self.attachments.get(&attachment);
                let gone = remote.and_then(|remote| remote.stand_in.held().pins.remove(&pin));
                drop(gone);
                return Ok(());
            }
            Request::Unmap { attachment, map } => {
                let remote = self.attachments.get(&attachment);
                let gone = remote.and_then(|remote| remote.stand_in.held().maps.remove(&map));
                drop(gone);
                return Ok(());
            }
            Request::Hold { buf, hold, offset, len } => {
                return self.hold(number, buf, hold, (offset, len));
            }
            Request::LetGo { hold } => {
                drop(self.holds.remove(&hold));
                return Ok(());
            }
            Request::ExportSync { buf, flags } => return self.export_sync(number, buf, flags),
            Request::ImportSync { .. } => return Err(Lie("it sent a fence twice".to_owned())),
            Request::Poll { buf, writes } => self.on(buf, |shared| poll(shared, writes)),
            Request::Attach(attach) => self.attach(&attach, notes)?,
            Request::Pin { attachment, pin } => self.pin(attachment, pin)?,
            Request::BeginCpu { buf, direction } => {
                self.on(buf, |shared| shared.exporter().begin_cpu_access(direction))
            }
            Request::EndCpu { buf, direction } => {
                self.on(buf, |shared| shared.exporter().end_cpu_access(direction))
            }
            Request::Mmap { buf, offset, len } => {
                self.on(buf, |shared| shared.exporter().mmap(offset, len))
            }
        };
        self.reply(number, &answer.unwrap_or_else(Reply::Refused), &[])
    }

    fn greet(&mut self, number: u64, request: &Request, fds: Vec<OwnedFd>) -> Result<(), Lie> {
        let mut fds = fds.into_iter();
        let (Request::Hello, Some(notes), None) = (request, fds.next(), fds.next()) else {
            return Err(Lie("its first message was no greeting".to_owned()));
        };
        if !socket::is_pair(notes.as_fd()) {
            return Err(Lie("what it sent for notes is not a packet socket".to_owned()));
        }
        let notes = Notes::new(notes).map_err(|errno| Lie(format!("eventfd: {errno}")))?;
        self.notes = Some(Arc::new(notes));
        self.reply(number, &Reply::Done, &[])
    }

    fn import(&mut self, number: u64, buf: u64, file: (u64, u64)) -> Result<(), Lie> {
        let found = server::find(buf, file);
        let Some(shared) = found.filter(|shared| shared.exporter().sharing() != Sharing::Process)
        else {
            let what = "no such buffer is exported here any more, or its file is another";
            let refused = Reply::Refused(ExporterError::new(ExporterErrorKind::Invalid, what));
            return self.reply(number, &refused, &[]);
        };
        let exporter = shared.exporter();
        let gate = exporter.gate();
        let facts = Facts {
            size: shared.size(),
            has_pinning: exporter.pinning().is_some(),
            is_coherent: exporter.is_coherent(),
            has_gate: gate.is_some(),
            dies: exporter.sharing() == Sharing::HostRevoked,
            exporter: exporter.name().to_owned(),
        };
        if self.imports.len() >= OBJECTS_MAX && !self.imports.contains_key(&buf) {
            return Err(Lie(format!("it takes part in more than {OBJECTS_MAX} buffers")));
        }
        let import = Import { shared: Arc::clone(&shared), times: 0 };
        self.imports.entry(buf).or_insert(import).times += 1;
        let fds: Vec<_> = gate.map(|gate| gate.fd()).into_iter().collect();
        self.reply(number, &Reply::Imported(facts), &fds)
    }

    fn release(&mut self, buf: u64) {
        if let MapEntry::Occupied(mut import) = self.imports.entry(buf) {
            import.get_mut().times -= 1;
            if import.get().times == 0 {
                import.remove();
            }
        }
    }

    fn attach(&mut self, attach: &Attach, notes: Arc<Notes>) -> Result<Answer, Lie> {
        if self.attachments.len() >= OBJECTS_MAX {
            return Err(Lie(format!("it has more than {OBJECTS_MAX} attachments")));
        }
        if attach.name.len() > NAME_MAX || self.attachments.contains_key(&attach.attachment) {
            return Err(Lie("it attached under a number that it uses".to_owned()));
        }
        let Some(import) = self.imports.get(&attach.buf) else { return Ok(Err(unknown())) };
        let gate = import.shared.exporter().gate();
        let stand_in = Arc::new(StandIn::new(attach, self.pid, gate, notes));
        let importer: Arc<dyn Importer> = Arc::clone(&stand_in) as _;
        let attachment = match Attachment::new(&import.shared, &importer) {
            Ok(attachment) => attachment,
            Err(AttachError::Exporter { reason, .. }) => return Ok(Err(reason)),
        };
        let peer2peer = attachment.peer2peer();
        self.attachments.insert(attach.attachment, Remote { stand_in, attachment });
        Ok(Ok(Reply::Attached { peer2peer }))
    }

    fn pin(&mut self, attachment: u64, pin: u64) -> Result<Answer, Lie> {
        let Some(remote) = self.attachments.get(&attachment) else { return Ok(Err(unknown())) };
        remote.check(|held| held.pins.contains_key(&pin) || held.pins.len() >= HELD_MAX)?;
        let resv = remote.attachment.resv().lock();
        let guard = match remote.attachment.pin(&resv) {
            Ok(guard) => guard,
            Err(error) => return Ok(Err(of_pin(error))),
        };
        // Under the lock: an invalidation either finds it or comes before it.
        remote.stand_in.held().pins.insert(pin, guard);
        Ok(Ok(Reply::Done))
    }

    /// The answer is sent under the lock, so that a note about this map comes after it.
    fn map(&self, number: u64, attachment: u64, map: u64, direction: Direction) -> Result<(), Lie> {
        let refuse = |reason| self.reply(number, &Reply::Refused(reason), &[]);
        let Some(remote) = self.attachments.get(&attachment) else { return refuse(unknown()) };
        remote.check(|held| held.maps.contains_key(&map) || held.maps.len() >= HELD_MAX)?;
        let resv = remote.attachment.resv().lock();
        let guard = match remote.attachment.map(&resv, direction) {
            Ok(guard) => guard,
            Err(error) => return refuse(of_map(error)),
        };
        // Fences stay in this process, so requests that must wait for a move in progress wait
        // here.
        if remote.attachment.resv().wait(Usage::Kernel, Some(ANSWER_LIMIT / 2)).is_err() {
            guard.unmap(&resv);
            let what = "the buffer's move does not end";
            return refuse(ExporterError::new(ExporterErrorKind::Busy, what));
        }
        let (mapped, files) = match describe(guard.table()) {
            Ok(described) => described,
            Err(reason) => {
                guard.unmap(&resv);
                return refuse(reason);
            }
        };
        remote.stand_in.held().maps.insert(map, guard);
        let fds: Vec<_> = files.iter().map(|file| file.file.as_fd()).collect();
        self.reply(number, &Reply::Mapped(mapped), &fds)
    }

    /// Answers with the file that the CPU maps; the buffer stays where it is until the process
    /// releases it or ends.
    fn hold(
        &mut self,
        number: u64,
        buf: u64,
        hold: u64,
        (offset, len): (u64, u64),
    ) -> Result<(), Lie> {
        if self.holds.contains_key(&hold) || self.holds.len() >= OBJECTS_MAX {
            return Err(Lie(format!("it holds more than {OBJECTS_MAX} buffers, or one twice")));
        }
        let refuse = |reason| self.reply(number, &Reply::Refused(reason), &[]);
        let Some(import) = self.imports.get(&buf) else { return refuse(unknown()) };
        let exporter = import.shared.exporter();
        let offered = match exporter.mmap_backing(offset, len) {
            Ok(Some(offered)) => offered,
            Ok(None) => {
                let done = exporter.mmap(offset, len).map(|()| Reply::Done);
                return self.reply(number, &done.unwrap_or_else(Reply::Refused), &[]);
            }
            Err(reason) => return refuse(reason),
        };
        let MmapBacking { backing, hold: held, zap } = offered;
        if !backing.file.is_ours() {
            return refuse(unknown());
        }
        let entries = vec![Entry { file: 0, offset: backing.offset, len: import.shared.size() }];
        let mapped = Mapped { epoch: None, map_type: Reach::System, entries };
        self.holds.insert(hold, held);
        if let (Some(zap), Some(notes)) = (zap, self.notes.clone()) {
            // The memory is kept until the process releases it or ends.
            zap.on_zap(move || notes.push(Note::Zap { hold }));
        }
        self.reply(number, &Reply::Mapped(mapped), &[backing.file.as_fd()])
    }

    fn export_sync(&self, number: u64, buf: u64, flags: u64) -> Result<(), Lie> {
        let exported = self.imports.get(&buf).ok_or_else(unknown).and_then(|import| {
            let usage = Usage::implicit(rw(flags)?.contains(RwFlags::WRITE));
            SyncFile::new(&import.shared.resv().singleton(usage)).map_err(of_sync)
        });
        match exported {
            Ok(file) => self.reply(number, &Reply::Done, &[file.as_fd()]),
            Err(reason) => self.reply(number, &Reply::Refused(reason), &[]),
        }
    }

    fn import_sync(&self, buf: u64, flags: u64, fds: &[OwnedFd]) -> Answer {
        let import = self.imports.get(&buf).ok_or_else(unknown)?;
        let [file] = fds else { return Err(unknown()) };
        let file = SyncFile::from_fd(file.as_fd()).map_err(of_sync)?;
        crate::sync_file::add_to(import.shared.resv(), rw(flags)?, &file).map_err(of_sync)?;
        Ok(Reply::Done)
    }

    fn on(&self, buf: u64, operation: impl FnOnce(&Shared) -> Result<(), ExporterError>) -> Answer {
        let import = self.imports.get(&buf).ok_or_else(unknown)?;
        operation(&import.shared).map(|()| Reply::Done)
    }

    fn reply(&self, number: u64, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Result<(), Lie> {
        if number == NO_ANSWER {
            return Ok(());
        }
        socket::send(&self.socket, &reply.encode(number), fds)
            .map_err(|errno| Lie(format!("an answer could not be sent: {errno}")))
    }
}

fn poll(shared: &Shared, writes: bool) -> Result<(), ExporterError> {
    if shared.resv().test_signaled(Usage::implicit(writes)) {
        return Ok(());
    }
    Err(ExporterError::new(ExporterErrorKind::Again, "the buffer is still in use"))
}

fn rw(flags: u64) -> Result<RwFlags, ExporterError> {
    let flags = u32::try_from(flags).ok().and_then(RwFlags::from_bits);
    flags.ok_or_else(|| ExporterError::new(ExporterErrorKind::Invalid, "flags of no access"))
}

fn of_sync(error: SyncFileError) -> ExporterError {
    let kind = match &error {
        SyncFileError::System { errno, .. } => ExporterErrorKind::Kernel(*errno),
        SyncFileError::NoSlots(_) => ExporterErrorKind::NoMemory,
        _ => ExporterErrorKind::Invalid,
    };
    ExporterError::new(kind, error.to_string())
}

impl Remote {
    fn check(&self, is_wrong: impl FnOnce(&super::stand_in::Held) -> bool) -> Result<(), Lie> {
        if is_wrong(&self.stand_in.held()) {
            return Err(Lie(format!("it uses a number twice, or more than {HELD_MAX} of a kind")));
        }
        Ok(())
    }

    /// Drops maps first, then pins; the attachment ends with the last of them.
    fn give_back(self) {
        let held = std::mem::take(&mut *self.stand_in.held());
        drop(held.maps);
        drop(held.pins);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for remote in std::mem::take(&mut self.attachments).into_values() {
            remote.give_back();
        }
    }
}
