//! Tasks that run some at a time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::sh::Outcome;

/// Runs each task, `at_a_time` of them side by side, and returns the results in their order, or the
/// first failure.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    at_a_time: usize,
    tasks: &[T],
    run: impl Fn(&T) -> Outcome<R> + Sync,
) -> Outcome<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, Outcome<R>>> = Mutex::default();
    let work = || {
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(task) = tasks.get(index)
        {
            let result = run(task);
            results.lock().expect("nobody panics with it").insert(index, result);
        }
    };
    thread::scope(|scope| (0..at_a_time).for_each(|_| drop(scope.spawn(work))));
    results.into_inner().expect("nobody panics with it").into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_tasks() {
        let squares = side_by_side(3, &[1, 2, 3, 4, 5], |number| Ok(number * number));
        assert_eq!(squares, Ok(vec![1, 4, 9, 16, 25]));
        let refused = side_by_side(2, &[1, 2], |number| match number {
            2 => Err("no two".to_owned()),
            _ => Ok(()),
        });
        assert_eq!(refused, Err("no two".to_owned()));
    }
}
