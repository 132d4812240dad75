//! The capabilities of a QP's carrier.

use iba::Mtu;

/// The properties of the path that a QP sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct PathCaps {
    /// The path MTU: the unit in which packet sequence numbers advance, on every carrier.
    pub path_mtu: Mtu,
    /// Payload bytes that one packet may carry: a multiple of the path MTU, and equal to it on a
    /// wire.
    pub segment: u32,
    /// Whether packets arrive, once and in order, as long as the peer lives. ACKs are then
    /// requested only at the ends of messages, and one-sided operations are offered to
    /// [`Env::one_sided`](crate::Env::one_sided).
    pub reliable: bool,
}

impl PathCaps {
    /// A path over a wire, which may lose, repeat and reorder packets.
    pub const fn wire(path_mtu: Mtu) -> Self {
        Self { path_mtu, segment: path_mtu.bytes(), reliable: false }
    }

    /// A path over memory, with packets of up to `segment` bytes, rounded down to whole path MTUs.
    pub const fn memory(path_mtu: Mtu, segment: u32) -> Self {
        Self { path_mtu, segment, reliable: true }.rounded()
    }

    /// The same with a segment that is a multiple of the path MTU, and at least one.
    pub(crate) const fn rounded(self) -> Self {
        let mtu = self.path_mtu.bytes();
        let packets = if self.segment < mtu { 1 } else { self.segment / mtu };
        Self { segment: packets * mtu, ..self }
    }
}

/// The most packets that a requester may have unacknowledged on a path with its own flow control.
/// Sequence numbers of one direction must stay within half of their space (IBA 9.7.2).
pub(crate) const MEMORY_WINDOW: u32 = 1 << 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_mtus() {
        assert_eq!(PathCaps::memory(Mtu::Mtu1024, 64 << 10).segment, 64 << 10);
        assert_eq!(PathCaps::memory(Mtu::Mtu4096, 10_000).segment, 8192);
        assert_eq!(PathCaps::memory(Mtu::Mtu4096, 100).segment, 4096);
        assert_eq!(PathCaps::wire(Mtu::Mtu256).segment, 256);
    }
}
