//! Which addresses of a range are taken.

use std::collections::BTreeMap;
use std::ops::Range;

/// Stretches that are free: beginning and length. No two touch.
#[derive(Debug)]
pub struct Addresses(BTreeMap<u64, u64>);

impl Addresses {
    /// All of a range, free.
    pub fn new(range: Range<u64>) -> Self {
        Self(BTreeMap::from([(range.start, range.end - range.start)]))
    }

    /// Takes `span` addresses in a row: from `hint` on if they are free, otherwise the first that
    /// fit. Both are multiples of `align`.
    pub fn take(&mut self, span: u64, align: u64, hint: u64) -> Option<u64> {
        let fits = |start: u64, len: u64| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(span)? <= start + len).then_some(at)
        };
        let hinted = self.0.range(..=hint).next_back().and_then(|(start, len)| {
            let end = hint.checked_add(span)?;
            let is_free = hint.is_multiple_of(align) && end <= start + len;
            is_free.then_some((*start, *len, hint))
        });
        let first =
            || self.0.iter().find_map(|(start, len)| Some((*start, *len, fits(*start, *len)?)));
        let (start, len, at) = hinted.or_else(first)?;
        self.0.remove(&start);
        if at > start {
            self.0.insert(start, at - start);
        }
        if at + span < start + len {
            self.0.insert(at + span, start + len - (at + span));
        }
        Some(at)
    }

    /// Gives back addresses that were taken.
    pub fn give(&mut self, mut start: u64, mut span: u64) {
        if let Some((before, len)) = self.0.range(..start).next_back().map(|(s, l)| (*s, *l))
            && before + len == start
        {
            self.0.remove(&before);
            (start, span) = (before, span + len);
        }
        if let Some(len) = self.0.remove(&(start + span)) {
            span += len;
        }
        self.0.insert(start, span);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: Range<u64> = 0x10_0000..0x80_0000;

    proptest! {
        #[test]
        fn what_is_taken_never_overlaps_and_all_comes_back(
            steps in prop::collection::vec((0_u64..0x4_0000, 0_u32..18, any::<u64>(), any::<bool>()), 1..200)
        ) {
            let mut addresses = Addresses::new(RANGE);
            let mut taken = Vec::<(u64, u64)>::new();
            for (size, shift, pick, gives) in steps {
                if gives && !taken.is_empty() {
                    let index = usize::try_from(pick % taken.len() as u64).unwrap();
                    let (start, span) = taken.swap_remove(index);
                    addresses.give(start, span);
                    continue;
                }
                let (span, align, hint) = (size + 1, 1 << shift, pick % RANGE.end);
                let Some(at) = addresses.take(span, align, hint) else { continue };
                prop_assert!(at % align == 0 && at >= RANGE.start && at + span <= RANGE.end);
                for (start, len) in &taken {
                    prop_assert!(at + span <= *start || start + len <= at);
                }
                taken.push((at, span));
            }
            for (start, span) in taken {
                addresses.give(start, span);
            }
            prop_assert_eq!(addresses.0, BTreeMap::from([(RANGE.start, RANGE.end - RANGE.start)]));
        }
    }

    #[test]
    fn a_hint_that_is_free_is_taken() {
        let mut addresses = Addresses::new(RANGE);
        assert_eq!(addresses.take(0x1000, 0x1000, 0x40_0000), Some(0x40_0000));
        assert_eq!(addresses.take(0x1000, 0x1000, 0x40_0000), Some(RANGE.start));
        assert_eq!(addresses.take(RANGE.end, 1, 0), None);
    }
}
