//! Asynchronous events: which there are, what they are about, and the ways to wait for them.
//! `crates/peerdma` runs this file with a library, too.

mod chosen;

use std::os::fd::AsFd;
use std::pin::pin;
use std::task::{Context as Task, Waker};
use std::thread;
use std::time::Duration;

use pollster::block_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::aio::{self, SrqOptions};
use verbs::{
    Access, AsyncEvent, AttrMask, Context, Cq, EventType, HostBuf, Kind, Mr, Pd, Qp, QpAttr,
    QpSpec, QpState, SendRequest, Srq,
};

const PATIENCE: Duration = Duration::from_secs(10);

fn open() -> (Context, Pd) {
    let context = verbs::devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

/// A QP that receives from a shared queue, and its peer.
struct Served {
    context: Context,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    peer: Qp,
    mr: Mr,
    _memory: HostBuf,
    _server: Qp,
}

impl Served {
    /// With this many receives.
    fn new(receives: u64) -> Self {
        let (context, pd) = open();
        let cq = context.create_cq(64).unwrap();
        let srq = pd.create_srq(16, 1).unwrap();
        let server = pd.create_qp(&QpSpec { srq: Some(srq.clone()), ..QpSpec::rc(&cq) }).unwrap();
        let peer = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
        server.connect(&peer.endpoint().unwrap()).unwrap();
        peer.connect(&server.endpoint().unwrap()).unwrap();
        let memory = HostBuf::anonymous(4096).unwrap();
        let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
        let served = Self { context, pd, cq, srq, peer, mr, _memory: memory, _server: server };
        served.fill(receives);
        served
    }

    fn fill(&self, receives: u64) {
        for number in 0..receives {
            self.srq.post_recv(number, &[self.mr.slice(0, 64)]).unwrap();
        }
    }

    /// Takes a receive of the queue.
    fn take(&self) {
        self.peer.post_send(&SendRequest::send(7, &[self.mr.slice(0, 8)]).signaled()).unwrap();
        for _ in 0..2 {
            let wc = self.cq.wait_timeout(PATIENCE).unwrap().expect("it completes");
            assert!(wc.is_success(), "{wc:?}");
        }
    }

    fn event(&self) -> Option<AsyncEvent> {
        self.context.async_event(Duration::ZERO).unwrap()
    }

    /// Has the event of the limit raised.
    fn reach_limit(&self) {
        self.srq.arm(2).unwrap();
        self.fill(2);
        self.take();
    }

    #[track_caller]
    fn next(&self) -> AsyncEvent {
        self.context.async_event(PATIENCE).unwrap().expect("an event")
    }
}

#[test]
fn a_shared_queue_says_once_that_few_receives_are_left() {
    let served = Served::new(4);
    served.srq.arm(3).unwrap();
    served.take();
    assert_eq!(served.event(), None, "three are left");
    served.take();
    assert_eq!(served.next().event, EventType::SrqLimitReached);
    served.take();
    assert_eq!(served.event(), None, "it was asked for one");

    served.fill(3);
    served.srq.arm(4).unwrap();
    served.take();
    assert_eq!(served.next().event, EventType::SrqLimitReached);
    served.fill(4);
    served.srq.arm(4).unwrap();
    served.srq.arm(0).unwrap();
    (0..7).for_each(|_| served.take());
    assert_eq!(served.event(), None, "it was disarmed");
}

#[test]
fn a_limit_beyond_the_queue_is_refused() {
    let (_context, pd) = open();
    let srq = pd.create_srq(16, 1).unwrap();
    assert_eq!(srq.arm(1 << 30).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_shared_queue_that_is_resized_keeps_its_receives() {
    let served = Served::new(16);
    served.srq.resize(64).unwrap();
    served.fill(48);
    (0..64).for_each(|_| served.take());
    served.fill(2);
    served.srq.resize(2).unwrap();
    served.take();
    served.fill(1);
    let refusal = served.srq.resize(1).unwrap_err();
    assert_eq!(refusal.kind(), Kind::Invalid, "it holds more: {refusal}");
}

#[test]
fn an_event_says_which_queue_it_is_of() {
    let served = Served::new(0);
    let other = served.pd.create_srq(16, 1).unwrap();
    served.reach_limit();
    let event = served.next();
    assert!(event.is_of_srq(&served.srq) && !event.is_of_srq(&other));
    assert!(!event.is_of_cq(&served.cq));
    assert_eq!((event.qpn, event.port), (None, None));
}

#[test]
fn a_completion_queue_that_overran_is_named() {
    let (context, pd) = open();
    let (small, other) = (context.create_cq(1).unwrap(), context.create_cq(1).unwrap());
    let qp = pd.create_qp(&QpSpec::rc(&small)).unwrap();
    for number in 0..64 {
        qp.post_recv(number, &[]).unwrap();
    }
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
    let event = loop {
        let event = context.async_event(PATIENCE).unwrap().expect("the queue is full");
        if event.event == EventType::CqErr {
            break event;
        }
        // A QP whose queue overran ends, too.
        assert_eq!((event.event, event.qpn), (EventType::QpFatal, Some(qp.qpn())));
    };
    assert!(event.is_of_cq(&small) && !event.is_of_cq(&other));
    assert_eq!((event.qpn, event.port), (None, None));
}

fn is_readable(fd: &impl AsFd, patience: Duration) -> bool {
    let patience = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&patience)).unwrap() > 0
}

#[test]
fn an_event_loop_waits_for_a_descriptor() {
    let served = Served::new(0);
    let events = served.context.async_events().unwrap();
    assert!(!is_readable(&events, Duration::ZERO) && events.take().unwrap().is_none());
    served.reach_limit();
    assert!(is_readable(&events, PATIENCE));
    let event = events.take().unwrap().expect("it is readable");
    assert!(event.event == EventType::SrqLimitReached && event.is_of_srq(&served.srq));
    assert!(!is_readable(&events, Duration::ZERO) && events.take().unwrap().is_none());
}

/// Where the thread of the library takes the events of a context, the program gets its own still.
#[test]
fn the_descriptor_is_readable_for_events_that_the_library_took() {
    let served = Served::new(0);
    let events = served.context.async_events().unwrap();
    let cq = aio::Cq::polled(&served.context, 64).unwrap();
    let options = SrqOptions { receives: 4, receive_length: 64 };
    let _shared = cq.create_srq(&served.pd, &options).unwrap();
    served.reach_limit();
    let event = loop {
        assert!(is_readable(&events, PATIENCE));
        // The thread may have it in its hands.
        if let Some(event) = events.take().unwrap() {
            break event;
        }
    };
    assert!(event.is_of_srq(&served.srq));
}

#[test]
fn events_are_futures() {
    let served = Served::new(0);
    let mut events = aio::AsyncEvents::new(&served.context).unwrap();
    let poll = pin!(events.next()).poll(&mut Task::from_waker(Waker::noop()));
    assert!(poll.is_pending());
    thread::scope(|scope| {
        let next = scope.spawn(|| block_on(events.next()));
        served.reach_limit();
        let event = next.join().unwrap().unwrap();
        assert!(event.is_of_srq(&served.srq));
    });
}
