//! Receives: what their completions report, and what they leave to be done.

use iba::{AttrMask, QpAttr, QpState, QpType, SendFlags, WcFlags, WrOpcode};
use smallvec::SmallVec;
use transport::wr::{Data, SendWr};

use crate::config::Preset;
use crate::rig::{self, Process};

/// The flags of a receive that gets a message with an immediate.
fn flags(preset: Preset, qp_type: QpType) -> WcFlags {
    let mut nic = rig::nic("receives");
    nic.config.preset = preset;
    let [mut one, mut other] = Process::pair(&nic, qp_type);
    other.post_recv(7);
    let data = Data::Inline(SmallVec::from_slice(b"bytes"));
    let send = SendWr::new(1, WrOpcode::SendWithImm, SendFlags::INLINE, data);
    one.post(SendWr { imm: 5, ..send });
    rig::run(&mut [&mut one.engine, &mut other.engine]);
    let wc = other.engine.pop_wc(other.objects.cq).expect("a message");
    assert_eq!((wc.wr_id, wc.imm), (7, 5));
    wc.flags
}

#[test]
fn a_connected_qp_reports_no_grh_except_with_rxe() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        assert_eq!(flags(Preset::Mlx5, qp_type), WcFlags::WITH_IMM);
        assert_eq!(flags(Preset::Rxe, qp_type), WcFlags::WITH_IMM | WcFlags::GRH);
    }
}

#[test]
fn a_receive_leaves_work_only_if_it_is_flushed() {
    let [mut one, _other] = Process::pair(&rig::nic("receives-left"), QpType::Rc);
    let add = |one: &mut Process, wr_id| {
        let wr = one.objects.recv(wr_id);
        one.engine.post_recv(one.qp, wr)
    };
    assert_eq!(add(&mut one, 1), Ok(false));
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let _ = one.engine.modify_qp(one.qp, &attr, AttrMask::STATE).expect("from any state");
    assert_eq!(add(&mut one, 2), Ok(true));
    let flushed = std::iter::from_fn(|| one.engine.pop_wc(one.objects.cq)).map(|wc| wc.wr_id);
    assert_eq!(Vec::from_iter(flushed), [1, 2]);
}
