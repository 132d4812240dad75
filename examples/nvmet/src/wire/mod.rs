//! The formats of messages: capsules, descriptors of data, private data of connections, and the
//! pages that commands return. Nothing here does I/O.

pub mod capsule;
pub mod cm;
pub mod discovery;
pub mod fabrics;
pub mod sgl;
pub mod status;

pub use capsule::{Command, Completion};
pub use sgl::Descriptor;
pub use status::Status;

/// The name of the discovery subsystem, which is the same everywhere.
#[doc(alias = "NVME_DISC_SUBSYS_NAME")]
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of a name in a structure, with its zeros.
pub const NQN_LEN: usize = 256;

/// A name as structures have it. A name that does not fit is cut off, and a zero follows.
pub fn nqn(name: &str) -> [u8; NQN_LEN] {
    let mut field = [0; NQN_LEN];
    put(&mut field[..NQN_LEN - 1], name.as_bytes());
    field
}

/// The name in a structure. `None` if no zero ends it, it is empty, or it is not text.
pub fn nqn_of(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..end]).ok().filter(|name| !name.is_empty())
}

/// Copies as much as there is room for.
pub(crate) fn put(field: &mut [u8], bytes: &[u8]) {
    let len = bytes.len().min(field.len());
    field[..len].copy_from_slice(&bytes[..len]);
}

/// Copies text as text fields need it: padded with spaces.
pub(crate) fn put_text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    put(field, text.as_bytes());
}
