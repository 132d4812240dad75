//! Answering the processes that share the GPU.

use std::sync::Arc;

use crate::act::ByHand;
use crate::device::Device;
use crate::error::Result;
use crate::need::Evicted;
use crate::peers::geometry;
use crate::peers::wire::{Answer, Ask, Caller};
use crate::stats::Counters;

/// Answers the other processes from now on, until the device is gone.
pub(crate) fn begin(device: &Arc<Device>) -> Result<()> {
    let (ledger, weak) = (device.peers.memory(), Arc::downgrade(device));
    device.peers.serve(move |ask, from| {
        let Some(device) = weak.upgrade() else { return false };
        answer(&device, ledger, ask, from);
        true
    })
}

fn answer(device: &Arc<Device>, ledger: u64, ask: Ask, from: Caller) {
    let pools = &device.pools;
    match ask {
        Ask::Join { geometry: theirs } if theirs != geometry(&device.config) => {
            from.answer(&Answer::Otherwise);
        }
        Ask::Join { .. } => from.send_memory(pools),
        Ask::Look { after } => from.tell(&device.look(after).encode()),
        Ask::Act { ledger: theirs, .. } if theirs != ledger => from.answer(&Answer::Never),
        Ask::Act { what, buffer, .. } => act(device, what, buffer, from),
        Ask::Evict { ledger: theirs, .. } if theirs != ledger => from.answer(&Answer::Never),
        Ask::Evict { bo, only_out_of_bar, .. } => {
            let evicted = device.evict_ours(bo, only_out_of_bar);
            if matches!(evicted, Evicted::Yes) {
                Counters::add(&device.stats.evictions_for_others, 1);
            }
            from.answer(&match evicted {
                Evicted::Yes => Answer::Done,
                Evicted::Busy => Answer::NotNow,
                Evicted::Nothing => Answer::Never,
            });
        }
    }
}

/// Carries out a user's command in a separate thread, so that others are answered meanwhile.
fn act(device: &Arc<Device>, what: ByHand, buffer: Option<u64>, from: Caller) {
    let device = Arc::downgrade(device);
    let job = move || {
        let Some(device) = device.upgrade().filter(|_| !from.gave_up()) else { return };
        let numbers = buffer.map(|number| number..=number);
        let came = device.act(what.act(), numbers.as_ref(), "hand (peerdma gpu)");
        from.tell(toml::to_string(&came).unwrap_or_default().as_bytes());
    };
    // The end of the connection tells the caller that no answer comes.
    crate::worker::submit(Box::new(job));
}
