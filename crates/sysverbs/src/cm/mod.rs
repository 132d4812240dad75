//! Connections by address: the `librdmacm.so.1` that belongs to a `libibverbs.so.1`.
//!
//! An identifier has no QP as far as the library knows. Its user makes the QP on a context of their
//! own, moves it with the attributes that [`CmId::qp_attr`] gives, and passes its number; so
//! nothing here refers to the contexts that librdmacm opens for itself.
//!
//! What an identifier points to changes when it moves to another channel and when the library takes
//! an event of it. A mutex of the identifier is held in every call of it, and one of the channel
//! while an event is taken, copied and acknowledged.

mod channel;
mod event;
mod id;
mod library;

pub use channel::CmChannel;
pub use event::{CmEvent, CmEventKind, Said, UdSaid};
pub use id::{CmId, CmOption, ConnParam, PortSpace};
pub use library::CmLibrary;
