//! The limit of locked memory, for a NIC that pins what is registered (`docs/semantics.md` 2.7 and
//! 8, invariant 9).
//!
//! Only one test: the limit is process-wide.

use gpu::{Gpu, GpuConfig, Place};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use verbs::soft::{self, NicConfig};
use verbs::{Access, DmaBuf, HostBuf, Kind};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PAGE: u64 = 4096;

fn limit(bytes: u64) {
    let maximum = getrlimit(Resource::Memlock).maximum;
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum }).unwrap();
}

#[test]
fn host_memory_is_charged_and_a_dma_buf_never() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();

    let name = format!("locked{}", std::process::id());
    let config = NicConfig { name, pin_limit: true, peermem: true, ..NicConfig::default() };
    let context = soft::device(config).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let (small, large) = (
        HostBuf::anonymous(2 * PAGE as usize).unwrap(),
        HostBuf::anonymous(3 * PAGE as usize).unwrap(),
    );
    let buffer = DmaBuf::export(64 * PAGE, "locked").unwrap();

    limit(0);
    assert_eq!(pd.reg_mr(&small, ALL).unwrap_err().kind(), Kind::NotPermitted);
    // Both stay, and are not charged in what follows.
    let _uncharged = (
        pd.reg_whole_dmabuf(&buffer, ALL).unwrap(),
        pd.reg_mr(&small, ALL | Access::ON_DEMAND).unwrap(),
    );

    limit(4 * PAGE);
    let held = pd.reg_mr(&small, ALL).unwrap();
    assert_eq!(pd.reg_mr(&large, ALL).unwrap_err().kind(), Kind::NoMemory, "2 and 3 are over 4");
    drop(held);
    pd.reg_mr(&large, ALL).unwrap();

    // Nor has a second NIC a limit of its own: 6 and 6 MiB are over 8.
    {
        let large = HostBuf::anonymous(6 << 20).unwrap();
        let name = format!("locked-six{}", std::process::id());
        let config = NicConfig { name, pin_limit: true, ..NicConfig::default() };
        let other = soft::device(config).unwrap().open().unwrap().alloc_pd().unwrap();
        limit(8 << 20);
        let held = pd.reg_mr(&large, ALL).unwrap();
        assert_eq!(other.reg_mr(&large, ALL).unwrap_err().kind(), Kind::NoMemory);
        drop(held);
        other.reg_mr(&large, ALL).unwrap();
        limit(4 * PAGE);
    }

    // A second NIC has no limit of its own, and returns its share when it is closed.
    {
        let held = pd.reg_mr(&small, ALL).unwrap();
        let name = format!("locked-too{}", std::process::id());
        let config = NicConfig { name, pin_limit: true, ..NicConfig::default() };
        let too = soft::device(config).unwrap().open().unwrap().alloc_pd().unwrap();
        assert_eq!(too.reg_mr(&large, ALL).unwrap_err().kind(), Kind::NoMemory, "2 and 3 again");
        let held_too = too.reg_mr(&small, ALL).unwrap();
        assert_eq!(pd.reg_mr(&small, ALL).unwrap_err().kind(), Kind::NoMemory, "4 are in use");
        drop((held, held_too));
    }

    // Memory registered by PeerDirect is charged like plain memory.
    let config = GpuConfig { vram: 1 << 20, shared: false, ..GpuConfig::default() };
    let gpu = Gpu::open(&config).unwrap();
    let bo = gpu.alloc(8 * PAGE, Place::VISIBLE_VRAM).unwrap();
    let mapping = bo.export().unwrap().map(0, 8 * PAGE).unwrap();
    assert_eq!(
        soft::reg_mapping(&pd, &mapping, ALL).unwrap_err().kind(),
        Kind::NoMemory,
        "8 are over 4"
    );
    limit(8 * PAGE);
    let held = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
    assert_eq!(pd.reg_mr(&small, ALL).unwrap_err().kind(), Kind::NoMemory, "8 and 2 are over 8");
    drop(held);
    pd.reg_mr(&small, ALL).unwrap();
}
