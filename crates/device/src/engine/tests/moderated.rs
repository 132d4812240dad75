//! Events that stand for several completions.

use std::time::Duration;

use iba::{QpType, Qpn};

use crate::engine::Engine;
use crate::engine::Turn;
use crate::engine::state::Alarm;
use crate::ids::{ChannelId, QpId};
use crate::nic::NicInfo;
use crate::refusal::Kind;
use crate::rig::{self, Objects, Process, datagram, post, to_rts};

const MICROSECOND: Duration = Duration::from_micros(1);

/// An engine with a QP whose sends complete on a CQ with a channel.
struct Scene {
    nic: NicInfo,
    engine: Engine,
    objects: Objects,
    channel: ChannelId,
    qp: QpId,
    qpn: Qpn,
}

impl Scene {
    fn new(test: &str) -> Self {
        let nic = rig::nic(test);
        let mut engine = rig::engine(&nic);
        let mut objects = Objects::new(&mut engine);
        let channel = engine.create_channel(objects.ctx).expect("descriptors");
        objects.cq = engine.create_cq(objects.ctx, 64, Some(channel), 0, 0).expect("a CQ");
        let (qp, qpn) = objects.qp(&mut engine, QpType::Ud);
        to_rts(&mut engine, qp, QpType::Ud, &nic, Qpn::new(0));
        Self { nic, engine, objects, channel, qp, qpn }
    }

    fn moderate(&mut self, count: u16, period: u16) {
        self.engine.moderate_cq(self.objects.cq, count, period).expect("possible values");
    }

    fn arm(&mut self) {
        self.engine.req_notify_cq(self.objects.cq, false).expect("a CQ");
    }

    /// Causes one completion.
    fn complete(&mut self) {
        post(&mut self.engine, self.qp, datagram(1, &self.nic, self.qpn));
    }

    fn pass(&mut self, wait: Duration) {
        self.engine.clock.pass(wait);
        self.engine.progress(Turn::Everything);
    }

    fn has_event(&mut self) -> bool {
        self.engine.take_cq_event(self.channel).is_some()
    }
}

#[test]
fn an_event_comes_when_the_count_of_completions_is_reached() {
    let mut scene = Scene::new("moderated-count");
    scene.moderate(3, 1000);
    for _ in 0..2 {
        scene.arm();
        for _ in 0..2 {
            scene.complete();
            assert!(!scene.has_event());
        }
        scene.complete();
        assert!(scene.has_event());
        // One event for one arming.
        scene.complete();
        scene.pass(1000 * MICROSECOND);
        assert!(!scene.has_event());
    }
}

#[test]
fn an_event_comes_when_the_first_completion_has_waited_for_the_period() {
    let mut scene = Scene::new("moderated-period");
    scene.moderate(3, 1000);
    scene.arm();
    scene.complete();
    scene.pass(600 * MICROSECOND);
    scene.complete();
    scene.pass(399 * MICROSECOND);
    assert!(!scene.has_event());
    let due = scene.engine.next_deadline().expect("the event is due");
    assert_eq!(due.since(scene.engine.clock.now()), MICROSECOND);
    scene.pass(MICROSECOND);
    assert!(scene.has_event());
    assert_eq!(scene.engine.next_deadline(), None);
}

#[test]
fn if_count_or_period_is_zero_every_event_comes_at_once() {
    let mut scene = Scene::new("moderated-off");
    for (count, period) in [(0, 100), (100, 0), (1, 100)] {
        scene.moderate(count, period);
        scene.arm();
        scene.complete();
        assert!(scene.has_event(), "{count} {period}");
    }
}

#[test]
fn the_end_of_a_cq_is_the_end_of_its_event() {
    let mut scene = Scene::new("moderated-destroy");
    scene.moderate(3, 1000);
    scene.arm();
    scene.complete();
    let _ = scene.engine.destroy_qp(scene.qp).expect("a QP");
    scene.engine.destroy_cq(scene.objects.cq).expect("unused");
    assert_eq!(scene.engine.next_deadline(), None);
    scene.pass(1000 * MICROSECOND);
    assert!(!scene.has_event());
}

#[test]
fn a_nic_reports_the_moderation_that_it_supports() {
    let mut scene = Scene::new("moderated-range");
    let refused = scene.engine.moderate_cq(scene.objects.cq, 1, 4096).expect_err("too long");
    assert_eq!(refused.kind(), Kind::Invalid);
    let mut nic = rig::nic("moderated-rxe");
    nic.config.preset = crate::config::Preset::Rxe;
    let mut engine = rig::engine(&nic);
    let objects = Objects::new(&mut engine);
    let refused = engine.moderate_cq(objects.cq, 2, 10).expect_err("rxe has no such thing");
    assert_eq!(refused.kind(), Kind::NotSupported);
}

/// A deadline that a call of the program sets must not be slept through.
#[test]
fn the_background_thread_is_woken_for_a_deadline_before_its_own() {
    let mut scene = Scene::new("moderated-alarm");
    // Until it is known which socket gets the packets, the thread checks again soon.
    while scene.engine.receivers.udp.wants_upkeep() {
        scene.engine.progress(Turn::Everything);
    }
    scene.moderate(3, 1000);
    let now = scene.engine.clock.now();
    for (alarm, woken) in [
        (Alarm::Never, true),
        (Alarm::At(now + 2000 * MICROSECOND), true),
        (Alarm::At(now + 500 * MICROSECOND), false),
    ] {
        scene.arm();
        scene.engine.set_alarm(alarm);
        scene.complete();
        scene.engine.mind_alarm();
        let expected = if woken { Alarm::Awake } else { alarm };
        assert_eq!(scene.engine.alarm(), expected);
        scene.complete();
        scene.complete();
        assert!(scene.has_event());
    }
    // Without a deadline no thread is woken.
    scene.engine.set_alarm(Alarm::Never);
    scene.complete();
    scene.engine.mind_alarm();
    assert_eq!(scene.engine.alarm(), Alarm::Never);
}

/// The same for the timer of a request that gets no answer.
#[test]
fn a_request_that_may_time_out_wakes_the_background_thread() {
    let [mut one, mut peer] = Process::pair(&rig::nic("moderated-timer"), QpType::Rc);
    rig::run(&mut [&mut one.engine, &mut peer.engine]);
    one.engine.set_alarm(Alarm::Never);
    one.send(1);
    assert!(one.engine.next_deadline().is_some());
    one.engine.mind_alarm();
    assert_eq!(one.engine.alarm(), Alarm::Awake);
}
