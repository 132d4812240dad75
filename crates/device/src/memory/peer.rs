//! Pages of a peer memory client under a region (docs/semantics.md 2.11).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dmabuf::peer::{self, PeerError, PeerPages};
use dmabuf::{DeviceAddr, Gate, in_words};
use umem::Umem;

use crate::refusal::{Kind, Refusal, Result, from_exporter};

/// What a region by address holds on a peer device's memory. The client may revoke it at any
/// moment: the gate is then closed for good, which stops every access in every process, and the
/// next access finds the region dead.
#[derive(Debug)]
pub(crate) struct PeerRegion {
    pages: PeerPages,
    /// Users of the region in other processes treat a gate without an owner as closed.
    _gate: Gate,
    is_lost: Arc<AtomicBool>,
}

impl PeerRegion {
    /// Asks the clients for a range. `can_stop`: whether this NIC can return memory before it is
    /// deregistered.
    pub(crate) fn get(
        nic: &str,
        addr: u64,
        length: u64,
        write: bool,
        device: Option<DeviceAddr>,
        can_stop: bool,
    ) -> Result<(Self, Umem)> {
        let io = |error: String| {
            Refusal::new(Kind::Io, format!("reg_mr: a gate for peer memory: {error}"))
        };
        let gate = Gate::new(nic).map_err(|error| io(in_words(error)))?;
        let slot = gate.slot().map_err(|error| io(error.to_string()))?;
        let epoch = gate.epoch();
        let is_lost = Arc::new(AtomicBool::new(false));
        let stop: Option<Box<dyn Fn() + Send + Sync>> = can_stop.then(|| {
            let (gate, is_lost, nic) = (gate.clone(), Arc::clone(&is_lost), nic.to_owned());
            Box::new(move || {
                is_lost.store(true, Ordering::Release);
                if let Err(error) = gate.revoke() {
                    tracing::error!(target: "peerdma::peer-memory", %nic, "{error}");
                }
            }) as _
        });
        let pages = peer::get(addr, length, write, device, stop).map_err(refused)?;
        let mut table = pages.table().clone();
        table.epoch = Some(epoch);
        let umem = Umem::bus(&table, pages.offset(), length, Some(slot)).map_err(|fault| {
            let client = pages.client();
            Refusal::new(Kind::Invalid, format!("reg_mr: the table of client {client}: {fault}"))
        })?;
        Ok((Self { pages, _gate: gate, is_lost }, umem))
    }

    /// Whether the client has revoked the memory.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// The client that owns the memory.
    pub(crate) fn client(&self) -> &str {
        self.pages.client()
    }
}

/// Memory that no client claims cannot be pinned: EFAULT, as without clients. A client's refusal
/// has its own errno.
fn refused(error: PeerError) -> Refusal {
    let what = format!("reg_mr: {error}");
    match &error {
        PeerError::Client { reason, .. } => from_exporter(reason, what),
        _ => Refusal::new(Kind::BadAddress, what),
    }
}
