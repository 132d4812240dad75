//! The devices that identifiers use: opened once for all of them, with a protection domain while
//! any of them is bound.

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::Hca;
use device::ids::CtxId;
use iba::Gid;
use threads::first::First;
use threads::fork::Handlers;

use super::{Answer, Failure};
use crate::abi::context::{self, ibv_open_device};
use crate::abi::device as devices;
use crate::abi::own::context::opened;
use crate::abi::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::abi::types::context::Context;
use crate::abi::types::device::Device;
use crate::abi::types::pd::Pd;
use crate::abi::types::srq::{Xrcd, XrcdInitAttr};
use crate::abi::xrc;

/// A device that was opened for identifiers. It is never closed: programs keep the pointer to its
/// context (`rdma_get_devices(3)`).
pub(super) struct Nic {
    pub(super) hca: Arc<Hca>,
    pub(super) context: *mut Context,
    /// READs and atomics that a QP can have outstanding, and can answer at once.
    pub(super) max_initiator_depth: u8,
    pub(super) max_responder_resources: u8,
    name: String,
    /// Whether it is the one for peers on this host with addresses of IPv4, and of IPv6.
    is_for_loopback: [AtomicBool; 2],
    shared: Mutex<Shared>,
}

/// What identifiers share.
struct Shared {
    users: usize,
    pd: *mut Pd,
    xrcd: *mut Xrcd,
}

// SAFETY: the pointers are to objects that synchronize themselves, and `shared` is behind a mutex.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Those that were opened. One that failed, or that the parent of this process had, stays beside
/// the fresh one.
static OPENED: Mutex<Vec<Arc<Nic>>> = Mutex::new(Vec::new());

thread_local! {
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Arc<Nic>>>>> = const { RefCell::new(None) };
}

/// Registers the fork handlers: no NIC is being opened during a fork.
pub(in crate::abi) fn watch_forks() {
    extern "C" fn prepare() {
        HELD.set(Some(opened_nics()));
    }
    extern "C" fn after() {
        HELD.take();
    }
    static WATCH: First = First::new();
    WATCH.call(|| {
        context::watch_forks();
        Handlers { prepare: Some(prepare), parent: Some(after), child: Some(after) }.register();
    });
}

fn opened_nics() -> MutexGuard<'static, Vec<Arc<Nic>>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nic {
    /// The NIC called `name`, opened if it is not open.
    fn named(name: &str) -> Answer<Arc<Self>> {
        watch_forks();
        let mut known = opened_nics();
        if let Some(nic) = known.iter().find(|nic| nic.name == name && nic.is_usable()) {
            return Ok(Arc::clone(nic));
        }
        let nic = Arc::new(Self::open(name)?);
        known.push(Arc::clone(&nic));
        Ok(nic)
    }

    fn open(name: &str) -> Answer<Self> {
        let device = find(name)?;
        // SAFETY: contract: the device was listed just now, and devices are never freed.
        let context = unsafe { ibv_open_device(device) };
        if context.is_null() {
            return Err(Failure::last());
        }
        // SAFETY: the context was opened just now, and is never closed.
        let hca = Arc::clone(&unsafe { opened(context) }.hca);
        let engine = hca.lock();
        let attr = engine.device_attr();
        let byte = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        let (depth, resources) = (byte(attr.max_qp_init_rd_atom), byte(attr.max_qp_rd_atom));
        drop(engine);
        Ok(Self {
            hca,
            context,
            max_initiator_depth: depth,
            max_responder_resources: resources,
            name: name.to_owned(),
            is_for_loopback: Default::default(),
            shared: Mutex::new(Shared { users: 0, pd: ptr::null_mut(), xrcd: ptr::null_mut() }),
        })
    }

    /// The number of its context.
    pub(super) fn context_id(&self) -> CtxId {
        // SAFETY: the context is never closed.
        unsafe { opened(self.context) }.id
    }

    /// Whether it still works, and is this process's own.
    fn is_usable(&self) -> bool {
        !self.hca.lock().is_husk() && self.hca.alive().is_ok()
    }

    /// Every NIC, opened.
    ///
    /// # Errors
    /// ENODEV if there is none that can be opened.
    pub(super) fn all() -> Answer<Vec<Arc<Self>>> {
        let infos = device::nics()?;
        let nics: Vec<_> =
            infos.iter().filter_map(|info| Self::named(&info.config.name).ok()).collect();
        if nics.is_empty() {
            return Err(Failure::new(libc::ENODEV, "there is no NIC, or none that can be opened"));
        }
        Ok(nics)
    }

    /// The NIC that has an address, opened; none if no NIC has it.
    pub(super) fn with_address(ip: IpAddr) -> Answer<Option<Arc<Self>>> {
        let gid = Gid::from(ip);
        let known: Vec<_> = opened_nics().clone();
        if let Some(nic) = known.into_iter().find(|nic| nic.is_usable() && nic.has(gid)) {
            return Ok(Some(nic));
        }
        let infos = device::nics()?;
        let found = infos.iter().find(|info| info.gids.iter().any(|entry| entry.gid == gid));
        found.map(|info| Self::named(&info.config.name)).transpose()
    }

    /// The NIC for peers on this host, with its first address of the family of `like` (kernel:
    /// `cma_bind_loopback`).
    ///
    /// # Errors
    /// ENODEV if no NIC has an address of that family.
    pub(super) fn for_loopback(like: IpAddr) -> Answer<(Arc<Self>, IpAddr)> {
        let family = usize::from(like.is_ipv6());
        let suits = |ip: &IpAddr| ip.is_ipv4() == like.is_ipv4();
        // To look at all netdevs takes longer than a connection. An open NIC follows its own.
        let known: Vec<_> = opened_nics().clone();
        for nic in known {
            if nic.is_for_loopback[family].load(Ordering::Relaxed) && nic.is_usable() {
                let mut ips = nic.addresses().into_iter();
                if let Some(ip) = ips.find(suits) {
                    return Ok((nic, ip));
                }
            }
        }
        for info in device::nics()? {
            let mut ips = info.gids.iter().map(|entry| entry.gid.to_ip());
            if let Some(ip) = ips.find(suits) {
                let nic = Self::named(&info.config.name)?;
                nic.is_for_loopback[family].store(true, Ordering::Relaxed);
                return Ok((nic, ip));
            }
        }
        let what = format!("{like}: no NIC has an address of this family to reach this host by");
        Err(Failure::new(libc::ENODEV, what))
    }

    /// The program is about to wait for an event of any of them. Returns one to wait with.
    pub(super) fn about_to_wait() -> Option<Arc<Hca>> {
        let known: Vec<_> = opened_nics().clone();
        known.iter().for_each(|nic| nic.hca.about_to_wait());
        known.into_iter().find(|nic| nic.is_usable()).map(|nic| Arc::clone(&nic.hca))
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.hca.lock().gids().iter().map(|entry| entry.gid.to_ip()).collect()
    }

    fn has(&self, gid: Gid) -> bool {
        self.hca.lock().gids().iter().any(|entry| entry.gid == gid)
    }

    /// Whether an address is one of the NIC's.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.has(Gid::from(ip))
    }

    /// Counts an identifier, and gives the domain that all identifiers share.
    pub(super) fn hold(&self) -> Answer<*mut Pd> {
        let mut shared = self.shared();
        if shared.pd.is_null() {
            // SAFETY: contract: the context is never closed.
            let pd = unsafe { ibv_alloc_pd(self.context) };
            if pd.is_null() {
                return Err(Failure::last());
            }
            shared.pd = pd;
        }
        shared.users += 1;
        Ok(shared.pd)
    }

    /// Ends what [`Nic::hold`] began. The last identifier takes the domains with it, unless the
    /// program still uses them.
    pub(super) fn release(&self) {
        let mut shared = self.shared();
        shared.users -= 1;
        if shared.users > 0 {
            return;
        }
        // SAFETY: contract: it is ours, and no identifier has it any more.
        if !shared.xrcd.is_null() && unsafe { xrc::close_xrcd(shared.xrcd) } == 0 {
            shared.xrcd = ptr::null_mut();
        }
        // SAFETY: contract: as above.
        if !shared.pd.is_null() && unsafe { ibv_dealloc_pd(shared.pd) } == 0 {
            shared.pd = ptr::null_mut();
        }
    }

    /// The XRC domain that all identifiers share.
    pub(super) fn xrcd(&self) -> Answer<*mut Xrcd> {
        let mut shared = self.shared();
        if shared.xrcd.is_null() {
            // A domain of this process: no file, and both attributes named.
            let mut attr = XrcdInitAttr { comp_mask: 1 | 1 << 1, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: contract: the context is never closed.
            let xrcd = unsafe { xrc::open_xrcd(self.context, &raw mut attr) };
            if xrcd.is_null() {
                return Err(Failure::last());
            }
            shared.xrcd = xrcd;
        }
        Ok(shared.xrcd)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device called `name`.
fn find(name: &str) -> Answer<*mut Device> {
    // SAFETY: contract: NULL is allowed.
    let list = unsafe { devices::ibv_get_device_list(ptr::null_mut()) };
    if list.is_null() {
        return Err(Failure::last());
    }
    let mut found = None;
    let mut place = list;
    loop {
        // SAFETY: the list ends with NULL, and is left there.
        let device = unsafe { place.read() };
        if device.is_null() {
            break;
        }
        // SAFETY: listed devices are ours.
        if unsafe { devices::nic(device) }.config.name == name {
            found = Some(device);
        }
        place = place.wrapping_add(1);
    }
    // SAFETY: contract: the list is not used any more.
    unsafe { devices::ibv_free_device_list(list) };
    found.ok_or_else(|| Failure::new(libc::ENODEV, format!("there is no NIC called {name}")))
}
