//! The communication manager of InfiniBand (IBA chapter 12) without input or output: time and messages are arguments.
//!
//! This is the vocabulary: [`PortSpace`] for how ports become service ids, [`RejReason`] and [`SidrStatus`] for why a
//! request is refused.
#![forbid(unsafe_code)]

mod port_space;
mod reason;

pub use port_space::PortSpace;
pub use reason::{RejReason, SidrStatus};
