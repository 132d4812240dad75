//! The objects of the verbs: what the device keeps of each.

pub(crate) mod comp_cntr;
