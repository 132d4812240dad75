//! Acts on a GPU and its buffers from outside the program: by a fault plan, or by hand.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dmabuf::ResvGuard;

use crate::act::{Act, Came};
use crate::bo::BoInner;
use crate::device::Device;
use crate::error::{Result, busy, no_device};
use crate::place::Domain;
use crate::reset::Resetting;

/// How long an act waits for a buffer that the program is using.
const PATIENCE: Duration = Duration::from_secs(2);

impl Device {
    /// Performs an act on the GPU, or on its buffers with numbers in the range. `by` tells on whose
    /// behalf.
    pub(crate) fn act(
        self: &Arc<Self>,
        act: Act,
        buffers: Option<&RangeInclusive<u64>>,
        by: &str,
    ) -> Came {
        let mut came = Came::default();
        if let Err(refusal) = self.check_present() {
            came.refuse(refusal.what);
            return came;
        }
        match act {
            Act::Move(domain) => {
                let why = format!("moved by {by}");
                self.each(buffers, &mut came, |bo| bo.brought_to(domain, false, &why));
            }
            Act::Evict => {
                let why = format!("evicted by {by}");
                self.each(buffers, &mut came, |bo| bo.brought_to(Domain::Gtt, true, &why));
            }
            Act::Revoke => {
                let why = format!("revoked by {by}");
                self.each(buffers, &mut came, |bo| bo.revoked(&why));
            }
            Act::Fill(share, window) => {
                self.set_fill(share, window);
                came.done = 1;
            }
            Act::Throttle(rate, window) => {
                self.throttle.set(rate, window);
                came.done = 1;
            }
            Act::End(window) => {
                self.end_fill(window);
                self.throttle.end(window);
                came.done = 1;
            }
            Act::Reset => {
                let resetting = Resetting::begin(self, &format!("the GPU was reset by {by}"));
                came.done = 1;
                resetting.kept().iter().for_each(|bo| came.refuse(kept(bo)));
            }
            Act::Unplug => {
                let kept_by = Resetting::remove(self, &format!("the GPU was unplugged by {by}"));
                came.done = 1;
                kept_by.iter().for_each(|bo| came.refuse(kept(bo)));
            }
        }
        came
    }

    fn each(
        &self,
        numbers: Option<&RangeInclusive<u64>>,
        came: &mut Came,
        act: impl Fn(&Arc<BoInner>) -> Result<bool>,
    ) {
        let mut bos = self.all();
        bos.retain(|bo| numbers.is_none_or(|numbers| numbers.contains(&bo.id)));
        if let Some(numbers) = numbers
            && numbers.start() == numbers.end()
            && bos.is_empty()
        {
            let name = crate::names::bo(&self.config.name, *numbers.start());
            came.refuse(format!("there is no {name} in this process"));
        }
        bos.iter().for_each(|bo| came.note(act(bo)));
    }
}

impl BoInner {
    /// Moves it to a domain; false if it is there already.
    fn brought_to(&self, domain: Domain, is_eviction: bool, why: &str) -> Result<bool> {
        let resv = self.lock_in_time()?;
        if self.resource()?.domain == domain {
            return Ok(false);
        }
        let fence = match is_eviction {
            true => self.evict(&resv, false, why),
            false => self.put(&resv, domain, why),
        }?;
        drop(resv);
        self.device.engine.wait(&fence);
        Ok(true)
    }

    /// Takes it away from all importers that can lose it; false if it is gone already.
    fn revoked(self: &Arc<Self>, why: &str) -> Result<bool> {
        if self.resource().is_err() {
            return Ok(false);
        }
        match Resetting::take_away(self, why) {
            true => Err(busy(kept(&self.name()))),
            false => Ok(true),
        }
    }

    /// The reservation lock, if its holder releases it in time.
    fn lock_in_time(&self) -> Result<ResvGuard<'_>> {
        let start = Instant::now();
        loop {
            if let Some(resv) = self.resv.try_lock() {
                return Ok(resv);
            }
            if start.elapsed() > PATIENCE {
                return Err(busy(format!("{} is in use", self.name())));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Performs an act on this process's GPUs of that name, or on all of them.
pub(crate) fn act(
    gpu: Option<&str>,
    act: Act,
    buffers: Option<&RangeInclusive<u64>>,
    by: &str,
) -> Came {
    let mut came = Came::default();
    let devices = crate::here::open(gpu);
    if devices.is_empty() {
        let which = gpu.map_or_else(|| "no GPU".to_owned(), |name| format!("no GPU {name}"));
        came.refuse(no_device(format!("this process has {which} open")).what);
    }
    devices.iter().for_each(|device| came.add(device.act(act, buffers, by)));
    came
}

fn kept(bo: &str) -> String {
    format!("{bo}: an importer from which it cannot be taken away kept its access")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CopyMode, Gpu, GpuConfig, Place};

    const MB: u64 = 1 << 20;

    fn gpu(name: &str) -> (Gpu, Arc<Device>) {
        let config = GpuConfig {
            name: format!("act-{name}"),
            vram: 64 * MB,
            gtt: 64 * MB,
            shared: false,
            copy_engine: CopyMode::Sync,
            ..GpuConfig::default()
        };
        let gpu = Gpu::open(&config).expect("a GPU");
        let device = crate::here::open(Some(&config.name)).remove(0);
        (gpu, device)
    }

    #[test]
    fn a_range_of_buffers_is_acted_on_and_others_are_left() {
        let (gpu, device) = gpu("range");
        let bos: Vec<_> = (0..4).map(|_| gpu.alloc(MB, Place::VRAM).expect("room")).collect();
        let came = device.act(Act::Evict, Some(&(2..=3)), "the test");
        assert_eq!((came.done, came.refused), (2, 0));
        let in_gtt = |bo: &crate::Bo| bo.domain().expect("there") == Domain::Gtt;
        assert_eq!(bos.iter().map(in_gtt).collect::<Vec<_>>(), [false, true, true, false]);
        assert_eq!(device.act(Act::Evict, None, "the test").done, 2, "the others");
        assert_eq!(device.act(Act::Move(Domain::Vram), None, "the test").done, 4);
        assert_eq!(device.act(Act::Evict, Some(&(9..=9)), "the test").refused, 1);
    }

    #[test]
    fn a_revoked_buffer_tells_its_user_the_cause() {
        let (gpu, device) = gpu("revoke");
        let (one, two) = (gpu.alloc(MB, Place::VRAM), gpu.alloc(MB, Place::VRAM));
        let (one, two) = (one.expect("room"), two.expect("room"));
        let buf = one.export().expect("exported");
        assert_eq!(device.act(Act::Revoke, Some(&(1..=1)), "fault 7 (storm)").done, 1);
        let refusal = one.read(0, &mut [0; 4]).expect_err("taken away");
        assert!(refusal.what.contains("revoked by fault 7 (storm)"), "{refusal}");
        two.read(0, &mut [0; 4]).expect("the other one is there");
        assert_eq!(device.act(Act::Revoke, Some(&(1..=1)), "again").done, 0);
        drop(buf);
    }

    #[test]
    fn vram_is_filled_and_released_and_the_filling_is_never_evicted() {
        let (gpu, device) = gpu("fill");
        let first = gpu.alloc(16 * MB, Place::VRAM).expect("room");
        let hole = gpu.alloc(16 * MB, Place::VRAM).expect("room");
        let last = gpu.alloc(16 * MB, Place::ONLY_VRAM).expect("room");
        drop(hole);
        device.act(Act::Fill(1_000_000, None), None, "the test");
        assert_eq!(gpu.used(Domain::Vram), 64 * MB, "both holes are filled");
        let next = gpu.alloc(16 * MB, Place::VRAM).expect("somebody goes");
        assert_eq!((first.domain(), next.domain()), (Ok(Domain::Gtt), Ok(Domain::Vram)));
        let refusal = gpu.alloc(32 * MB, Place::ONLY_VRAM).expect_err("it is full");
        assert!(refusal.what.contains("VRAM"), "{refusal}");
        device.act(Act::Fill(500_000, None), None, "the test");
        assert_eq!(gpu.used(Domain::Vram), 32 * MB, "some of it is let go of");
        device.act(Act::Fill(0, None), None, "the test");
        assert_eq!(gpu.used(Domain::Vram), 16 * MB, "what the programs have");
        drop((first, next, last));
        assert_eq!(gpu.used(Domain::Vram), 0);
    }

    #[test]
    fn pressure_for_a_while_ends_when_its_own_time_is_over() {
        let (gpu, device) = gpu("windows");
        let filled = |act: Act| {
            device.act(act, None, "the test");
            gpu.used(Domain::Vram) / MB
        };
        assert_eq!(filled(Act::Fill(250_000, Some(1))), 16);
        assert_eq!(filled(Act::Fill(500_000, Some(2))), 32);
        assert_eq!(filled(Act::End(1)), 32, "the later one is not over");
        assert_eq!(filled(Act::Fill(750_000, Some(3))), 48);
        assert_eq!(filled(Act::End(3)), 32, "and the earlier one neither");
        assert_eq!(filled(Act::End(2)), 0);
    }

    #[test]
    fn a_buffer_in_use_is_busy_and_blocks_nothing_forever() {
        let (gpu, device) = gpu("busy");
        let bo = gpu.alloc(MB, Place::VRAM).expect("room");
        let resv = bo.resv().lock();
        let came = std::thread::scope(|scope| {
            let act = scope.spawn(|| device.act(Act::Evict, None, "the test"));
            act.join().expect("it comes back")
        });
        drop(resv);
        assert_eq!(came.done, 0);
        assert!(came.why[0].contains("in use"), "{came:?}");
    }
}
