//! The addresses of QPs and memory, as words that roles exchange.

use verbs::{Endpoint, Gid, Psn, Qpn, RKey, Remote};

use crate::Outcome;

/// `GID:QPN:PSN`.
pub(crate) fn show(endpoint: &Endpoint) -> String {
    let gid = u128::from_be_bytes(endpoint.gid.0);
    format!("{gid:x}:{}:{}", endpoint.qpn.value(), endpoint.psn.value())
}

pub(crate) fn endpoint(word: &str) -> Outcome<Endpoint> {
    let mut parts = word.split(':');
    let mut part = || parts.next().ok_or("an endpoint is incomplete");
    Ok(Endpoint {
        gid: Gid(u128::from_str_radix(part()?, 16)?.to_be_bytes()),
        qpn: Qpn::new(part()?.parse()?),
        psn: Psn::new(part()?.parse()?),
    })
}

/// `ADDRESS:RKEY`.
pub(crate) fn show_memory(memory: Remote) -> String {
    format!("{}:{}", memory.addr, memory.rkey.0)
}

pub(crate) fn memory(word: &str) -> Outcome<Remote> {
    let (addr, rkey) = word.split_once(':').ok_or("a memory without a key")?;
    Ok(Remote { addr: addr.parse()?, rkey: RKey(rkey.parse()?) })
}
