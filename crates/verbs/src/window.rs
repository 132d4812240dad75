//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::MwType;
use device::ids::MwId;
use iba::RKey;

use crate::arm::{Arm, On, refused};
use crate::{Context, Mr, Result};

/// The bits of a key that the program chooses.
const TAG: u32 = 0xff;

/// A memory window of type 2: a key for a part of a region that one QP grants to its peer and that
/// either side can invalidate by a work request, without a registration. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mw")]
pub struct Mw(Arc<Window>);

#[derive(Debug)]
struct Window {
    arm: Arm<On<MwId>, sysverbs::Mw>,
    key: AtomicU32,
    /// The region that it is bound to. A region with a window cannot be deregistered, so it
    /// outlives the window.
    region: Mr,
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Fails only for a window that does not exist.
            let _ = on.lock().dealloc_mw(on.id);
        }
    }
}

impl Mr {
    /// Makes a window on this region, which gives no access until it is bound
    /// ([`SendRequest::bind`](crate::SendRequest::bind)). The region must be registered with
    /// [`Access::MW_BIND`](crate::Access::MW_BIND).
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) at the limit of windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&self) -> Result<Mw> {
        let (arm, key) = match self.arm() {
            Arm::Soft(mr) => {
                let pd = self.pd().arm().soft("alloc_mw")?;
                let (id, key) = pd.alive()?.alloc_mw(pd.id, MwType::Two)?;
                (Arm::Soft(mr.with(id)), key)
            }
            Arm::Hard(mr) => {
                let window = mr.window().map_err(refused)?;
                let key = window.rkey().0;
                (Arm::Hard(window), key)
            }
        };
        Ok(Mw(Arc::new(Window { arm, key: AtomicU32::new(key), region: self.clone() })))
    }
}

impl Mw {
    /// The key by which a peer names it: the key of the last bind request made for it.
    pub fn rkey(&self) -> RKey {
        // ORDERING: the key alone is shared; the engine guards what it grants by its own lock.
        RKey(self.0.key.load(Ordering::Relaxed))
    }

    /// The region that it is made on.
    pub fn region(&self) -> &Mr {
        &self.0.region
    }

    pub(crate) fn context(&self) -> &Context {
        self.0.region.pd().context()
    }

    /// The software device's number for it.
    pub(crate) fn number(&self) -> u32 {
        self.0.arm.same_soft().map_or(0, |on| on.id.handle())
    }

    pub(crate) fn hard(&self) -> Option<&sysverbs::Mw> {
        self.0.arm.same_hard()
    }

    /// Another key, so that an earlier one gives a peer no access.
    pub(crate) fn next_key(&self) -> RKey {
        let next = |key: u32| Some(key & !TAG | key.wrapping_add(1) & TAG);
        let old = self.0.key.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let old = old.unwrap_or_else(|key| key);
        RKey(old & !TAG | old.wrapping_add(1) & TAG)
    }
}
