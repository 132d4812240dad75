//! The target: listens, and serves each connection with a thread.

pub mod admin;
pub mod area;
pub mod controller;
pub mod events;
pub mod identify;
pub mod io;
pub mod log;
pub mod registers;
pub mod reservations;
pub mod reserve;
mod session;
pub mod subsystem;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use providers::Machine;
use umem::ways::{WayBytes, bytes_by_way};
use verbs::cm::{EventChannel, EventKind, Id};
use verbs::{Context, HostBuf, Pd};
use zerocopy::IntoBytes;

use crate::wire::cm::{Reject, Rejection, Request};
use area::{Area, Memory};
use controller::Controllers;
use io::MAX_DATA;
use session::Session;
use subsystem::{Namespace, Subsystem};

/// Pieces of memory for pages and for data of Connect.
const ADMIN_PIECES: u32 = 16;
/// Connections at most.
const CONNECTIONS: usize = 512;
/// How often to check for what does not wake a thread.
const TICK: Duration = Duration::from_millis(20);

/// Why there is no target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] verbs::Refusal),
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] storage::Error),
    /// There is no memory for data.
    #[error("no memory for data: {0}")]
    Memory(String),
    /// There is no memory.
    #[error(transparent)]
    Host(#[from] umem::HostBufError),
    /// A work request was refused.
    #[error(transparent)]
    Post(#[from] verbs::PostError),
    /// There is no thread.
    #[error("no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    context: Context,
    pd: Pd,
    disk: storage::Client,
    memory: Memory,
    /// Memory of this process, for what the CPU reads and writes.
    admin: Arc<Area>,
    zeros: (HostBuf, storage::Buffer),
    subsystem: Arc<Subsystem>,
    controllers: Controllers,
    stop: AtomicBool,
}

/// A target that serves. Dropping it ends its connections.
#[derive(Debug)]
pub struct Target {
    shared: Arc<Shared>,
    addr: SocketAddr,
    began: WayBytes,
    acceptor: Option<JoinHandle<()>>,
}

impl Target {
    /// Serves a subsystem at an address of the NIC, which should be the machine's, or at all of them
    /// (the wildcard). Data pass through `pieces` times 128 KiB of memory.
    ///
    /// # Errors
    ///
    /// [`TargetError`].
    pub fn start(
        machine: &Machine,
        context: &Context,
        addr: SocketAddr,
        subsystem: Subsystem,
        pieces: u32,
    ) -> Result<Self, TargetError> {
        let (pd, disk) = (context.alloc_pd()?, machine.disk()?);
        let channel = EventChannel::new(context)?;
        let listener = channel.create_id()?;
        let addr = listener.bind(addr)?;
        listener.listen(64)?;
        let zeros = HostBuf::anonymous(MAX_DATA as usize)?;
        let subsystem = Arc::new(subsystem);
        let shared = Arc::new(Shared {
            context: context.clone(),
            memory: Memory::new(machine, &pd, &disk, pieces)?,
            admin: Area::host(&pd, &disk, ADMIN_PIECES)?,
            zeros: (zeros.clone(), disk.attach_host(&zeros)),
            controllers: Controllers::new(Arc::clone(&subsystem)),
            subsystem,
            pd,
            disk,
            stop: AtomicBool::new(false),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            let work = move || accept(&shared, &channel, &listener);
            std::thread::Builder::new().name("nvmet-accept".to_owned()).spawn(work)?
        };
        Ok(Self { shared, addr, began: bytes_by_way(), acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The memory that data pass through.
    pub fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// How many controllers there are.
    pub fn controllers(&self) -> usize {
        self.shared.controllers.count()
    }

    /// Adds a namespace, of which hosts are told. Returns its number. `None`: there are too many.
    pub fn add_namespace(&self, namespace: Namespace) -> Option<u32> {
        let nsid = self.shared.subsystem.add(namespace)?;
        self.shared.controllers.namespace_changed(nsid);
        Some(nsid)
    }

    /// Removes a namespace, of which hosts are told; commands that have begun end as if it were
    /// there. False if there is none.
    pub fn remove_namespace(&self, nsid: u32) -> bool {
        let was_there = self.shared.subsystem.remove(nsid);
        if was_there {
            self.shared.controllers.namespace_changed(nsid);
        }
        was_there
    }

    /// Looks how long the file of a namespace is now, and tells hosts if that changed. Returns
    /// whether it did.
    ///
    /// # Errors
    ///
    /// The file does not tell.
    #[doc(alias = "nvmet_ns_revalidate")]
    pub fn revalidate(&self, nsid: u32) -> Result<bool, TargetError> {
        let has_changed = self.shared.subsystem.revalidate(nsid)?;
        if has_changed {
            self.shared.controllers.namespace_changed(nsid);
        }
        Ok(has_changed)
    }

    /// Sets how many I/O queues a host may have: at least one, at most 64. Hosts lose their
    /// controllers, so that they connect again, with as many.
    #[doc(alias = "attr_qid_max")]
    pub fn set_queues(&self, queues: u16) {
        self.shared.subsystem.set_queues(queues);
        self.shared.controllers.end_all();
    }

    /// The bytes that moved since it began, by each way.
    pub fn report(&self) -> WayBytes {
        bytes_by_way().since(&self.began)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(acceptor) = self.acceptor.take() {
            // It panics only like its connections, by a bug that has been reported.
            let _ = acceptor.join();
        }
    }
}

/// Takes connections until the target stops, then waits for their threads.
fn accept(shared: &Arc<Shared>, channel: &EventChannel, _listener: &Id) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !shared.stop.load(Ordering::Acquire) {
        threads.retain(|thread| !thread.is_finished());
        let event = match channel.event(TICK) {
            Ok(Some(event)) => event,
            Ok(None) => continue,
            Err(error) => {
                tracing::error!(target: "nvmet", "no more connections: {error}");
                break;
            }
        };
        match event.kind {
            EventKind::ConnectRequest { param } => {
                let is_full = threads.len() >= CONNECTIONS;
                match meet(shared, &event.id, &param.private_data, is_full) {
                    Ok(thread) => threads.push(thread),
                    Err(reject) => {
                        tracing::warn!(target: "nvmet", "a connection is refused: {reject}");
                        // The host may have given up.
                        let _ = event.id.reject(Rejection::from(reject).as_bytes());
                    }
                }
            }
            EventKind::Disconnected { .. } | EventKind::DeviceRemoval => {
                // Posted requests are flushed, from which the thread learns of it.
                let _ = event.id.disconnect();
            }
            _ => {}
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Accepts a connection if it asks for a queue that is possible.
fn meet(
    shared: &Arc<Shared>,
    id: &Id,
    private_data: &[u8],
    is_full: bool,
) -> Result<JoinHandle<()>, Reject> {
    let shape = Request::parse(private_data)?;
    if shape.qid != 0 && shape.cntlid != 0 && !shared.controllers.has(shape.cntlid) {
        return Err(Reject::InvalidCntlid);
    }
    if is_full {
        return Err(Reject::NoResources);
    }
    let failed = |error: TargetError| {
        tracing::error!(target: "nvmet", "a queue cannot be made: {error}");
        Reject::NoResources
    };
    let session = Session::new(shared, id, shape).map_err(failed)?;
    let thread = std::thread::Builder::new().name(format!("nvmet-q{}", shape.qid));
    thread.spawn(move || session.run()).map_err(|error| failed(error.into()))
}
