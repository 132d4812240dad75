//! Entry points for fuzz targets.

use super::codec::MAGIC;
use super::message::{Note, Reply, Request};

/// Decodes `bytes` as each kind of message, with and without the word that begins all of them. A
/// valid message must encode to the same bytes.
pub fn message(bytes: &[u8]) {
    decode(bytes);
    decode(&[&MAGIC.to_ne_bytes(), bytes].concat());
}

fn decode(bytes: &[u8]) {
    if let Ok((number, request)) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode(number)), Ok((number, request)));
    }
    if let Ok((number, reply)) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.encode(number)), Ok((number, reply)));
    }
    if let Ok(note) = Note::decode(bytes) {
        assert_eq!(Note::decode(&note.encode()), Ok(note));
    }
}
