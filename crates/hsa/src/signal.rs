//! Signals: words that copies decrement, and that programs read, change and wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use umd::wait::{end_of, wait_until};

use crate::boundary::{Function, LOG};
use crate::process;

/// A signal.
#[doc(alias = "hsa_signal_t")]
#[derive(Debug)]
pub(crate) struct Signal {
    pub(crate) handle: u64,
    value: AtomicI64,
}

/// A comparison of a value with another.
#[doc(alias = "hsa_signal_condition_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Equal,
    NotEqual,
    Less,
    NotLess,
}

impl Condition {
    /// The condition with this number in the header.
    pub(crate) fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Equal,
            1 => Self::NotEqual,
            2 => Self::Less,
            3 => Self::NotLess,
            _ => return None,
        })
    }

    pub(crate) fn holds(self, value: i64, than: i64) -> bool {
        match self {
            Self::Equal => value == than,
            Self::NotEqual => value != than,
            Self::Less => value < than,
            Self::NotLess => value >= than,
        }
    }
}

impl Signal {
    pub(crate) fn new(handle: u64, value: i64) -> Self {
        Self { handle, value: AtomicI64::new(value) }
    }

    pub(crate) fn load(&self) -> i64 {
        self.value.load(Ordering::SeqCst)
    }

    pub(crate) fn store(&self, value: i64) {
        self.value.store(value, Ordering::SeqCst);
    }

    /// Decrements the value when work is done.
    pub(crate) fn count_down(&self) {
        self.value.fetch_sub(1, Ordering::SeqCst);
    }

    /// The address of the value, for a program that changes it directly while the signal exists.
    #[doc(alias = "hsa_amd_signal_value_pointer")]
    pub(crate) fn place(&self) -> *mut i64 {
        self.value.as_ptr()
    }
}

/// The signal of a handle. The functions that use this cannot report an invalid handle.
fn find(handle: u64) -> Option<Arc<Signal>> {
    let found = process::get().and_then(|process| process.signal(handle));
    found.inspect_err(|refusal| tracing::info!(target: LOG, "a signal: {refusal}")).ok()
}

/// Applies an operation to the value of a signal; 0 if there is no such signal.
fn with(handle: u64, act: impl FnOnce(&AtomicI64) -> i64) -> i64 {
    find(handle).map_or(0, |signal| act(&signal.value))
}

extern "C" fn load(signal: u64) -> i64 {
    with(signal, |value| value.load(Ordering::SeqCst))
}

extern "C" fn store(signal: u64, new: i64) {
    with(signal, |value| {
        value.store(new, Ordering::SeqCst);
        0
    });
}

extern "C" fn exchange(signal: u64, new: i64) -> i64 {
    with(signal, |value| value.swap(new, Ordering::SeqCst))
}

extern "C" fn cas(signal: u64, expected: i64, new: i64) -> i64 {
    with(signal, |value| {
        let order = Ordering::SeqCst;
        value.compare_exchange(expected, new, order, order).unwrap_or_else(|found| found)
    })
}

extern "C" fn add(signal: u64, by: i64) {
    with(signal, |value| value.fetch_add(by, Ordering::SeqCst));
}

extern "C" fn subtract(signal: u64, by: i64) {
    with(signal, |value| value.fetch_sub(by, Ordering::SeqCst));
}

extern "C" fn and(signal: u64, by: i64) {
    with(signal, |value| value.fetch_and(by, Ordering::SeqCst));
}

extern "C" fn or(signal: u64, by: i64) {
    with(signal, |value| value.fetch_or(by, Ordering::SeqCst));
}

extern "C" fn xor(signal: u64, by: i64) {
    with(signal, |value| value.fetch_xor(by, Ordering::SeqCst));
}

/// The wait functions, by the memory order that they promise.
const WAITS: [(&str, Function); 3] = [
    ("hsa_signal_wait_relaxed", Function(wait::<0> as *const ())),
    ("hsa_signal_wait_acquire", Function(wait::<1> as *const ())),
    ("hsa_signal_wait_scacquire", Function(wait::<2> as *const ())),
];

/// Returns the value that ended the wait, or the last value seen. The hint tells whether to spin;
/// this always spins, but not for long.
extern "C" fn wait<const NAME: usize>(
    signal: u64,
    condition: u32,
    than: i64,
    timeout: u64,
    _hint: u32,
) -> i64 {
    gpu::weather::operation(WAITS[NAME].0);
    let (Some(signal), Some(condition)) = (find(signal), Condition::of(condition)) else {
        return 0;
    };
    let mut seen = 0;
    wait_until(
        || {
            seen = signal.load();
            condition.holds(seen, than)
        },
        end_of(timeout),
    );
    seen
}

/// Memory orders, which names have after the operation. All operations use the same order here.
const ORDERS: [&str; 7] =
    ["relaxed", "acquire", "release", "acq_rel", "scacquire", "screlease", "scacq_screl"];

/// The function of a name, if it operates on the value of a signal.
pub(crate) fn function(name: &str) -> Option<Function> {
    let operations = [
        ("load", load as *const ()),
        ("store", store as *const ()),
        ("silent_store", store as *const ()),
        ("exchange", exchange as *const ()),
        ("cas", cas as *const ()),
        ("add", add as *const ()),
        ("subtract", subtract as *const ()),
        ("and", and as *const ()),
        ("or", or as *const ()),
        ("xor", xor as *const ()),
    ];
    if let Some((_, wait)) = WAITS.iter().find(|(wait, _)| *wait == name) {
        return Some(*wait);
    }
    let rest = name.strip_prefix("hsa_signal_")?;
    let is_named = |operation: &str| {
        let order = rest.strip_prefix(operation).and_then(|rest| rest.strip_prefix('_'));
        order.is_some_and(|order| ORDERS.contains(&order))
    };
    let found = operations.into_iter().find(|(operation, _)| is_named(operation));
    found.map(|(_, function)| Function(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_a_name_for_each_order_of_memory() {
        let is_function = |name| function(name).is_some();
        assert!(is_function("hsa_signal_silent_store_screlease"));
        assert!(is_function("hsa_signal_wait_scacquire") && is_function("hsa_signal_or_acq_rel"));
        assert!(!is_function("hsa_signal_create") && !is_function("hsa_signal_group_create"));
        assert!(!is_function("hsa_signal_wait") && !is_function("hsa_signal_store_"));
    }

    #[test]
    fn conditions_are_those_of_the_header() {
        let holding = |value| {
            [0, 1, 2, 3].map(|number| Condition::of(number).is_some_and(|is| is.holds(value, 1)))
        };
        assert_eq!(holding(1), [true, false, false, true]);
        assert_eq!(holding(0), [false, true, true, false]);
        assert_eq!(holding(2), [false, true, false, true]);
        assert_eq!(Condition::of(4), None);
    }
}
