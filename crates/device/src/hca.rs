//! One NIC in one process: the engine's lock, and the thread that makes progress when the program
//! does not.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use link::registry::{Claim, NicIdentity};
use link::udp::{BindError, Options, UdpLink};
use parking_lot::{Mutex, MutexGuard};
use threads::{barrier, biased};
use transport::Time;

use crate::attr::DeviceAttr;
use crate::carrier::shm::peers::Peers;
use crate::carrier::shm::table::Table;
use crate::carrier::udp::lines::Lines;
use crate::carrier::udp::queue::UdpQueue;
use crate::carrier::{Receivers, Senders, udp};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::engine::Engine;
use crate::engine::cm::CmService;
use crate::engine::core::Core;
use crate::engine::late_acks;
use crate::engine::state::LOOK_AGAIN;
use crate::failure;
use crate::guard::EngineGuard;
use crate::ids::CqId;
use crate::memory::faults::Faults;
use crate::memory::{self, Memory};
use crate::nic::NicInfo;
use crate::objects::Objects;
use crate::observe::Observers;
use crate::port::Nic;
use crate::qp::QpTable;
use crate::random::random;
use crate::refusal::{Kind, Refusal, Result};
use crate::waits::{Waits, Woken};

/// One NIC in this process.
#[derive(Debug)]
pub struct Hca {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Free of charge for a thread that polls.
    engine: Arc<biased::Mutex<Engine>>,
    waits: Arc<Waits>,
    /// Whether the program polls, so that the background thread only watches that it goes on.
    polling: AtomicBool,
    /// Calls of the program that made progress.
    activity: AtomicU64,
    /// Polls that found nothing since the program last waited for an event.
    empty_polls: AtomicU64,
    /// Polls that found nothing since one found something, or since the core was last offered to
    /// others.
    idle_polls: AtomicU64,
    /// How many of those it takes to offer it.
    yield_after: AtomicU64,
    stop: AtomicBool,
}

/// After this many polls in a row the program is taken to be polling.
const POLLS_TO_TAKE_OVER: u64 = 64;
/// After this many polls in a row that found nothing, some tens of microseconds, the core is
/// offered to others: the peer may be waiting for it.
const POLLS_TO_YIELD: u64 = 1 << 10;
/// The same after the core was offered and did not come back for [`SLOW_RETURN`]: others have use
/// for it, and each offer costs the program a turn.
const POLLS_TO_YIELD_AGAIN: u64 = 1 << 14;
/// Longer than a peer needs to answer, shorter than the turn of a process that computes.
const SLOW_RETURN: Duration = Duration::from_millis(1);
/// A stream over UDP: so many datagrams, a train of the longest ones, since the background thread
/// last woke or looked.
const STREAM: u64 = 12;
/// How long the background thread looks for the next train of a stream before it sleeps. To be
/// woken costs either side some microseconds, and often another core.
const LINGER: Duration = Duration::from_micros(50);
/// How long a program that polls may pause before the background thread makes progress in its
/// place.
const LEASE: Duration = LOOK_AGAIN;

/// The background thread sleeps no longer: what wakes it may have been closed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How long the end of a process waits for a thread of it that has the engine: what others are
/// waiting for may be in its sockets.
const LAST_LEASE: Duration = Duration::from_millis(50);

/// The NICs that this process has open, by name.
type NicList = Vec<(String, Weak<Hca>)>;
type OpenNics = Mutex<NicList>;

static OPEN: OnceLock<OpenNics> = OnceLock::new();

mod still;

use still::Changing;
pub(crate) use still::StillForFork;

impl Hca {
    /// Opens a NIC, or gives the one this process has open already.
    #[doc(alias = "ibv_open_device")]
    pub fn open(nic: &NicInfo) -> Result<Arc<Self>> {
        let _changing = Changing::begin();
        let mut open = OPEN.get_or_init(Mutex::default).lock();
        open.retain(|(_, hca)| hca.strong_count() > 0);
        let known = open.iter().find(|(name, _)| *name == nic.config.name);
        // One that failed is not given out again.
        let known = known.and_then(|(_, hca)| hca.upgrade());
        if let Some(hca) = known.filter(|hca| hca.lock().failure().is_none()) {
            return Ok(hca);
        }
        let hca = Arc::new(Self::start(nic)?);
        open.push((nic.config.name.clone(), Arc::downgrade(&hca)));
        Ok(hca)
    }

    /// Opens a NIC as a VF of its own, as another process would: the two reach each other as two
    /// processes of one host do, and share no object.
    pub fn open_another(nic: &NicInfo) -> Result<Arc<Self>> {
        let _changing = Changing::begin();
        let hca = Arc::new(Self::start(nic)?);
        let vf = hca.lock().core.nic.vf;
        // No NIC has such a name, so that nobody else is given this one.
        let name = format!("{}#{vf}", nic.config.name);
        OPEN.get_or_init(Mutex::default).lock().push((name, Arc::downgrade(&hca)));
        Ok(hca)
    }

    pub(crate) fn start(nic: &NicInfo) -> Result<Self> {
        barrier::prepare();
        let waits = Arc::new(Waits::new()?);
        let engine = build_engine(nic, &waits)?;
        let marker = engine.core.out.shm.table().map(Table::marker);
        let shared = Arc::new(Shared {
            engine: Arc::new(biased::Mutex::new(engine)),
            waits,
            polling: AtomicBool::new(false),
            activity: AtomicU64::new(0),
            empty_polls: AtomicU64::new(0),
            idle_polls: AtomicU64::new(0),
            yield_after: AtomicU64::new(POLLS_TO_YIELD),
            stop: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&shared);
        let run = move || {
            // It lives as long as the device does, and its end is noticed whatever ends it.
            let _mark = marker.and_then(|marker| marker.set());
            for_thread.run_to_the_end();
        };
        let thread = threads::spawn("peerdma", run)
            .map_err(|error| Refusal::new(Kind::NoMemory, format!("background thread: {error}")))?;
        memory::rehearse(&nic.config);
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Locks the engine.
    #[inline]
    pub fn lock(&self) -> EngineGuard<'_> {
        EngineGuard::new(self.shared.engine.lock())
    }

    /// Locks the engine, unless it stays locked for `patience`.
    #[cfg(test)]
    pub(crate) fn try_lock_for(&self, patience: Duration) -> Option<EngineGuard<'_>> {
        self.shared.engine.try_lock_for(patience).map(EngineGuard::new)
    }

    /// Makes progress if a CQ holds nothing, and locks the engine so that the caller can take what
    /// came.
    ///
    /// A program that calls this often is taken to be polling: peers stop waking the background
    /// thread, and all work is done here.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, cq: CqId) -> EngineGuard<'_> {
        let engine = self.lock();
        if engine.cq_is_empty(cq) { self.go_on(engine) } else { engine }
    }

    /// Makes progress, and locks the engine so that the caller can look what it led to. For who
    /// reads a counter again and again, as [`Hca::poll`] is for queues.
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn poll_any(&self) -> EngineGuard<'_> {
        self.go_on(self.lock())
    }

    /// Makes progress for a program that polls.
    #[inline]
    fn go_on<'a>(&'a self, mut engine: EngineGuard<'a>) -> EngineGuard<'a> {
        let shared = &*self.shared;
        // Only this side's threads count, under the lock.
        shared.activity.store(shared.activity.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // While the program does not poll yet, nobody looks often whether an acknowledgement waits.
        let moved = if shared.polling.load(Ordering::Relaxed) {
            engine.progress_for_poll()
        } else {
            engine.progress()
        };
        if moved {
            shared.idle_polls.store(0, Ordering::Relaxed);
        } else {
            let idle = shared.idle_polls.load(Ordering::Relaxed) + 1;
            shared.idle_polls.store(idle, Ordering::Relaxed);
            if idle >= shared.yield_after.load(Ordering::Relaxed) {
                engine = self.give_way(engine);
            }
        }
        if !shared.polling.load(Ordering::Relaxed) {
            self.consider_polling(&mut engine);
        }
        engine
    }

    /// Whoever polls for long may be waiting for a process that needs this very core.
    #[cold]
    fn give_way<'a>(&'a self, engine: EngineGuard<'a>) -> EngineGuard<'a> {
        drop(engine);
        let shared = &*self.shared;
        let began = Instant::now();
        std::thread::yield_now();
        let is_slow = began.elapsed() >= SLOW_RETURN;
        let polls = if is_slow { POLLS_TO_YIELD_AGAIN } else { POLLS_TO_YIELD };
        shared.yield_after.store(polls, Ordering::Relaxed);
        shared.idle_polls.store(0, Ordering::Relaxed);
        self.lock()
    }

    #[cold]
    fn consider_polling(&self, engine: &mut Engine) {
        let shared = &*self.shared;
        let polls = shared.empty_polls.load(Ordering::Relaxed) + 1;
        shared.empty_polls.store(polls, Ordering::Relaxed);
        if polls >= POLLS_TO_TAKE_OVER {
            shared.polling.store(true, Ordering::Relaxed);
            engine.core.out.shm.doorbell().inspect(|bell| bell.set_awake());
            shared.waits.wake();
        }
    }

    /// Arms a CQ: one event comes at its next completion. The program is about to wait, so the
    /// background thread takes over.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        let mut engine = self.alive()?;
        // What has arrived is completed before the queue is armed: it raises no event, and the
        // program, which polls after it armed, finds it. An event that it would find nothing for is
        // possible, but as rare as on hardware.
        engine.progress();
        engine.req_notify_cq(cq, solicited_only)?;
        self.shared.empty_polls.store(0, Ordering::Relaxed);
        if self.shared.polling.swap(false, Ordering::Relaxed) {
            engine.core.out.shm.doorbell().inspect(|bell| bell.set_sleeping());
            engine.progress_fully();
            self.shared.waits.wake();
        }
        Ok(())
    }
}

/// Writes what was recorded of packets and is not in its file yet, what fired of a fault plan, and
/// what was counted, and passes on what waits for other processes. For a process that ends without
/// closing its devices.
pub fn finish_records() {
    let open = open_hcas();
    if open.is_empty() {
        return;
    }
    let finish = move || {
        for hca in open {
            // A thread that the end of the process stopped may hold it for ever.
            if let Some(mut engine) = hca.shared.engine.try_lock_for(LAST_LEASE) {
                engine.send_late_acks();
                engine.leave_port();
                engine.core.finish_records();
                log_counters("left open", &engine.counters());
            }
        }
    };
    // The log needs storage of the thread, and that which ends the process has lost its own.
    if let Ok(thread) = threads::spawn("peerdma-end", finish) {
        let _ = thread.join();
    }
}

/// What all devices together counted that this process has or had open. One that another thread
/// holds on to is left out.
pub fn counters_of_process() -> Counters {
    let mut sum = *closed();
    for hca in open_hcas() {
        if let Some(engine) = hca.shared.engine.try_lock_for(LEASE) {
            sum.merge(&engine.counters());
        }
    }
    sum.set_of_process();
    sum
}

/// What devices counted that were closed.
fn closed() -> MutexGuard<'static, Counters> {
    closed_lock().lock()
}

fn closed_lock() -> &'static Mutex<Counters> {
    static CLOSED: LazyLock<Mutex<Counters>> = LazyLock::new(Mutex::default);
    &CLOSED
}

/// Says in the log what a device counted, but for zeros.
fn log_counters(why: &str, counters: &Counters) {
    let counted: Vec<String> = counters
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    tracing::info!(target: "peerdma::counters", "{why}: {}", counted.join(" "));
}

/// Every open device.
pub(crate) fn open_hcas() -> Vec<Arc<Hca>> {
    let Some(open) = OPEN.get() else { return Vec::new() };
    open.lock().iter().filter_map(|(_, hca)| hca.upgrade()).collect()
}

impl Drop for Hca {
    fn drop(&mut self) {
        let _changing = Changing::begin();
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waits.wake();
        let thread = self.thread.get_mut().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        // Only now, so that nothing comes that is not in them.
        let mut engine = self.lock();
        engine.leave_port();
        engine.core.finish_records();
        let counters = engine.counters();
        drop(engine);
        log_counters("closed", &counters);
        closed().merge(&counters);
    }
}

impl Shared {
    /// Locks the engine for the background thread, which notes itself when it looks again.
    #[inline]
    fn lock(&self) -> biased::MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// The background thread.
    fn run_to_the_end(&self) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run())) {
            let why = format!("its thread panicked: {}", failure::words(&*panic));
            tracing::error!(target: "peerdma::panic", "{why}");
            self.lock().fail(&why);
        }
    }

    /// Sleeps as long as a program that polls may pause, and sees to it that no acknowledgement
    /// waits that long.
    fn watch_late_acks(&self) -> Woken {
        let mut left = LEASE;
        let mut seen = self.activity.load(Ordering::Relaxed);
        loop {
            let woken = self.waits.wait(Some(late_acks::LOOK), true);
            left = left.saturating_sub(late_acks::LOOK);
            if woken != Woken::Nothing || left.is_zero() {
                return woken;
            }
            // A poll lets go of what waited before it, so that what waits now is younger than the
            // last look. The lock would cost the program dearly: it is the program's, and each of
            // its calls pays for a while after another thread took it.
            let activity = self.activity.load(Ordering::Relaxed);
            if mem::replace(&mut seen, activity) == activity {
                self.lock().send_overdue_acks();
            }
        }
    }

    /// Takes datagrams until none came for [`LINGER`]. True if they still come after [`LEASE`],
    /// when all else wants a look.
    ///
    /// The core is not offered to others meanwhile: where the sender waits for it, the kernel finds
    /// it another one only while it waits, and not if the two take turns.
    fn linger(&self, engine: &mut biased::MutexGuard<'_, Engine>) -> bool {
        let began = Instant::now();
        let mut heard = began;
        while !self.polling.load(Ordering::Relaxed) && !self.stop.load(Ordering::Acquire) {
            // Who waits for the lock has its turn.
            biased::MutexGuard::bump(engine);
            let moved = engine.progress_on();
            let now = Instant::now();
            if moved {
                heard = now;
            }
            if now.duration_since(began) >= LEASE {
                return true;
            }
            if now.duration_since(heard) >= LINGER {
                break;
            }
        }
        false
    }

    /// Lets go of the engine. The lock is free of charge for the thread that takes it most, and
    /// that is to be the program's.
    fn leave(engine: biased::MutexGuard<'_, Engine>) {
        biased::MutexGuard::unlock_fair(engine);
    }

    fn run(&self) {
        let mut seen = 0;
        let mut woken = Woken::Otherwise;
        let mut is_watching = false;
        // Whether the program polled when the last wait began.
        let mut polled = false;
        let mut taken_before = 0;
        // When it last looked at everything.
        let mut looked = Instant::now();

        while !self.stop.load(Ordering::Acquire) {
            let mut engine = self.lock();
            engine.look_at_descriptors();
            if engine.is_dead() {
                return;
            }
            engine.wake_up();
            let activity = self.activity.load(Ordering::Relaxed);
            if self.polling.load(Ordering::Relaxed) && activity != seen {
                seen = activity;
                // What a poll leaves out.
                engine.progress_fully();
                let acks_waited = engine.late_acks.take_waited();
                // A program that polls between events would have the sockets taken out and put back
                // for each.
                if is_watching && polled && woken == Woken::Nothing {
                    engine.receivers.udp.ignore(&self.waits);
                    is_watching = false;
                }
                if polled {
                    // It has polled for as long as the thread slept, and a promise taken back costs
                    // many.
                    engine.core.out.shm.doorbell().inspect(|bell| bell.set_polling());
                }
                polled = true;
                Self::leave(engine);
                woken = if acks_waited {
                    self.watch_late_acks()
                } else {
                    self.waits.wait(Some(LEASE), true)
                };
                continue;
            }
            if self.polling.swap(false, Ordering::Relaxed) {
                // It stopped. A poll now and then, as of one that spins on memory between its
                // calls, does not begin anew.
                self.empty_polls.store(0, Ordering::Relaxed);
            }
            polled = false;
            if !is_watching {
                is_watching = engine.receivers.udp.watch(&self.waits);
            }
            engine.core.out.shm.doorbell().inspect(|bell| bell.drain());
            // Datagrams alone are no reason to look at everything else: it costs several system
            // calls.
            let mut moved = match woken {
                Woken::Datagrams => engine.progress_on_datagrams(),
                Woken::Nothing | Woken::Otherwise => {
                    looked = Instant::now();
                    engine.progress_fully()
                }
            };
            for _ in 0..64 {
                if !moved {
                    break;
                }
                moved = engine.progress_on();
            }
            let taken = engine.core.counters.rx_udp_packets;
            if taken.wrapping_sub(mem::replace(&mut taken_before, taken)) >= STREAM {
                let goes_on = self.linger(&mut engine);
                taken_before = engine.core.counters.rx_udp_packets;
                if goes_on {
                    woken = Woken::Otherwise;
                    Self::leave(engine);
                    continue;
                }
            }
            engine.core.out.shm.doorbell().inspect(|bell| bell.set_sleeping());
            // What came between the last look and the flag has not rung.
            if engine.progress_on() || engine.has_ready() {
                // All else wants a look now and then, however much comes.
                let is_due = looked.elapsed() >= LEASE;
                woken = if is_due { Woken::Otherwise } else { Woken::Datagrams };
                Self::leave(engine);
                continue;
            }
            // Datagrams that wake nobody are looked for.
            let wait = engine.fall_asleep(Some(if is_watching { LONGEST_SLEEP } else { LEASE }));
            Self::leave(engine);
            woken = self.waits.wait(wait, false);
        }
    }
}

/// Claims a VF and builds an engine around it.
pub(crate) fn build_engine(nic: &NicInfo, waits: &Arc<Waits>) -> Result<Engine> {
    let config = &nic.config;
    let (guid, port) = crate::nic::look(config, nic.index)?;
    let identity =
        NicIdentity { guid: guid.0, ifindex: port.ifindex, settings: u64::from(config.udp_port) };
    let mut claim = Claim::new(&config.name, identity)
        .map_err(|error| Refusal::new(Kind::NoDevice, format!("{}: {error}", config.name)))?;
    let vf = claim.vf();
    // Packets are to be seen, so nothing may go without.
    let clock = Clock::new();
    let observers = Observers::open(config, vf, clock.now())?;
    let direct = config.direct && !config.force_udp && observers.is_none();
    let table = if direct { Some(Table::new()?) } else { None };
    if let Some(file) = table.as_ref().and_then(Table::fd) {
        claim.set_table(file);
    }
    let options = Options { vf, ifindex: port.ifindex, ..Options::default() };
    let mut is_deaf = false;
    let udp = match UdpLink::bind(config.udp_port, options) {
        Err(error @ BindError::InUse { .. }) => {
            tracing::info!(target: "peerdma::udp", "{error}");
            is_deaf = true;
            UdpLink::send_only(config.udp_port, options)
        }
        bound => bound,
    };
    let udp = udp
        .inspect_err(|error| {
            tracing::warn!(target: "peerdma::udp", "no packets to or from other hosts: {error}");
        })
        .ok();
    let watch = link::netdev::Watch::new()
        .inspect_err(|error| {
            tracing::warn!(target: "peerdma::netdev", "the port stays as it is now: {error}");
        })
        .ok();
    let segments = udp.as_ref().map_or(1, |udp| udp.max_gso_segments(UdpQueue::TYPICAL));
    let loopback = std::net::IpAddr::from([127, 0, 0, 1]);
    let source = udp.as_ref().map_or(config.udp_port, |udp| udp.source_port(loopback));
    let faults = Faults::new(Arc::clone(waits));
    let shm = Peers::new(claim, config.ring_size as usize, table, Arc::clone(waits));
    // Who records packets or tampers with them does so with those that are sent the usual way.
    let lines = Lines::new(observers.is_none());
    let core = Core {
        nic: Nic { attr: DeviceAttr::new(config, guid), config: config.clone(), port, vf },
        now: Time::default(),
        is_behind: false,
        stamps: false,
        objects: Objects::default(),
        memory: Memory::new(faults),
        out: Senders {
            loopback: Default::default(),
            shm,
            udp: UdpQueue::new(segments, source, config.udp_port).with(lines, is_deaf),
            ether: Default::default(),
        },
        gsi: Default::default(),
        counters: Counters::default(),
        failures: Default::default(),
        observers,
    };
    watch.iter().for_each(|watch| waits.add_idle(watch));
    let receivers = Receivers {
        shm: Default::default(),
        udp: udp::Receiver::new(udp, config.udp_port),
        frames: None,
        watch,
    };
    // Numbers that a process with this VF used shortly before rest, and nobody can tell the next
    // one.
    let start = random() as u32;
    let cm = CmService::new(&core.nic, waits);
    Ok(Engine::new(core, QpTable::new(vf, start), receivers, cm, clock))
}
