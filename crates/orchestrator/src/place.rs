//! Who brings lenders and clients together.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dmabuf::DmaBuf;
use pci::{Bdf, InitError, MapType, P2pdma, PciTree};

use crate::lender::{Lender, Lent, Published};

/// Lenders of one machine, and what they have lent. A clone is the same one.
#[doc(alias = "p2pdma")]
#[derive(Clone, Debug)]
pub struct Orchestrator {
    inner: Arc<Inner>,
}

/// A device that uses memory of others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a name and an address")]
pub struct Client {
    /// What people call it.
    pub name: String,
    /// Where it is.
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
    /// Taken out when the lender calls it back.
    _slot: Arc<Slot>,
}

/// How one client reaches the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Way {
    /// The client.
    pub client: String,
    /// How far away it is.
    pub distance: u32,
    /// By which way it goes.
    pub map_type: MapType,
}

/// Why no device's memory suits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Memory near nobody.
    #[error("no client is named, so that no memory is near")]
    NoClients,
    /// Nobody lends anything.
    #[error("no device of this machine lends memory")]
    NoLender,
    /// Each lender is out of reach of some client.
    #[error("no device lends memory that all clients reach: {}", reasons.join("; "))]
    Unreachable {
        /// For each lender the first client that does not reach it, and why.
        reasons: Vec<String>,
    },
    /// The nearest lender has no such memory now.
    #[error("{lender} is nearest, and lends nothing: {why}")]
    Refused {
        /// Which.
        lender: String,
        /// Its reason.
        why: String,
    },
}

pub(crate) struct Inner {
    p2pdma: Arc<P2pdma>,
    lenders: Mutex<BTreeMap<Bdf, Known>>,
}

struct Known {
    lender: Arc<dyn Lender>,
    lent: Vec<Weak<Slot>>,
}

#[derive(Debug)]
struct Slot(Mutex<Option<Lent>>);

impl Orchestrator {
    /// Nobody lends anything yet.
    pub fn new(tree: Arc<PciTree>) -> Self {
        let p2pdma = Arc::new(P2pdma::new(tree));
        Self { inner: Arc::new(Inner { p2pdma, lenders: Mutex::default() }) }
    }

    /// The bookkeeping below: pools, and what sysfs shows of them.
    pub fn p2pdma(&self) -> &Arc<P2pdma> {
        &self.inner.p2pdma
    }

    /// Lets clients find a lender, in the place of one that was at its address before.
    ///
    /// # Errors
    ///
    /// [`InitError`]: it is no device of this machine, or its memory cannot be mapped.
    #[doc(alias = "pci_p2pmem_publish")]
    pub fn publish(&self, lender: Arc<dyn Lender>) -> Result<Published, InitError> {
        let bdf = lender.bdf();
        self.inner.p2pdma.init(bdf)?;
        let known = Known { lender: Arc::clone(&lender), lent: Vec::new() };
        self.inner.lenders().insert(bdf, known);
        self.inner.p2pdma.publish(bdf, true);
        Ok(Published { inner: Arc::clone(&self.inner), lender })
    }

    /// Memory of the lender that is nearest to all clients; of several equally near, of any.
    ///
    /// # Errors
    ///
    /// [`PlaceError`]. Who goes on with memory of the host then says so.
    #[doc(alias = "pci_p2pmem_find_many")]
    pub fn place(&self, clients: &[Client], len: u64) -> Result<Placed, PlaceError> {
        if clients.is_empty() {
            return Err(PlaceError::NoClients);
        }
        let p2pdma = &self.inner.p2pdma;
        let users: Vec<Bdf> = clients.iter().map(|client| client.bdf).collect();
        // Each hasher of these has keys of its own, from the kernel.
        let any = |count: usize| {
            // CAST: below a count of devices.
            (RandomState::new().build_hasher().finish() % count as u64) as usize
        };
        let Some(bdf) = p2pdma.find_many(&users, any) else {
            return Err(self.inner.unreachable(clients));
        };
        let Some(lender) = self.inner.lenders().get(&bdf).map(|known| Arc::clone(&known.lender))
        else {
            return Err(PlaceError::NoLender);
        };
        let refused = |why| PlaceError::Refused { lender: lender.name().to_owned(), why };
        // Without the lock: a lender may take its time.
        let lent = lender.lend(len).map_err(refused)?;
        let buffer = lent.buffer.clone();
        let slot = Arc::new(Slot(Mutex::new(Some(lent))));
        {
            let mut lenders = self.inner.lenders();
            let known = lenders.get_mut(&bdf);
            let Some(known) = known.filter(|known| Arc::ptr_eq(&known.lender, &lender)) else {
                return Err(refused("it left meanwhile".to_owned()));
            };
            known.lent.retain(|lent| lent.strong_count() > 0);
            known.lent.push(Arc::downgrade(&slot));
        }
        let ways = clients.iter().map(|client| {
            let path = p2pdma.tree().path(bdf, client.bdf);
            let (distance, map_type) = (path.distance, path.map_type);
            Way { client: client.name.clone(), distance, map_type }
        });
        let provider = lender.name().to_owned();
        Ok(Placed { buffer, provider, bdf, ways: ways.collect(), _slot: slot })
    }
}

impl Placed {
    /// What clients attach to.
    pub fn buffer(&self) -> &DmaBuf {
        &self.buffer
    }

    /// Whose memory it is.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Where that is.
    pub fn bdf(&self) -> Bdf {
        self.bdf
    }

    /// By which way each client goes, in their order.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }
}

impl Inner {
    /// Nobody finds it, then everybody loses its memory, then it is no provider.
    pub(crate) fn remove(&self, lender: &Arc<dyn Lender>, why: &str) {
        let bdf = lender.bdf();
        let known = {
            let mut lenders = self.lenders();
            let is_it = |known: &Known| Arc::ptr_eq(&known.lender, lender);
            if !lenders.get(&bdf).is_some_and(is_it) {
                return;
            }
            self.p2pdma.publish(bdf, false);
            lenders.remove(&bdf)
        };
        let slots = known.into_iter().flat_map(|known| known.lent);
        let held = slots.filter_map(|slot| slot.upgrade()?.take());
        lender.call_back(held.collect(), why);
        self.p2pdma.remove(bdf);
    }

    fn unreachable(&self, clients: &[Client]) -> PlaceError {
        let lenders = self.lenders();
        if lenders.is_empty() {
            return PlaceError::NoLender;
        }
        let tree = self.p2pdma.tree();
        let reason = |known: &Known| {
            let mut paths = clients.iter().map(|one| (one, tree.path(known.lender.bdf(), one.bdf)));
            let (client, path) = paths.find(|(_, path)| !path.is_possible())?;
            Some(format!("{} for {}: {path}", known.lender.name(), client.name))
        };
        PlaceError::Unreachable { reasons: lenders.values().filter_map(reason).collect() }
    }

    fn lenders(&self) -> MutexGuard<'_, BTreeMap<Bdf, Known>> {
        self.lenders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn take(&self) -> Option<Lent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lenders = self.lenders();
        let names: Vec<_> = lenders.values().map(|known| known.lender.name()).collect();
        f.debug_struct("Inner").field("lenders", &names).finish_non_exhaustive()
    }
}
