//! Enhanced connection establishment (ECE).

pub use sysverbs::Ece;

use crate::arm::{Arm, refused};
use crate::{Kind, Qp, Refusal, Result};

impl Qp {
    /// What its NIC offers to a peer of the same vendor, for the peer's
    /// [`set_ece`](Self::set_ece); once it is connected, what is in use.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`] if the NIC or its library has no such options. The software device
    /// has none.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        match self.arm() {
            Arm::Soft(_) => Err(none("query_ece")),
            Arm::Hard(qp) => qp.query_ece().map_err(refused),
        }
    }

    /// Has it use what the peer offers, as far as its NIC does. Before it is connected; what came
    /// of it, [`query_ece`](Self::query_ece) says afterwards.
    ///
    /// # Errors
    ///
    /// As [`query_ece`](Self::query_ece), and [`Kind::NotSupported`] for options of nobody.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, ece: Ece) -> Result<()> {
        match self.arm() {
            Arm::Soft(_) => Err(none("set_ece")),
            Arm::Hard(qp) => qp.set_ece(ece).map_err(refused),
        }
    }
}

fn none(call: &str) -> Refusal {
    let what = format!("{call}: the software device has no options of a vendor");
    Refusal::new(Kind::NotSupported, what)
}
