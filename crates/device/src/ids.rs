//! Names of the engine's objects.

macro_rules! id {
    ($(#[$doc:meta] $name:ident)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The number of the object, as a kernel would give it as a handle.
            pub const fn handle(self) -> u32 {
                self.0
            }

            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            /// Tables are bounded far below 2^32 entries by the device's limits.
            fn from(index: usize) -> Self {
                Self(u32::try_from(index).expect("object tables have fewer than 2^32 entries"))
            }
        }
    )*};
}

id! {
    /// An open device.
    CtxId
    /// A protection domain.
    PdId
    /// A memory region.
    MrId
    /// An XRC domain.
    XrcdId
    /// A memory window.
    MwId
    /// A completion channel.
    ChannelId
    /// A completion queue.
    CqId
    /// A shared receive queue.
    SrqId
    /// A block of device memory.
    DmId
    /// A flow steering rule.
    FlowId
    /// An indirection table of receive side scaling.
    RwqTableId
    /// A completion counter.
    CompCntrId
    /// A queue pair. Its QPN can be reused; this cannot be confused while the QP exists.
    QpId
}

/// An endpoint of connection management: a listener, or one end of a connection. Numbers are not
/// reused soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub(crate) u32);

impl CmId {
    /// The number of the endpoint.
    pub const fn handle(self) -> u32 {
        self.0
    }
}

/// A work queue of receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wq")]
pub struct WqId(pub(crate) QpId);

impl WqId {
    /// The number of the work queue.
    pub const fn handle(self) -> u32 {
        self.0.0
    }
}

impl PdId {
    /// No domain: the value in an object that takes its domain from others.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

impl CqId {
    /// No queue: the value in a QP that completes nothing.
    pub(crate) const NONE: Self = Self(u32::MAX);
}
