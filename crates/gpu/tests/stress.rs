//! Random use of one GPU by several threads, with an oracle: bytes are right, nothing leaks,
//! nothing hangs.
//!
//! Each thread draws its steps from its own seed, so a thread's steps are the same in each run; how
//! threads interleave is not. `PEERDMA_STRESS_SEED` and `PEERDMA_STRESS_STEPS` change the run; the
//! seed is printed.

mod common;

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{CLASSES, MB, Miss, Mr, Nic, Refused, config, machine, pattern};
use dmabuf::ExporterErrorKind;
use gpu::{Bo, Domain, Gpu, GpuConfig, Place, Preset};
use pci::PciTree;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A buffer, its expected contents, and its importer.
struct Item {
    bo: Bo,
    model: Vec<u8>,
    mrs: Vec<Mr>,
}

struct Worker<'a> {
    gpu: &'a Gpu,
    tree: &'a PciTree,
    rng: Rng,
    items: Vec<Item>,
    /// Resets that happened, and resets that this thread knows of.
    resets: &'a AtomicUsize,
    known: usize,
}

impl Worker<'_> {
    fn step(&mut self) {
        self.know_resets();
        let kind = self.rng.below(100);
        match kind {
            0..15 => self.alloc(),
            15..22 => {
                if let Some(n) = self.pick() {
                    drop(self.items.swap_remove(n));
                }
            }
            22..35 => self.register(),
            35..40 => {
                if let Some(n) = self.pick() {
                    self.items[n].mrs.pop();
                }
            }
            40..60 => self.write(),
            60..85 => self.verify(),
            85..98 => self.relocate(),
            _ => drop(self.gpu.evict_all()),
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let count = self.items.len() as u64;
        (count > 0).then(|| self.rng.below(count) as usize)
    }

    fn alloc(&mut self) {
        if self.items.len() >= 8 {
            return;
        }
        let size = (self.rng.below(60) + 1) * 4096;
        let place = [Place::VRAM, Place::VISIBLE_VRAM, Place::ONLY_VRAM, Place::GTT];
        let place = place[self.rng.below(4) as usize];
        match self.gpu.alloc(size, place) {
            Ok(bo) => {
                self.items.push(Item { bo, model: vec![0; size as usize], mrs: vec![] });
            }
            Err(refusal) => assert!(is_pressure(refusal.kind), "{refusal}"),
        }
    }

    fn register(&mut self) {
        let Some(n) = self.pick() else { return };
        let class = CLASSES[self.rng.below(4) as usize];
        let nic = match self.rng.below(4) {
            0 => Nic::on_no_bus(class),
            _ => Nic::new(class, self.tree),
        };
        let buf = self.items[n].bo.export().expect("alive");
        match Mr::register(&nic, &buf) {
            Ok(mr) if self.items[n].mrs.len() < 3 => self.items[n].mrs.push(mr),
            Ok(_) => {}
            Err(refused) => assert!(is_permitted(refused), "{refused:?}"),
        }
    }

    fn write(&mut self) {
        let Some(n) = self.pick() else { return };
        let (offset, len) = self.range(n);
        let data = pattern(self.rng.next(), len);
        let item = &mut self.items[n];
        let by_device = self.rng.below(3) > 0 && !item.mrs.is_empty();
        let done = if by_device {
            let mr = &item.mrs[self.rng.below(item.mrs.len() as u64) as usize];
            access(mr, || mr.write(offset as u64, &data))
        } else {
            item.bo.write(offset as u64, &data).expect("alive");
            true
        };
        if done {
            item.model[offset..offset + len].copy_from_slice(&data);
        }
    }

    fn verify(&mut self) {
        let Some(n) = self.pick() else { return };
        let (offset, len) = self.range(n);
        let item = &self.items[n];
        let mut seen = vec![0xa5; len];
        let by_device = self.rng.below(3) > 0 && !item.mrs.is_empty();
        let done = if by_device {
            let mr = &item.mrs[self.rng.below(item.mrs.len() as u64) as usize];
            access(mr, || mr.read(offset as u64, &mut seen))
        } else {
            item.bo.read(offset as u64, &mut seen).expect("alive");
            true
        };
        if done && seen != item.model[offset..offset + len] {
            let wrong = seen.iter().zip(&item.model[offset..]).position(|(a, b)| a != b);
            panic!("{:?} at {offset}+{wrong:?}, by device: {by_device}", item.bo);
        }
    }

    fn relocate(&mut self) {
        let Some(n) = self.pick() else { return };
        let bo = &self.items[n].bo;
        let result = match self.rng.below(3) {
            0 => self.gpu.evict(bo),
            1 => self.gpu.move_to(bo, Domain::Vram),
            _ => self.gpu.move_to(bo, Domain::Gtt),
        };
        if let Err(refusal) = result {
            let kind = refusal.kind;
            let fine = matches!(kind, ExporterErrorKind::Busy | ExporterErrorKind::Invalid);
            assert!(fine || is_pressure(kind), "{refusal}");
        }
    }

    fn range(&mut self, n: usize) -> (usize, usize) {
        let size = self.items[n].model.len() as u64;
        let offset = self.rng.below(size);
        let len = self.rng.below((size - offset).min(20_000)) + 1;
        (offset as usize, len as usize)
    }

    /// The contents of VRAM at a reset are zero now; which buffers were there cannot be known here.
    fn know_resets(&mut self) {
        let resets = self.resets.load(Ordering::SeqCst);
        if resets == self.known {
            return;
        }
        self.known = resets;
        for item in &mut self.items {
            let mut seen = vec![0; item.model.len()];
            item.bo.read(0, &mut seen).expect("alive");
            assert!(seen == item.model || seen.iter().all(|byte| *byte == 0), "{:?}", item.bo);
            item.model = seen;
        }
    }
}

/// An access as a device with page faults does it: maps again when that turns out to be necessary.
/// `false`: not possible now.
fn access(mr: &Mr, mut once: impl FnMut() -> Result<(), Miss>) -> bool {
    loop {
        match once() {
            Ok(()) => return true,
            Err(Miss::Fault { at }) => panic!("an honest device never faults: {at:#x}"),
            Err(Miss::Stale) => mr.unmap(),
            Err(Miss::NotMapped) => {}
        }
        match mr.map() {
            Ok(()) => {}
            Err(refused) if is_permitted(refused) => return false,
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

fn is_pressure(kind: ExporterErrorKind) -> bool {
    matches!(kind, ExporterErrorKind::NoMemory | ExporterErrorKind::Again)
}

fn is_permitted(refused: Refused) -> bool {
    use ExporterErrorKind::{Busy, Invalid, NotSupported};
    match refused {
        Refused::Revoked => true,
        Refused::Attach(kind) => matches!(kind, NotSupported),
        Refused::Pin(kind) => is_pressure(kind) || matches!(kind, Invalid | Busy),
        Refused::Map(kind) => is_pressure(kind) || matches!(kind, Invalid | Busy),
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

#[test]
fn random_use_from_several_threads() {
    let seed = number("PEERDMA_STRESS_SEED", 1);
    let steps = number("PEERDMA_STRESS_STEPS", 3000);
    println!("PEERDMA_STRESS_SEED={seed} PEERDMA_STRESS_STEPS={steps}");
    let tree = machine(true);
    // What a process opens for its first export stays open.
    let first = Gpu::open_in(&config(Preset::Xe), tree.clone()).expect("a GPU");
    drop(first.alloc(1, Place::VRAM).expect("room").export().expect("exported"));
    drop(first);
    let before = open_fds();
    for preset in [Preset::Xe, Preset::Amdgpu] {
        let small =
            GpuConfig { vram: 2 * MB, bar: Some(MB), max_pinned: Some(MB), ..config(preset) };
        let gpu = Gpu::open_in(&small, tree.clone()).expect("a GPU");
        let (resets, gate) = (AtomicUsize::new(0), RwLock::new(()));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (gpu, tree, resets, gate) = (&gpu, &*tree, &resets, &gate);
                scope.spawn(move || {
                    let rng = Rng(seed.wrapping_mul(1000) + thread);
                    let mut worker = Worker { gpu, tree, rng, items: vec![], resets, known: 0 };
                    for step in 0..steps {
                        if thread == 0 && step % 700 == 699 {
                            let _alone = gate.write().expect("no panic");
                            gpu.reset();
                            resets.fetch_add(1, Ordering::SeqCst);
                            continue;
                        }
                        let _with_others = gate.read().expect("no panic");
                        worker.step();
                    }
                });
            }
        });
        gpu.wait_idle();
        let stats = gpu.stats();
        println!("{preset:?}: {stats:?}");
        assert!(stats.moves > 100 && stats.evictions > 10 && stats.faults > 10);
        assert_eq!(stats.stale_accesses, 0);
        assert_eq!((gpu.used(Domain::Vram), gpu.used(Domain::Gtt)), (0, 0), "all pages are back");
    }
    assert_eq!(open_fds(), before, "all files are closed");
}
