//! Address handles.

use std::sync::Arc;

use iba::Av;

use crate::{Context, Pd, Result};

/// An address handle: the destination of datagrams. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ah")]
pub struct Ah(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    pd: Pd,
    av: Av,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The domain is held, so it exists.
        let _ = self.pd.context().lock().count_ah(self.pd.id(), false);
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
    pub(crate) fn new(pd: &Pd, av: Av) -> Result<Self> {
        pd.context().hca().create_ah(pd.id(), &av)?;
        Ok(Self(Arc::new(Handle { pd: pd.clone(), av })))
    }

    pub(crate) fn av(&self) -> Av {
        self.0.av
    }

    pub(crate) fn context(&self) -> &Context {
        self.0.pd.context()
    }
}
