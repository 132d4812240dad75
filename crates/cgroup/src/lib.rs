//! Limits that control groups set on devices: `rdma.max` and `dmem.max` (`docs/semantics.md` 2.7).
//!
//! ```text
//!   /proc/self/cgroup         which groups a process is in:     0::/user/job
//!   /sys/fs/cgroup/user/job/rdma.max    peerdma0 hca_handle=2 hca_object=2000
//!   /sys/fs/cgroup/user/rdma.max        peerdma0 hca_handle=max hca_object=500
//!                                        each group above limits the process as well
//! ```
//!
//! Files are read and nothing is charged: that is for those who make the objects. They tell groups
//! apart by [`Group::id`], which is the same whatever mount or namespace a process sees a group in.
//!
//! ```
//! let groups = cgroup::Groups::of_self("/".as_ref());
//! for limit in groups.rdma_max("peerdma0", cgroup::RdmaResource::HcaObject) {
//!     println!("{} allows {} objects", limit.group, limit.most);
//! }
//! ```
#![forbid(unsafe_code)]

mod groups;
mod limits;

pub use groups::{Group, GroupFile, Groups};
pub use limits::{Limit, RdmaResource};
