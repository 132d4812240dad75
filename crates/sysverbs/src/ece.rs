//! Enhanced connection establishment (ECE).

use verbs_abi::qp as c;

use crate::error::{Error, Result, check};
use crate::qp::Qp;

/// What a NIC offers beyond the specification to a peer of the same vendor, or takes of what the
/// peer offers. The numbers are the vendor's; a program only carries them from one to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_ece")]
#[expect(clippy::exhaustive_structs, reason = "programs send it to each other")]
pub struct Ece {
    /// Whose options they are; 0 for nobody's.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
    /// Which fields came later; none so far, so 0.
    pub comp_mask: u32,
}

impl Qp {
    /// The options of its NIC, or after connecting those that are in use.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP if the provider has none, or a library before rdma-core 31; otherwise the
    /// library's.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        const CALL: &str = "ibv_query_ece";
        let query = self.pd().context().functions().ibv_query_ece.ok_or(Error::absent(CALL))?;
        let mut ece = c::Ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the QP exists, and there is room for the answer.
        check(CALL, unsafe { query(self.raw(), &raw mut ece) })?;
        let c::Ece { vendor_id, options, comp_mask } = ece;
        Ok(Ece { vendor_id, options, comp_mask })
    }

    /// Has it use these options of the peer, as far as its NIC does, when it is connected.
    ///
    /// # Errors
    ///
    /// As [`query_ece`](Self::query_ece).
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, ece: Ece) -> Result<()> {
        const CALL: &str = "ibv_set_ece";
        let set = self.pd().context().functions().ibv_set_ece.ok_or(Error::absent(CALL))?;
        let Ece { vendor_id, options, comp_mask } = ece;
        let mut ece = c::Ece { vendor_id, options, comp_mask };
        // SAFETY: the QP exists, and the structure is valid.
        check(CALL, unsafe { set(self.raw(), &raw mut ece) })
    }
}
