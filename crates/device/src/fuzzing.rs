//! Entry points for fuzz targets.

use umem::HostBuf;

use crate::carrier::shm::record::{Incoming, parse};

/// Parses a record that a peer put into a ring.
pub fn record(bytes: &[u8]) {
    let Ok(buffer) = HostBuf::anonymous(bytes.len().max(1)) else { return };
    buffer.write(0, bytes).expect("as long as the bytes");
    let foreign = buffer.foreign().slice(0, bytes.len()).expect("as long as the bytes");
    if let Ok(Incoming::Packet { payload, length, .. }) =
        parse(foreign, &mut wire::Headers::default())
    {
        assert_eq!(payload.len(), length as usize);
    }
}
