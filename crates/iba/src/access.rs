//! What a memory region, a window or a QP permits.

use bitflags::bitflags;

bitflags! {
    /// Access rights, with the values of `enum ibv_access_flags`.
    ///
    /// Local read is always granted. Unknown bits are kept, so that a refusal can name them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        /// The owner's NIC may write: receive buffers, READ responses, atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// A memory window may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0 at the start of the region.
        const ZERO_BASED = 1 << 5;
        /// Pages are faulted in when they are accessed.
        const ON_DEMAND = 1 << 6;
        /// Backed by huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Optional: writes may overtake each other.
        const RELAXED_ORDERING = 1 << 20;
        const _ = !0;
    }
}

impl Access {
    /// Bits a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL_RANGE: Self = Self::from_bits_retain(0x3ff0_0000);

    /// Every right a peer can hold.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// Whether memory for these rights must be writable (the kernel's `ib_access_writable`).
    pub const fn needs_writable(self) -> bool {
        let writing = Self::LOCAL_WRITE
            .union(Self::REMOTE_WRITE)
            .union(Self::REMOTE_ATOMIC)
            .union(Self::MW_BIND);
        self.intersects(writing)
    }

    /// Whether the set breaks the rule that remote write and remote atomic need local write
    /// (`ibv_reg_mr(3)`).
    pub const fn lacks_local_write(self) -> bool {
        (self.contains(Self::REMOTE_WRITE) || self.contains(Self::REMOTE_ATOMIC))
            && !self.contains(Self::LOCAL_WRITE)
    }
}
