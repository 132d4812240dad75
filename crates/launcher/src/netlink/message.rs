//! Messages of netlink: a header, and attributes that may hold attributes (`netlink(7)`).
//!
//! Everything that is read here was written by a program: no length is believed before there are
//! as many bytes.

/// `struct nlmsghdr`: length, type, flags, sequence number, port.
const HEADER: usize = 16;
/// The header of an attribute.
const ATTRIBUTE: usize = 4;
/// Types of messages.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Flags.
pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_MULTI: u16 = 2;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
/// The sentence of an error (`enum nlmsgerr_attrs`).
const NLMSGERR_ATTR_MSG: u16 = 1;
/// The bits of an attribute's type that are its number.
const TYPE_MASK: u16 = 0x3fff;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// Its attributes.
    body: &'a [u8],
    header: [u8; HEADER],
}

impl<'a> Request<'a> {
    /// The first request of what a program sent, and what follows it.
    pub(super) fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, _) = bytes.split_first_chunk::<HEADER>()?;
        let length = number(&header[..4])? as usize;
        if length < HEADER {
            return None;
        }
        let body = bytes.get(HEADER..length)?;
        let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let sequence = number(&header[8..12])?;
        Some((Self { kind: half(4), flags: half(6), sequence, body, header: *header }, rest))
    }

    /// The value of an attribute.
    fn attribute(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.body;
        while let Some((header, _)) = rest.split_first_chunk::<ATTRIBUTE>() {
            let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
            let value = rest.get(ATTRIBUTE..length)?;
            if kind == wanted {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }

    /// An attribute that is a number.
    pub(super) fn number(&self, wanted: u16) -> Option<u32> {
        self.attribute(wanted).and_then(number)
    }

    /// An attribute that is a text.
    pub(super) fn text(&self, wanted: u16) -> Option<&'a str> {
        let bytes = self.attribute(wanted)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    }

    /// The acknowledgement of the request, or its refusal with an errno and the reason.
    pub(super) fn acknowledge(&self, port: u32, refusal: Option<(i32, &str)>) -> Vec<u8> {
        let flags = NLM_F_CAPPED | refusal.map_or(0, |_| NLM_F_ACK_TLVS);
        let mut out = Message::new(NLMSG_ERROR, flags, self.sequence, port);
        out.0.extend((-refusal.map_or(0, |(errno, _)| errno)).to_ne_bytes());
        out.0.extend(self.header);
        if let Some((_, words)) = refusal {
            out.text(NLMSGERR_ATTR_MSG, words);
        }
        out.finish()
    }

    /// The end of a list.
    pub(super) fn done(&self, port: u32) -> Vec<u8> {
        let mut out = Message::new(NLMSG_DONE, NLM_F_MULTI, self.sequence, port);
        out.0.extend(0_i32.to_ne_bytes());
        out.finish()
    }

    /// An answer to the request, without attributes yet.
    pub(super) fn answer(&self, port: u32) -> Message {
        let flags = if self.is_dump() { NLM_F_MULTI } else { 0 };
        Message::new(self.kind, flags, self.sequence, port)
    }

    /// Whether it asks for a list.
    pub(super) fn is_dump(&self) -> bool {
        self.flags & NLM_F_DUMP != 0
    }
}

/// A message that is being written.
#[derive(Clone, Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new(kind: u16, flags: u16, sequence: u32, port: u32) -> Self {
        let mut out = vec![0; 4];
        out.extend(kind.to_ne_bytes());
        out.extend(flags.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend(port.to_ne_bytes());
        Self(out)
    }

    /// Its length so far.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an attribute of bytes; one that is longer than any may be is left out.
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let Ok(length) = u16::try_from(ATTRIBUTE + value.len()) else { return };
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(super) fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub(super) fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Adds a text, with its terminator.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// Adds an attribute of the attributes that `fill` adds.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.0.extend([0, 0]);
        self.0.extend(kind.to_ne_bytes());
        fill(self);
        // CAST: messages end far below 64 KiB.
        let length = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Adds attributes that another message has.
    pub(super) fn append(&mut self, attributes: &Attributes) {
        self.0.extend(&attributes.0);
    }

    /// The message with its length.
    pub(super) fn finish(mut self) -> Vec<u8> {
        // CAST: messages end far below 64 KiB.
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// Attributes that are not in a message yet.
#[derive(Clone, Debug)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    /// The attributes that `fill` adds.
    pub(super) fn new(fill: impl FnOnce(&mut Message)) -> Self {
        let mut message = Message(Vec::new());
        fill(&mut message);
        Self(message.0)
    }

    /// Adds more.
    pub(super) fn add(&mut self, fill: impl FnOnce(&mut Message)) {
        let mut message = Message(std::mem::take(&mut self.0));
        fill(&mut message);
        self.0 = message.0;
    }

    /// Their length with the header of an attribute that holds them.
    pub(super) fn nested_len(&self) -> usize {
        self.0.len() + ATTRIBUTE
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::request;

    #[test]
    fn lengths_that_lie_are_refused() {
        let good = request(1, 0, |message| message.u32(1, 5));
        let (parsed, rest) = Request::first(&good).expect("good");
        assert_eq!((parsed.kind, parsed.number(1), rest.len()), (1, Some(5), 0));
        assert_eq!(parsed.number(2), None);
        for end in 0..good.len() {
            assert!(Request::first(&good[..end]).is_none(), "{end} bytes");
        }
        for length in [0, 15, 4096] {
            let mut bad = good.clone();
            bad[..4].copy_from_slice(&u32::to_ne_bytes(length));
            assert!(Request::first(&bad).is_none(), "{length}");
        }
        for length in [0_u16, 3, 9, u16::MAX] {
            let mut bad = good.clone();
            bad[16..18].copy_from_slice(&length.to_ne_bytes());
            let (parsed, _) = Request::first(&bad).expect("the header is good");
            assert_eq!(parsed.number(1), None, "{length}");
        }
    }
}
