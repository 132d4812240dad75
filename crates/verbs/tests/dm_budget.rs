//! All processes of a user share one device memory: memory of one process is not available to
//! another until the first frees it or dies.
//!
//! The processes are this program again, with the NIC's name in their environment.

#[path = "common/actor.rs"]
mod actor;

use std::time::{Duration, Instant};

use verbs::soft::{self, NicConfig};
use verbs::{Context, Dm, Kind};

use actor::Actor;

const NIC: &str = "PEERDMA_TEST_DM_NIC";
const MAX: u64 = 256 << 10;
/// Far longer than the kernel takes to end a process.
const PATIENCE: Duration = Duration::from_secs(30);

fn start(nic: &str) -> Actor {
    Actor::start("the_code_of_a_child_process", [(NIC, nic)])
}

fn open(nic: &str) -> Context {
    let config = NicConfig { name: nic.to_owned(), max_dm_size: MAX, ..NicConfig::default() };
    soft::device(config).unwrap().open().unwrap()
}

#[test]
fn the_code_of_a_child_process() {
    let Ok(nic) = std::env::var(NIC) else { return };
    let context = open(&nic);
    let mut blocks: Vec<Dm> = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let said = match line.split_once(' ') {
            Some(("alloc", bytes)) => match context.alloc_dm(bytes.parse().unwrap()) {
                Ok(block) => {
                    blocks.push(block);
                    "ok".to_owned()
                }
                Err(refusal) => format!("{:?}", refusal.kind()),
            },
            _ => {
                blocks.clear();
                "ok".to_owned()
            }
        };
        println!("said: {said}");
    }
}

fn nic(test: &str) -> String {
    format!("dmb{}-{test}", std::process::id())
}

#[test]
fn memory_of_another_process_is_unavailable_until_it_frees_it_or_dies() {
    let nic = nic("shared");
    let context = open(&nic);
    let mut other = start(&nic);
    assert_eq!(other.ask(&format!("alloc {}", MAX / 2)), "ok");
    let half = context.alloc_dm(MAX / 2).unwrap();
    let refusal = context.alloc_dm(64).unwrap_err();
    assert_eq!(refusal.kind(), Kind::NoMemory);
    assert!(refusal.what().contains("others of this user have 131072"), "{refusal}");
    assert_eq!(other.ask("alloc 64"), "NoMemory");
    // Freed here, it can be allocated there.
    drop(half);
    assert_eq!(other.ask(&format!("alloc {}", MAX / 2)), "ok");
    assert_eq!(context.alloc_dm(64).unwrap_err().kind(), Kind::NoMemory);
    assert_eq!(other.ask("free"), "ok");
    let all = context.alloc_dm(MAX).unwrap();
    drop(all);
    // A size beyond the total is a different error.
    assert_eq!(context.alloc_dm(MAX + 1).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(other.ask(&format!("alloc {MAX}")), "ok");
    other.kill();
    let start = Instant::now();
    while let Err(refusal) = context.alloc_dm(MAX) {
        assert!(start.elapsed() < PATIENCE, "{refusal}");
        std::thread::yield_now();
    }
}

#[test]
fn processes_that_allocate_together_never_get_more_than_there_is() {
    let nic = nic("together");
    let mut actors: Vec<_> = (0..8).map(|_| start(&nic)).collect();
    // All are running before the first one asks.
    actors.iter_mut().for_each(|actor| assert_eq!(actor.ask("free"), "ok"));
    let quarter = format!("alloc {}", MAX / 4);
    for round in 0..20 {
        actors.iter_mut().for_each(|actor| actor.tell(&quarter));
        let got = actors.iter_mut().map(Actor::hear).filter(|said| said == "ok").count();
        assert!(got <= 4, "round {round}: {got} quarters of one whole");
        // One after the other, they get the rest and no more.
        let late = actors.iter_mut().map(|a| a.ask(&quarter)).filter(|said| said == "ok").count();
        assert_eq!(got + late, 4, "round {round}");
        actors.iter_mut().for_each(|actor| assert_eq!(actor.ask("free"), "ok"));
    }
}
