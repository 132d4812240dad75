//! A set of sequence numbers, all within half of the number space.

use iba::Psn;

/// Sequence numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: Psn,
    /// The number after its last.
    pub(crate) end: Psn,
}

impl Range {
    pub(crate) fn len(self) -> u32 {
        self.end.sub(self.first.value()).value()
    }
}

/// Sequence numbers, as ranges in order that do not touch.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.0.iter().copied()
    }

    /// The number after the last.
    pub(crate) fn end(&self) -> Option<Psn> {
        self.0.last().map(|range| range.end)
    }

    /// Adds `count` numbers from `first` on. Returns whether they touch none that were there.
    pub(crate) fn insert(&mut self, first: Psn, count: u32) -> bool {
        let end = first.add(count);
        let from = self.0.partition_point(|range| range.end.is_before(first));
        let to = self.0.partition_point(|range| !range.first.is_after(end));
        let touched = &self.0[from..to];
        let mut range = Range { first, end };
        if let (Some(before), Some(after)) = (touched.first(), touched.last()) {
            if before.first.is_before(first) {
                range.first = before.first;
            }
            if after.end.is_after(end) {
                range.end = after.end;
            }
        }
        self.0.splice(from..to, [range]);
        from == to
    }

    /// Removes those before `psn`.
    pub(crate) fn remove_before(&mut self, psn: Psn) {
        let gone = self.0.partition_point(|range| !range.end.is_after(psn));
        self.0.drain(..gone);
        if let Some(front) = self.0.first_mut().filter(|front| front.first.is_before(psn)) {
            front.first = psn;
        }
    }

    /// How many follow in a row from `psn` on.
    pub(crate) fn run_at(&self, psn: Psn) -> u32 {
        let at = self.0.partition_point(|range| !range.end.is_after(psn));
        let range = self.0.get(at).filter(|range| !range.first.is_after(psn));
        range.map_or(0, |range| range.end.sub(psn.value()).value())
    }

    /// How many are missing from `psn` on, which is missing, before one that is not. `None` if none
    /// follows.
    pub(crate) fn gap_at(&self, psn: Psn) -> Option<u32> {
        let at = self.0.partition_point(|range| !range.end.is_after(psn));
        self.0.get(at).map(|range| range.first.sub(psn.value()).value())
    }

    /// How many there are before `psn`.
    pub(crate) fn count_before(&self, psn: Psn) -> u32 {
        let before = self.0.iter().take_while(|range| range.first.is_before(psn));
        before
            .map(|range| {
                let end = if range.end.is_after(psn) { psn } else { range.end };
                Range { end, ..*range }.len()
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a set of numbers does, wherever in the number space it is.
        #[test]
        fn it_is_a_set(
            base in 0..1_u32 << 24,
            steps in prop::collection::vec((0..60_u32, 1..9_u32, any::<bool>()), 1..40),
        ) {
            let base = Psn::new(base);
            let (mut ranges, mut oracle, mut least) = (Ranges::default(), BTreeSet::new(), 0);
            for (at, count, removes) in steps {
                if removes {
                    least = least.max(at / 4);
                    ranges.remove_before(base.add(least));
                    oracle.retain(|number| *number >= least);
                } else if at >= least {
                    let near = at.saturating_sub(1)..at + count + 1;
                    let is_apart = !oracle.iter().any(|number| near.contains(number));
                    prop_assert_eq!(ranges.insert(base.add(at), count), is_apart);
                    oracle.extend(at..at + count);
                }
                let mut all = BTreeSet::new();
                for range in ranges.iter() {
                    let first = range.first.sub(base.value()).value();
                    prop_assert!(first == 0 || !all.contains(&(first - 1)), "ranges touch");
                    all.extend(first..first + range.len());
                }
                prop_assert_eq!(&all, &oracle);
                prop_assert_eq!(
                    ranges.end(),
                    oracle.last().map(|last| base.add(last + 1))
                );
                for number in least..80 {
                    let psn = base.add(number);
                    let run = (number..).take_while(|number| oracle.contains(number)).count();
                    prop_assert_eq!(ranges.run_at(psn), run as u32);
                    if run == 0 {
                        let next = oracle.range(number..).next().map(|next| next - number);
                        prop_assert_eq!(ranges.gap_at(psn), next);
                    }
                    prop_assert_eq!(
                        ranges.count_before(psn),
                        oracle.range(..number).count() as u32
                    );
                }
            }
        }
    }
}
