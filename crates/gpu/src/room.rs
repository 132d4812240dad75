//! Making room: limits, eviction of the least recently used, and refusals that name the pool.

use std::time::{Duration, Instant};

use crate::config::EvictOrder;
use crate::device::Device;
use crate::error::{Result, again, no_device, no_memory};
use crate::ledger::{Entry, Wanted};
use crate::limits::VramLimit;
use crate::need::{BALLAST, Evicted, Need};
use crate::place::{Domain, Place};
use crate::pools::Resource;
use crate::stats::Counters;

/// The result of looking for room.
enum Found {
    Room(Resource),
    Full,
    /// There may be room, but a limit would be passed.
    Over(VramLimit),
    /// The program has closed the descriptors by which processes share the table.
    Lost,
}

impl Found {
    fn room(self) -> Option<Resource> {
        match self {
            Self::Room(resource) => Some(resource),
            _ => None,
        }
    }
}

/// How long a caller waits for buffers that are in use by others.
const PATIENCE: Duration = Duration::from_secs(2);

impl Device {
    /// A first place for a buffer: where it prefers to be, evicting others; otherwise wherever it
    /// may be.
    pub(crate) fn place(&self, need: Need, place: &Place) -> Result<Resource> {
        let first = self.obtain(place.preferred, need);
        let other = match place.preferred {
            Domain::Vram => Domain::Gtt,
            Domain::Gtt => Domain::Vram,
        };
        match first {
            Err(refusal) if place.allowed.contains(other.only()) => {
                tracing::debug!("{refusal}: {other} instead");
                self.obtain(other, need)
            }
            result => result,
        }
    }

    /// Room in `domain`; evicts others for it.
    pub(crate) fn obtain(&self, domain: Domain, need: Need) -> Result<Resource> {
        let start = Instant::now();
        loop {
            let over = match self.find(domain, need, self.limits(domain)) {
                Found::Room(resource) => return Ok(resource),
                Found::Lost => {
                    let gpu = &self.config.name;
                    return Err(no_device(format!("the program closed descriptors of {gpu}")));
                }
                Found::Over(limit) => Some(limit),
                Found::Full => None,
            };
            match (self.evict_one(domain, need, over.as_ref()), over) {
                (Evicted::Yes, _) => {}
                (Evicted::Busy, _) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                (_, Some(limit)) => return Err(self.over_limit(&limit, need)),
                (_, None) => return Err(self.full(domain, need)),
            }
        }
    }

    /// Room in `domain` without evicting others.
    pub(crate) fn room(&self, domain: Domain, need: Need) -> Option<Resource> {
        self.find(domain, need, self.limits(domain)).room()
    }

    /// Room in `domain`, if there is any, regardless of the limits.
    pub(crate) fn try_obtain(&self, domain: Domain, need: Need) -> Option<Resource> {
        self.find(domain, need, vec![]).room()
    }

    fn find(&self, domain: Domain, need: Need, limits: Vec<VramLimit>) -> Found {
        let page = rustix::param::page_size() as u64;
        let align = need.align.max(page);
        let table = self.pools.ledger.lock();
        if !self.pools.ledger.is_ours() {
            // Others may place something there at the same time.
            return Found::Lost;
        }
        if !limits.is_empty()
            && let Some(limit) = self.passed(limits, &table.entries(), need.len)
        {
            return Found::Over(limit);
        }
        let entry = self.ranges(domain, need).into_iter().find_map(|range| {
            let (Need { bo, len, fixed, .. }, group) = (need, self.groups.own);
            table.place(Wanted { domain, len, align, range, bo, fixed, group })
        });
        drop(table);
        entry.map_or(Found::Full, |entry| Found::Room(self.pools.resource(entry)))
    }

    /// Where in a domain a buffer may be, best first: a buffer that the CPU need not reach stays
    /// out of the BAR.
    fn ranges(&self, domain: Domain, need: Need) -> Vec<(u64, u64)> {
        let (vram, visible) = (self.config.vram, self.config.visible());
        match domain {
            Domain::Gtt => vec![(0, self.config.gtt)],
            Domain::Vram if need.visible => vec![(0, visible)],
            Domain::Vram if visible < vram => vec![(visible, vram), (0, vram)],
            Domain::Vram => vec![(0, vram)],
        }
    }

    /// Evicts the least recently used buffer that can be evicted; at a limit, of those that count.
    /// Buffers in GTT are not evicted: there is nowhere to go.
    fn evict_one(&self, domain: Domain, need: Need, over: Option<&VramLimit>) -> Evicted {
        if domain == Domain::Gtt {
            return if self.reclaim_dead() { Evicted::Yes } else { Evicted::Nothing };
        }
        let (from, to) = self
            .ranges(domain, need)
            .iter()
            .fold((u64::MAX, 0), |whole, range| (whole.0.min(range.0), whole.1.max(range.1)));
        let owner = self.pools.ledger.owner();
        let mut entries = self.pools.ledger.lock().entries();
        entries.retain(|entry| {
            entry.domain == domain
                && entry.offset < to
                && entry.offset.saturating_add(entry.len) > from
                && over.is_none_or(|limit| limit.counts(entry, owner))
                && !(entry.owner == owner && entry.bo == need.bo)
        });
        let leaving =
            |ours| entries.iter().any(move |entry| entry.leaving && (entry.owner == owner) == ours);
        if leaving(true) {
            // Its room becomes free by itself; in manual mode the caller must do the work.
            self.engine.step();
            return Evicted::Busy;
        }
        if leaving(false) {
            // So does this room, unless the process died during the move.
            return if self.reclaim_dead() { Evicted::Yes } else { Evicted::Busy };
        }
        entries.retain(|entry| (!entry.pinned || entry.soft) && !entry.fixed);
        // Evicting a pinned buffer costs its importers their keys, so those come last.
        let own_first = self.config.evict == EvictOrder::OwnFirst;
        entries.sort_by_key(|entry| (entry.pinned, own_first && entry.owner != owner, entry.used));
        let mut is_busy = false;
        for entry in entries {
            let ours = entry.owner == owner;
            let evicted = match ours {
                true => self.evict_ours(entry.bo, need.visible),
                false => self.peers.evict(entry.owner, entry.bo, need.visible),
            };
            match evicted {
                Evicted::Yes => {
                    Counters::add(&self.stats.evictions_by_others, u64::from(!ours));
                    return Evicted::Yes;
                }
                Evicted::Busy => is_busy = true,
                Evicted::Nothing => {}
            }
        }
        if self.reclaim_dead() {
            return Evicted::Yes;
        }
        if is_busy { Evicted::Busy } else { Evicted::Nothing }
    }

    /// Evicts one of our buffers, if it is not in use.
    pub(crate) fn evict_ours(&self, bo: u64, only_out_of_bar: bool) -> Evicted {
        let Some(bo) = self.bo(bo) else {
            // It is going away, and frees its room itself when its moves are done.
            self.engine.step();
            return Evicted::Busy;
        };
        let Some(resv) = bo.resv.try_lock() else { return Evicted::Busy };
        match bo.evict(&resv, only_out_of_bar, "evicted") {
            Ok(fence) => {
                drop(resv);
                self.engine.wait(&fence);
                Evicted::Yes
            }
            Err(refusal) => {
                tracing::debug!("{refusal}");
                Evicted::Nothing
            }
        }
    }

    fn reclaim_dead(&self) -> bool {
        let count = self.peers.reclaim_dead(&self.pools);
        Counters::add(&self.stats.reclaimed, count);
        count > 0
    }

    /// Whether pinning `len` more bytes of VRAM is permitted now.
    pub(crate) fn check_pin_limits(&self, len: u64) -> Result<()> {
        let entries = self.pools.ledger.lock().entries();
        self.pin_limits(&entries, len)
    }

    /// Pins a placement, if that is permitted.
    pub(crate) fn charge_pin(&self, resource: &Resource) -> Result<()> {
        let table = self.pools.ledger.lock();
        if resource.domain == Domain::Vram && self.persona.moves {
            self.pin_limits(&table.entries(), resource.len)?;
        }
        table.set_pinned(resource.index, true);
        Ok(())
    }

    fn pin_limits(&self, entries: &[Entry], len: u64) -> Result<()> {
        let pinned = |only: Option<u8>| {
            let counts = |entry: &&Entry| {
                entry.domain == Domain::Vram
                    && (entry.pinned || entry.fixed)
                    && entry.bo != BALLAST
                    && only.is_none_or(|owner| entry.owner == owner)
            };
            entries.iter().filter(counts).map(|entry| entry.len).sum::<u64>()
        };
        let (name, owner) = (&self.config.name, self.pools.ledger.owner());
        let limits = [
            (self.config.max_pinned, None, "max_pinned"),
            (self.config.max_pinned_client, Some(owner), "max_pinned_client"),
        ];
        for (limit, only, key) in limits {
            let Some(limit) = limit else { continue };
            let already = pinned(only);
            if already.saturating_add(len) > limit {
                return Err(again(format!(
                    "pool VRAM of {name}: {len:#x} bytes cannot be pinned, since {already:#x} are, and {key} is {limit:#x}"
                )));
            }
        }
        Ok(())
    }

    fn full(&self, domain: Domain, need: Need) -> dmabuf::ExporterError {
        let (name, len) = (&self.config.name, need.len);
        let part = match domain {
            Domain::Vram if need.visible => "the visible part of VRAM",
            Domain::Vram => "VRAM",
            Domain::Gtt => "GTT",
        };
        no_memory(format!(
            "{part} of {name} has no {len:#x} bytes in a row, and what is there is pinned or cannot move"
        ))
    }
}
