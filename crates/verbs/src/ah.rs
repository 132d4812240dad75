//! Address handles.

use std::sync::Arc;

use device::ids::PdId;
use iba::Av;

use crate::arm::{Arm, On, refused};
use crate::{Context, Pd, Result};

/// An address handle: the destination of datagrams. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ah")]
pub struct Ah(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    /// The software device counts the handles of a domain.
    arm: Arm<On<PdId>, sysverbs::Ah>,
    pd: Pd,
    av: Av,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // The domain is held, so it exists.
            let _ = on.lock().count_ah(on.id, false);
        }
    }
}

impl Pd {
    /// Creates an address handle, for datagrams.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, av: Av) -> Result<Ah> {
        Ah::new(self, av)
    }
}

impl Ah {
    fn new(pd: &Pd, av: Av) -> Result<Self> {
        let arm = match pd.arm() {
            Arm::Soft(on) => {
                on.hca.create_ah(on.id, &av)?;
                Arm::Soft(on.clone())
            }
            Arm::Hard(pd) => Arm::Hard(pd.create_ah(&av).map_err(refused)?),
        };
        Ok(Self(Arc::new(Handle { arm, pd: pd.clone(), av })))
    }

    pub(crate) fn hard(&self) -> Option<&sysverbs::Ah> {
        self.0.arm.same_hard()
    }

    pub(crate) fn av(&self) -> Av {
        self.0.av
    }

    pub(crate) fn context(&self) -> &Context {
        self.0.pd.context()
    }
}
