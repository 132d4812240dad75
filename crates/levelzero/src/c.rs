//! What C passes: pointers ([`umd::c`]), structures that name their kind and lead to others, and
//! lists whose length is asked for first.

pub(crate) use umd::c::text;

use crate::status::{Refusal, Result};

/// Where a result goes.
pub(crate) type Out<T> = umd::c::Out<T, Refusal>;

/// Where an argument is.
pub(crate) type In<T> = umd::c::In<T, Refusal>;

/// A terminated string.
pub(crate) type Text = umd::c::Text<Refusal>;

/// How every structure begins.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Head {
    /// What it is: `ze_structure_type_t`.
    pub(crate) kind: u32,
    /// Another one.
    pub(crate) next: In<Self>,
}

/// More structures than any call has.
const CHAIN: usize = 64;

impl Head {
    /// Where the structure of this kind is that a structure leads to.
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

/// Answers a call that tells how many there are, or as many of them as the program has room for.
pub(crate) fn list<T>(
    count: Out<u32>,
    places: Out<T>,
    all: impl ExactSizeIterator<Item = T>,
) -> Result<()> {
    let room = count.input().get()? as usize;
    // CAST: few.
    let total = all.len() as u32;
    if room == 0 || places.is_null() {
        return count.put(total);
    }
    for (index, one) in all.take(room).enumerate() {
        places.put_at(index, one);
    }
    count.put(total.min(room as u32))
}

/// Fills a structure of the program, whose kind and chain stay what they are.
pub(crate) fn fill<T: Copy>(place: Out<T>, fill: impl FnOnce(&mut T)) -> Result<()> {
    let mut value = place.input().get()?;
    fill(&mut value);
    place.put(value)
}

/// [`list`] for structures of the program, whose kinds and chains stay what they are.
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
