//! What a guarded copy costs compared with `memcpy`: medians over many rounds, on warm buffers. The
//! candidates take turns within each round, so that a busy machine slows all of them.
//!
//! ```sh
//! cargo run --release -p peerdma-umem --example copy_speed
//! ```

#![allow(unsafe_code, reason = "measures raw copies")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use umem::guard::{self, Mode};
use umem::{HostBuf, Umem};

/// Each round lasts about this long, so that reading the clock costs nothing.
const ROUND: Duration = Duration::from_micros(200);
const ROUNDS: usize = 201;

fn main() {
    println!(
        "{:>9}  {:>12} {:>12} {:>7}   {:>12}",
        "bytes", "memcpy", "guarded", "ratio", "system call"
    );
    for len in [1, 8, 13, 16, 32, 64, 256, 1024, 2048, 4096, 16384, 65536, 1 << 20, 8 << 20] {
        row(len);
    }
    println!("(ratio above 1: the guarded copy is faster)");
    let target = HostBuf::anonymous(4096).expect("a page exists");
    // SAFETY: the buffer outlives the handle and nothing else uses it.
    let target = unsafe { Umem::user(target.as_ptr().addr(), 8) };
    let add = || drop(black_box(target.fetch_add(0, 1)));
    let add = median((0..ROUNDS).map(|_| round(1000, add)).collect());
    println!("{:>9}  {:>12} {:>12}", "fetch_add", "", nanoseconds(add));
}

fn row(len: usize) {
    let source = HostBuf::anonymous(len + 64).expect("memory exists");
    source.fill(0, 7, len).expect("inside");
    let target = HostBuf::anonymous(len + 64).expect("memory exists");
    target.fill(0, 1, len).expect("inside");
    // SAFETY: the buffers outlive the handles and nothing else uses them.
    let from = unsafe { Umem::user(source.as_ptr().addr(), len as u64) };
    // SAFETY: as above.
    let to = unsafe { Umem::user(target.as_ptr().addr(), len as u64) };

    let copy = || Umem::copy(&to, 0, &from, 0, black_box(len) as u64).expect("mapped");
    let memcpy = || {
        // SAFETY: both buffers have at least `len` bytes, and they are different buffers.
        unsafe {
            libc::memcpy(
                black_box(target.as_ptr()).cast(),
                black_box(source.as_ptr()).cast(),
                black_box(len),
            )
        };
    };
    let (calls, slow_calls) = (calls_per_round(memcpy), (calls_per_round(memcpy) / 50).max(1));
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(round(calls, memcpy));
        guard::force(Some(Mode::Guarded));
        times[1].push(round(calls, copy));
        guard::force(Some(Mode::Kernel));
        times[2].push(round(slow_calls, copy));
    }
    guard::force(None);
    let [memcpy, guarded, kernel] = times.map(median);
    println!(
        "{len:>9}  {:>12} {:>12} {:>7.2}   {:>12}",
        nanoseconds(memcpy),
        nanoseconds(guarded),
        memcpy / guarded,
        nanoseconds(kernel),
    );
}

fn calls_per_round(call: impl Fn()) -> u32 {
    call();
    let start = Instant::now();
    call();
    let once = start.elapsed().max(Duration::from_nanos(4));
    (ROUND.as_nanos() / once.as_nanos()).clamp(1, 50_000) as u32
}

/// Nanoseconds per call.
fn round(calls: u32, call: impl Fn()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn nanoseconds(value: f64) -> String {
    if value < 1000.0 { format!("{value:.1} ns") } else { format!("{:.2} us", value / 1000.0) }
}
