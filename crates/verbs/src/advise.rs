//! Advice on memory that is paged on demand.

use device::MrAdvice;
use transport::wr::SgList;

use crate::arm::{Arm, other_device, refused};
use crate::request::Origin;
use crate::{Kind, Pd, Refusal, Result, Slice};

impl Pd {
    /// Advises the NIC on slices of regions with [`Access::ON_DEMAND`](crate::Access::ON_DEMAND),
    /// or of dma-bufs: that their pages will be used. Without `flush` the NIC may do that later, or
    /// not at all; with it the pages are there when this returns. The software device always does
    /// it at once.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`] if the NIC or its library has no advice; [`Kind::Invalid`] without a
    /// slice; [`Kind::NotPermitted`] for writing to a region that is read-only;
    /// [`Kind::BadAddress`] beyond the end of a region; otherwise the NIC's, which differ
    /// (`docs/semantics.md` 2.5).
    #[doc(alias("ibv_advise_mr", "IBV_ADVISE_MR_FLAG_FLUSH"))]
    pub fn advise(&self, advice: MrAdvice, flush: bool, slices: &[Slice<'_>]) -> Result<()> {
        if slices.is_empty() {
            return Err(Refusal::new(Kind::Invalid, "advise_mr: there is no slice"));
        }
        let mut list = SgList::new();
        let origin = Origin::put(&mut list, slices);
        origin.check(self).map_err(|_| other_device("advise_mr", "region"))?;
        match self.arm() {
            Arm::Soft(on) => on.alive()?.advise_mr(on.id, advice, &list),
            Arm::Hard(pd) => pd.advise_mr(number(advice), flush, &list).map_err(refused),
        }
    }
}

/// `enum ib_uverbs_advise_mr_advice` has the same order.
const fn number(advice: MrAdvice) -> u32 {
    advice as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_has_the_numbers_of_c() {
        use MrAdvice::{Prefetch, PrefetchNoFault, PrefetchWrite};
        assert_eq!([Prefetch, PrefetchWrite, PrefetchNoFault].map(number), [0, 1, 2]);
    }
}
