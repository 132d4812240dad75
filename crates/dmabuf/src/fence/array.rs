//! Several fences combined into one.

use super::{Fence, Kind};

/// Makes a fence of several.
#[doc(alias = "dma_fence_array")]
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for the constructors")]
pub struct FenceArray;

/// Why an array was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// An empty array would never be signaled.
    #[error("a fence array needs at least one fence")]
    Empty,
    /// An array in an array could be nested without end.
    #[error("a fence array holds no arrays and no chains: they are unwrapped first")]
    Container,
}

/// The fences of an array.
pub(super) struct Parts {
    fences: Vec<Fence>,
    /// Whether the first signaled fence is enough.
    is_any: bool,
}

impl FenceArray {
    /// A fence that is signaled when all of `fences` are. Its error is that of the first fence that
    /// failed.
    ///
    /// # Errors
    ///
    /// [`ArrayError`].
    #[doc(alias = "dma_fence_array_create")]
    pub fn all(fences: Vec<Fence>) -> Result<Fence, ArrayError> {
        Self::make(fences, false)
    }

    /// A fence that is signaled when one of `fences` is.
    ///
    /// # Errors
    ///
    /// [`ArrayError`].
    pub fn any(fences: Vec<Fence>) -> Result<Fence, ArrayError> {
        Self::make(fences, true)
    }

    /// The fences of `fence` if it is an array.
    #[doc(alias = "to_dma_fence_array")]
    pub fn parts(fence: &Fence) -> Option<&[Fence]> {
        match &fence.inner.kind {
            Kind::Array(parts) => Some(&parts.fences),
            _ => None,
        }
    }

    fn make(fences: Vec<Fence>, is_any: bool) -> Result<Fence, ArrayError> {
        if fences.is_empty() {
            return Err(ArrayError::Empty);
        }
        if fences.iter().any(Fence::is_container) {
            return Err(ArrayError::Container);
        }
        Ok(of(fences, is_any))
    }
}

/// An array of fences that are not containers, at least one.
pub(super) fn of(fences: Vec<Fence>, is_any: bool) -> Fence {
    let kind = Kind::Array(Parts { fences, is_any });
    Fence::new(Fence::new_context(), 1, "dma_fence_array", "unbound", kind)
}

impl Parts {
    pub(super) fn fences(&self) -> &[Fence] {
        &self.fences
    }

    pub(super) fn is_any(&self) -> bool {
        self.is_any
    }

    pub(super) fn is_done(&self) -> bool {
        let mut fences = self.fences.iter();
        if self.is_any { fences.any(Fence::is_signaled) } else { fences.all(Fence::is_signaled) }
    }

    pub(super) fn first_active(&self) -> Option<Fence> {
        self.fences.iter().find(|fence| !fence.is_signaled()).cloned()
    }
}
