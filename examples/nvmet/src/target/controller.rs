//! A controller: a host's view of a subsystem, from its Connect until it leaves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::target::events::Events;
use crate::target::registers::Registers;
use crate::target::subsystem::Subsystem;
use crate::wire::fabrics::{ANY_CNTLID, Connect, ConnectData, Field};
use crate::wire::{Command, DISCOVERY_NQN, Status};

/// Errors that are kept for the log page.
pub const ERRORS: usize = 16;
/// Async Event Requests that are held.
pub const EVENTS: usize = 4;
/// The granularity of the keep alive timer.
pub const KEEP_ALIVE_UNIT: Duration = Duration::from_millis(100);

/// A controller.
#[derive(Debug)]
pub struct Controller {
    cntlid: u16,
    hostnqn: String,
    hostid: [u8; 16],
    subsystem: Arc<Subsystem>,
    /// Where the subsystem is found, for the discovery log page; of a discovery controller alone.
    discovery: Option<SocketAddr>,
    state: Mutex<State>,
    ended: AtomicBool,
    /// What the SMART page counts.
    pub counts: Counts,
}

/// What a controller has done.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names are those of the SMART page")]
pub struct Counts {
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub media_errors: AtomicU64,
}

#[derive(Debug)]
struct State {
    registers: Registers,
    queues: BTreeSet<u16>,
    /// Milliseconds; 0: there is no timer.
    kato: u32,
    alive: Instant,
    events: Events,
    errors: VecDeque<Failure>,
    error_count: u64,
}

/// A command that failed, for the log page.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Which one of all.
    pub number: u64,
    /// The queue.
    pub qid: u16,
    /// The command.
    pub command: Command,
    /// How.
    pub status: Status,
}

impl Controller {
    /// Its number.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// The name of its host.
    pub fn hostnqn(&self) -> &str {
        &self.hostnqn
    }

    /// The identifier of its host.
    pub fn hostid(&self) -> [u8; 16] {
        self.hostid
    }

    /// Its subsystem; a discovery controller reports it.
    pub fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    /// Where the subsystem is found. `None` unless it is a discovery controller.
    pub fn discovery(&self) -> Option<SocketAddr> {
        self.discovery
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives access to its registers.
    pub fn registers<T>(&self, act: impl FnOnce(&mut Registers) -> T) -> T {
        act(&mut self.state().registers)
    }

    /// Records that the host is there.
    pub fn keep_alive(&self) {
        self.state().alive = Instant::now();
    }

    /// Its timer in milliseconds.
    pub fn kato(&self) -> u32 {
        self.state().kato
    }

    /// Sets the timer, and starts it.
    pub fn set_kato(&self, kato: u32) {
        let mut state = self.state();
        (state.kato, state.alive) = (kato, Instant::now());
    }

    /// Whether the host was silent for longer than the timer allows.
    pub fn is_expired(&self) -> bool {
        let state = self.state();
        let kato = Duration::from_millis(state.kato.into());
        state.kato != 0 && state.alive.elapsed() > kato + KEEP_ALIVE_UNIT
    }

    /// Gives access to its events.
    pub fn events<T>(&self, act: impl FnOnce(&mut Events) -> T) -> T {
        act(&mut self.state().events)
    }

    /// Ends it: its queues disconnect.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// A queue failed: the controller ends, and its registers say so to a host that can still read
    /// them.
    pub fn fail(&self) {
        // In this order: no command may be answered because the controller failed, since a host
        // takes such an answer for the disk's.
        self.end();
        self.registers(Registers::fail);
    }

    /// Whether it ended.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Records a command that failed.
    pub fn failed(&self, qid: u16, command: &Command, status: Status) {
        if matches!(status.code(), Status::UNRECOVERED_READ_ERROR | Status::WRITE_FAULT) {
            self.counts.media_errors.fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.state();
        state.error_count += 1;
        let number = state.error_count;
        state.errors.push_front(Failure { number, qid, command: *command, status });
        state.errors.truncate(ERRORS);
    }

    /// The last commands that failed, the last one first.
    pub fn errors(&self) -> (u64, Vec<Failure>) {
        let state = self.state();
        (state.error_count, state.errors.iter().copied().collect())
    }

    /// A queue is gone.
    pub fn left(&self, qid: u16) {
        self.state().queues.remove(&qid);
    }
}

/// The controllers of a target.
#[derive(Debug)]
pub struct Controllers {
    subsystem: Arc<Subsystem>,
    known: Mutex<BTreeMap<u16, Arc<Controller>>>,
}

/// Why a Connect failed: the status, and the result that goes with it.
pub type ConnectError = (Status, u64);

impl Controllers {
    /// None so far.
    pub fn new(subsystem: Arc<Subsystem>) -> Self {
        Self { subsystem, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<Controller>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a controller of this number.
    pub fn has(&self, cntlid: u16) -> bool {
        self.known().contains_key(&cntlid)
    }

    /// Tells all hosts of the subsystem that a namespace came, went or changed.
    pub fn namespace_changed(&self, nsid: u32) {
        let known = self.known();
        let hosts = known.values().filter(|controller| controller.discovery.is_none());
        hosts.for_each(|controller| controller.events(|events| events.namespace_changed(nsid)));
    }

    /// Ends those of hosts of the subsystem.
    pub(super) fn end_all(&self) {
        let known = self.known();
        known.values().filter(|one| one.discovery.is_none()).for_each(|one| one.end());
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.known().len()
    }

    /// Joins a queue of `qid` and `depth`, whose connection came to the address `at`, to the
    /// controller that its Connect names.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(
        &self,
        (qid, depth): (u16, u16),
        at: SocketAddr,
        connect: &Connect,
        data: &ConnectData,
    ) -> Result<Arc<Controller>, ConnectError> {
        let invalid =
            |field: Field| Err((Status::CONNECT_INVALID_PARAMETERS.dnr(), field.result()));
        if connect.recfmt != 0 {
            return Err((Status::CONNECT_INCOMPATIBLE.dnr(), 0));
        }
        if connect.qid != qid || qid > self.subsystem.queues() {
            return invalid(Field::Qid);
        }
        if connect.sqsize == 0 || connect.sqsize >= depth {
            return invalid(Field::SqSize);
        }
        let Some(hostnqn) = data.hostnqn() else { return invalid(Field::HostNqn) };
        let discovery = match data.subsysnqn() {
            Some(DISCOVERY_NQN) => Some(at),
            Some(nqn) if nqn == self.subsystem.nqn() => None,
            _ => return invalid(Field::SubsysNqn),
        };
        if discovery.is_none() && !self.subsystem.is_for(hostnqn) {
            return Err((Status::CONNECT_INVALID_HOST.dnr(), Field::HostNqn.result()));
        }
        let mut known = self.known();
        if qid == 0 {
            if data.cntlid.get() != ANY_CNTLID {
                return invalid(Field::Cntlid);
            }
            let free = (1..0xfff0).find(|cntlid| !known.contains_key(cntlid));
            let Some(cntlid) = free else { return Err((Status::CONNECT_BUSY, 0)) };
            let state = State {
                registers: Registers::default(),
                queues: BTreeSet::from([0]),
                kato: connect.kato,
                alive: Instant::now(),
                events: Events::default(),
                errors: VecDeque::new(),
                error_count: 0,
            };
            let controller = Arc::new(Controller {
                cntlid,
                hostnqn: hostnqn.to_owned(),
                hostid: data.hostid,
                subsystem: Arc::clone(&self.subsystem),
                discovery,
                state: Mutex::new(state),
                ended: AtomicBool::new(false),
                counts: Counts::default(),
            });
            known.insert(cntlid, Arc::clone(&controller));
            return Ok(controller);
        }
        let Some(controller) = known.get(&data.cntlid.get()) else {
            return invalid(Field::Cntlid);
        };
        if controller.discovery.is_some() != discovery.is_some() {
            return invalid(Field::SubsysNqn);
        }
        if discovery.is_some() {
            return invalid(Field::Qid);
        }
        if (controller.hostnqn.as_str(), controller.hostid) != (hostnqn, data.hostid) {
            return Err((Status::CONNECT_INVALID_HOST.dnr(), 0));
        }
        let mut state = controller.state();
        if controller.is_ended() || !state.registers.is_ready() || !state.queues.insert(qid) {
            return Err((Status::COMMAND_SEQUENCE_ERROR.dnr(), 0));
        }
        Ok(Arc::clone(controller))
    }

    /// A queue of a controller is gone. Without its admin queue a controller ends.
    pub fn left(&self, controller: &Controller, qid: u16) {
        controller.left(qid);
        if qid == 0 {
            controller.end();
            self.known().remove(&controller.cntlid);
        }
    }
}
