//! One NIC in one process: the engine's lock, and the thread that makes progress when the program
//! does not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use threads::{barrier, biased, futex, whole};

use crate::carrier::shm::table::Table;
use crate::counters::Counters;
use crate::engine::Engine;
use crate::engine::Turn;
use crate::guard::EngineGuard;
use crate::ids::CqId;
use crate::memory::{self};
use crate::nic::NicInfo;
use crate::refusal::{Kind, Refusal, Result};
use crate::thresholds::{LAST_LEASE, LEASE, POLLS_TO_YIELD, POLLS_TO_YIELD_AGAIN, SLOW_RETURN};
use crate::waits::Waits;

use self::take_over::TakeOver;
pub use self::wait::{Begun, Waited, Waiting};

/// One NIC in this process.
#[derive(Debug)]
pub struct Hca {
    shared: Arc<Shared>,
    thread: futex::Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Nearly free for a thread that polls.
    engine: Arc<biased::Mutex<Engine>>,
    waits: Arc<Waits>,
    /// Whether the program counts as polling, so that the background thread only checks that it
    /// still does.
    polling: AtomicBool,
    /// Calls of the program that made progress.
    activity: AtomicU64,
    /// Polls that found nothing since the program last waited for an event.
    empty_polls: AtomicU64,
    /// How many of those it takes until it counts as polling.
    take_over: TakeOver,
    /// Polls that found nothing since one found something, or since a post, or since the core was
    /// last yielded. If there is none the program has something to do, and may not go on polling.
    idle_polls: AtomicU64,
    /// Posts and polls of the program, with progress or without.
    calls: AtomicU64,
    /// How often the program was about to wait for an event.
    waits_begun: AtomicU64,
    /// How many idle polls it takes before the core is yielded.
    yield_after: AtomicU64,
    stop: AtomicBool,
}

/// The NICs that this process has open, by name.
type NicList = Vec<(String, Weak<Hca>)>;
type OpenNics = futex::Mutex<NicList>;

static OPEN: OnceLock<OpenNics> = OnceLock::new();

/// The counters of closed devices.
static CLOSED: whole::Mutex<Counters> = whole::Mutex::new(Counters::ZERO);

mod background;
pub(crate) mod build;
mod still;
mod take_over;
mod wait;

use build::build_engine;
use still::Changing;
pub(crate) use still::StillForFork;

impl Hca {
    /// Opens a NIC, or returns the one that this process already has open.
    #[doc(alias = "ibv_open_device")]
    pub fn open(nic: &NicInfo) -> Result<Arc<Self>> {
        let _changing = Changing::begin();
        let mut open = OPEN.get_or_init(futex::Mutex::default).lock();
        open.retain(|(_, hca)| hca.strong_count() > 0);
        let known = open.iter().find(|(name, _)| *name == nic.config.name);
        // A failed one is not returned again.
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
        let vf = hca.lock().common.nic.vf;
        // No NIC has such a name, so no other caller gets this device.
        let name = format!("{}#{vf}", nic.config.name);
        OPEN.get_or_init(futex::Mutex::default).lock().push((name, Arc::downgrade(&hca)));
        Ok(hca)
    }

    pub(crate) fn start(nic: &NicInfo) -> Result<Self> {
        barrier::prepare();
        let waits = Arc::new(Waits::new()?);
        let engine = build_engine(nic, &waits)?;
        let marker = engine.common.out.shm.table().map(Table::marker);
        let shared = Arc::new(Shared {
            engine: Arc::new(biased::Mutex::new(engine)),
            waits,
            polling: AtomicBool::new(false),
            activity: AtomicU64::new(0),
            empty_polls: AtomicU64::new(0),
            take_over: TakeOver::new(),
            idle_polls: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            waits_begun: AtomicU64::new(0),
            yield_after: AtomicU64::new(POLLS_TO_YIELD),
            stop: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&shared);
        let run = move || {
            // The thread lives as long as the device, and its end is noticed, whatever the reason.
            let _mark = marker.and_then(|marker| marker.set());
            background::run_to_the_end(&for_thread);
        };
        let thread = threads::spawn("peerdma", run)
            .map_err(|error| Refusal::new(Kind::NoMemory, format!("background thread: {error}")))?;
        memory::rehearse(&nic.config);
        Ok(Self { shared, thread: futex::Mutex::new(Some(thread)) })
    }

    /// Locks the engine.
    #[inline]
    pub fn lock(&self) -> EngineGuard<'_> {
        EngineGuard::new(self.shared.engine.lock())
    }

    /// Locks the engine for a post. A program that posts and polls much counts as polling.
    #[inline]
    pub fn lock_to_post(&self) -> EngineGuard<'_> {
        let engine = self.lock_to_poll();
        self.shared.idle_polls.store(0, Ordering::Relaxed);
        engine
    }

    #[inline]
    fn lock_to_poll(&self) -> EngineGuard<'_> {
        let engine = self.lock();
        // Only threads of the program count here, under the lock.
        let calls = &self.shared.calls;
        calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        engine
    }

    /// Locks the engine, unless it stays locked for `patience`.
    #[cfg(test)]
    pub(crate) fn try_lock_for(&self, patience: std::time::Duration) -> Option<EngineGuard<'_>> {
        self.shared.engine.try_lock_for(patience).map(EngineGuard::new)
    }

    /// Makes progress if a CQ holds nothing, and locks the engine so that the caller can take what
    /// arrived.
    ///
    /// A program that calls this often counts as polling: peers stop waking the background thread,
    /// and all work is done here.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, cq: CqId) -> EngineGuard<'_> {
        let mut engine = self.lock_to_poll();
        engine.note_poll();
        if engine.cq_is_empty(cq) {
            return self.go_on(engine);
        }
        self.shared.idle_polls.store(0, Ordering::Relaxed);
        engine
    }

    /// Makes progress, and locks the engine so that the caller can see the result. For callers that
    /// read a counter repeatedly, as [`Hca::poll`] is for queues.
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn poll_any(&self) -> EngineGuard<'_> {
        self.go_on(self.lock_to_poll())
    }

    /// Makes progress for a program that polls.
    #[inline]
    fn go_on<'a>(&'a self, mut engine: EngineGuard<'a>) -> EngineGuard<'a> {
        let shared = &*self.shared;
        // Only threads of the program count here, under the lock.
        shared.activity.store(shared.activity.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // While the program does not poll yet, nobody checks often whether an acknowledgement
        // waits.
        let moved = if shared.polling.load(Ordering::Relaxed) {
            engine.progress(Turn::Poll)
        } else {
            engine.progress(Turn::Call)
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

    /// Yields the core: a thread that polls for long may be waiting for a process that needs this
    /// very core.
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
        if polls >= shared.take_over.polls() {
            shared.polling.store(true, Ordering::Relaxed);
            engine.common.out.shm.doorbell().inspect(|bell| bell.set_awake());
            engine.wake_thread();
        }
    }

    /// Arms a CQ: one event comes at its next completion. The program is about to wait, so the
    /// background thread takes over.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        let mut engine = self.alive()?;
        // What has arrived is completed before the queue is armed: it raises no event, and the
        // program, which polls after arming, finds it. An event without a completion to find is
        // possible, but as rare as on hardware.
        engine.progress(Turn::Call);
        engine.req_notify_cq(cq, solicited_only)?;
        self.hand_over(&mut engine);
        Ok(())
    }

    /// The program is about to wait for an event of the connection manager, or most likely is after
    /// a call that such an event answers, so the background thread takes over. Otherwise it would
    /// take a program that has just polled for one that goes on, and leave to the next poll, for
    /// some milliseconds, what brings the event and the first message behind it. It costs next to
    /// nothing if the program does not poll.
    pub fn about_to_wait(&self) {
        // ORDERING: the addition before the load. The thread stores and loads the other way round,
        // so that one of the two sees the other.
        self.shared.waits_begun.fetch_add(1, Ordering::SeqCst);
        if self.shared.polling.load(Ordering::SeqCst) {
            self.hand_over(&mut self.lock());
        }
    }

    /// The background thread makes progress from now on, until the program polls again.
    fn hand_over(&self, engine: &mut Engine) {
        let shared = &*self.shared;
        shared.empty_polls.store(0, Ordering::Relaxed);
        shared.waits_begun.fetch_add(1, Ordering::Relaxed);
        if shared.polling.swap(false, Ordering::Relaxed) {
            engine.common.out.shm.doorbell().inspect(|bell| bell.set_sleeping());
            // What came before the bell was to be rung. Datagrams wake the thread.
            engine.progress(Turn::Rung);
            engine.wake_thread();
        }
    }
}

/// Writes the recorded packets that are not in their file yet, the report of a fault plan and the
/// counters, and forwards datagrams that wait for other processes. For a process that ends without
/// closing its devices.
pub fn finish_records() {
    let open = open_hcas();
    if open.is_empty() {
        return;
    }
    let finish = move || {
        for hca in open {
            // A thread that stopped when the process ended may hold the lock forever.
            let locked = hca.shared.engine.try_lock_for(LAST_LEASE);
            if let Some(mut engine) = locked.map(EngineGuard::new) {
                engine.carry_out_held();
                engine.send_delayed_acks();
                engine.send_unasked_acks();
                engine.leave_port();
                engine.common.finish_records();
                log_counters("left open", &engine.counters());
                let last_words = engine.last_words();
                drop(engine);
                if let Some(words) = last_words {
                    words.leave();
                }
            }
        }
    };
    // The log needs thread-local storage, which the thread that ends the process has lost.
    if let Ok(thread) = threads::spawn("peerdma-end", finish) {
        let _ = thread.join();
    }
}

/// The sum of the counters of all devices that this process has or had open. A device that another
/// thread keeps locked is left out.
pub fn counters_of_process() -> Counters {
    let mut sum = *CLOSED.lock();
    for hca in open_hcas() {
        if let Some(engine) = hca.shared.engine.try_lock_for(LEASE) {
            sum.merge(&engine.counters());
        }
    }
    sum.set_of_process();
    sum
}

/// Logs the counters of a device that are not zero.
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
        // Only now, so that they include everything.
        let mut engine = self.lock();
        engine.leave_port();
        engine.common.finish_records();
        let (counters, last_words) = (engine.counters(), engine.last_words());
        drop(engine);
        if let Some(words) = last_words {
            words.leave();
        }
        log_counters("closed", &counters);
        CLOSED.lock().merge(&counters);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use iba::{LKey, RKey, SendFlags, WrOpcode};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;
    use transport::wr::{Data, SendWr, SgList, Sge};

    use super::*;
    use crate::rig;

    /// A program that polls for its own completions, and then spins on memory that its peer writes.
    #[test]
    fn a_program_whose_polls_left_something_needs_more_of_them_to_count_as_polling() {
        let mut nic = rig::nic("take-over");
        nic.config.force_udp = true;
        let (hca, objects, qp, mut peer) = rig::hca_and_peer(&nic);
        let began = Instant::now();
        let write = |at: u64, rkey: u32, lkey: u32| {
            let data =
                Data::Sges(SgList::from_iter([Sge { addr: 0, length: 1, lkey: LKey(lkey) }]));
            let wr = SendWr::new(at, WrOpcode::RdmaWrite, SendFlags::SIGNALED, data);
            SendWr { remote_addr: 0, rkey: RKey(rkey), ..wr }
        };
        let (ours, theirs) = (objects.mr, peer.objects.mr);
        for at in 0.. {
            if hca.shared.take_over.is_in_doubt() {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{at} writes waited for nobody");
            let polled = Instant::now();
            while !hca.shared.polling.load(Ordering::Relaxed) || polled.elapsed() < LEASE / 2 {
                drop(hca.poll(objects.cq));
            }
            hca.lock().post_send(qp, write(at, theirs.rkey, ours.lkey)).expect("a good request");
            while hca.poll(objects.cq).pop_wc(objects.cq).is_none() {
                rig::run(&mut [&mut peer.engine]);
            }
            // The peer has polled since the one before.
            peer.engine.held.note_poll();
            peer.post(write(at, ours.rkey, theirs.lkey));
            while peer.completed().is_empty() {
                assert!(began.elapsed() < Duration::from_secs(30), "write {at}");
                rig::run(&mut [&mut peer.engine]);
            }
        }
    }

    #[test]
    fn a_program_that_is_about_to_wait_no_longer_counts_as_polling() {
        let hca = Hca::start(&rig::nic("about-to-wait")).expect("a VF is free");
        let polls = || hca.shared.polling.load(Ordering::Relaxed);
        while !polls() {
            drop(hca.poll_any());
        }
        hca.about_to_wait();
        // Only polls of the program change that.
        assert!(!polls());
        assert_eq!(hca.shared.empty_polls.load(Ordering::Relaxed), 0);
        drop(hca.poll_any());
        assert!(!polls(), "one poll is not polling");
    }

    /// A peer rings it that saw the thread asleep, right before the program began to poll.
    #[test]
    fn a_bell_that_was_rung_is_heard_beside_a_program_that_polls() {
        let hca = Hca::start(&rig::nic("rung-beside-polls")).expect("a VF is free");
        let polls = || hca.shared.polling.load(Ordering::Relaxed);
        let is_rung = || {
            let engine = hca.poll_any();
            let bell = engine.common.out.shm.doorbell().expect("peers are served");
            let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).expect("a descriptor of ours") > 0
        };
        let began = Instant::now();
        // On a busy machine the program may not poll for so long that the thread takes its place.
        loop {
            while !polls() {
                drop(hca.poll_any());
            }
            hca.lock().common.out.shm.doorbell().inspect(|bell| bell.ring());
            while is_rung() && polls() {
                assert!(began.elapsed() < Duration::from_secs(30), "nobody hears it");
            }
            if polls() {
                break;
            }
        }
    }

    #[test]
    fn a_program_that_makes_call_after_call_counts_as_polling() {
        let hca = Hca::start(&rig::nic("call-after-call")).expect("a VF is free");
        let began = Instant::now();
        while !hca.shared.polling.load(Ordering::Relaxed) {
            assert!(began.elapsed() < Duration::from_secs(30), "it never counts");
            // No poll finds nothing, as there is none. The thread looks when it is woken.
            for post in 0..64 {
                let engine = hca.lock_to_post();
                if post == 0 {
                    engine.common.out.shm.doorbell().inspect(|bell| bell.ring());
                }
            }
        }
        assert_eq!(hca.shared.empty_polls.load(Ordering::Relaxed), 0);
    }
}
