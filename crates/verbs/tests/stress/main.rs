//! Random use of GPUs and NICs by several threads of two processes, with an oracle: every byte has
//! a permitted value, every error is one that the rules allow for what happened to the region,
//! nothing leaks, nothing hangs.
//!
//! A thread has a NIC of its own kind in each of the two processes (importer class and carrier
//! differ), and both GPUs, which share one VRAM that is too small. It allocates, exports, registers
//! here and there, sends, writes, reads, runs atomics, moves and evicts during transfers,
//! deregisters, destroys, closes; a thread resets the GPUs meanwhile.
//!
//! Each thread draws its steps from its own seed: the stream of draws is the same in each run. How
//! threads interleave is not, so neither is the state that a step finds: a buffer for which there
//! was no room in one run may exist in the next.
//!
//! | variable | what | default |
//! |---|---|---|
//! | `PEERDMA_STRESS_SEED` | the first seed | 1 |
//! | `PEERDMA_STRESS_SEEDS` | how many, one after the other | 3 |
//! | `PEERDMA_STRESS_SECONDS` | how long each | 3 |
//!
//! A minute: `PEERDMA_STRESS_SECONDS=60 PEERDMA_STRESS_SEEDS=1 cargo test --release -p
//! peerdma-verbs --test stress -- --nocapture`.

mod held;
mod model;
#[path = "../../../device/src/rig/port.rs"]
mod port;
mod rng;
mod seat;
mod station;
mod traffic;
mod watch;
mod worker;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpu::{Gpu, GpuConfig};
use verbs::soft::{ImporterConfig, NicConfig};

use crate::rng::Rng;
use crate::seat::{Op, Seat, serve};
use crate::station::Station;
use crate::watch::{Post, Watchdog};
use crate::worker::{Resets, Tally, Worker};

const ROLE: &str = "PEERDMA_STRESS_ROLE";
const MIB: u64 = 1 << 20;
/// A thread makes at least this many steps, and one operation, so that each has used everything at
/// least once.
const STEPS: u64 = 100;

/// The kind of a thread's NICs.
#[derive(Clone, Copy)]
struct Lane {
    class: ImporterConfig,
    direct: bool,
    udp: bool,
}

const LANES: [Lane; 6] = [
    Lane { class: ImporterConfig::Dynamic, direct: true, udp: false },
    Lane { class: ImporterConfig::Dynamic, direct: false, udp: false },
    Lane { class: ImporterConfig::Dynamic, direct: true, udp: true },
    Lane { class: ImporterConfig::Revocable, direct: true, udp: false },
    Lane { class: ImporterConfig::Revocable, direct: true, udp: true },
    Lane { class: ImporterConfig::Pinned, direct: true, udp: false },
];

/// What both processes must know of a run.
#[derive(Clone, Debug)]
struct Scene {
    /// The parent's process id, which is in every name.
    id: u32,
    ports: [u16; LANES.len()],
}

impl Scene {
    fn new() -> Self {
        Self { id: std::process::id(), ports: LANES.map(|_| port::lease()) }
    }

    fn to_text(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        format!("{} {}", self.id, ports.join(" "))
    }

    fn of(text: &str) -> Self {
        let numbers: Vec<u32> =
            text.split(' ').map(|word| word.parse().expect("a number")).collect();
        Self { id: numbers[0], ports: std::array::from_fn(|n| numbers[n + 1] as u16) }
    }

    fn gpu(&self) -> Gpu {
        Gpu::open(&GpuConfig {
            name: format!("stress{}", self.id),
            vram: 3 * MIB,
            bar: Some(2 * MIB),
            gtt: 64 * MIB,
            max_pinned: Some(MIB),
            ..GpuConfig::default()
        })
        .expect("a GPU")
    }

    fn nic(&self, lane: usize) -> NicConfig {
        let Lane { class, direct, udp } = LANES[lane];
        NicConfig {
            name: format!("stress{}-{lane}", self.id),
            importer: Some(class),
            direct,
            force_udp: udp,
            udp_port: self.ports[lane],
            ..NicConfig::default()
        }
    }

    /// The address where the other process finds this one.
    fn address(&self) -> SocketAddr {
        SocketAddr::from_abstract_name(format!("peerdma-stress-{}", self.id)).expect("short")
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Logs what `PEERDMA_LOG` asks for, as the library does for programs.
fn show_log() {
    if let Ok(filter) = std::env::var("PEERDMA_LOG") {
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let _ = log.try_init();
    }
}

/// The other process. Dropping it ends it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn random_use_by_threads_of_two_processes() {
    show_log();
    let seed = number("PEERDMA_STRESS_SEED", 1);
    let (seeds, seconds) = (number("PEERDMA_STRESS_SEEDS", 3), number("PEERDMA_STRESS_SECONDS", 3));
    let scene = Scene::new();
    let listener = UnixListener::bind_addr(&scene.address()).expect("a free name");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_code_of_the_other_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, scene.to_text())
        .stdin(Stdio::null())
        .spawn()
        .expect("a process");
    let _other = Other(child);
    let mut control = Seat::There(accept(&listener));
    let gpu = scene.gpu();
    // A resource that a process opens once stays open.
    round(&scene, &listener, &gpu, &mut control, (0, Duration::from_millis(300)));
    let before = settled(&gpu, &mut control);
    for seed in seed..seed + seeds {
        println!("PEERDMA_STRESS_SEED={seed} PEERDMA_STRESS_SECONDS={seconds}");
        round(&scene, &listener, &gpu, &mut control, (seed, Duration::from_secs(seconds)));
        assert_back(&before, &gpu, &mut control);
    }
}

fn accept(listener: &UnixListener) -> UnixStream {
    listener.accept().expect("the other process asks").0
}

/// One seed.
fn round(
    scene: &Scene,
    listener: &UnixListener,
    gpu: &Gpu,
    control: &mut Seat,
    (seed, time): (u64, Duration),
) {
    let resets = Arc::new(Resets::default());
    let posts: Vec<_> = LANES.iter().map(|_| Post::new()).collect();
    let watchdog = Watchdog::over(posts.clone());
    let workers: Vec<_> = posts
        .iter()
        .enumerate()
        .map(|(lane, post)| {
            // The other process makes a station for each request of this kind.
            let there = {
                control.ask(Op::Spawn, &[lane as u64]).done();
                Seat::There(accept(listener))
            };
            let here = Seat::Here(Box::new(Station::new(gpu, &scene.nic(lane))));
            let rng = Rng::new(seed, lane as u64 + 1);
            Worker::new(rng, LANES[lane].class, [here, there], resets.clone(), post.clone())
        })
        .collect();
    let (end, over) = (Instant::now() + time, AtomicBool::new(false));
    let failed = AtomicBool::new(false);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let resetter = scope.spawn(|| reset_all_the_time(seed, gpu, control, &resets, &over));
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(lane, mut worker)| {
                let Lane { class, direct, udp } = LANES[lane];
                let named = std::thread::Builder::new()
                    .name(format!("{class:?} direct {direct} udp {udp}"));
                let failed = &failed;
                let work = move || {
                    let _ending = Ending { failed, post: worker.watched.clone() };
                    // On a busy machine that takes longer, but not forever.
                    let at_last = end + Duration::from_secs(60);
                    let has_begun = |worker: &Worker| {
                        worker.tally.steps >= STEPS && worker.tally.operations > 0
                    };
                    while (Instant::now() < end || Instant::now() < at_last && !has_begun(&worker))
                        && !failed.load(Ordering::SeqCst)
                    {
                        worker.step();
                    }
                    worker.finish();
                    worker.tally
                };
                named.spawn_scoped(scope, work).expect("a thread")
            })
            .collect();
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::SeqCst);
        resetter.join().expect("resets happen");
        joined.into_iter().map(|tally| tally.expect("no rule is broken")).collect()
    });
    drop(watchdog);
    let resets = [0, 1].map(|seat| resets.ended(seat));
    println!("resets {resets:?}, {:?}", gpu.stats());
    for (lane, tally) in tallies.iter().enumerate() {
        let Lane { class, direct, udp } = LANES[lane];
        println!("{class:?} direct {direct} udp {udp}: {tally:?}");
        assert!(tally.operations > 0, "lane {lane} did nothing");
    }
    assert_eq!(gpu.stats().stale_accesses, 0);
}

/// A thread that ends is no longer watched; one that broke a rule ends the others.
struct Ending<'a> {
    failed: &'a AtomicBool,
    post: Arc<Post>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.post.end();
        if std::thread::panicking() {
            self.failed.store(true, Ordering::SeqCst);
        }
    }
}

/// Resets the GPU now and then, as this process or the other one sees it.
fn reset_all_the_time(
    seed: u64,
    gpu: &Gpu,
    control: &mut Seat,
    resets: &Resets,
    over: &AtomicBool,
) {
    let mut rng = Rng::new(seed, 0);
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(rng.below(60) + 5));
        let (seat, micros) = (rng.below(2) as usize, rng.below(3000));
        resets.begun[seat].fetch_add(1, Ordering::SeqCst);
        if seat == 0 {
            let resetting = gpu.begin_reset();
            std::thread::sleep(Duration::from_micros(micros));
            drop(resetting);
        } else {
            control.ask(Op::Reset, &[micros]).done();
        }
        resets.ended[seat].fetch_add(1, Ordering::SeqCst);
    }
}

type Held = [Vec<u64>; 2];

fn held(gpu: &Gpu, control: &mut Seat) -> Held {
    [held::now(gpu).to_vec(), control.ask(Op::Held, &[]).done().words]
}

/// What both processes hold once it no longer changes: threads end a little after the objects they
/// served.
fn settled(gpu: &Gpu, control: &mut Seat) -> Held {
    let mut last = held(gpu, control);
    let mut same = 0;
    while same < 5 {
        std::thread::sleep(Duration::from_millis(100));
        let now = held(gpu, control);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Everything was released, or will be within half a minute.
fn assert_back(before: &Held, gpu: &Gpu, control: &mut Seat) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let now = held(gpu, control);
        let more: Vec<String> = (0..2)
            .flat_map(|seat| (0..held::NAMES.len()).map(move |n| (seat, n)))
            .filter(|(seat, n)| now[*seat][*n] > before[*seat][*n])
            .map(|(seat, n)| {
                let (was, is) = (before[seat][n], now[seat][n]);
                format!("process {seat}: {} were {was} and are {is}", held::NAMES[n])
            })
            .collect();
        if more.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{}; {}", more.join("; "), held::names());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Not a test: the code of the other process.
#[test]
fn the_code_of_the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    show_log();
    let scene = Scene::of(&role);
    let gpu = scene.gpu();
    let control = UnixStream::connect_addr(&scene.address()).expect("the first process listens");
    seat::control(control, Station::new(&gpu, &scene.nic(0)), |lane| {
        let stream = UnixStream::connect_addr(&scene.address()).expect("it still listens");
        let station = Station::new(&gpu, &scene.nic(lane as usize));
        std::thread::spawn(move || serve(stream, station));
    });
    std::process::exit(0);
}
