//! Private data of a connection (NVMe over Fabrics 1.1, 7.3.4).

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Commands of an admin queue at most.
#[doc(alias = "NVME_AQ_DEPTH")]
pub const ADMIN_DEPTH: u16 = 32;
/// Commands of an I/O queue at most.
pub const MAX_DEPTH: u16 = 128;
/// I/O queues of a controller at most.
pub const MAX_QID: u16 = 64;

/// Why a target refuses a connection.
#[doc(alias = "nvme_rdma_cm_status")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "the list of the specification")]
#[repr(u16)]
pub enum Reject {
    /// The private data are too short.
    #[error("invalid private data length")]
    InvalidLen = 1,
    /// They have a format that is not known.
    #[error("invalid record format")]
    InvalidRecfmt = 2,
    /// There is no such queue.
    #[error("invalid queue ID")]
    InvalidQid = 3,
    /// The submission queue is empty or too long.
    #[error("invalid host SQ size")]
    InvalidHsqsize = 4,
    /// The receive queue is too short for the submission queue.
    #[error("invalid host RQ size")]
    InvalidHrqsize = 5,
    /// Nothing is left for another queue.
    #[error("no resources")]
    NoResources = 6,
    /// READs that the host takes.
    #[error("invalid IRD")]
    InvalidIrd = 7,
    /// READs that the host has outstanding.
    #[error("invalid ORD")]
    InvalidOrd = 8,
    /// The controller of an I/O queue does not exist.
    #[error("invalid controller ID")]
    InvalidCntlid = 9,
}

/// A host's request.
#[doc(alias = "nvme_rdma_cm_req")]
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Request {
    /// The format: 0.
    pub recfmt: U16,
    /// The queue; 0 is the admin queue.
    pub qid: U16,
    /// The number of responses that the host has room for.
    pub hrqsize: U16,
    /// The number of commands that it may have outstanding, less one.
    pub hsqsize: U16,
    /// The controller of an I/O queue; 0 if the host does not say.
    pub cntlid: U16,
    reserved: [u8; 22],
}

/// A target's reply.
#[doc(alias = "nvme_rdma_cm_rep")]
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Reply {
    /// The format: 0.
    pub recfmt: U16,
    /// The number of commands that the target has room for.
    pub crqsize: U16,
    reserved: [u8; 28],
}

/// A target's refusal.
#[doc(alias = "nvme_rdma_cm_rej")]
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Rejection {
    /// The format: 0.
    pub recfmt: U16,
    /// [`Reject`].
    pub sts: U16,
}

/// A queue that was requested and can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The queue.
    pub qid: u16,
    /// The number of commands that may be outstanding.
    pub depth: u16,
    /// The controller that it says it belongs to; 0 if it does not say.
    pub cntlid: u16,
}

impl Request {
    /// For a queue of `depth` commands.
    pub fn new(qid: u16, depth: u16) -> Self {
        let hsqsize = depth.wrapping_sub(1).into();
        Self { qid: qid.into(), hrqsize: depth.into(), hsqsize, ..Self::default() }
    }

    /// The request in private data.
    ///
    /// # Errors
    ///
    /// [`Reject`].
    pub fn parse(private_data: &[u8]) -> Result<Shape, Reject> {
        let Ok((request, _)) = Self::read_from_prefix(private_data) else {
            return Err(Reject::InvalidLen);
        };
        if request.recfmt.get() != 0 {
            return Err(Reject::InvalidRecfmt);
        }
        let qid = request.qid.get();
        if qid > MAX_QID {
            return Err(Reject::InvalidQid);
        }
        let most = if qid == 0 { ADMIN_DEPTH } else { MAX_DEPTH };
        let hsqsize = request.hsqsize.get();
        if hsqsize == 0 || hsqsize >= most {
            return Err(Reject::InvalidHsqsize);
        }
        // A host needs room for a response to each command. It may give the length or the length
        // less one.
        if request.hrqsize.get() < hsqsize {
            return Err(Reject::InvalidHrqsize);
        }
        Ok(Shape { qid, depth: hsqsize + 1, cntlid: request.cntlid.get() })
    }
}

impl Reply {
    /// For a queue of `depth` commands.
    pub fn new(depth: u16) -> Self {
        Self { crqsize: depth.into(), ..Self::default() }
    }
}

impl From<Reject> for Rejection {
    fn from(reject: Reject) -> Self {
        Self { recfmt: 0.into(), sts: (reject as u16).into() }
    }
}
