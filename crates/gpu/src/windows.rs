//! Temporary settings made by a fault plan; the last one counts.

/// A setting that holds until the next one, or until its window ends, whatever other windows do
/// meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Windows<T> {
    base: T,
    /// The open windows, in the order in which they began.
    open: Vec<(u64, T)>,
}

impl<T: Copy + PartialEq> Windows<T> {
    /// Makes a setting. Without a window it holds from now on, and all windows are over. Returns
    /// the setting in force.
    pub(crate) fn set(&mut self, value: T, window: Option<u64>) -> T {
        match window {
            Some(window) => self.open.push((window, value)),
            None => {
                self.base = value;
                self.open.clear();
            }
        }
        self.current()
    }

    /// Ends a window. Returns the setting in force, if that has changed.
    pub(crate) fn end(&mut self, window: u64) -> Option<T> {
        let before = self.current();
        self.open.retain(|(open, _)| *open != window);
        Some(self.current()).filter(|now| *now != before)
    }

    fn current(&self) -> T {
        self.open.last().map_or(self.base, |(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_itself_and_no_other_one() {
        let mut rate = Windows::default();
        assert_eq!(rate.set(10, Some(1)), 10);
        assert_eq!(rate.set(5, Some(2)), 5, "the last one counts");
        assert_eq!(rate.end(1), None, "it does not count any more");
        assert_eq!(rate.end(2), Some(0), "and now nothing does");
        rate.set(10, Some(3));
        rate.set(5, Some(4));
        assert_eq!(rate.end(4), Some(10), "the first one is still open");
        assert_eq!(rate.end(3), Some(0));
    }

    #[test]
    fn a_setting_without_a_window_ends_all_windows_and_holds_beneath_later_ones() {
        let mut rate = Windows::default();
        rate.set(10, Some(1));
        assert_eq!(rate.set(7, None), 7);
        assert_eq!(rate.end(1), None, "it is over already");
        rate.set(5, Some(2));
        assert_eq!(rate.end(2), Some(7));
        assert_eq!(rate.set(0, None), 0);
    }
}
