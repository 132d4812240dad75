//! Re-registration of regions: what is refused, and what is charged (`docs/semantics.md` 2.7).
//!
//! Only one test sets the limit of locked memory, which is process-wide.

use std::sync::Arc;

use device::config::NicConfig;
use device::ids::{MrId, PdId};
use device::{Hca, Kind, NicInfo, Rereg};
use dmabuf::DmaBuf;
use iba::Access;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use umem::{HostBuf, Umem};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PAGE: usize = 4096;

fn open(test: &str, pin_limit: bool) -> (Arc<Hca>, PdId, PdId) {
    let name = format!("{test}{}", std::process::id());
    let config = NicConfig { name, pin_limit, ..NicConfig::default() };
    let hca = Hca::open(&NicInfo::new(config).unwrap()).unwrap();
    let mut engine = hca.lock();
    let ctx = engine.open_ctx().unwrap();
    let (pd, other) = (engine.alloc_pd(ctx).unwrap(), engine.alloc_pd(ctx).unwrap());
    drop(engine);
    (hca, pd, other)
}

fn host(pages: usize) -> HostBuf {
    HostBuf::anonymous(pages * PAGE).unwrap()
}

fn onto(buffer: &HostBuf) -> Rereg {
    let translation = Some((Umem::host(buffer), buffer.as_ptr().addr() as u64));
    Rereg { translation, ..Rereg::default() }
}

#[track_caller]
fn is_refused(hca: &Hca, id: MrId, change: Rereg, kind: Kind) {
    let refused = hca.rereg_mr(id, change).unwrap_err();
    assert_eq!(refused.kind(), kind, "{refused}");
}

/// The kernel's `ib_umem_check_rereg`: EOPNOTSUPP for any change, after checks of the arguments
/// themselves; nothing changes.
#[test]
fn a_dma_buf_region_cannot_be_changed() {
    let (hca, pd, other) = open("rereg-dmabuf", false);
    let buffer = DmaBuf::export(2 * PAGE as u64, "rereg").unwrap();
    let region = hca.reg_dmabuf_mr(pd, Some(buffer.fd()), 0, PAGE as u64, 0, ALL).unwrap();
    let memory = host(1);
    let to_pd = Rereg { pd: Some(other), ..Rereg::default() };
    let to_access = Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() };
    let all = Rereg { pd: Some(other), access: Some(Access::empty()), ..onto(&memory) };
    for change in [onto(&memory), to_pd, to_access, all] {
        is_refused(&hca, region.id, change, Kind::NotSupported);
    }
    let senseless = Rereg { access: Some(Access::REMOTE_WRITE), ..Rereg::default() };
    for change in [senseless, Rereg::default()] {
        is_refused(&hca, region.id, change, Kind::Invalid);
    }
    let mut engine = hca.lock();
    assert_eq!(engine.mr_access(region.id), Some(ALL));
    engine.dealloc_pd(other).expect("nothing came to be in it");
    assert_eq!(engine.dealloc_pd(pd).unwrap_err().kind(), Kind::Busy);
    drop(engine);
    hca.dereg_mr(region.id).unwrap();
    hca.lock().dealloc_pd(pd).unwrap();
}

#[test]
fn rights_to_write_need_memory_that_was_registered_for_writing() {
    let (hca, pd, _) = open("rereg-rights", false);
    let memory = host(1);
    let iova = memory.as_ptr().addr() as u64;
    let region = hca.lock().reg_mr(pd, Umem::host(&memory), iova, Access::REMOTE_READ).unwrap();
    let to = |access| Rereg { access: Some(access), ..Rereg::default() };
    is_refused(&hca, region.id, to(ALL), Kind::ReadOnly);
    assert_eq!(hca.rereg_mr(region.id, to(Access::empty())).unwrap().rkey, region.rkey);
    let anew = Rereg { access: Some(ALL), ..onto(&memory) };
    assert_ne!(hca.rereg_mr(region.id, anew).unwrap().rkey, region.rkey);
    hca.rereg_mr(region.id, to(Access::REMOTE_READ)).unwrap();
    hca.rereg_mr(region.id, to(ALL)).unwrap();
}

#[test]
fn new_memory_is_charged_and_a_refusal_is_undone() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let maximum = getrlimit(Resource::Memlock).maximum;
    let limit = |pages: usize| {
        let current = Some((pages * PAGE) as u64);
        setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
    };
    let (hca, pd, other) = open("rereg-locked", true);
    let register = |memory: &HostBuf, access: Access| {
        let iova = memory.as_ptr().addr() as u64;
        hca.lock().reg_mr(pd, Umem::host(memory), iova, access)
    };
    let (one, two, three) = (host(1), host(2), host(3));
    limit(4);
    let region = register(&one, ALL).unwrap();
    // While the old page is held, 1 + 2 are charged, and then 2.
    hca.rereg_mr(region.id, onto(&two)).unwrap();
    let moved = Rereg { pd: Some(other), ..onto(&three) };
    is_refused(&hca, region.id, moved, Kind::NoMemory);
    hca.lock().dealloc_pd(other).expect("the region did not come to be in it");
    // Exactly 2 of 4 are charged.
    let rest = register(&two, ALL).unwrap();
    assert_eq!(register(&one, ALL).unwrap_err().kind(), Kind::NoMemory);
    hca.dereg_mr(rest.id).unwrap();
    limit(0);
    is_refused(&hca, region.id, onto(&one), Kind::NotPermitted);
    // An on-demand region is not charged, and its earlier charge is released.
    let paged = Rereg { access: Some(ALL | Access::ON_DEMAND), ..onto(&three) };
    hca.rereg_mr(region.id, paged).unwrap();
    limit(4);
    let all = register(&host(4), ALL).unwrap();
    // Back to pinned pages, without new memory: 3 besides 4.
    let pinned = Rereg { access: Some(ALL), ..Rereg::default() };
    is_refused(&hca, region.id, pinned.clone(), Kind::NoMemory);
    assert_eq!(hca.lock().mr_access(region.id), Some(ALL | Access::ON_DEMAND));
    hca.dereg_mr(all.id).unwrap();
    hca.rereg_mr(region.id, pinned).unwrap();
    assert_eq!(register(&two, ALL).unwrap_err().kind(), Kind::NoMemory, "3 and 2 are over 4");
    hca.dereg_mr(region.id).unwrap();
    register(&host(4), ALL).unwrap();
}
