//! Arguments from C: pointers ([`umd::c`]), structures that name their type and are chained, and
//! lists whose length is queried first.

pub(crate) use umd::c::text;

use crate::status::{Refusal, Result};

/// A pointer to store a result through.
pub(crate) type Out<T> = umd::c::Out<T, Refusal>;

/// A pointer to read an argument through.
pub(crate) type In<T> = umd::c::In<T, Refusal>;

/// A NUL-terminated string.
pub(crate) type Text = umd::c::Text<Refusal>;

/// The head of every structure.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Head {
    /// Its type: `ze_structure_type_t`.
    pub(crate) kind: u32,
    /// The next structure of the chain (`pNext`).
    pub(crate) next: In<Self>,
}

/// The longest chain that is followed, which is more than any call has.
const CHAIN: usize = 64;

impl Head {
    /// The structure of this type in the chain.
    pub(crate) fn find<T: Copy>(self, kind: u32) -> Option<Out<T>> {
        let mut at = self.next;
        for _ in 0..CHAIN {
            let head = at.get_if()?;
            if head.kind == kind {
                return Some(at.of::<T>().output());
            }
            at = head.next;
        }
        None
    }
}

/// Answers a call that returns the number of items, or as many items as the program has room for.
pub(crate) fn list<T>(
    count: Out<u32>,
    places: Out<T>,
    all: impl ExactSizeIterator<Item = T>,
) -> Result<()> {
    let room = count.input().get()? as usize;
    // CAST: there are few items.
    let total = all.len() as u32;
    if room == 0 || places.is_null() {
        return count.put(total);
    }
    for (index, one) in all.take(room).enumerate() {
        places.put_at(index, one);
    }
    count.put(total.min(room as u32))
}

/// Fills a structure of the program, but keeps its type and chain.
pub(crate) fn fill<T: Copy>(place: Out<T>, fill: impl FnOnce(&mut T)) -> Result<()> {
    let mut value = place.input().get()?;
    fill(&mut value);
    place.put(value)
}

/// [`list`] for structures of the program, whose types and chains are kept.
pub(crate) fn list_filled<T: Copy>(
    count: Out<u32>,
    places: Out<T>,
    total: u32,
    fill: impl Fn(usize, &mut T),
) -> Result<()> {
    let room = count.input().get()?;
    if room == 0 || places.is_null() {
        return count.put(total);
    }
    let filled = total.min(room);
    for index in 0..filled as usize {
        let mut value = places.input().get_at(index)?;
        fill(index, &mut value);
        places.put_at(index, value);
    }
    count.put(filled)
}
