//! A completion queue that overruns, and the effects.

use std::time::Duration;

use iba::EventType;
use verbs::soft::{self, NicConfig, Preset};
use verbs::{AsyncEvent, Context, QpSpec, QpState, SendRequest};

const SOON: Duration = Duration::from_secs(10);

/// A NIC of its own.
fn open(preset: Preset) -> Context {
    let name = format!("overrun{}-{}", std::process::id(), preset as u8);
    soft::device(NicConfig { name, preset, ..NicConfig::default() }).unwrap().open().unwrap()
}

fn event(context: &Context) -> Option<AsyncEvent> {
    context.async_event(SOON).unwrap()
}

/// Makes a QP lose a completion: its queue has room for one. Returns its state afterwards, and the
/// events before `last`.
fn overrun(preset: Preset, last: EventType) -> (QpState, Vec<EventType>) {
    let context = open(preset);
    let pd = context.alloc_pd().unwrap();
    let (small, large) = (context.create_cq(1).unwrap(), context.create_cq(8).unwrap());
    let sender = pd.create_qp(&QpSpec::rc(&small)).unwrap();
    let receiver = pd.create_qp(&QpSpec::rc(&large)).unwrap();
    sender.connect(&receiver.endpoint().unwrap()).unwrap();
    receiver.connect(&sender.endpoint().unwrap()).unwrap();
    for wr_id in 0..2 {
        receiver.post_recv(wr_id, &[]).unwrap();
        sender.post_send(&SendRequest::send(wr_id, &[]).signaled()).unwrap();
    }
    let mut events = Vec::new();
    while events.last() != Some(&last) {
        events.push(event(&context).expect("an event within ten seconds").event);
    }
    assert_eq!(receiver.query().unwrap().state, QpState::Rts, "it completes elsewhere");
    (sender.query().unwrap().state, events)
}

#[test]
fn the_queue_ends_its_qps_as_on_mlx5() {
    let (state, events) = overrun(Preset::Mlx5, EventType::QpFatal);
    assert_eq!((state, events), (QpState::Err, vec![EventType::CqErr, EventType::QpFatal]));
}

#[test]
fn its_qps_continue_as_on_rxe() {
    let (state, events) = overrun(Preset::Rxe, EventType::CqErr);
    assert_eq!((state, events), (QpState::Rts, vec![EventType::CqErr]));
}
