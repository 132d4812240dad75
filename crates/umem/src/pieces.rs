//! Pieces of a buffer.

/// Pieces of equal length in a buffer, evenly spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Pieces {
    /// Offset of the first piece in the buffer.
    pub first: usize,
    /// Bytes in each.
    pub len: usize,
    /// Bytes from the beginning of one piece to that of the next: at least their length.
    pub stride: usize,
    /// The number of pieces.
    pub count: usize,
}

impl Pieces {
    /// Whether there are any, and all are inside a buffer of this many bytes.
    pub(crate) fn fit(&self, bytes: usize) -> bool {
        let last = self.count.checked_sub(1).and_then(|before| before.checked_mul(self.stride));
        let end = last.and_then(|last| last.checked_add(self.first)?.checked_add(self.len));
        self.len <= self.stride && end.is_some_and(|end| end <= bytes)
    }
}
