//! A peer that holds its guard slot, like one that was stopped in the middle of a copy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use iba::QpType;

use super::*;
use crate::nic::NicInfo;
use crate::rig::user::{is_root, stranger};
use crate::rig::{self, Objects, lock_soon, run, to_rts};

/// A NIC with its own thread, a peer with a ring to it, and a key that the peer may use.
struct Scene {
    nic: NicInfo,
    hca: Hca,
    objects: Objects,
    peer: crate::Engine,
    vf: u16,
}

impl Scene {
    fn new(test: &str) -> Self {
        Self::with(test, |nic, vf| {
            let mut peer = rig::engine(nic);
            peer.common.out.shm.prepare(vf);
            peer
        })
    }

    fn with(test: &str, peer: impl FnOnce(&NicInfo, u16) -> crate::Engine) -> Self {
        let nic = rig::nic(test);
        let hca = Hca::start(&nic).expect("a VF is free");
        let objects = Objects::new(&mut hca.lock());
        let vf = hca.lock().common.nic.vf;
        let mut peer = peer(&nic, vf);
        while hca.lock().receivers.shm.len() == 0 {
            run(&mut [&mut peer]);
        }
        Self { nic, hca, objects, peer, vf }
    }

    /// The peer begins a copy.
    fn hold(&mut self, key: u32) {
        self.peer.common.out.shm.hold(self.vf, key);
    }

    /// Runs `call`, which must wait for the copy that the peer has begun, and checks that all
    /// others continue in the meantime; then `end` ends the copy.
    fn waits(
        mut self,
        has_begun: impl Fn(&crate::Engine) -> bool,
        call: impl FnOnce(&Hca) + Send,
        end: impl FnOnce(&mut crate::Engine, u16),
    ) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                call(&self.hca);
                done.store(true, Ordering::SeqCst);
            });
            while !has_begun(&lock_soon(&self.hca)) {
                thread::yield_now();
            }
            // Longer than the caller just yields.
            for _ in 0..10_000 {
                drop(self.hca.poll(self.objects.cq));
                thread::yield_now();
            }
            drop(lock_soon(&self.hca));
            assert!(!done.load(Ordering::SeqCst), "the copy is still under way");
            end(&mut self.peer, self.vf);
        });
        assert!(done.load(Ordering::SeqCst));
    }
}

#[test]
fn only_the_deregistering_thread_waits_for_a_stopped_peer() {
    let mut scene = Scene::new("withdraw-dereg");
    let mr = scene.objects.mr;
    scene.hold(mr.rkey);
    scene.waits(
        move |engine| engine.common.memory.mrs.get(mr.id).is_none(),
        move |hca| hca.dereg_mr(mr.id).expect("a region"),
        |peer, vf| peer.common.out.shm.free(vf),
    );
}

#[test]
fn nobody_waits_for_a_peer_that_now_copies_something_else() {
    let mut scene = Scene::new("withdraw-next");
    let mr = scene.objects.mr;
    scene.hold(mr.rkey);
    scene.waits(
        move |engine| engine.common.memory.mrs.get(mr.id).is_none(),
        move |hca| hca.dereg_mr(mr.id).expect("a region"),
        // Even for the same key: it finds the entry dead.
        move |peer, vf| peer.common.out.shm.hold(vf, mr.rkey),
    );
}

#[test]
fn nobody_waits_for_a_peer_that_died() {
    let mut scene = Scene::new("withdraw-death");
    let mr = scene.objects.mr;
    scene.hold(mr.rkey);
    scene.waits(
        move |engine| engine.common.memory.mrs.get(mr.id).is_none(),
        move |hca| hca.dereg_mr(mr.id).expect("a region"),
        |peer, _vf| *peer = rig::engine(&rig::nic("withdraw-other")),
    );
}

#[test]
fn another_region_is_deregistered_at_once() {
    let mut scene = Scene::new("withdraw-another");
    scene.hold(scene.objects.mr.rkey ^ 1);
    scene.hca.dereg_mr(scene.objects.mr.id).expect("a region");
    let closed = scene.objects.ctx;
    scene.hca.close_ctx(closed);
}

#[test]
fn a_region_is_changed_when_the_copy_has_ended() {
    let mut scene = Scene::new("withdraw-rereg");
    let mr = scene.objects.mr;
    scene.hold(mr.rkey);
    let (old, new) = (scene.objects.pd, scene.hca.lock().alloc_pd(scene.objects.ctx).expect("one"));
    let change = Rereg { pd: Some(new), ..Rereg::default() };
    scene.waits(
        move |engine| engine.common.objects.pds[new.index()].uses.count() == 1,
        move |hca| {
            let changed = hca.rereg_mr(mr.id, change).expect("a region");
            assert_eq!(changed.rkey, mr.rkey, "the same memory keeps its keys");
            assert_eq!(hca.lock().common.objects.pds[old.index()].uses.count(), 0);
        },
        |peer, vf| peer.common.out.shm.free(vf),
    );
}

#[test]
fn destroying_a_qp_waits_for_the_copies_of_its_peer() {
    let mut scene = Scene::new("withdraw-qp");
    let (qp, _) = {
        let mut engine = scene.hca.lock();
        let made = scene.objects.qp(&mut engine, QpType::Rc);
        let theirs = iba::Qpn::new(u32::from(scene.peer.common.nic.vf) << 14 | 100);
        to_rts(&mut engine, made.0, QpType::Rc, &scene.nic, theirs);
        made
    };
    scene.hold(scene.objects.mr.rkey);
    scene.waits(
        move |engine| engine.query_qp(qp).is_err(),
        move |hca| hca.destroy_qp(qp).expect("a QP"),
        |peer, vf| peer.common.out.shm.free(vf),
    );
}

#[test]
fn nobody_waits_for_a_peer_that_was_not_given_the_table() {
    if !is_root() {
        return;
    }
    let mut scene = Scene::with("withdraw-stranger", stranger);
    let qp = scene.objects.qp(&mut scene.hca.lock(), QpType::Rc).0;
    scene.hold(scene.objects.mr.rkey);
    // Each of these would wait forever.
    scene.hca.dereg_mr(scene.objects.mr.id).expect("a region");
    scene.hca.destroy_qp(qp).expect("a QP");
    scene.hca.close_ctx(scene.objects.ctx);
    assert_eq!(scene.hca.lock().receivers.shm.len(), 1, "it is still there");
}
