//! Completion counters.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_abi::comp_cntr as c;

use crate::context::Context;
use crate::error::{Error, Result, check};

/// `IBV_COMP_CNTR_TYPE_WRS` and `IBV_COMP_CNTR_TYPE_BYTES`.
const WRS: u32 = 0;
const BYTES: u32 = 1;

/// A function of the library that changes a value.
type Change = unsafe extern "C" fn(*mut c::CompCntr, u64) -> c_int;

/// A completion counter. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_cntr")]
pub struct CompCntr(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    raw: NonNull<c::CompCntr>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Some(destroy) = self.context.functions().ibv_destroy_comp_cntr {
            // SAFETY: the counter exists, and QPs that it is attached to hold it.
            unsafe { destroy(self.raw.as_ptr()) };
        }
    }
}

impl Context {
    /// Creates a completion counter at zero, of bytes or of requests.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP if the library has no completion counters; otherwise the library's.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&self, of_bytes: bool) -> Result<CompCntr> {
        const CALL: &str = "ibv_create_comp_cntr";
        let create = self.functions().ibv_create_comp_cntr.ok_or(Error::absent(CALL))?;
        let r#type = if of_bytes { BYTES } else { WRS };
        let mut attr = c::CompCntrInitAttr { comp_mask: 0, r#type, flags: 0 };
        // SAFETY: the context is open, and the structure is valid.
        let raw = unsafe { create(self.raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        Ok(CompCntr(Arc::new(Counter { raw, context: self.clone() })))
    }

    /// How many completion counters its NIC has: 0 if its library has none.
    #[doc(alias = "ibv_query_comp_cntr_caps")]
    pub fn max_comp_cntr(&self) -> u32 {
        let Some(query) = self.functions()._ibv_query_comp_cntr_caps else { return 0 };
        let mut caps =
            c::CompCntrCaps { max_value: 0, max_counters: 0, supported_qp_attach_ops: 0 };
        // SAFETY: the context is open, and there is room for as much as the size says.
        let failed = unsafe { query(self.raw(), &raw mut caps, size_of::<c::CompCntrCaps>()) };
        if failed == 0 { caps.max_counters } else { 0 }
    }
}

/// The counter has two values: of what succeeded, and of what failed (`is_err`).
impl CompCntr {
    /// The current value.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_read_comp_cntr")]
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read(&self, is_err: bool) -> Result<u64> {
        let of = self.0.context.functions();
        let (call, read) = if is_err {
            ("ibv_read_err_comp_cntr", of.ibv_read_err_comp_cntr)
        } else {
            ("ibv_read_comp_cntr", of.ibv_read_comp_cntr)
        };
        let mut value = 0;
        // SAFETY: the counter exists, and there is room for the value.
        check(call, unsafe { read.ok_or(Error::absent(call))?(self.raw(), &raw mut value) })?;
        Ok(value)
    }

    /// Sets a value.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_set_comp_cntr")]
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set(&self, is_err: bool, value: u64) -> Result<()> {
        let of = self.0.context.functions();
        let set = if is_err {
            ("ibv_set_err_comp_cntr", of.ibv_set_err_comp_cntr)
        } else {
            ("ibv_set_comp_cntr", of.ibv_set_comp_cntr)
        };
        self.change(set, value)
    }

    /// Adds to a value.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_inc_comp_cntr")]
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn inc(&self, is_err: bool, amount: u64) -> Result<()> {
        let of = self.0.context.functions();
        let inc = if is_err {
            ("ibv_inc_err_comp_cntr", of.ibv_inc_err_comp_cntr)
        } else {
            ("ibv_inc_comp_cntr", of.ibv_inc_comp_cntr)
        };
        self.change(inc, amount)
    }

    fn change(&self, (call, change): (&'static str, Option<Change>), by: u64) -> Result<()> {
        // SAFETY: the counter exists.
        check(call, unsafe { change.ok_or(Error::absent(call))?(self.raw(), by) })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut c::CompCntr {
        self.0.raw.as_ptr()
    }
}
