//! Providers, and the orchestrator's questions (`docs/semantics.md` 4.1, 4.3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Bdf;
use crate::path::MapType;
use crate::pool::{P2pmem, Pool};
use crate::tree::{Bar, BarKind, PciTree};

/// Peer-to-peer DMA on one tree: who provides memory, and who may use it.
///
/// * A *provider* is a device with memory in a BAR. [`init`](Self::init) makes it one;
///   [`provider`](Self::provider) is the low layer, for a driver that wraps its memory in a dma-buf
///   itself; [`add_resource`](Self::add_resource) and [`publish`](Self::publish) make a pool of it
///   for others.
/// * A *client* is a device that uses such memory; it need not register.
/// * An *orchestrator* brings them together: [`distance_many`](Self::distance_many),
///   [`find_many`](Self::find_many), [`alloc`](Self::alloc).
#[derive(Debug)]
pub struct P2pdma {
    tree: Arc<PciTree>,
    state: Mutex<BTreeMap<Bdf, Providing>>,
}

/// Memory in a BAR, as its owner lends it.
#[doc(alias = "p2pdma_provider")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// Whose memory it is.
    pub owner: Bdf,
    /// The BAR.
    pub bar: Bar,
}

/// What `/sys/bus/pci/devices/BDF/p2pmem/` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct P2pmemView {
    /// Bytes in the pool.
    pub size: u64,
    /// Bytes that nobody has.
    pub available: u64,
    /// Whether others find it.
    pub published: bool,
}

/// Why a device is no provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// There is no such device (ENODEV).
    #[error("there is no PCI device {bdf}")]
    NoDevice {
        /// The address.
        bdf: Bdf,
    },
    /// Its memory cannot be mapped (EOPNOTSUPP).
    #[error("BAR {bar} of PCI device {bdf} cannot be mapped, so it cannot be lent")]
    NotMappable {
        /// The device.
        bdf: Bdf,
        /// The BAR.
        bar: u8,
    },
}

/// Why memory was not added to a device's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddResourceError {
    /// The device is no provider and cannot be one.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The BAR is no memory, or is not there (EINVAL).
    #[error("BAR {bar} of PCI device {bdf} is not memory")]
    NotMemory {
        /// The device.
        bdf: Bdf,
        /// The BAR.
        bar: u8,
    },
    /// The range leaves the BAR (EINVAL).
    #[error("{size:#x} bytes at {offset:#x} are not all inside BAR {bar} of PCI device {bdf}")]
    OutOfRange {
        /// The device.
        bdf: Bdf,
        /// The BAR.
        bar: u8,
        /// Where the range begins.
        offset: u64,
        /// How long it is; 0 stands for the rest.
        size: u64,
    },
}

#[derive(Debug, Default)]
struct Providing {
    pool: Option<Arc<Pool>>,
    published: bool,
    /// What was found out about clients. The tree does not change, so neither does this.
    map_types: BTreeMap<Bdf, (u32, MapType)>,
}

impl P2pdma {
    /// Nobody provides anything yet.
    pub fn new(tree: Arc<PciTree>) -> Self {
        Self { tree, state: Mutex::default() }
    }

    /// The tree.
    pub fn tree(&self) -> &Arc<PciTree> {
        &self.tree
    }

    /// Makes a device a provider. Doing it again changes nothing.
    ///
    /// # Errors
    ///
    /// [`InitError`].
    #[doc(alias = "pcim_p2pdma_init")]
    pub fn init(&self, bdf: Bdf) -> Result<(), InitError> {
        let function = self.tree.function(bdf).ok_or(InitError::NoDevice { bdf })?;
        if let Some(bar) = function.bars.iter().find(|bar| bar.kind == BarKind::Unmappable) {
            return Err(InitError::NotMappable { bdf, bar: bar.index });
        }
        self.state().entry(bdf).or_default();
        Ok(())
    }

    /// The memory in a BAR, for its owner to lend as it sees fit. `None` for a device that is no
    /// provider, or a BAR that is no memory.
    #[doc(alias = "pcim_p2pdma_provider")]
    pub fn provider(&self, owner: Bdf, bar: u8) -> Option<Provider> {
        let _ = self.state().get(&owner)?;
        Some(Provider { owner, bar: self.memory_bar(owner, bar)? })
    }

    /// Puts `size` bytes at `offset` of a BAR into the device's pool; 0 stands for the rest of the
    /// BAR. Makes the device a provider if it is none.
    ///
    /// # Errors
    ///
    /// [`AddResourceError`].
    #[doc(alias = "pci_p2pdma_add_resource")]
    pub fn add_resource(
        &self,
        bdf: Bdf,
        bar: u8,
        size: u64,
        offset: u64,
    ) -> Result<(), AddResourceError> {
        let out_of_range = AddResourceError::OutOfRange { bdf, bar, offset, size };
        let Some(memory) = self.memory_bar(bdf, bar) else {
            self.init(bdf)?;
            return Err(AddResourceError::NotMemory { bdf, bar });
        };
        let rest = memory.size.checked_sub(offset).filter(|rest| *rest > 0).ok_or(out_of_range)?;
        let size = if size == 0 { rest } else { size };
        if size > rest {
            return Err(out_of_range);
        }
        self.init(bdf)?;
        let addr = memory.addr + offset;
        let mut state = self.state();
        let pool = state.entry(bdf).or_default().pool.get_or_insert_default();
        pool.add(addr, addr.wrapping_add_signed(memory.bus_offset), size);
        Ok(())
    }

    /// Lets others find the device's pool, or hides it. Memory that was handed out stays out.
    #[doc(alias = "pci_p2pmem_publish")]
    pub fn publish(&self, bdf: Bdf, published: bool) {
        if let Some(providing) = self.state().get_mut(&bdf) {
            providing.published = published;
        }
    }

    /// Whether the device has published memory.
    #[doc(alias = "pci_has_p2pmem")]
    pub fn has_p2pmem(&self, bdf: Bdf) -> bool {
        self.state().get(&bdf).is_some_and(|providing| providing.published)
    }

    /// The device leaves: it is no provider any more. Memory that was handed out is its holder's
    /// until dropped; the owner must have called it back before.
    pub fn remove(&self, bdf: Bdf) {
        self.state().remove(&bdf);
    }

    /// Takes whole pages for `len` bytes out of the device's pool; `None` when there are none.
    #[doc(alias = "pci_alloc_p2pmem")]
    pub fn alloc(&self, bdf: Bdf, len: u64) -> Option<P2pmem> {
        let pool = Arc::clone(self.state().get(&bdf)?.pool.as_ref()?);
        pool.alloc(len)
    }

    /// What sysfs shows of the device; `None` when it is no provider. A provider without a pool has
    /// zero bytes.
    pub fn view(&self, bdf: Bdf) -> Option<P2pmemView> {
        let state = self.state();
        let Providing { pool, published, .. } = state.get(&bdf)?;
        let (size, available) =
            pool.as_ref().map_or((0, 0), |pool| (pool.size(), pool.available()));
        Some(P2pmemView { size, available, published: *published })
    }

    /// How `client` is to map memory of `provider`. [`MapType::NotSupported`] when the one is no
    /// provider or the other no PCI device.
    #[doc(alias = "pci_p2pdma_map_type")]
    pub fn map_type(&self, provider: Bdf, client: Bdf) -> MapType {
        self.known(provider, client).map_or(MapType::NotSupported, |(_, map_type)| map_type)
    }

    /// The sum of the distances from `provider` to all clients. `None` (the kernel's -1) without
    /// clients, when one is no PCI device, or when one cannot reach the memory.
    #[doc(alias = "pci_p2pdma_distance_many")]
    pub fn distance_many(&self, provider: Bdf, clients: &[Bdf]) -> Option<u32> {
        let mut sum: Option<u32> = None;
        for client in clients {
            let path = self.tree.path(provider, *client);
            if !path.is_possible() {
                return None;
            }
            if let Some(providing) = self.state().get_mut(&provider) {
                providing.map_types.insert(*client, (path.distance, path.map_type));
            }
            sum = Some(sum.unwrap_or(0).saturating_add(path.distance));
        }
        sum
    }

    /// The provider with published memory that is nearest to all clients. Among equals `pick`
    /// decides, given their number; it should be uniform below that.
    #[doc(alias = "pci_p2pmem_find_many")]
    pub fn find_many(&self, clients: &[Bdf], pick: impl FnOnce(usize) -> usize) -> Option<Bdf> {
        let published: Vec<_> = {
            let state = self.state();
            state.iter().filter(|(_, p)| p.published).map(|(bdf, _)| *bdf).collect()
        };
        let reachable =
            published.into_iter().filter_map(|bdf| Some((self.distance_many(bdf, clients)?, bdf)));
        let mut nearest = vec![];
        let mut least = u32::MAX;
        for (distance, bdf) in reachable {
            if distance < least {
                nearest.clear();
                least = distance;
            }
            if distance == least {
                nearest.push(bdf);
            }
        }
        match nearest.len() {
            0 => None,
            count => nearest.get(pick(count).min(count - 1)).copied(),
        }
    }

    fn known(&self, provider: Bdf, client: Bdf) -> Option<(u32, MapType)> {
        let mut state = self.state();
        let map_types = &mut state.get_mut(&provider)?.map_types;
        let find = || {
            let path = self.tree.path(provider, client);
            (path.distance, path.map_type)
        };
        Some(*map_types.entry(client).or_insert_with(find))
    }

    fn memory_bar(&self, bdf: Bdf, index: u8) -> Option<Bar> {
        let function = self.tree.function(bdf)?;
        let bar = function.bars.iter().find(|bar| bar.index == index)?;
        (bar.kind != BarKind::Io).then_some(*bar)
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<Bdf, Providing>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Provider {
    /// What to add to a CPU address in the BAR to get the one on the bus.
    pub fn bus_offset(&self) -> i64 {
        self.bar.bus_offset
    }

    /// Where devices find what the CPU finds at `addr`.
    pub fn bus_addr(&self, addr: u64) -> u64 {
        addr.wrapping_add_signed(self.bar.bus_offset)
    }
}
