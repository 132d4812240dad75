//! A set of addresses that any thread may search, also in a forked child.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Addresses of what programs hold. There is no lock that a fork could leave taken: slots are added
/// and reused, and never freed.
pub(crate) struct Pointers {
    first: AtomicPtr<Place>,
}

/// An address, or 0, and the slot that was added before.
struct Place {
    address: AtomicUsize,
    next: Option<&'static Self>,
}

impl Pointers {
    pub(crate) const fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Whether an address was added and not removed.
    pub(crate) fn has(&self, address: usize) -> bool {
        address != 0 && self.places().any(|place| place.address.load(Ordering::Acquire) == address)
    }

    /// Adds an address that is not there.
    pub(crate) fn add(&self, address: usize) {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let free =
            |place: &Place| place.address.compare_exchange(0, address, order, failed).is_ok();
        if self.places().any(free) {
            return;
        }
        let place =
            Box::into_raw(Box::new(Place { address: AtomicUsize::new(address), next: None }));
        let mut first = self.first.load(Ordering::Acquire);
        loop {
            // SAFETY: the previous slot is never freed; nobody else has this one yet.
            let next = unsafe { first.as_ref() };
            // SAFETY: as above.
            unsafe { (*place).next = next };
            match self.first.compare_exchange_weak(first, place, order, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Removes an address. False if it is not there.
    pub(crate) fn remove(&self, address: usize) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let mine =
            |place: &Place| place.address.compare_exchange(address, 0, order, failed).is_ok();
        address != 0 && self.places().any(mine)
    }

    fn places(&self) -> impl Iterator<Item = &'static Place> {
        // SAFETY: slots are never freed, and are complete before they can be reached.
        let first = unsafe { self.first.load(Ordering::Acquire).as_ref() };
        std::iter::successors(first, |place| place.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_set_until_it_is_removed() {
        let pointers = Pointers::new();
        assert!(!pointers.has(0) && !pointers.has(8));
        pointers.add(8);
        pointers.add(16);
        assert!(pointers.has(8) && pointers.has(16));
        assert!(pointers.remove(8) && !pointers.remove(8));
        pointers.add(24);
        assert!(!pointers.has(8) && pointers.has(16) && pointers.has(24));
        assert_eq!(pointers.places().count(), 2, "slots are reused");
    }

    #[test]
    fn threads_lose_nothing() {
        let pointers = Pointers::new();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let pointers = &pointers;
                scope.spawn(move || {
                    for round in 1..=1000 {
                        let address = thread * 8192 + round * 8;
                        pointers.add(address);
                        assert!(pointers.has(address));
                        assert!(pointers.remove(address));
                    }
                });
            }
        });
        assert!(pointers.places().all(|place| place.address.load(Ordering::Relaxed) == 0));
    }
}
