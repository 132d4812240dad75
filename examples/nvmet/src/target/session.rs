//! A connection: one queue of a host, and the thread that serves it.

mod disk;
mod fabrics;
mod list;
mod queue;
mod slow;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use verbs::cm::{ConnParam, Id};
use verbs::{Access, Cq, HostBuf, Mr, Qp, QpSpec, WcStatus, soft};
use zerocopy::IntoBytes;

use super::admin::{self, Outcome};
use super::area::{Kept, Piece};
use super::controller::{Controller, EVENTS};
use super::events::Events;
use super::io::{IN_CAPSULE, Plan};
use super::reservations::HostId;
use super::subsystem::Namespace;
use super::{Shared, TICK, TargetError};
use crate::wire::capsule::{COMMAND_LEN, opcode};
use crate::wire::cm::{Reply, Shape};
use crate::wire::{Command, Descriptor, Status};
use slow::Slow;

/// How long a connection may be without a Connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long the thread waits for the disk before it looks at the connection again.
const DISK_TICK: Duration = Duration::from_micros(100);

/// What a work request is, in the high half of its number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Receive = 1,
    Pull = 2,
    Send = 3,
    Push = 4,
}

/// Why a connection ends.
#[derive(Debug)]
enum End {
    /// The host left, or the target stops.
    Left,
    /// Something went wrong.
    Failed(String),
}

impl<E: Into<TargetError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into().to_string())
    }
}

/// One side of a queue pair, with what is posted to it. The fields are dropped in this order, so
/// that the memory outlives what uses it.
pub(super) struct Session {
    id: Id,
    qp: Qp,
    cq: Cq,
    shared: Arc<Shared>,
    shape: Shape,
    commands: (HostBuf, Mr),
    /// The data that capsules carry after their commands.
    data: (HostBuf, Mr, storage::Buffer),
    disk: storage::Queue,
    /// Requests of the disk that are outstanding.
    disk_busy: u32,
    slow: Slow,
    /// By the place of their capsule.
    requests: Vec<Option<Request>>,
    /// Those that wait for memory or for room at the disk.
    waiting: VecDeque<u16>,
    ready: VecDeque<(u16, Response)>,
    sends: HashMap<u32, Sent>,
    next_send: u32,
    /// Work requests that have not completed, and how many there may be.
    posted: u32,
    most: u32,
    joined: Option<Joined>,
    /// Async Event Requests.
    held: usize,
    began: Instant,
    /// When the memory of the commands was last looked at.
    looked: Instant,
}

/// The queue, as Connect set it up.
struct Joined {
    controller: Arc<Controller>,
    has_flow: bool,
    /// The queue's length and its head.
    size: u16,
    head: u16,
}

struct Request {
    command: Command,
    /// Bytes after it.
    there: u32,
    stage: Stage,
    /// What a command of an I/O queue is for.
    namespace: Option<Arc<Namespace>>,
    /// Memory for the data, which stays while it is used.
    piece: Option<(Kept, Piece)>,
}

/// The progress of a command of an I/O queue.
#[derive(Clone, Copy)]
enum Stage {
    /// Nothing is done.
    New,
    /// The data of Connect are on their way.
    Connecting,
    /// The host's data are on their way.
    Pulling(Plan),
    /// The host's data are here.
    Pulled(Plan),
    /// The disk has it.
    OnDisk(Plan),
    /// The thread for what takes long has it.
    Slow,
    /// Held until there is an event.
    Held,
}

/// A response to the host.
struct Response {
    status: Status,
    result: u64,
    /// The data that must first go to the host's memory.
    data: Option<Outgoing>,
}

/// Data for the host, in memory that stays until they are there.
struct Outgoing {
    kept: Kept,
    piece: Piece,
    len: u32,
}

/// A response on its way.
struct Sent {
    data: Option<Outgoing>,
    work_requests: u32,
}

impl Response {
    fn done(result: u64) -> Self {
        Self { status: Status::SUCCESS, result, data: None }
    }
}

impl From<Status> for Response {
    fn from(status: Status) -> Self {
        Self { status, result: 0, data: None }
    }
}

impl Session {
    /// Accepts a connection: capsules have places before the host may send any.
    pub(super) fn new(shared: &Arc<Shared>, id: &Id, shape: Shape) -> Result<Self, TargetError> {
        let depth = u32::from(shape.depth);
        let most = 3 * depth + 4;
        let cq = shared.context.create_cq(most + depth)?;
        let mut spec = QpSpec::rc(&cq);
        spec.access = Access::LOCAL_WRITE;
        (spec.cap.max_send_wr, spec.cap.max_recv_wr) = (most, depth);
        let qp = shared.pd.create_qp(&spec)?;
        let register = |len: usize| -> Result<_, TargetError> {
            let memory = HostBuf::anonymous((depth as usize * len).next_multiple_of(4096))?;
            let mr = shared.pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
            Ok((memory, mr))
        };
        let commands = register(COMMAND_LEN)?;
        let (memory, mr) = register(IN_CAPSULE as usize)?;
        let buffer = shared.disk.attach_host(&memory);
        let session = Self {
            id: id.clone(),
            qp,
            cq,
            shared: Arc::clone(shared),
            shape,
            commands,
            data: (memory, mr, buffer),
            disk: shared.disk.queue(),
            disk_busy: 0,
            slow: Slow::new(shared),
            requests: (0..shape.depth).map(|_| None).collect(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            sends: HashMap::new(),
            next_send: 0,
            posted: 0,
            most,
            joined: None,
            held: 0,
            began: Instant::now(),
            looked: Instant::now(),
        };
        for slot in 0..shape.depth {
            session.post_receive(slot)?;
        }
        let private_data = Reply::new(shape.depth).as_bytes().to_vec();
        id.accept(&session.qp, &ConnParam { private_data, ..ConnParam::default() })?;
        Ok(session)
    }

    /// Serves until the host leaves.
    pub(super) fn run(mut self) {
        let end = loop {
            if let Err(end) = self.turn() {
                break end;
            }
        };
        let qid = self.shape.qid;
        let is_failed = match end {
            End::Left => false,
            End::Failed(why) => {
                tracing::warn!(target: "nvmet", "queue {qid} failed: {why}");
                self.shared.memory.check();
                true
            }
        };
        // The host may have disconnected before.
        let _ = self.id.disconnect();
        if let Some(joined) = self.joined.take() {
            if is_failed {
                joined.controller.fail();
            }
            self.shared.controllers.left(&joined.controller, qid);
        }
        // The kernel may still write to the pieces of outstanding requests.
        while self.disk_busy > 0 {
            if self.disk.wait(Duration::from_secs(1)).is_some() {
                self.disk_busy -= 1;
            }
        }
        tracing::debug!(target: "nvmet", "queue {qid} ended");
    }

    /// Does what there is to do, or waits for it.
    fn turn(&mut self) -> Result<(), End> {
        self.check_time()?;
        if self.looked.elapsed() > TICK {
            self.let_go_of_overdue();
            self.looked = Instant::now();
        }
        let mut is_busy = false;
        while let Some(wc) = self.cq.poll() {
            self.completed(&wc)?;
            is_busy = true;
        }
        while let Some(done) = self.disk.poll() {
            self.disk_done(done)?;
            is_busy = true;
        }
        while let Some(done) = self.slow.poll() {
            self.slow_done(done)?;
            is_busy = true;
        }
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { break };
            self.advance(slot)?;
        }
        self.tell_of_event()?;
        self.answer()?;
        if is_busy {
            return Ok(());
        }
        if self.disk_busy > 0 || self.slow.busy > 0 || !self.waiting.is_empty() {
            match self.disk.wait(DISK_TICK) {
                Some(done) => self.disk_done(done)?,
                None if self.disk_busy == 0 => std::thread::sleep(DISK_TICK),
                None => {}
            }
        } else if let Some(wc) = self.cq.wait_timeout(TICK)? {
            self.completed(&wc)?;
        }
        self.answer()
    }

    fn check_time(&self) -> Result<(), End> {
        if self.shared.stop.load(Ordering::Acquire) {
            return Err(End::Left);
        }
        match &self.joined {
            None if self.began.elapsed() > CONNECT_WITHIN => {
                Err(End::Failed("no Connect in time".to_owned()))
            }
            Some(joined) if joined.controller.is_ended() => Err(End::Left),
            Some(joined) if self.shape.qid == 0 && joined.controller.is_expired() => {
                Err(End::Failed("the host was silent for too long (Keep Alive)".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Neither a host nor a disk that takes long keeps the memory from its owner.
    fn let_go_of_overdue(&mut self) {
        let requests = self.requests.iter_mut().flatten();
        let kept = requests.filter_map(|request| request.piece.as_mut().map(|(kept, _)| kept));
        let ready = self.ready.iter_mut().filter_map(|(_, response)| response.data.as_mut());
        let sent = self.sends.values_mut().filter_map(|sent| sent.data.as_mut());
        let outgoing = ready.chain(sent).map(|data| &mut data.kept);
        kept.chain(outgoing).for_each(Kept::let_go_if_overdue);
    }

    fn completed(&mut self, wc: &verbs::Wc) -> Result<(), End> {
        if wc.status == WcStatus::WrFlushErr {
            return Err(End::Left);
        }
        if !wc.is_success() {
            let why = soft::explain(&self.cq, wc).unwrap_or_else(|| format!("{:?}", wc.status));
            return Err(End::Failed(why));
        }
        // CAST: a number that `number` made.
        let low = wc.wr_id as u32;
        match wc.wr_id >> 32 {
            kind if kind == Kind::Receive as u64 => self.arrived(low as u16, wc.byte_len),
            kind if kind == Kind::Pull as u64 => {
                self.posted -= 1;
                self.pulled(low as u16)
            }
            _ => {
                if let Some(sent) = self.sends.remove(&low) {
                    self.posted -= sent.work_requests;
                }
                Ok(())
            }
        }
    }

    /// A capsule is here.
    fn arrived(&mut self, slot: u16, len: u32) -> Result<(), End> {
        let mut bytes = [0; COMMAND_LEN];
        let there = len.checked_sub(COMMAND_LEN as u32);
        let there = there.ok_or(End::Failed(format!("a capsule of {len} bytes")))?;
        let at = usize::from(slot) * COMMAND_LEN;
        self.commands.0.read(at, &mut bytes).map_err(|fault| End::Failed(fault.to_string()))?;
        let command = Command::from_capsule(&bytes).expect("as long as a command");
        let stage = Stage::New;
        let request = Request { command, there, stage, namespace: None, piece: None };
        self.requests[usize::from(slot)] = Some(request);
        let joined = self.joined.as_ref().map(|joined| Arc::clone(&joined.controller));
        match joined {
            _ if command.opcode == opcode::FABRICS => self.fabrics(slot, &command),
            None => self.finish(slot, Status::COMMAND_SEQUENCE_ERROR.dnr().into()),
            Some(controller) if !controller.registers(|registers| registers.is_ready()) => {
                if controller.is_ended() {
                    return Err(End::Left);
                }
                self.finish(slot, Status::COMMAND_SEQUENCE_ERROR.dnr().into())
            }
            Some(controller) if self.shape.qid == 0 => self.admin(slot, &controller, &command),
            Some(_) => self.advance(slot),
        }
    }

    fn admin(&mut self, slot: u16, controller: &Controller, command: &Command) -> Result<(), End> {
        match admin::execute(controller, command) {
            Err(status) => self.finish(slot, status.into()),
            Ok(Outcome::Done(result)) => self.finish(slot, Response::done(result)),
            Ok(Outcome::Held) if self.held == EVENTS => {
                self.finish(slot, Status::ASYNC_EVENT_LIMIT.dnr().into())
            }
            Ok(Outcome::Held) => {
                self.held += 1;
                self.request(slot).stage = Stage::Held;
                Ok(())
            }
            Ok(Outcome::Data(bytes)) => match self.shared.admin.take() {
                None => self.finish(slot, Status::INTERNAL_ERROR.into()),
                Some(piece) => {
                    let (memory, at) = piece.host().expect("memory of this process");
                    memory.write(at, &bytes).map_err(|fault| End::Failed(fault.to_string()))?;
                    // CAST: at most MAX_DATA.
                    let (kept, len) = (Kept::Ours, bytes.len() as u32);
                    let data = Some(Outgoing { kept, piece, len });
                    self.finish(slot, Response { data, ..Response::done(0) })
                }
            },
        }
    }

    /// Answers a request that was held, if there is an event.
    fn tell_of_event(&mut self) -> Result<(), End> {
        if self.held == 0 {
            return Ok(());
        }
        let controller = self.joined.as_ref().map(|joined| &joined.controller);
        let event = controller.and_then(|controller| controller.events(Events::take));
        let is_held = |request: &Option<Request>| {
            request.as_ref().is_some_and(|request| matches!(request.stage, Stage::Held))
        };
        let (Some(event), Some(slot)) = (event, self.requests.iter().position(is_held)) else {
            return Ok(());
        };
        self.held -= 1;
        // CAST: one of a queue of at most 128.
        let slot = slot as u16;
        // It is answered once.
        self.request(slot).stage = Stage::New;
        self.finish(slot, Response::done(event))
    }

    /// The host, by its identifier.
    fn host(&self) -> Result<HostId, Status> {
        let joined = self.joined.as_ref().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        Ok(joined.controller.hostid())
    }

    fn request(&mut self, slot: u16) -> &mut Request {
        self.requests[usize::from(slot)].as_mut().expect("it has not been answered")
    }

    /// Finishes a command: its answer goes out when there is room for it.
    fn finish(&mut self, slot: u16, response: Response) -> Result<(), End> {
        let request = self.requests[usize::from(slot)].as_ref().expect("it has not been answered");
        if let (Some(joined), true) = (&self.joined, response.status != Status::SUCCESS) {
            let (qid, status, command) = (self.shape.qid, response.status, &request.command);
            tracing::debug!(target: "nvmet", "queue {qid}: {status}: {command:?}");
            joined.controller.failed(qid, command, status);
        }
        let mut response = response;
        if let Some(Outgoing { len, .. }) = &response.data
            && !matches!(request.command.data(), Ok(Descriptor::Keyed { len: asked, .. }) if asked == *len)
        {
            // Only the host's memory can be written.
            response = Status::INVALID_FIELD.dnr().into();
        }
        self.ready.push_back((slot, response));
        Ok(())
    }
}
