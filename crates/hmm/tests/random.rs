//! Threads that touch, migrate, drop and fork at random, against what each of them knows it wrote.
#![allow(unsafe_code, reason = "fork")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hmm::{DevicePages, Mirror, PAGE};
use umem::{HostBuf, Umem};

const PAGES: u64 = 8;
const LEN: u64 = PAGES * PAGE;
const THREADS: u64 = 4;
/// Each thread owns a word of every page: neighbours share its page.
const STRIDE: u64 = PAGE / THREADS;
const TIME: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(120);

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

fn mirror(device_pages: u64) -> Mirror {
    let memory = HostBuf::anonymous((device_pages * PAGE) as usize).expect("memory");
    Mirror::new(LEN, DevicePages::new(Umem::host(&memory))).expect("userfaultfd")
}

/// One thread: it writes and reads its own words, by the CPU and by the device, and moves pages
/// about like all other threads.
fn play(mirror: &Mirror, number: u64, stop: &AtomicBool) -> u64 {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ (number + 1) << 40);
    let mut known = [0_u64; PAGES as usize];
    let mut steps = 0;
    while !stop.load(Ordering::Relaxed) {
        steps += 1;
        let page = rng.below(PAGES);
        let (at, start) = (page * PAGE + number * STRIDE, page * PAGE);
        let many = (rng.below(PAGES - page) + 1) * PAGE;
        let (mut word, value) = ([0; 8], steps << 8 | number);
        match rng.below(10) {
            0 => drop(mirror.migrate_to_device(start, many).expect("in range")),
            1 => mirror.migrate_to_system(start, many).expect("in range"),
            2 => drop(mirror.exclusive(start, many).expect("in range")),
            3 => mirror.track_writes(start, many).expect("in range"),
            4 => drop(mirror.take_written(start, many).expect("in range")),
            5 | 6 => {
                mirror.umem().write(at, &value.to_ne_bytes()).expect("mapped");
                known[page as usize] = value;
            }
            7 => {
                mirror.write(at, &value.to_ne_bytes()).expect("mapped");
                known[page as usize] = value;
            }
            8 => {
                mirror.umem().read(at, &mut word).expect("mapped");
                assert_eq!(u64::from_ne_bytes(word), known[page as usize], "page {page}, CPU");
            }
            _ => {
                mirror.read(at, &mut word).expect("mapped");
                assert_eq!(u64::from_ne_bytes(word), known[page as usize], "page {page}, device");
            }
        }
    }
    for (page, known) in known.into_iter().enumerate() {
        let mut word = [0; 8];
        mirror.umem().read(page as u64 * PAGE + number * STRIDE, &mut word).expect("mapped");
        assert_eq!(u64::from_ne_bytes(word), known, "page {page} at the end");
    }
    steps
}

fn run(device_pages: u64, forks: bool) {
    let (mirror, stop) = (mirror(device_pages), AtomicBool::new(false));
    let steps = thread::scope(|scope| {
        let players: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn({
                    let (m, s) = (&mirror, &stop);
                    move || play(m, number, s)
                })
            })
            .collect();
        let began = Instant::now();
        // A slow machine needs longer until enough has happened.
        let is_over = || began.elapsed() > if enough(&mirror) { TIME } else { PATIENCE };
        while !is_over() && !players.iter().any(|player| player.is_finished()) {
            thread::sleep(Duration::from_millis(10));
            if forks {
                fork();
            }
        }
        stop.store(true, Ordering::Relaxed);
        players.into_iter().map(|player| player.join().expect("it saw what it wrote")).sum::<u64>()
    });
    assert!(steps > 0 && enough(&mirror), "{steps} steps: {:?}", mirror.stats());
}

fn enough(mirror: &Mirror) -> bool {
    let stats = mirror.stats();
    stats.faulted_back > 10 && stats.exclusive_ended > 10
}

fn fork() {
    // SAFETY: the child calls nothing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    // SAFETY: the child of above, whose status does not matter.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

#[test]
fn every_thread_sees_what_it_wrote_wherever_the_page_was() {
    run(PAGES, false);
}

#[test]
fn every_thread_sees_what_it_wrote_though_the_device_is_full() {
    run(3, false);
}

#[test]
fn every_thread_sees_what_it_wrote_though_the_process_forks() {
    run(PAGES, true);
}
