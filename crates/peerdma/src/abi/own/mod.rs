//! What the library keeps beside those C structures that calls on other objects use as well:
//! contexts, domains, completion queues and queue pairs. The calls that act on them are one level
//! up, in one file for each kind of object, with the objects that no other calls use.

pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod pd;
pub(crate) mod qp;
