//! What the library keeps beside the C structures that calls about others name: contexts, domains,
//! completion queues and queue pairs. What acts on them is above, one file for each kind of object;
//! objects that only their own calls know are there, too.

pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod pd;
pub(crate) mod qp;
