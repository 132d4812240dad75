//! Attributes of a QP, to and from C.

use std::mem;

use device::{Kind, Refusal};
use iba::{Access, AckTimeout, AttrMask, Mtu, Psn, QKey, QpAttr, QpState, Qpn, RnrTimer};

use super::ah;
use super::types::qp::{self as c, QpCap};

/// The attributes that `mask` names. The others keep their defaults: a program need not have set
/// them.
pub(crate) fn from_c(attr: &c::QpAttr, mask: AttrMask) -> Result<QpAttr, Refusal> {
    let mut to = QpAttr::default();
    let has = |bit| mask.contains(bit);
    if has(AttrMask::STATE) {
        to.state = code(QpState::from_code(attr.qp_state), "qp_state", attr.qp_state)?;
    }
    if has(AttrMask::CUR_STATE) {
        to.cur_state =
            code(QpState::from_code(attr.cur_qp_state), "cur_qp_state", attr.cur_qp_state)?;
    }
    if has(AttrMask::PATH_MTU) {
        to.path_mtu = code(Mtu::from_code(attr.path_mtu), "path_mtu", attr.path_mtu)?;
    }
    if has(AttrMask::PATH_MIG_STATE) {
        let state = u8::try_from(attr.path_mig_state).ok().filter(|state| *state <= 2);
        to.path_mig_state = code(state, "path_mig_state", attr.path_mig_state)?;
    }
    if has(AttrMask::TIMEOUT) {
        to.timeout = code(AckTimeout::from_code(attr.timeout), "timeout", attr.timeout.into())?;
    }
    if has(AttrMask::MIN_RNR_TIMER) {
        let timer = RnrTimer::from_code(attr.min_rnr_timer);
        to.min_rnr_timer = code(timer, "min_rnr_timer", attr.min_rnr_timer.into())?;
    }
    if has(AttrMask::AV) {
        to.av = ah::av_of(&attr.ah_attr);
    }
    if has(AttrMask::ALT_PATH) {
        to.alt_av = ah::av_of(&attr.alt_ah_attr);
        to.alt_pkey_index = attr.alt_pkey_index;
        to.alt_port_num = attr.alt_port_num;
        to.alt_timeout =
            code(AckTimeout::from_code(attr.alt_timeout), "alt_timeout", attr.alt_timeout.into())?;
    }
    to.qkey = QKey(attr.qkey);
    to.rq_psn = Psn::new(attr.rq_psn);
    to.sq_psn = Psn::new(attr.sq_psn);
    to.dest_qpn = Qpn::new(attr.dest_qp_num);
    to.access_flags = Access::from_bits_retain(attr.qp_access_flags);
    to.pkey_index = attr.pkey_index;
    to.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.port_num = attr.port_num;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    to.rate_limit = attr.rate_limit;
    Ok(to)
}

fn code<T>(value: Option<T>, field: &str, given: u32) -> Result<T, Refusal> {
    value.ok_or_else(|| {
        Refusal::new(Kind::Invalid, format!("ibv_modify_qp: {given} is no value of {field}"))
    })
}

/// All attributes of a QP.
pub(crate) fn to_c(from: &QpAttr, cap: QpCap) -> c::QpAttr {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut attr: c::QpAttr = unsafe { mem::zeroed() };
    attr.qp_state = from.state as u32;
    attr.cur_qp_state = from.state as u32;
    attr.path_mtu = from.path_mtu as u32;
    attr.path_mig_state = u32::from(from.path_mig_state);
    attr.qkey = from.qkey.0;
    attr.rq_psn = from.rq_psn.value();
    attr.sq_psn = from.sq_psn.value();
    attr.dest_qp_num = from.dest_qpn.value();
    attr.qp_access_flags = from.access_flags.bits();
    attr.cap = cap;
    attr.ah_attr = ah::attr_of(&from.av);
    attr.alt_ah_attr = ah::attr_of(&from.alt_av);
    attr.pkey_index = from.pkey_index;
    attr.alt_pkey_index = from.alt_pkey_index;
    attr.en_sqd_async_notify = u8::from(from.en_sqd_async_notify);
    attr.sq_draining = u8::from(from.sq_draining);
    attr.max_rd_atomic = from.max_rd_atomic;
    attr.max_dest_rd_atomic = from.max_dest_rd_atomic;
    attr.min_rnr_timer = from.min_rnr_timer.code();
    attr.port_num = from.port_num;
    attr.timeout = from.timeout.code();
    attr.retry_cnt = from.retry_cnt;
    attr.rnr_retry = from.rnr_retry;
    attr.alt_port_num = from.alt_port_num;
    attr.alt_timeout = from.alt_timeout.code();
    attr.rate_limit = from.rate_limit;
    attr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> c::QpAttr {
        // SAFETY: the structure is made of integers, for which zero is a value.
        unsafe { mem::zeroed() }
    }

    #[test]
    fn attributes_outside_the_mask_are_not_checked() {
        let mut attr = zeroed();
        attr.qp_state = 77;
        assert!(from_c(&attr, AttrMask::PORT).is_ok());
        assert_eq!(from_c(&attr, AttrMask::STATE).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn attributes_survive_a_round_trip() {
        let mask = AttrMask::STATE | AttrMask::PATH_MTU | AttrMask::AV | AttrMask::TIMEOUT;
        let mut attr = zeroed();
        attr.qp_state = 3;
        attr.path_mtu = 5;
        attr.timeout = 14;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid.raw[15] = 9;
        attr.sq_psn = 0xabcdef;
        let cap = attr.cap;
        let back = to_c(&from_c(&attr, mask).unwrap(), cap);
        assert_eq!((back.qp_state, back.path_mtu, back.timeout), (3, 5, 14));
        assert_eq!((back.ah_attr.is_global, back.ah_attr.grh.dgid.raw[15]), (1, 9));
        assert_eq!(back.sq_psn, 0xabcdef);
    }
}
