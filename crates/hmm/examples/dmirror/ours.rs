//! Our side: a mirror over memory of the program.

use std::time::{Duration, Instant};

use hmm::{DevicePages, Error, Mirror, PAGE, Place};
use umem::{HostBuf, Umem};

use crate::memory::Memory;
use crate::{Answer, Mirrored, Seen};

pub(crate) struct Ours {
    // Before the memory that it watches.
    mirror: Mirror,
    device: DevicePages,
    memory: Memory,
}

impl Ours {
    pub(crate) fn new(pages: u64) -> Answer<Self> {
        let memory = Memory::new(pages)?;
        let buffer =
            HostBuf::anonymous((pages * PAGE) as usize).map_err(|error| error.to_string())?;
        let device = DevicePages::new(Umem::host(&buffer));
        // SAFETY: private anonymous memory, mapped a moment ago and nobody else's.
        let mirror = unsafe { Mirror::over(memory.addr() as usize, pages * PAGE, device.clone()) };
        let ours = Self { mirror: mirror.map_err(words)?, device, memory };
        // A touch waits for the mirror's thread, which maps memory for itself when it begins. Later
        // that would be where the program has unmapped some.
        ours.memory.write(0, &[1; PAGE as usize]);
        ours.to_device(0, 1)?;
        ours.memory.read(0, 1);
        ours.memory.drop_pages(0, 1);
        ours.settle(0, 1, Seen::Zeros)?;
        Ok(ours)
    }
}

fn words(error: Error) -> String {
    error.to_string()
}

impl Mirrored for Ours {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn read(&self, first: u64, count: u64) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; (count * PAGE) as usize];
        self.mirror.read(first * PAGE, &mut bytes).map_err(words)?;
        Ok(bytes)
    }

    fn write(&self, first: u64, bytes: &[u8]) -> Answer {
        self.mirror.write(first * PAGE, bytes).map_err(words)
    }

    fn to_device(&self, first: u64, count: u64) -> Answer {
        self.mirror.migrate_to_device(first * PAGE, count * PAGE).map(drop).map_err(words)
    }

    fn to_system(&self, first: u64, count: u64) -> Answer {
        self.mirror.migrate_to_system(first * PAGE, count * PAGE).map_err(words)
    }

    fn exclusive(&self, first: u64, count: u64) -> Answer {
        self.mirror.exclusive(first * PAGE, count * PAGE).map(drop).map_err(words)
    }

    fn is_exclusive(&self, page: u64) -> Answer<bool> {
        self.mirror.check_exclusive(page * PAGE, PAGE).map_err(words)
    }

    fn fail_allocations(&self, fail: bool) -> Answer {
        self.device.fail_allocations(fail);
        Ok(())
    }

    fn seen(&self, page: u64) -> Answer<Seen> {
        let place = self.mirror.snapshot(page * PAGE, PAGE).map_err(words)?;
        match place[..] {
            [Place::Nowhere] => Ok(Seen::Zeros),
            [Place::System] => Ok(Seen::Process),
            [Place::Device] => Ok(Seen::Device),
            [Place::Exclusive] => Ok(Seen::Exclusive),
            [Place::Unmapped] => Ok(Seen::Unmapped),
            _ => Err(format!("page {page}: a snapshot of {place:?}")),
        }
    }

    /// The event is on its way.
    fn settle(&self, first: u64, count: u64, want: Seen) -> Answer {
        // TIMEOUT: for a machine under emulation that has other work.
        let deadline = Instant::now() + Duration::from_secs(20);
        for page in first..first + count {
            while self.seen(page)? != want {
                if Instant::now() > deadline {
                    return Err(format!("page {page} is {:?}", self.seen(page)?));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
