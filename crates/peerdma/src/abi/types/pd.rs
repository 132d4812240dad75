//! Protection domains.

use super::c_struct;
use super::context::Context;

c_struct! {
    /// A protection domain.
    pub(crate) struct Pd = "struct ibv_pd" {
        context: *mut Context,
        handle: u32,
    }
}
