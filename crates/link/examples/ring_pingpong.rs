//! Half round trip of 8-byte records between two processes that both poll, compared with the
//! machine's minimum: two processes that poll one cache line each.
//!
//! `cargo run --release -p peerdma-link --example ring_pingpong`
//!
//! Prints medians over batches; the three methods take turns, so that noise affects all alike.

use std::error::Error;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

use link::registry::{Claim, Event, NicIdentity};
use link::shm::{DEFAULT_CAPACITY, Inbound, Outbound};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const ROLE: &str = "RING_PINGPONG_NIC";
const ROUNDS: usize = 3000;
const BATCH: u64 = 100;
/// A word in the page next to the ring, after the guard slot.
const WORD: usize = 64;
const WAYS: [&str; 3] = ["bare, two cache lines", "ring", "ring, and a look at the doorbell"];

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(nic) = std::env::var(ROLE) {
        return answer(&nic);
    }
    let nic = format!("pingpong-{}", std::process::id());
    let mut claim = Claim::new(&nic, identity())?;
    let mut child = Command::new(std::env::current_exe()?).env(ROLE, &nic).spawn()?;
    // Not earlier: the child would inherit it.
    pin(0)?;
    let (mut outbound, mut inbound) = meet(&mut claim, 1)?;
    let mut nanoseconds = WAYS.map(|_| Vec::with_capacity(ROUNDS));
    let mut count = 0;
    for _ in 0..ROUNDS {
        for (way, results) in nanoseconds.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..BATCH {
                count += 1;
                send(way, &mut outbound, count);
                receive(way, &mut inbound, count);
            }
            results.push(start.elapsed().as_secs_f64() * 1e9 / BATCH as f64 / 2.0);
        }
    }
    child.wait()?;
    println!("half round trip of 8 bytes, {ROUNDS} batches of {BATCH}:");
    let mut bare = None;
    for (way, results) in WAYS.iter().zip(&mut nanoseconds) {
        results.sort_by(f64::total_cmp);
        let (median, low) = (results[ROUNDS / 2], results[ROUNDS / 10]);
        let ratio = median / *bare.get_or_insert(median);
        println!("  {way:34} median {median:6.1} ns, 10 % below {low:6.1} ns, ratio {ratio:.2}");
    }
    Ok(())
}

fn answer(nic: &str) -> Result<(), Box<dyn Error>> {
    pin(1)?;
    let mut claim = Claim::new(nic, identity())?;
    let (mut outbound, mut inbound) = meet(&mut claim, 0)?;
    let mut count = 0;
    for _ in 0..ROUNDS {
        for way in 0..WAYS.len() {
            for _ in 0..BATCH {
                count += 1;
                receive(way, &mut inbound, count);
                send(way, &mut outbound, count);
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn send(way: usize, outbound: &mut Outbound, count: u64) {
    if way == 0 {
        outbound.scratch().store_u64(WORD, count, Ordering::Release).expect("a word of it");
        return;
    }
    outbound
        .push(8, |record| record.store_u64(0, count, Ordering::Relaxed))
        .expect("one record in flight fits");
    if way == 2 {
        outbound.ring_doorbell_if_sleeping();
    }
}

#[inline(always)]
fn receive(way: usize, inbound: &mut Inbound, count: u64) {
    loop {
        let got = if way == 0 {
            inbound.scratch().load_u64(WORD, Ordering::Acquire).ok()
        } else {
            let word = inbound.pop(|record| record.load_u64(0, Ordering::Relaxed));
            word.expect("an honest peer").map(|word| word.expect("eight bytes"))
        };
        if got == Some(count) {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Connects to `vf`, and waits until it has connected to us.
fn meet(claim: &mut Claim, vf: u16) -> Result<(Outbound, Box<Inbound>), Box<dyn Error>> {
    let mut outbound = None;
    let mut inbound = None;
    loop {
        if outbound.is_none() {
            outbound = claim.connect(vf, DEFAULT_CAPACITY).ok();
        }
        for event in claim.poll_events() {
            match event {
                Event::NewInbound(new) => inbound = Some(new),
                other => return Err(format!("{other:?}").into()),
            }
        }
        if let (Some(out), true) = (&mut outbound, inbound.is_some())
            && matches!(out.poll(), link::shm::OutboundState::Up(_))
        {
            break;
        }
        std::thread::yield_now();
    }
    outbound.zip(inbound).ok_or_else(|| "not connected".into())
}

fn identity() -> NicIdentity {
    NicIdentity { guid: 1, ifindex: 1, settings: 0 }
}

/// Binds this process to the `nth` CPU it may use.
fn pin(nth: usize) -> rustix::io::Result<()> {
    let all = sched_getaffinity(None)?;
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(cpus[nth % cpus.len()]);
    sched_setaffinity(None, &one)
}
