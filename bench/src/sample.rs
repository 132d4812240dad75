//! A few measurements of one thing.

/// Measurements in the order they were taken; queries need at least one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; of an even number, the upper of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        self.percentile(50.0)
    }

    /// The smallest value that is above this many percent of the measurements.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let below = (sorted.len() as f64 * percent / 100.0) as usize;
        sorted.get(below).or(sorted.last()).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Each measurement divided by the measurement of `other` that was taken next to it.
    pub(crate) fn over(&self, other: &Self) -> Self {
        self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect()
    }
}

impl From<Vec<f64>> for Sample {
    fn from(values: Vec<f64>) -> Self {
        Self(values)
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_neighbours() {
        let ours: Sample = [8.0, 1.0, 9.0].into_iter().collect();
        let theirs: Sample = [10.0, 2.0, 10.0].into_iter().collect();
        let ratio = ours.over(&theirs);
        assert_eq!((ratio.percentile(0.0), ratio.percentile(99.9)), (0.5, 0.9));
        assert_eq!((ratio.min(), ratio.median(), ratio.max()), (0.5, 0.8, 0.9));
    }
}
