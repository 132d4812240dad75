//! Two processes at random on one small GPU: both evict each other's buffers all the time, and
//! every byte stays right.
//!
//! `PEERDMA_STRESS_SEED` and `PEERDMA_STRESS_STEPS` change the run; the seed is printed.

mod common;

use std::process::{Child, Command, Stdio};

use common::{MB, config, pattern};
use gpu::{Bo, Domain, Gpu, GpuConfig, Place, Preset};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The other process. Killed when dropped.
struct Other(Child);

impl Other {
    fn start(gpu: &str, seed: u64, steps: u64) -> Self {
        let child = Command::new(std::env::current_exe().expect("ourselves"))
            .args(["both_evict_each_other_and_no_byte_is_lost", "--exact", "--nocapture"])
            .env("PEERDMA_TEST_GPU", gpu)
            .env("PEERDMA_STRESS_SEED", seed.to_string())
            .env("PEERDMA_STRESS_STEPS", steps.to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Random steps; every buffer is compared whenever it is touched.
fn play(gpu: &Gpu, mut state: u64, steps: u64) {
    let mut next = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % below
    };
    let mut bos: Vec<(Bo, u64)> = vec![];
    for step in 0..steps {
        let pick = next(bos.len().max(1) as u64) as usize;
        match next(10) {
            0..3 if bos.len() < 12 => {
                let pages = next(64) + 1;
                let place = if next(8) == 0 { Place::ONLY_VRAM } else { Place::VRAM };
                match gpu.alloc(pages * 4096, place) {
                    Ok(bo) => {
                        bo.write(0, &pattern(step, 4096)).expect("alive");
                        bos.push((bo, step));
                    }
                    Err(refusal) => {
                        assert_eq!(refusal.kind, dmabuf::ExporterErrorKind::NoMemory, "{refusal}");
                    }
                }
            }
            3 if !bos.is_empty() => drop(bos.swap_remove(pick)),
            4 if !bos.is_empty() => {
                // Back into VRAM, where other buffers are in the way.
                let _ = gpu.move_to(&bos[pick].0, Domain::Vram);
            }
            5 if !bos.is_empty() => {
                bos[pick].0.write(0, &pattern(step, 4096)).expect("alive");
                bos[pick].1 = step;
            }
            _ => {
                let Some((bo, seed)) = bos.get(pick) else { continue };
                let mut seen = vec![0; 4096];
                bo.read(0, &mut seen).expect("alive");
                assert!(seen == pattern(*seed, 4096), "{bo:?} at step {step}");
            }
        }
    }
}

#[test]
fn both_evict_each_other_and_no_byte_is_lost() {
    let steps = number("PEERDMA_STRESS_STEPS", 3000);
    if let Ok(name) = std::env::var("PEERDMA_TEST_GPU") {
        let gpu = open(name);
        let (seed, parent) =
            (number("PEERDMA_STRESS_SEED", 1) ^ 0xffff, rustix::process::getppid());
        // A killed test must leave no running child.
        let rounds = (0..steps / 300).take_while(|_| rustix::process::getppid() == parent);
        for round in rounds {
            play(&gpu, seed.wrapping_add(round << 32), 300);
        }
        assert!(gpu.stats().evictions_by_others > 0, "{:?}", gpu.stats());
        return;
    }
    let seed = number("PEERDMA_STRESS_SEED", 1);
    println!("PEERDMA_STRESS_SEED={seed} PEERDMA_STRESS_STEPS={steps}");
    let name = format!("two-{}", std::process::id());
    let gpu = open(name.clone());
    let mut other = Other::start(&name, seed, steps);
    let mut round = 0;
    let ended = loop {
        if let Some(ended) = other.0.try_wait().expect("our child") {
            break ended;
        }
        round += 1;
        play(&gpu, seed.wrapping_add(round), 300);
    };
    assert!(ended.success(), "the other: {ended}");
    gpu.wait_idle();
    println!("{:?}", gpu.stats());
    assert!(gpu.stats().evictions_for_others > 0);
    assert_eq!((gpu.used(Domain::Vram), gpu.used(Domain::Gtt)), (0, 0), "all pages are back");
}

#[test]
fn a_process_may_be_killed_at_any_moment() {
    let seed = number("PEERDMA_STRESS_SEED", 1);
    let name = format!("killed-{}", std::process::id());
    let gpu = open(name.clone());
    for round in 0..number("PEERDMA_STRESS_KILLS", 8) {
        let mut other = Other::start(&name, seed, 100_000_000);
        let before = gpu.stats().evictions_for_others;
        let mut rounds = 0;
        // Until it is in the middle of its work.
        while gpu.stats().evictions_for_others < before + 5 + round {
            rounds += 1;
            play(&gpu, seed.wrapping_add(round << 32 | rounds), 50);
            assert_eq!(other.0.try_wait().expect("our child"), None, "it plays on");
        }
        drop(other);
        play(&gpu, seed.wrapping_add(round), 300);
    }
    // A process that joins looks for what dead processes have left.
    let newcomer = open(name);
    gpu.wait_idle();
    let used = (newcomer.used(Domain::Vram), newcomer.used(Domain::Gtt));
    assert_eq!(used, (0, 0), "nothing is lost");
}

fn open(name: String) -> Gpu {
    let config = GpuConfig { name, shared: true, vram: MB, gtt: 16 * MB, ..config(Preset::Amdgpu) };
    Gpu::open(&config).expect("a GPU")
}
