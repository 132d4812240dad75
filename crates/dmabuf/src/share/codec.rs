//! Encoding of words and texts as bytes.

use super::message::BadMessage;

/// "peerdmab", and the version.
pub(super) const MAGIC: u64 = 0x7065_6572_646d_6203;

type Result<T> = std::result::Result<T, BadMessage>;

/// The index of a value in a list of all values.
pub(super) fn index<T: PartialEq>(all: &[T], value: &T) -> u64 {
    all.iter().position(|one| one == value).map_or(0, |index| index as u64)
}

pub(super) fn one_of<T: Copy>(all: &[T], index: u64) -> Result<T> {
    let index = usize::try_from(index).map_err(|_| BadMessage::Value)?;
    all.get(index).copied().ok_or(BadMessage::Value)
}

pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(128) }
    }

    pub(super) fn begin(&mut self, kind: u64, number: u64, words: &[u64]) {
        self.words(&[MAGIC, kind, number]);
        self.words(words);
    }

    pub(super) fn words(&mut self, words: &[u64]) {
        self.bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    pub(super) fn text(&mut self, text: &str, max: usize) {
        let mut len = text.len().min(max);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.words(&[len as u64]);
        self.bytes.extend(&text.as_bytes()[..len]);
    }
}

pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl Reader<'_> {
    pub(super) fn begin(&mut self) -> Result<(u64, u64)> {
        if self.word() != Ok(MAGIC) {
            return Err(BadMessage::Magic);
        }
        Ok((self.word()?, self.word()?))
    }

    pub(super) fn word(&mut self) -> Result<u64> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(BadMessage::Length)?;
        self.rest = rest;
        Ok(u64::from_ne_bytes(*word))
    }

    pub(super) fn flag(&mut self) -> Result<bool> {
        self.one_of(&[false, true])
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> Result<T> {
        one_of(all, self.word()?)
    }

    /// A text, without anything that another process should not put into our log.
    pub(super) fn text(&mut self, max: usize) -> Result<String> {
        let len = usize::try_from(self.word()?).map_err(|_| BadMessage::Length)?;
        if len > max || len > self.rest.len() {
            return Err(BadMessage::Length);
        }
        let (text, rest) = self.rest.split_at(len);
        self.rest = rest;
        let text = std::str::from_utf8(text).map_err(|_| BadMessage::Value)?;
        Ok(text.chars().filter(|char| !char.is_control()).collect())
    }

    pub(super) fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadMessage::Length) }
    }
}
