//! Finds the provider for a set of clients.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dmabuf::DmaBuf;
use pci::{Bdf, InitError, MapType, P2pdma, PciTree};

use crate::hold;
use crate::provider::{Allocation, MemoryProvider, Published};

/// The providers of one machine, and their allocations. A clone is the same orchestrator.
#[doc(alias = "p2pdma")]
#[derive(Clone, Debug)]
pub struct Orchestrator {
    inner: Arc<Inner>,
}

/// A device that uses memory of other devices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a name and an address")]
pub struct Client {
    /// Its name, for people.
    pub name: String,
    /// Its address on the bus.
    pub bdf: Bdf,
}

/// Memory near its clients. Dropping it gives the memory back.
#[derive(Debug)]
#[must_use = "the memory goes back when this is dropped"]
pub struct Placed {
    buffer: DmaBuf,
    provider: String,
    bdf: Bdf,
    ways: Vec<Way>,
    /// Taken out when the provider revokes it.
    slot: Arc<Slot>,
}

/// How one client reaches the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Way {
    /// The client.
    pub client: String,
    /// How far away it is.
    pub distance: u32,
    /// The map type.
    pub map_type: MapType,
}

/// Why a device is not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// It is not a device of this machine, or its memory cannot be mapped.
    #[error(transparent)]
    Device(#[from] InitError),
    /// The device has a provider already.
    #[error("{other} is the provider at {bdf}: it has to leave first")]
    Taken {
        /// The address.
        bdf: Bdf,
        /// The provider that is there.
        other: String,
    },
}

/// Why no device's memory is suitable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// No client was named.
    #[error("no client is named")]
    NoClients,
    /// There is no provider.
    #[error("no device of this machine provides memory")]
    NoProvider,
    /// No provider is within reach of all clients.
    #[error("no device provides memory that all clients reach: {}", reasons.join("; "))]
    Unreachable {
        /// For each provider the first client that does not reach it, and why.
        reasons: Vec<String>,
    },
    /// The nearest provider has no such memory now.
    #[error("{provider} is nearest, and has no memory to give: {why}")]
    Refused {
        /// The provider.
        provider: String,
        /// Its reason.
        why: String,
    },
}

pub(crate) struct Inner {
    p2pdma: Arc<P2pdma>,
    providers: Mutex<BTreeMap<Bdf, Known>>,
}

struct Known {
    provider: Arc<dyn MemoryProvider>,
    allocations: Vec<Weak<Slot>>,
}

#[derive(Debug)]
struct Slot(Mutex<Option<Allocation>>);

impl Orchestrator {
    /// An orchestrator without providers.
    pub fn new(tree: Arc<PciTree>) -> Self {
        let p2pdma = Arc::new(P2pdma::new(tree));
        Self { inner: Arc::new(Inner { p2pdma, providers: Mutex::default() }) }
    }

    /// The bookkeeping underneath: pools, and what sysfs shows of them.
    pub fn p2pdma(&self) -> &Arc<P2pdma> {
        &self.inner.p2pdma
    }

    /// Publishes a provider, so that clients find it.
    ///
    /// # Errors
    ///
    /// [`PublishError`]: it is not a device of this machine, its memory cannot be mapped, or there
    /// is a provider at its address already.
    #[doc(alias = "pci_p2pmem_publish")]
    pub fn publish(&self, provider: Arc<dyn MemoryProvider>) -> Result<Published, PublishError> {
        let bdf = provider.bdf();
        self.inner.p2pdma.init(bdf)?;
        let known = Known { provider: Arc::clone(&provider), allocations: Vec::new() };
        match self.inner.providers().entry(bdf) {
            Entry::Vacant(free) => drop(free.insert(known)),
            Entry::Occupied(taken) => {
                let other = taken.get().provider.name().to_owned();
                return Err(PublishError::Taken { bdf, other });
            }
        }
        self.inner.p2pdma.publish(bdf, true);
        Ok(Published { inner: Arc::clone(&self.inner), provider })
    }

    /// Memory of the provider that is nearest to all clients, or of any of several equally near.
    ///
    /// # Errors
    ///
    /// [`PlaceError`]. A program that then uses host memory should tell its user.
    #[doc(alias = "pci_p2pmem_find_many")]
    pub fn place(&self, clients: &[Client], len: u64) -> Result<Placed, PlaceError> {
        if clients.is_empty() {
            return Err(PlaceError::NoClients);
        }
        let p2pdma = &self.inner.p2pdma;
        let users: Vec<Bdf> = clients.iter().map(|client| client.bdf).collect();
        // Each of these hashers has keys of its own, from the kernel.
        let any = |count: usize| {
            // CAST: below a count of devices.
            (RandomState::new().build_hasher().finish() % count as u64) as usize
        };
        let Some(bdf) = p2pdma.find_many(&users, any) else {
            return Err(self.inner.unreachable(clients));
        };
        let Some(provider) =
            self.inner.providers().get(&bdf).map(|known| Arc::clone(&known.provider))
        else {
            return Err(PlaceError::NoProvider);
        };
        let refused = |why| PlaceError::Refused { provider: provider.name().to_owned(), why };
        // Without the lock: a provider may be slow.
        let allocations = provider.allocate(len).map_err(refused)?;
        let buffer = allocations.buffer.clone();
        let slot = Arc::new(Slot(Mutex::new(Some(allocations))));
        {
            let mut providers = self.inner.providers();
            let known = providers.get_mut(&bdf);
            let Some(known) = known.filter(|known| Arc::ptr_eq(&known.provider, &provider)) else {
                return Err(refused("it left meanwhile".to_owned()));
            };
            known.allocations.retain(|allocations| allocations.strong_count() > 0);
            known.allocations.push(Arc::downgrade(&slot));
        }
        let ways = clients.iter().map(|client| {
            let path = p2pdma.tree().path(bdf, client.bdf);
            let (distance, map_type) = (path.distance, path.map_type);
            Way { client: client.name.clone(), distance, map_type }
        });
        let provider = provider.name().to_owned();
        Ok(Placed { buffer, provider, bdf, ways: ways.collect(), slot })
    }
}

impl Placed {
    /// What clients attach to.
    pub fn buffer(&self) -> &DmaBuf {
        &self.buffer
    }

    /// The provider's name.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The provider's address.
    pub fn bdf(&self) -> Bdf {
        self.bdf
    }

    /// How each client reaches the memory, in the order of the clients.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// Whether its provider leaves, or has left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.slot.is_empty()
    }
}

impl Inner {
    /// Hides a provider, revokes its memory when no request is under way on it, and forgets it.
    pub(crate) fn remove(&self, provider: &Arc<dyn MemoryProvider>, why: &str) {
        let bdf = provider.bdf();
        let known = {
            let mut providers = self.providers();
            let is_it = |known: &Known| Arc::ptr_eq(&known.provider, provider);
            if !providers.get(&bdf).is_some_and(is_it) {
                return;
            }
            self.p2pdma.publish(bdf, false);
            providers.remove(&bdf)
        };
        let slots = known.into_iter().flat_map(|known| known.allocations);
        let held: Vec<_> = slots.filter_map(|slot| slot.upgrade()?.take()).collect();
        for allocation in &held {
            hold::drain(&allocation.buffer, provider.name());
        }
        provider.revoke_all(held, why);
        self.p2pdma.remove(bdf);
    }

    fn unreachable(&self, clients: &[Client]) -> PlaceError {
        let providers = self.providers();
        if providers.is_empty() {
            return PlaceError::NoProvider;
        }
        let tree = self.p2pdma.tree();
        let reason = |known: &Known| {
            let mut paths =
                clients.iter().map(|one| (one, tree.path(known.provider.bdf(), one.bdf)));
            let (client, path) = paths.find(|(_, path)| !path.is_possible())?;
            Some(format!("{} for {}: {path}", known.provider.name(), client.name))
        };
        PlaceError::Unreachable { reasons: providers.values().filter_map(reason).collect() }
    }

    fn providers(&self) -> MutexGuard<'_, BTreeMap<Bdf, Known>> {
        self.providers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn take(&self) -> Option<Allocation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let providers = self.providers();
        let names: Vec<_> = providers.values().map(|known| known.provider.name()).collect();
        f.debug_struct("Inner").field("providers", &names).finish_non_exhaustive()
    }
}
