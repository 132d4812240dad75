//! Reads the captures of `peerdma run --pcap`, with code that shares nothing with the writer.

use std::path::Path;

use crate::capture::Frame;

/// A packet of a capture, with its metadata.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The packet, from its IP header.
    pub frame: Frame,
    /// The number of its interface, which stands for the process and device that recorded it.
    pub interface: usize,
    /// Whether it was received.
    pub inbound: bool,
    /// The comment.
    pub comment: String,
}

/// A capture file.
#[derive(Debug)]
pub struct Recording {
    /// Name and description of each interface.
    pub interfaces: Vec<(String, String)>,
    /// The packets, in the order of the file.
    pub packets: Vec<Recorded>,
}

impl Recording {
    /// Reads a file; the test fails unless it is well-formed to its last byte.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a capture was made");
        let (mut interfaces, mut packets) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < bytes.len() {
            let (kind, length) = (word(&bytes, at), word(&bytes, at + 4) as usize);
            assert_eq!(
                word(&bytes, at + length - 4) as usize,
                length,
                "both ends of a block agree"
            );
            let body = &bytes[at + 8..at + length - 4];
            match kind {
                0x0a0d_0d0a => assert_eq!((at, word(body, 0)), (0, 0x1a2b_3c4d), "one section"),
                1 => {
                    assert_eq!(word(body, 0) & 0xffff, 101, "packets begin with their IP header");
                    let options = options(&body[8..]);
                    interfaces.push((text(&options, 2), text(&options, 3)));
                }
                6 => {
                    let (kept, whole) = (word(body, 12) as usize, word(body, 16) as usize);
                    assert_eq!(kept, whole, "packets are whole");
                    let options = options(&body[20 + kept.next_multiple_of(4)..]);
                    let flags = options.iter().find(|(code, _)| *code == 2).expect("a direction");
                    packets.push(Recorded {
                        frame: Frame { ip: body[20..20 + kept].to_vec() },
                        interface: word(body, 0) as usize,
                        inbound: flags.1[0] & 3 == 1,
                        comment: text(&options, 1),
                    });
                }
                other => panic!("a block of type {other}"),
            }
            at += length;
        }
        assert!(packets.iter().all(|packet| packet.interface < interfaces.len()));
        Self { interfaces, packets }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn options(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while bytes.len() >= 4 {
        let (code, length) = (word(bytes, 0) as u16, (word(bytes, 0) >> 16) as usize);
        if code == 0 {
            break;
        }
        all.push((code, &bytes[4..4 + length]));
        bytes = &bytes[4 + length.next_multiple_of(4)..];
    }
    all
}

fn text(options: &[(u16, &[u8])], code: u16) -> String {
    let found = options.iter().find(|(known, _)| *known == code);
    found.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}
