//! A multicast group.

use iba::Gid;

use crate::ids::QpId;

/// The QPs of this process in one group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) gid: Gid,
    pub(crate) members: Vec<QpId>,
}
