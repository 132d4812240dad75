//! What requests take as memory of this side.

use super::backing::Piece;
use super::{Buffer, ConstBuffer};
use crate::{Kind, Mr, Mw, Pd, Refusal, Result, Slice};

/// A part of a region: GPU memory, device memory, a buffer that peers reach. It keeps the region,
/// but nothing keeps others from its memory, which no reference of Rust shows.
#[derive(Clone, Debug)]
pub struct Range {
    mr: Mr,
    offset: u64,
    length: u32,
}

impl Mr {
    /// `length` bytes at `offset`, for requests of [`aio`](crate::aio).
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if they are not all within the region.
    pub fn range(&self, offset: u64, length: u32) -> Result<Range> {
        let end = offset.checked_add(u64::from(length));
        if end.is_none_or(|end| end > self.len()) {
            let size = self.len();
            let what = format!("range: {length} bytes at {offset} leave a region of {size} bytes");
            return Err(Refusal::new(Kind::Invalid, what));
        }
        Ok(Range { mr: self.clone(), offset, length })
    }
}

impl Range {
    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Memory of this side that a request reads: a [`Buffer`], a [`ConstBuffer`] or a [`Range`], or
/// `()` for a request that moves no byte.
pub trait Local: sealed::Local {}

impl Local for Buffer {}
impl Local for ConstBuffer {}
impl Local for Range {}
impl Local for () {}

/// Memory of this side that a request writes: a [`Buffer`] or a [`Range`].
pub trait LocalMut: Local + sealed::LocalMut {}

impl LocalMut for Buffer {}
impl LocalMut for Range {}

/// What a request in flight holds.
#[derive(Debug)]
pub enum Held {
    /// A buffer.
    Piece(Piece),
    /// A part of a region.
    Range(Range),
    /// A window.
    Window(Mw),
    /// Nothing.
    Nothing,
}

impl Held {
    pub(crate) fn slice(&self) -> Option<Slice<'_>> {
        match self {
            Self::Piece(piece) => Some(piece.slice()),
            Self::Range(range) => Some(range.mr.slice(range.offset, range.length)),
            Self::Window(_) | Self::Nothing => None,
        }
    }

    /// Its bytes, of memory that the program alone has.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Piece(piece) => Some(piece.bytes()),
            Self::Range(_) | Self::Window(_) | Self::Nothing => None,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Piece(piece) => piece.len() as u64,
            Self::Range(range) => u64::from(range.length),
            Self::Window(_) | Self::Nothing => 0,
        }
    }

    pub(crate) fn pd(&self) -> Option<&Pd> {
        match self {
            Self::Piece(piece) => Some(piece.pd()),
            Self::Range(range) => Some(range.mr.pd()),
            Self::Window(window) => Some(window.region().pd()),
            Self::Nothing => None,
        }
    }
}

pub(crate) mod sealed {
    use super::Held;

    /// Moved into a request and back.
    pub trait Local: Sized + Send + 'static {
        fn hold(self) -> Held;
        fn take_back(held: Held) -> Self;
    }

    /// Written to by a request.
    pub trait LocalMut {
        /// Makes it as long as what comes.
        fn fit(&mut self, bytes: u64) -> crate::Result<()>;
    }
}

const OTHER: &str = "a request gives back what it took";

impl sealed::Local for Buffer {
    fn hold(self) -> Held {
        Held::Piece(self.0)
    }

    fn take_back(held: Held) -> Self {
        let Held::Piece(piece) = held else { unreachable!("{OTHER}") };
        Self(piece)
    }
}

impl sealed::LocalMut for Buffer {
    fn fit(&mut self, bytes: u64) -> Result<()> {
        let capacity = self.capacity();
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= capacity => {
                self.set_len(bytes);
                Ok(())
            }
            _ => {
                let what = format!("a READ of {bytes} bytes: the buffer has room for {capacity}");
                Err(Refusal::new(Kind::Invalid, what))
            }
        }
    }
}

impl sealed::LocalMut for Range {
    /// It has the length that it has; one beyond what the peer has is refused when it is posted.
    fn fit(&mut self, _bytes: u64) -> Result<()> {
        Ok(())
    }
}

impl sealed::Local for ConstBuffer {
    fn hold(self) -> Held {
        Held::Piece(self.0)
    }

    fn take_back(held: Held) -> Self {
        let Held::Piece(piece) = held else { unreachable!("{OTHER}") };
        Self(piece)
    }
}

impl sealed::Local for Range {
    fn hold(self) -> Held {
        Held::Range(self)
    }

    fn take_back(held: Held) -> Self {
        let Held::Range(range) = held else { unreachable!("{OTHER}") };
        range
    }
}

impl sealed::Local for () {
    fn hold(self) -> Held {
        Held::Nothing
    }

    fn take_back(_held: Held) -> Self {}
}
