//! Does the same to memory of the kernel's `test_hmm` and to memory of this crate, and compares
//! the answers.
//!
//! ```text
//!   dmirror SEED STEPS
//! ```
//!
//! It needs the module `test_hmm` (`/dev/hmm_dmirror0`). What the CPU and the device do is random:
//! they read and write, pages migrate there and back, are taken for exclusive use, find no memory
//! in the device, are dropped and unmapped. After each step the bytes, what is refused, and where
//! each page is must be the same on both sides.
#![allow(unsafe_code, reason = "memory by address, and ioctls")]

mod kernel;
mod memory;
mod ours;

use std::collections::BTreeMap;
use std::process::ExitCode;

use hmm::PAGE;

use kernel::Kernel;
use memory::Memory;
use ours::Ours;

/// Pages of the range.
const PAGES: u64 = 12;

/// Where a page is, as far as both sides can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It has no bytes but zeros.
    Zeros,
    Process,
    Device,
    Exclusive,
    Unmapped,
}

/// A refusal, in the words of the side.
type Answer<T = ()> = Result<T, String>;

/// A device that shares memory of this process. Ranges are a first page and a number of pages.
trait Mirrored {
    fn memory(&self) -> &Memory;
    fn read(&self, first: u64, count: u64) -> Answer<Vec<u8>>;
    fn write(&self, first: u64, bytes: &[u8]) -> Answer;
    fn to_device(&self, first: u64, count: u64) -> Answer;
    fn to_system(&self, first: u64, count: u64) -> Answer;
    fn exclusive(&self, first: u64, count: u64) -> Answer;
    fn is_exclusive(&self, page: u64) -> Answer<bool>;
    /// The next pages that are to go to the device find no memory there, or do again.
    fn fail_allocations(&self, fail: bool) -> Answer;
    fn seen(&self, page: u64) -> Answer<Seen>;
    /// What was unmapped or dropped a moment ago is known now.
    fn settle(&self, first: u64, count: u64, seen: Seen) -> Answer;
}

fn main() -> ExitCode {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let [seed, steps] = args[..] else {
        println!("dmirror SEED STEPS");
        return ExitCode::FAILURE;
    };
    match run(seed, steps) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What both sides should have.
struct Model {
    random: Random,
    bytes: Vec<u8>,
    is_written: Vec<bool>,
    is_mapped: Vec<bool>,
    counts: BTreeMap<&'static str, u64>,
    log: Vec<String>,
}

fn run(seed: u64, steps: u64) -> Answer<String> {
    let mut random = Random(seed);
    let mut counts = BTreeMap::new();
    let mut done = 0;
    while done < steps {
        // Each round on new memory, as what is unmapped does not come back.
        let (kernel, ours) = (Kernel::new(PAGES)?, Ours::new(PAGES)?);
        let mut model = Model {
            random,
            bytes: vec![0; (PAGES * PAGE) as usize],
            is_written: vec![false; PAGES as usize],
            is_mapped: vec![true; PAGES as usize],
            counts,
            log: Vec::new(),
        };
        for _ in 0..steps.min(120) {
            model.step(&kernel, &ours).map_err(|error| {
                let log = model.log.join("\n  ");
                format!("{error}\nafter\n  {log}")
            })?;
            done += 1;
        }
        (random, counts) = (model.random, model.counts);
    }
    let counts: Vec<_> = counts.iter().map(|(what, count)| format!("{what}={count}")).collect();
    Ok(format!("seed {seed}: steps={done} {}", counts.join(" ")))
}

impl Model {
    fn step(&mut self, kernel: &Kernel, ours: &Ours) -> Answer {
        let first = self.random.below(PAGES);
        let count = 1 + self.random.below(PAGES - first);
        let pages = first..first + count;
        let sides: [&dyn Mirrored; 2] = [kernel, ours];
        let is_mapped = pages.clone().all(|page| self.is_mapped[page as usize]);
        let what = match self.random.below(22) {
            0..=2 => "cpu_read",
            3..=5 => "cpu_write",
            6 | 7 => "read",
            8 | 9 => "write",
            10..=12 => "to_device",
            13 => "to_system",
            14..=16 => "exclusive",
            17 => "no_memory",
            18 => "dropped",
            19 | 20 => "write_there",
            _ if self.random.below(8) == 0 => "unmapped",
            _ => "to_device",
        };
        self.log.push(format!("{what} {first} +{count}"));
        let value = self.random.below(256) as u8;
        let filled: Vec<u8> =
            (0..count * PAGE).map(|at| (at / 7) as u8 ^ (at / PAGE) as u8 ^ value).collect();
        let range = (first * PAGE) as usize..((first + count) * PAGE) as usize;
        match what {
            "cpu_read" | "cpu_write" if !is_mapped => return Ok(()),
            "cpu_read" => {
                for side in sides {
                    self.compare(&side.memory().read(first, count), range.clone())?;
                }
            }
            "cpu_write" => {
                sides.iter().for_each(|side| side.memory().write(first, &filled));
                self.wrote(range, &filled);
            }
            "read" => {
                for page in pages.clone() {
                    if kernel.may_fault(page)? {
                        return Ok(());
                    }
                }
                let [theirs, ours] = sides.map(|side| side.read(first, count));
                self.same(what, &theirs, &ours)?;
                for bytes in [theirs, ours].into_iter().flatten() {
                    self.compare(&bytes, range.clone())?;
                }
            }
            "write" => {
                for page in pages.clone() {
                    if kernel.may_fault(page)? {
                        return Ok(());
                    }
                }
                // The kernel's writes all or, to where nothing is mapped, some.
                if !is_mapped {
                    return Ok(());
                }
                let [theirs, ours] = sides.map(|side| side.write(first, &filled));
                self.same(what, &theirs, &ours)?;
                self.wrote(range, &filled);
            }
            // A page that the CPU could write when it went to the device, which writes it there.
            "write_there" if !self.is_mapped[first as usize] => return Ok(()),
            "write_there" => {
                let (range, bytes) =
                    (range.start..range.start + PAGE as usize, &filled[..PAGE as usize]);
                for side in sides {
                    side.memory().write(first, &[value ^ 0xff; PAGE as usize]);
                    side.to_device(first, 1)?;
                    if side.seen(first)? != Seen::Device {
                        return Err(format!("page {first} did not go"));
                    }
                    side.write(first, bytes)?;
                    if side.read(first, 1)? != bytes {
                        return Err(format!("page {first} reads differently in the device"));
                    }
                }
                self.wrote(range, bytes);
            }
            "to_device" => {
                let [theirs, ours] = sides.map(|side| side.to_device(first, count));
                self.same(what, &theirs, &ours)?;
            }
            "to_system" => {
                let [theirs, ours] = sides.map(|side| side.to_system(first, count));
                self.same(what, &theirs, &ours)?;
            }
            "exclusive" => {
                let [theirs, ours] = sides.map(|side| side.exclusive(first, count));
                self.same(what, &theirs, &ours)?;
                if theirs.is_ok() {
                    for side in sides {
                        self.compare(&side.read(first, count)?, range.clone())?;
                    }
                }
            }
            "no_memory" => {
                for side in sides {
                    side.fail_allocations(true)?;
                    // One page: the kernel's flag is for one allocation.
                    let _ = side.to_device(first, 1);
                    side.fail_allocations(false)?;
                }
            }
            "dropped" | "unmapped" => {
                if !is_mapped {
                    return Ok(());
                }
                for side in sides {
                    if what == "dropped" {
                        side.memory().drop_pages(first, count);
                        side.settle(first, count, Seen::Zeros)?;
                    } else {
                        side.memory().unmap(first, count);
                        side.settle(first, count, Seen::Unmapped)?;
                    }
                }
                self.bytes[range].fill(0);
                for page in pages {
                    self.is_written[page as usize] = false;
                    self.is_mapped[page as usize] &= what == "dropped";
                }
            }
            _ => unreachable!("each has its arm"),
        }
        *self.counts.entry(what).or_default() += 1;
        self.places(kernel, ours)
    }

    /// Where each page is.
    fn places(&mut self, kernel: &Kernel, ours: &Ours) -> Answer {
        for page in 0..PAGES {
            let plain = |seen| match seen {
                // Zeros that somebody has looked at may or may not have a page.
                Seen::Process if !self.is_written[page as usize] => Seen::Zeros,
                seen => seen,
            };
            let (theirs, ours) = (plain(kernel.seen(page)?), plain(ours.seen(page)?));
            if theirs != ours {
                return Err(format!("page {page}: the kernel's is {theirs:?}, ours {ours:?}"));
            }
            let name = match theirs {
                Seen::Zeros => "seen_zeros",
                Seen::Process => "seen_process",
                Seen::Device => "seen_device",
                Seen::Exclusive => "seen_exclusive",
                Seen::Unmapped => "seen_unmapped",
            };
            *self.counts.entry(name).or_default() += 1;
        }
        Ok(())
    }

    fn same<T>(&mut self, what: &'static str, theirs: &Answer<T>, ours: &Answer<T>) -> Answer {
        let said = |answer: &Answer<T>| match answer {
            Ok(_) => "does it".to_owned(),
            Err(why) => format!("refuses ({why})"),
        };
        if theirs.is_ok() != ours.is_ok() {
            return Err(format!("{what}: the kernel's {}, ours {}", said(theirs), said(ours)));
        }
        if theirs.is_err() {
            *self.counts.entry("refused").or_default() += 1;
        }
        Ok(())
    }

    fn compare(&self, bytes: &[u8], range: std::ops::Range<usize>) -> Answer {
        let at = self.bytes[range.clone()].iter().zip(bytes).position(|(want, is)| want != is);
        match at {
            None => Ok(()),
            Some(at) => Err(format!("byte {:#x} is wrong", range.start + at)),
        }
    }

    fn wrote(&mut self, range: std::ops::Range<usize>, bytes: &[u8]) {
        for page in range.start as u64 / PAGE..range.end as u64 / PAGE {
            self.is_written[page as usize] = true;
        }
        self.bytes[range].copy_from_slice(bytes);
    }
}

/// Numbers that depend on the seed alone (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}
