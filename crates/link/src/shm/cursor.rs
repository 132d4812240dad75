//! The two ends of the ring as arithmetic on positions, without the memory.
//!
//! A *position* counts bytes since the ring was made and never wraps (2^64 bytes are centuries);
//! its low bits are the offset in the ring. A record is one header word and its payload, both in
//! the same cache line when the payload is at most 56 bytes:
//!
//! ```text
//!      63     62..32             31..0
//!    +---+------------------+------------+----------------------- ... --+-- next line
//!    | 1 | position / 64    | length     | payload                      | nothing
//!    +---+------------------+------------+----------------------- ... --+
//! ```
//!
//! **Publication.** The consumer polls the header of the next record, not a separate tail. So the
//! header is written last (Release), and the word where the *next* header will be must show
//! beforehand that there is none: it is zero, or a header of the previous lap, which has another
//! stamp. Where it may be payload of the previous lap, as the line was inside a long record, the
//! producer clears it, some lines ahead; therefore one line of the ring is always free. A word that
//! was a header is left alone: writing it would take the cache line from the consumer, which is
//! about to read it. The consumer writes nothing into the ring.
//!
//! **Freeing.** The consumer publishes [`HEAD`] every eighth of the ring, and when it finds the
//! ring empty. The producer reads it only when its own copy shows the ring as full.
//!
//! **Wrap.** Records are contiguous. One that does not fit before the end starts at offset 0, and
//! a header with length [`PAD`] marks the gap.

use super::layout::{DATA, HEAD, HEADER, LINE, WAITING, max_payload, record_size};
use crate::sync::{Ordering, Words, fence};

const VALID: u64 = 1 << 63;
const PAD: u32 = u32::MAX;

/// Lines kept clear ahead of the producer are topped up below this many bytes...
const CLEAR_LOW: u64 = 4 * LINE as u64;
/// ...to this many.
const CLEAR_HIGH: u64 = 16 * LINE as u64;

/// The other end of the ring broke the rules of the ring; the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingCorrupt {
    /// A header that no producer writes at this position.
    #[error("the peer wrote {word:#018x} where record {position:#x} must start")]
    Header {
        /// What was read.
        word: u64,
        /// Where it was read.
        position: u64,
    },
    /// A record longer than the ring allows, or one that runs over the end of the ring.
    #[error("the peer announced {len} bytes in record {position:#x}, more than the ring allows")]
    Length {
        /// The length announced.
        len: u32,
        /// Where it was announced.
        position: u64,
    },
    /// A gap where none is allowed.
    #[error("the peer announced a gap at the start of the ring, record {position:#x}")]
    Gap {
        /// Where it was announced.
        position: u64,
    },
    /// A head that moved backwards or beyond what was written.
    #[error(
        "the peer claims to have consumed up to {head:#x}, between {low:#x} and {high:#x} is possible"
    )]
    Head {
        /// What was read.
        head: u64,
        /// What had certainly been consumed.
        low: u64,
        /// What had been written.
        high: u64,
    },
}

/// Why [`Tx::reserve`] has no room.
#[derive(Debug)]
pub(super) enum NoRoom {
    Full,
    TooLarge,
    Corrupt(RingCorrupt),
}

/// Room for one record, not yet visible to the consumer.
#[derive(Debug)]
pub(super) struct Slot {
    start: u64,
    end: u64,
    len: u32,
    /// Byte offset of the payload in the shared memory.
    pub(super) payload: usize,
}

/// A record that the consumer may read.
#[derive(Debug)]
pub(super) struct Record {
    end: u64,
    pub(super) len: usize,
    /// Byte offset of the payload in the shared memory.
    pub(super) payload: usize,
}

/// The producer's end.
#[derive(Debug)]
pub(super) struct Tx {
    capacity: u64,
    position: u64,
    /// The consumer's head when last read.
    head: u64,
    /// Header words at lines of `position..clear` show that there is no record; `clear > position`.
    clear: u64,
    /// Since this position each record has one line.
    single: u64,
}

impl Tx {
    /// The producer's end of a new, zeroed ring.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity as u64;
        Self { capacity, position: 0, head: 0, clear: capacity, single: 0 }
    }

    /// Finds room for `len` bytes.
    #[inline]
    pub(super) fn reserve(&mut self, words: &impl Words, len: usize) -> Result<Slot, NoRoom> {
        if len > max_payload(self.capacity as usize) {
            return Err(NoRoom::TooLarge);
        }
        let size = record_size(len) as u64;
        let room = self.capacity - self.offset(self.position);
        let start = if size > room { self.position + room } else { self.position };
        let end = start + size;
        // The line at `end` must be free as well: its header word may have to be cleared.
        if end + LINE as u64 - self.head > self.capacity {
            self.refresh(words).map_err(NoRoom::Corrupt)?;
            if end + LINE as u64 - self.head > self.capacity {
                return Err(NoRoom::Full);
            }
        }
        let payload = DATA + self.offset(start) as usize + HEADER;
        // CAST: at most half of MAX_CAPACITY.
        Ok(Slot { start, end, len: len as u32, payload })
    }

    /// Byte offset of the next record in the shared memory, unless that wraps.
    pub(super) fn next(&self) -> usize {
        self.at(self.position)
    }

    /// Makes the record in `slot`, whose payload is written, visible.
    #[inline]
    pub(super) fn publish(&mut self, words: &impl Words, slot: Slot) {
        if self.clear <= slot.end {
            words.store(self.at(slot.end), 0, Ordering::Relaxed);
            self.clear = slot.end + LINE as u64;
        }
        // ORDERING: Release pairs with the Acquire in `Rx::next`: payload and the zero after it are
        // visible before the header. Where there is a header of the previous lap instead, the
        // consumer has read it, and sees nothing older.
        words.store(self.at(slot.start), header(slot.start, slot.len), Ordering::Release);
        if slot.start != self.position {
            // ORDERING: Release, as above: a reader that sees the gap sees the record at offset 0.
            words.store(self.at(self.position), header(self.position, PAD), Ordering::Release);
        }
        if slot.end - self.position > LINE as u64 {
            self.single = slot.end;
        }
        self.position = slot.end;
        if self.clear - self.position <= CLEAR_LOW {
            self.clear_ahead(words);
        }
    }

    /// Asks the consumer to wake us when it frees space, and returns whether there is already room
    /// for `len` bytes.
    pub(super) fn want_space(&mut self, words: &impl Words, len: usize) -> Result<bool, NoRoom> {
        words.store(WAITING, 1, Ordering::Relaxed);
        // ORDERING: the store of WAITING before the load of HEAD in `reserve`; pairs with the
        // fence in `bell::fall_asleep` or `bell::Watcher` at the consumer.
        fence(Ordering::SeqCst);
        match self.reserve(words, len) {
            Ok(_) => {
                words.store(WAITING, 0, Ordering::Relaxed);
                Ok(true)
            }
            Err(NoRoom::Full) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Position after the last record.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Position up to which the consumer took the records. An invalid head is ignored here; the
    /// next `reserve` that needs it reports it.
    pub(super) fn consumed(&mut self, words: &impl Words) -> u64 {
        let _ = self.refresh(words);
        self.head
    }

    /// Bytes free, as far as known without reading shared memory.
    pub(super) fn free(&self) -> usize {
        (self.capacity - (self.position - self.head)) as usize
    }

    fn refresh(&mut self, words: &impl Words) -> Result<(), RingCorrupt> {
        // ORDERING: Acquire pairs with the Release in `Rx::release`: the consumer's reads of a
        // record are over before we write there again.
        let head = words.load(HEAD, Ordering::Acquire);
        if head < self.head || head > self.position || !head.is_multiple_of(LINE as u64) {
            return Err(RingCorrupt::Head { head, low: self.head, high: self.position });
        }
        self.head = head;
        Ok(())
    }

    fn clear_ahead(&mut self, words: &impl Words) {
        if self.clear >= self.single + self.capacity {
            // From there on, the previous lap left only headers.
            self.clear = self.position + self.capacity;
            return;
        }
        let limit = (self.position + CLEAR_HIGH).min(self.head + self.capacity);
        while self.clear < limit {
            words.store(self.at(self.clear), 0, Ordering::Relaxed);
            self.clear += LINE as u64;
        }
    }

    fn offset(&self, position: u64) -> u64 {
        position & (self.capacity - 1)
    }

    fn at(&self, position: u64) -> usize {
        DATA + self.offset(position) as usize
    }
}

/// The consumer's end.
#[derive(Debug)]
pub(super) struct Rx {
    capacity: u64,
    position: u64,
    /// The head we published last.
    published: u64,
}

impl Rx {
    /// The consumer's end of a ring from which nothing was consumed yet.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64, position: 0, published: 0 }
    }

    /// The next record, if there is one. Everything read is checked before it is used.
    #[inline]
    pub(super) fn next(&mut self, words: &impl Words) -> Result<Option<Record>, RingCorrupt> {
        // A gap leads to offset 0, where no gap is allowed: at most two rounds.
        loop {
            let position = self.position;
            let offset = position & (self.capacity - 1);
            // ORDERING: Acquire pairs with the Release in `Tx::publish`.
            let word = words.load(DATA + offset as usize, Ordering::Acquire);
            if self.is_nothing(word) {
                return Ok(None);
            }
            let len = word as u32;
            if word != header(position, len) {
                return Err(RingCorrupt::Header { word, position });
            }
            let room = self.capacity - offset;
            if len == PAD {
                if offset == 0 {
                    return Err(RingCorrupt::Gap { position });
                }
                self.position += room;
                continue;
            }
            if len as usize > max_payload(self.capacity as usize)
                || record_size(len as usize) as u64 > room
            {
                return Err(RingCorrupt::Length { len, position });
            }
            return Ok(Some(Record {
                end: position + record_size(len as usize) as u64,
                len: len as usize,
                payload: DATA + offset as usize + HEADER,
            }));
        }
    }

    /// Marks `record` as read. Returns true if the producer wants to be woken.
    #[inline]
    pub(super) fn consume(&mut self, words: &impl Words, record: Record) -> bool {
        self.position = record.end;
        self.position - self.published >= self.capacity / 8 && self.release(words)
    }

    /// Releases all space read so far. Returns true if the producer wants to be woken.
    #[inline]
    pub(super) fn release(&mut self, words: &impl Words) -> bool {
        if self.published != self.position {
            // ORDERING: Release pairs with the Acquire in `Tx::refresh`.
            words.store(HEAD, self.position, Ordering::Release);
            self.published = self.position;
        }
        // No fence: a consumer that keeps polling sees the flag soon, and one that goes to sleep
        // has a fence in `bell::fall_asleep` and polls once more after it.
        words.load(WAITING, Ordering::Relaxed) != 0 && words.swap(WAITING, 0) != 0
    }

    /// Whether [`next`](Self::next) finds no record.
    #[inline]
    pub(super) fn is_empty(&self, words: &impl Words) -> bool {
        let offset = self.position & (self.capacity - 1);
        self.is_nothing(words.load(DATA + offset as usize, Ordering::Relaxed))
    }

    /// Whether the word where the next header will be shows that there is no record yet.
    #[inline]
    fn is_nothing(&self, word: u64) -> bool {
        word == 0 || word == header(self.position.wrapping_sub(self.capacity), word as u32)
    }

    /// Position up to which records were read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

/// The header word of a record of `len` bytes at `position`.
fn header(position: u64, len: u32) -> u64 {
    let stamp = (position / LINE as u64) & 0x7fff_ffff;
    VALID | (stamp << 32) | u64::from(len)
}
