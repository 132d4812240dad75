//! A station of this process or of the other one: requests and answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::station::Station;

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident,)*) => {
        /// What a station does. The comment of each names its numbers in order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op {
            $($(#[$doc])* $op,)*
        }

        const OPS: &[Op] = &[$(Op::$op,)*];
    };
}

ops! {
    /// buffer, size, place, whether on a GPU of its own
    AllocGpu,
    /// buffer, size
    AllocHost,
    /// buffer, size
    AllocDm,
    /// buffer: the handle goes, regions may stay
    Free,
    /// buffer, offset; and the bytes
    Write,
    /// buffer, offset, length
    Read,
    /// buffer, where to
    Move,
    EvictAll,
    /// buffer: removes the GPU that it alone is on
    Remove,
    /// microseconds that it takes
    Reset,
    /// buffer; answers how other processes find its dma-buf: process and descriptor
    Share,
    /// region, buffer, offset, length, iova; answers base and key
    Register,
    /// region, process, descriptor, offset, length, iova; answers base and key
    Import,
    /// region
    Dereg,
    /// QP; answers GID (two words), number, sequence number
    NewQp,
    /// QP, and the answer of another's NewQp
    Connect,
    /// QP
    FreeQp,
    /// id, QP, region, offset, length
    Recv,
    /// see `Post`
    Post,
    /// first id, how many, whether receives; answers id, status, length of each
    Reap,
    /// Everything is closed, the NIC too, and opened again.
    Reopen,
    /// Everything is closed.
    Close,
    /// Answers how many objects the NIC has besides those that a station always has.
    Objects,
    /// Answers the counts that must be as before once all stations are closed.
    Held,
    /// kind of NIC: asks the other process for one more station, which calls back
    Spawn,
}

/// An answer: words and bytes, or a refusal with its text and its kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) words: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) refused: Option<(String, String)>,
}

impl Answer {
    pub(crate) fn refuse(kind: impl std::fmt::Debug, what: impl std::fmt::Display) -> Self {
        let refused = Some((format!("{kind:?}"), what.to_string()));
        Self { refused, ..Self::default() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.refused.is_none()
    }

    /// The kind of a refusal.
    pub(crate) fn kind(&self) -> &str {
        self.refused.as_ref().map_or("", |(kind, _)| kind)
    }

    /// The result of a request that must not be refused.
    #[track_caller]
    pub(crate) fn done(self) -> Self {
        if let Some((kind, what)) = &self.refused {
            panic!("refused: {kind}: {what}");
        }
        self
    }
}

/// A station, here or in the other process.
pub(crate) enum Seat {
    Here(Box<Station>),
    There(UnixStream),
}

impl Seat {
    pub(crate) fn ask(&mut self, op: Op, words: &[u64]) -> Answer {
        self.ask_with(op, words, &[])
    }

    pub(crate) fn ask_with(&mut self, op: Op, words: &[u64], bytes: &[u8]) -> Answer {
        match self {
            Self::Here(station) => station.answer(op, words, bytes),
            Self::There(stream) => {
                put(stream, op as u64, words, bytes).expect("the other process lives");
                let (kind, words, bytes) = take(stream).expect("the other process lives");
                if kind == 0 {
                    return Answer { words, bytes, refused: None };
                }
                let text = String::from_utf8(bytes).expect("text");
                let (kind, what) = text.split_once(' ').expect("kind and words");
                Answer { refused: Some((kind.to_owned(), what.to_owned())), ..Answer::default() }
            }
        }
    }
}

/// Answers the other process until it has no more requests.
pub(crate) fn serve(stream: UnixStream, station: Station) {
    control(stream, station, |_| unreachable!("only the first station makes others"));
}

/// As [`serve`], and makes more stations.
pub(crate) fn control(mut stream: UnixStream, mut station: Station, mut spawn: impl FnMut(u64)) {
    while let Ok((op, words, bytes)) = take(&mut stream) {
        let op = OPS[op as usize];
        let answer = if op == Op::Spawn {
            spawn(words[0]);
            Answer::default()
        } else {
            station.answer(op, &words, &bytes)
        };
        let sent = match answer.refused {
            None => put(&mut stream, 0, &answer.words, &answer.bytes),
            Some((kind, what)) => put(&mut stream, 1, &[], format!("{kind} {what}").as_bytes()),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn put(stream: &mut UnixStream, op: u64, words: &[u64], bytes: &[u8]) -> std::io::Result<()> {
    let head = [op, words.len() as u64, bytes.len() as u64];
    let mut message = Vec::new();
    for word in head.iter().chain(words) {
        message.extend_from_slice(&word.to_ne_bytes());
    }
    message.extend_from_slice(bytes);
    stream.write_all(&message)
}

fn take(stream: &mut UnixStream) -> std::io::Result<(u64, Vec<u64>, Vec<u8>)> {
    let mut word = || {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        Ok::<u64, std::io::Error>(u64::from_ne_bytes(bytes))
    };
    let (op, words, len) = (word()?, word()?, word()?);
    let words = (0..words).map(|_| word()).collect::<Result<_, _>>()?;
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes)?;
    Ok((op, words, bytes))
}
