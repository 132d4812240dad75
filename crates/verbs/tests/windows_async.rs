//! Memory windows as futures. `crates/peerdma` runs this file with a library, too.

mod chosen;
mod queues;

use std::task::{Context as Task, Waker};
use std::time::{Duration, Instant};

use pollster::block_on;
use verbs::aio::{self, Error};
use verbs::owned::{Buffer, Pool, RemoteSlice, Shared, Window};
use verbs::{Access, Kind, Pd, WcStatus};

use queues::{open, pair, small};

const GRANTED: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

struct Two {
    cq: aio::Cq,
    pd: Pd,
    /// Grants windows.
    host: aio::Qp,
    /// Uses them.
    guest: aio::Qp,
}

fn two() -> Two {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (host, guest) = pair(&cq, &pd, &small());
    Two { cq, pd, host, guest }
}

fn shared(pd: &Pd) -> Shared<u64> {
    Shared::new(pd, 8, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
}

async fn write(qp: &aio::Qp, value: u64, to: RemoteSlice<u64>) -> Result<(), Error> {
    let buffer = qp.pd().register(value.to_ne_bytes().to_vec()).unwrap();
    qp.write(buffer, to).await.0.map(drop)
}

#[test]
fn a_bound_window_gives_the_peer_its_values_and_an_invalidated_one_nothing() {
    let Two { pd, host, guest, .. } = two();
    let memory = shared(&pd);
    block_on(async {
        let mut window = memory.window().unwrap();
        assert_eq!(window.remote(), None);
        let mut keys = Vec::new();
        for round in 1..=3 {
            let (granted, bound) = host.bind(window, 2..4, GRANTED).await;
            let granted = granted.unwrap();
            assert_eq!((granted.len(), bound.remote()), (2, Some(granted)));
            keys.push(granted.remote().rkey);
            write(&guest, round, granted.at(1).unwrap()).await.unwrap();
            assert_eq!((memory.get(2), memory.get(3)), (0, round));
            let (unbound, back) = host.invalidate(bound).await;
            unbound.unwrap();
            assert_eq!(back.remote(), None);
            window = back;
        }
        keys.dedup();
        assert_eq!(keys.len(), 3, "an earlier key reaches nothing");
        let (granted, window) = host.bind(window, .., GRANTED).await;
        let granted = granted.unwrap();
        let (unbound, _window) = host.invalidate(window).await;
        unbound.unwrap();
        let error = write(&guest, 9, granted).await.unwrap_err();
        assert_eq!(error.status(), Some(WcStatus::RemAccessErr), "{error}");
        assert_eq!(memory.get(0), 0);
    });
}

/// The peer says with its answer that it is done.
#[test]
fn the_peer_gives_a_window_back_with_a_message() {
    let Two { pd, host, guest, .. } = two();
    let memory = shared(&pd);
    block_on(async {
        let mut window = memory.window().unwrap();
        let pool = Pool::new(&pd, 8, 2).unwrap();
        let take = || pool.try_take().unwrap();
        for round in 0..4_u64 {
            let (granted, mut bound) = host.bind(window, ..=0, GRANTED).await;
            let granted = granted.unwrap();
            let mut value = take();
            value.fill_with(&round.to_ne_bytes());
            let result = if round % 2 == 0 {
                let batch = guest.batch().write(value, granted);
                batch.send_with_inv(take(), granted).post().await.0
            } else {
                guest.write(value, granted).await.0.unwrap();
                guest.send_with_inv(take(), granted).await.0.map(drop)
            };
            result.unwrap();
            let message = host.recv().await.unwrap();
            // rxe tells no program of it.
            let expected = (!chosen::is_rxe()).then_some(granted.remote().rkey);
            assert_eq!((message.invalidated(), message.imm()), (expected, None));
            assert!(bound.note_invalidated(granted.remote().rkey));
            assert!(!bound.note_invalidated(granted.remote().rkey), "it is not bound any more");
            assert_eq!(memory.get(0), round);
            window = bound;
        }
    });
}

#[test]
fn what_would_end_the_qp_is_refused_before_it_is_posted() {
    let Two { cq, pd, host, .. } = two();
    let (other, _peer) = pair(&cq, &pd, &small());
    let memory = shared(&pd);
    #[track_caller]
    fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> Kind {
        let Err(Error::Refused(refusal)) = result else { panic!("{result:?}") };
        refusal.kind()
    }
    block_on(async {
        let window = memory.window().unwrap();
        let (result, window) = host.invalidate(window).await;
        assert_eq!(kind(result), Kind::Invalid);
        let (result, window) = host.bind(window, 3..9, GRANTED).await;
        assert_eq!(kind(result), Kind::Invalid);
        let (result, window) = host.bind(window, 3..3, GRANTED).await;
        assert_eq!(kind(result), Kind::Invalid);
        let (result, window) = host.bind(window, 3..8, GRANTED).await;
        assert_eq!(result.unwrap().len(), 5);
        let (result, window) = host.bind(window, .., GRANTED).await;
        assert_eq!(kind(result), Kind::Busy);
        let (result, window) = other.invalidate(window).await;
        assert_eq!(kind(result), Kind::Invalid);
        host.invalidate(window).await.0.unwrap();
    });
    assert_eq!(host.query().unwrap().state, verbs::QpState::Rts);
}

/// The request holds the window, and the window its region.
#[test]
fn a_dropped_or_forgotten_future_keeps_its_window_until_it_has_completed() {
    let Two { cq, pd, host, guest } = two();
    let memory = shared(&pd);
    let windows: [Window<u64>; 2] = [(); 2].map(|()| memory.window().unwrap());
    let keys = windows.map(|window| {
        let mut binding = Box::pin(host.bind(window, .., GRANTED));
        let _ = binding.as_mut().poll(&mut Task::from_waker(Waker::noop()));
        std::mem::forget(binding);
    });
    assert_eq!(keys.len(), 2);
    let mut dropped = Box::pin(host.bind(memory.window().unwrap(), .., GRANTED));
    let _ = dropped.as_mut().poll(&mut Task::from_waker(Waker::noop()));
    drop(dropped);
    // The region is kept by its windows, and the QP goes on.
    drop(memory);
    block_on(async {
        let buffer: Buffer = pd.register(b"afterwards".to_vec()).unwrap();
        let began = Instant::now();
        host.send(buffer).await.0.unwrap();
        assert_eq!(&guest.recv().await.unwrap()[..], b"afterwards");
        assert!(began.elapsed() < Duration::from_secs(30));
    });
    while cq.turn() > 0 {}
    assert_eq!(host.query().unwrap().state, verbs::QpState::Rts);
}

#[test]
fn a_region_that_does_not_allow_windows_fails_the_bind() {
    let Two { pd, host, .. } = two();
    let memory = Shared::<u64>::new(&pd, 8, Access::REMOTE).unwrap();
    let (result, window) = block_on(host.bind(memory.window().unwrap(), .., GRANTED));
    let error = result.unwrap_err();
    let expected = if chosen::is_rxe() { WcStatus::WrFlushErr } else { WcStatus::MwBindErr };
    assert_eq!(error.status(), Some(expected), "{error}");
    assert_eq!(window.remote(), None);
}
