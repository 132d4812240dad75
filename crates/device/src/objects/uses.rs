//! Uses of an object: it cannot be destroyed while there is one.

use std::sync::Arc;

/// How often an object is used.
#[derive(Debug, Default)]
pub(crate) struct Uses(Arc<()>);

/// A use of an object, released on drop.
#[derive(Clone, Debug)]
#[must_use = "dropped, it is no longer a use"]
pub(crate) struct Use {
    _of: Arc<()>,
}

impl Uses {
    /// Adds a use.
    pub(crate) fn take(&self) -> Use {
        Use { _of: Arc::clone(&self.0) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_a_use_releases_it() {
        let uses = Uses::default();
        let (one, other) = (uses.take(), uses.take());
        assert_eq!(uses.count(), 2);
        drop(one);
        assert_eq!(uses.count(), 1);
        let kept = vec![other];
        assert_eq!(uses.count(), 1, "it goes with its holder");
        drop(kept);
        assert_eq!(uses.count(), 0);
    }
}
