//! How an exporter takes away a mapping of the CPU.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Takes one mapping of the CPU away. The exporter makes a `Zap` for each range that it
/// [offers](crate::MmapBacking), and calls [`zap`](Self::zap) when the memory must go; the code
/// that mapped the range sets by [`on_zap`](Self::on_zap) how its pages are taken away. A clone is
/// the same object.
///
/// ```
/// use dmabuf::Zap;
///
/// let zap = Zap::default();
/// let (told, heard) = std::sync::mpsc::channel();
/// zap.on_zap(move || told.send(()).expect("somebody listens"));
/// zap.zap();
/// heard.recv().expect("the pages are gone");
/// ```
#[doc(alias = "unmap_mapping_range")]
#[derive(Clone, Default)]
pub struct Zap {
    state: Arc<Mutex<State>>,
}

type Act = Box<dyn FnOnce() + Send>;

#[derive(Default)]
enum State {
    /// No function has been set.
    #[default]
    Unmapped,
    Mapped(Act),
    Zapped,
}

impl Zap {
    /// Sets how the pages are taken away: at once, if the memory has gone already. Runs in the
    /// thread that takes the memory away, without a reservation lock.
    pub fn on_zap(&self, act: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if matches!(*state, State::Zapped) {
            drop(state);
            return act();
        }
        *state = State::Mapped(Box::new(act));
    }

    /// Takes the pages away. Called without any lock. Does nothing the second time.
    pub fn zap(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Zapped);
        if let State::Mapped(act) = before {
            act();
        }
    }

    /// Whether the pages were taken away.
    pub fn is_zapped(&self) -> bool {
        matches!(*self.state(), State::Zapped)
    }

    /// Whether both are for the same mapping.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Zap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zap").field("is_zapped", &self.is_zapped()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn pages_go_once_whether_they_were_mapped_before_or_after() {
        let times = Arc::new(AtomicUsize::new(0));
        let count = |times: &Arc<AtomicUsize>| {
            let times = Arc::clone(times);
            move || {
                times.fetch_add(1, Ordering::Relaxed);
            }
        };
        let zap = Zap::default();
        zap.on_zap(count(&times));
        assert_eq!((zap.is_zapped(), times.load(Ordering::Relaxed)), (false, 0));
        zap.zap();
        zap.clone().zap();
        assert_eq!((zap.is_zapped(), times.load(Ordering::Relaxed)), (true, 1));
        let late = Zap::default();
        late.zap();
        late.on_zap(count(&times));
        assert_eq!(times.load(Ordering::Relaxed), 2);
    }
}
