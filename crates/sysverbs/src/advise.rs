//! Advice on memory regions.

use transport::wr::SgList;

use crate::context::later_op;
use crate::error::{Error, Result, check};
use crate::pd::Pd;
use crate::post::sges;

/// `IBV_ADVISE_MR_FLAG_FLUSH`.
const FLUSH: u32 = 1;

impl Pd {
    /// Advises the NIC on pieces of regions of the domain. `advice` is a number of C; with `flush`
    /// the call returns when it has been followed.
    ///
    /// # Errors
    ///
    /// The library's; EOPNOTSUPP if the provider has no advice.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr(&self, advice: u32, flush: bool, list: &SgList) -> Result<()> {
        const CALL: &str = "ibv_advise_mr";
        let advise = later_op!(self.context(), advise_mr).ok_or(Error::absent(CALL))?;
        let count = u32::try_from(list.len()).map_err(|_| Error::new(CALL, libc::EINVAL))?;
        let flags = if flush { FLUSH } else { 0 };
        // SAFETY: the domain exists, and the list has as many elements as the call says. A page
        // that is faulted in keeps what it holds.
        check(CALL, unsafe { advise(self.raw(), advice, flags, sges(list), count) })
    }
}
