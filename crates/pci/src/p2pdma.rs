//! Providers, and the orchestrator's queries (`docs/semantics.md` 4.1, 4.3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Bdf;
use crate::path::MapType;
use crate::pool::{P2pmem, Pool};
use crate::tree::{Bar, BarKind, PciTree};

/// Peer-to-peer DMA on one tree: the providers of memory, and the devices that may use it.
///
/// * A *provider* is a device with memory in a BAR. [`init`](Self::init) makes it one;
///   [`provider`](Self::provider) is the lower layer, for a driver that wraps its memory in a
///   dma-buf itself; [`add_resource`](Self::add_resource) and [`publish`](Self::publish) make it a
///   pool for others.
/// * A *client* is a device that uses such memory; it need not register.
/// * An *orchestrator* brings them together: [`distance_many`](Self::distance_many),
///   [`find_many`](Self::find_many), [`alloc`](Self::alloc).
#[derive(Debug)]
pub struct P2pdma {
    tree: Arc<PciTree>,
    state: Mutex<BTreeMap<Bdf, Providing>>,
}

/// Memory in a BAR that its owner provides.
#[doc(alias = "p2pdma_provider")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// The device that owns the memory.
    pub owner: Bdf,
    /// The BAR.
    pub bar: Bar,
}

/// The content of `/sys/bus/pci/devices/BDF/p2pmem/`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct P2pmemView {
    /// Bytes in the pool.
    pub size: u64,
    /// Free bytes in the pool.
    pub available: u64,
    /// Whether other drivers may use it.
    pub published: bool,
}

/// Why a device is not a provider.
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
    /// The device is not a provider and cannot become one.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The BAR is not memory, or does not exist (EINVAL).
    #[error("BAR {bar} of PCI device {bdf} is not memory")]
    NotMemory {
        /// The device.
        bdf: Bdf,
        /// The BAR.
        bar: u8,
    },
    /// The range extends beyond the BAR (EINVAL).
    #[error("{size:#x} bytes at {offset:#x} are not all inside BAR {bar} of PCI device {bdf}")]
    OutOfRange {
        /// The device.
        bdf: Bdf,
        /// The BAR.
        bar: u8,
        /// The offset of the range.
        offset: u64,
        /// Its length; 0 stands for the rest of the BAR.
        size: u64,
    },
}

#[derive(Debug, Default)]
struct Providing {
    pool: Option<Arc<Pool>>,
    published: bool,
    /// A cache of results for clients. It stays valid, since the tree is immutable.
    map_types: BTreeMap<Bdf, (u32, MapType)>,
}

impl P2pdma {
    /// Creates it without providers.
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

    /// The memory in a BAR, which its owner may lend. `None` if the device is not a provider or the
    /// BAR is not memory.
    #[doc(alias = "pcim_p2pdma_provider")]
    pub fn provider(&self, owner: Bdf, bar: u8) -> Option<Provider> {
        let _ = self.state().get(&owner)?;
        Some(Provider { owner, bar: self.memory_bar(owner, bar)? })
    }

    /// Adds `size` bytes at `offset` of a BAR to the device's pool; 0 stands for the rest of the
    /// BAR. Makes the device a provider if it is not one.
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

    /// Publishes the device's pool to others, or hides it. Allocated memory stays allocated.
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

    /// Removes a provider. Allocated memory belongs to its holder until it is dropped; the owner
    /// must have revoked it before.
    pub fn remove(&self, bdf: Bdf) {
        self.state().remove(&bdf);
    }

    /// Allocates whole pages for `len` bytes from the device's pool; `None` if there is no room.
    #[doc(alias = "pci_alloc_p2pmem")]
    pub fn alloc(&self, bdf: Bdf, len: u64) -> Option<P2pmem> {
        let pool = Arc::clone(self.state().get(&bdf)?.pool.as_ref()?);
        pool.alloc(len)
    }

    /// The sysfs attributes of the device; `None` if it is not a provider. A provider without a
    /// pool has zero bytes.
    pub fn view(&self, bdf: Bdf) -> Option<P2pmemView> {
        let state = self.state();
        let Providing { pool, published, .. } = state.get(&bdf)?;
        let (size, available) =
            pool.as_ref().map_or((0, 0), |pool| (pool.size(), pool.available()));
        Some(P2pmemView { size, available, published: *published })
    }

    /// How `client` is to map memory of `provider`. [`MapType::NotSupported`] if `provider` is not
    /// a provider or `client` is not a PCI device.
    #[doc(alias = "pci_p2pdma_map_type")]
    pub fn map_type(&self, provider: Bdf, client: Bdf) -> MapType {
        self.known(provider, client).map_or(MapType::NotSupported, |(_, map_type)| map_type)
    }

    /// The sum of the distances from `provider` to all clients. `None` (the kernel's -1) without
    /// clients, if one is not a PCI device, or if one cannot reach the memory.
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

    /// The provider with published memory that is nearest to all clients. Among equally near ones
    /// `pick` chooses: it gets their number and should return a uniform index below it.
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
    /// The difference between the bus address and the CPU address of the BAR.
    pub fn bus_offset(&self) -> i64 {
        self.bar.bus_offset
    }

    /// The bus address of CPU address `addr`.
    pub fn bus_addr(&self, addr: u64) -> u64 {
        addr.wrapping_add_signed(self.bar.bus_offset)
    }
}
