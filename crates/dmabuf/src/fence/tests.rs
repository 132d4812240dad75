use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;

#[test]
fn fences_of_a_timeline_are_signaled_in_order_up_to_a_point() {
    let engine = Timeline::new("gpu", "copy0");
    let points: Vec<_> = (0..4).map(|_| engine.point()).collect();
    assert_eq!(points.iter().map(Fence::seqno).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(points[3].is_later_or_same(&points[0]) && !points[0].is_later_or_same(&points[3]));

    let order = Arc::new(Mutex::new(Vec::new()));
    for point in points.iter().rev() {
        let order = Arc::clone(&order);
        point
            .add_callback(move |f| order.lock().expect("no panic").push(f.seqno()))
            .expect("active");
    }
    engine.signal(3);
    assert_eq!(*order.lock().expect("no panic"), [1, 2, 3]);
    assert_eq!((engine.signaled(), engine.last()), (3, 4));
    assert_eq!(points[3].status(), FenceStatus::Active);
    // A point that does not exist yet cannot be signaled, whatever number is given.
    engine.signal(100);
    assert_eq!(engine.signaled(), 4);
    assert_eq!(engine.point().status(), FenceStatus::Active);
}

#[test]
fn status_is_one_zero_or_an_errno() {
    let engine = Timeline::new("gpu", "copy0");
    let (good, bad, open) = (engine.point(), engine.point(), engine.point());
    engine.fail(&bad, Errno::IO).expect("in time");
    assert_eq!(
        [&good, &bad, &open].map(|fence| fence.status().as_i32()),
        [1, -Errno::IO.raw_os_error(), 0],
        "what came before the failure was good"
    );
    assert_eq!(engine.set_error(&bad, Errno::NODEV), Err(AlreadySignaled), "too late");
    assert_eq!(bad.status(), FenceStatus::Failed(Errno::IO));
    assert!(good.timestamp().is_some() && open.timestamp().is_none());
}

#[test]
fn a_producer_that_goes_away_leaves_no_waiters() {
    let engine = Timeline::new("gpu", "copy0");
    let fence = engine.point();
    let waiter = {
        let fence = fence.clone();
        thread::spawn(move || fence.wait(None))
    };
    drop(engine);
    assert_eq!(waiter.join().expect("no panic"), Ok(()));
    assert_eq!(fence.status(), FenceStatus::Failed(Errno::CANCELED));
}

#[test]
fn waiting_with_no_time_asks() {
    let engine = Timeline::new("gpu", "copy0");
    let fence = engine.point();
    assert_eq!(fence.wait(Some(Duration::ZERO)), Err(TimedOut));
    assert_eq!(fence.wait(Some(Duration::from_millis(1))), Err(TimedOut));
    engine.signal(1);
    assert_eq!(fence.wait(Some(Duration::ZERO)), Ok(()));
    assert_eq!(fence.wait(None), Ok(()));
}

#[test]
fn a_callback_runs_once_or_is_refused() {
    let engine = Timeline::new("gpu", "copy0");
    let fence = engine.point();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = || {
        let ran = Arc::clone(&ran);
        move |_: &Fence| {
            ran.fetch_add(1, Ordering::Relaxed);
        }
    };
    fence.add_callback(count()).expect("active");
    let taken_back = fence.add_callback(count()).expect("active");
    assert!(fence.remove_callback(taken_back));
    assert!(!fence.remove_callback(taken_back), "it is gone");
    engine.signal(1);
    engine.signal(1);
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    assert_eq!(fence.add_callback(count()).unwrap_err(), AlreadySignaled);
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

#[test]
fn the_earliest_deadline_reaches_the_producer() {
    let heard = Arc::new(AtomicUsize::new(0));
    let hook = {
        let heard = Arc::clone(&heard);
        move |_: &Fence, _| {
            heard.fetch_add(1, Ordering::Relaxed);
        }
    };
    let engine = Timeline::with_deadline_hook("gpu", "copy0", hook);
    let (one, two) = (engine.point(), engine.point());
    let soon = Instant::now();
    let later = soon + Duration::from_secs(1);
    two.set_deadline(later);
    two.set_deadline(soon);
    two.set_deadline(later);
    assert_eq!(heard.load(Ordering::Relaxed), 2, "a later one changes nothing");
    assert_eq!(engine.deadline(), Some(soon));
    // A container passes the deadline on.
    FenceArray::all(vec![one.clone(), two]).expect("two").set_deadline(later);
    assert_eq!(one.deadline(), Some(later));
}

#[test]
fn an_array_is_signaled_with_all_or_with_any() {
    let (left, right) = (Timeline::new("gpu", "left"), Timeline::new("gpu", "right"));
    let parts = || vec![left.point(), right.point()];
    let (all, any) =
        (FenceArray::all(parts()).expect("two"), FenceArray::any(parts()).expect("two"));
    let ran = Arc::new(AtomicUsize::new(0));
    for fence in [&all, &any] {
        let ran = Arc::clone(&ran);
        let count = move |_: &Fence| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        fence.add_callback(count).expect("active");
    }
    left.signal(2);
    assert!(any.is_signaled() && !all.is_signaled());
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    let waiter = {
        let all = all.clone();
        thread::spawn(move || all.wait(None))
    };
    let broken = FenceArray::parts(&all).expect("an array")[1].clone();
    right.fail(&broken, Errno::IO).expect("in time");
    assert_eq!(waiter.join().expect("no panic"), Ok(()));
    assert_eq!(
        all.status(),
        FenceStatus::Failed(Errno::IO),
        "the failure of a part is the whole's"
    );
    assert_eq!(ran.load(Ordering::Relaxed), 2);
}

#[test]
fn arrays_do_not_nest_and_are_not_empty() {
    let engine = Timeline::new("gpu", "copy0");
    assert_eq!(FenceArray::all(vec![]).unwrap_err(), ArrayError::Empty);
    let array = FenceArray::all(vec![engine.point()]).expect("one");
    assert_eq!(FenceArray::all(vec![array]).unwrap_err(), ArrayError::Container);
}

#[test]
fn a_chain_is_signaled_link_by_link_and_forgets() {
    let engines: Vec<_> = (0..3).map(|_| Timeline::new("gpu", "any")).collect();
    let one = FenceChain::link(None, engines[0].point(), 10).expect("no chain");
    let two = FenceChain::link(Some(one.clone()), engines[1].point(), 20).expect("no chain");
    let three = FenceChain::link(Some(two.clone()), engines[2].point(), 30).expect("no chain");
    assert_eq!(one.context(), three.context());
    assert_eq!(FenceChain::link(None, one.clone(), 1).unwrap_err(), ChainError::Nested);

    // The work of a later point may be done first; the point itself is not signaled then.
    engines[2].signal(1);
    assert!(!three.is_signaled());
    let ran = Arc::new(AtomicUsize::new(0));
    let count = {
        let ran = Arc::clone(&ran);
        move |_: &Fence| {
            ran.fetch_add(1, Ordering::Relaxed);
        }
    };
    three.add_callback(count).expect("active");

    let found =
        |seqno| FenceChain::find(&three, seqno).map(|found| found.map(|fence| fence.seqno()));
    for (asked, answer) in [(0, 30), (1, 10), (10, 10), (11, 20), (20, 20), (30, 30)] {
        assert_eq!(found(asked), Ok(Some(answer)), "point {asked}");
    }
    assert_eq!(found(31), Err(ChainError::NotReached { seqno: 31, last: 30 }));
    assert_eq!(FenceChain::find(&engines[0].point(), 1).unwrap_err(), ChainError::NotAChain);

    engines[0].signal(1);
    assert!(one.is_signaled() && !two.is_signaled());
    assert_eq!(FenceChain::walk(&three).len(), 2, "the first link is forgotten");
    engines[1].signal(1);
    assert!(three.is_signaled());
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

#[test]
fn a_chain_that_goes_back_begins_a_new_context() {
    let engine = Timeline::new("gpu", "copy0");
    let first = FenceChain::link(None, engine.point(), 10).expect("no chain");
    let again = FenceChain::link(Some(first.clone()), engine.point(), 5).expect("no chain");
    assert_ne!(first.context(), again.context());
    assert_eq!(again.seqno(), 10);
}

#[test]
fn a_chain_may_be_long() {
    let engine = Timeline::new("gpu", "copy0");
    let mut last = None;
    for seqno in 1..=100_000 {
        last = Some(FenceChain::link(last, engine.point(), seqno).expect("no chain"));
    }
    let last = last.expect("many");
    assert_eq!(FenceChain::walk(&last).len(), 100_000);
    engine.signal(100_000);
    assert!(last.is_signaled());
    let chain = (1..=100_000).fold(None, |last, seqno| {
        Some(FenceChain::link(last, engine.point(), seqno).expect("no chain"))
    });
    drop(chain);
}

#[test]
fn containers_are_unwrapped_at_any_depth_and_merged() {
    let (left, right) = (Timeline::new("gpu", "left"), Timeline::new("gpu", "right"));
    let (a, b, c) = (left.point(), left.point(), right.point());
    let array = FenceArray::all(vec![b.clone(), c.clone()]).expect("two");
    let chain = FenceChain::link(Some(a.clone()), array, 7).expect("no chain");
    let parts = chain.unwrap_parts();
    assert!(parts.iter().zip([&b, &c, &a]).all(|(part, expected)| part.is_same(expected)));

    // The latest of one context counts; nothing is listed twice.
    let merged = Fence::all_of([chain.clone(), a.clone(), c.clone()]);
    let in_it = FenceArray::parts(&merged).expect("two contexts");
    assert!(in_it.len() == 2 && in_it[0].is_same(&b) && in_it[1].is_same(&c));
    left.signal(2);
    assert!(Fence::all_of([chain.clone()]).is_same(&c), "one fence is itself");
    right.signal(1);
    assert!(Fence::all_of([chain]).is_same(&Fence::signaled_stub()));
}

#[test]
fn a_fence_describes_itself() {
    let engine = Timeline::new("gpu", "copy0");
    let fence = engine.point();
    assert_eq!(fence.to_string(), "gpu copy0 seq 1 unsignalled");
    engine.signal(1);
    assert_eq!(fence.to_string(), "gpu copy0 seq 1 signalled");
}

#[cfg(debug_assertions)]
#[test]
fn code_that_completes_a_fence_takes_no_reservation_lock() {
    let engine = Timeline::new("gpu", "copy0");
    let resv = crate::Resv::new();
    engine
        .point()
        .add_callback(move |_| {
            assert!(resv.try_lock().is_some(), "trying is permitted");
            drop(resv.lock());
        })
        .expect("active");
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.signal(1)));
    let text = *thrown.unwrap_err().downcast::<String>().expect("words");
    assert!(text.starts_with("taking a reservation lock in code that completes a fence"), "{text}");
}
