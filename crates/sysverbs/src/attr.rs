//! Attributes of QPs and addresses, to and from C.

use std::mem;

use iba::{Access, AckTimeout, Av, Gid, Mtu, Psn, QKey, QpAttr, QpCap, QpState, Qpn, RnrTimer};
use verbs_abi::ah::{AhAttr, GlobalRoute};
use verbs_abi::device::Gid as CGid;
use verbs_abi::qp as c;

pub(crate) fn ah_attr(av: &Av) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: CGid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit_on_wire(),
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: u8::from(av.is_global),
        port_num: av.port_num,
    }
}

pub(crate) fn av(attr: &AhAttr) -> Av {
    Av {
        dgid: Gid(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        port_num: attr.port_num,
        dlid: attr.dlid,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
    }
}

pub(crate) const fn cap_to_c(cap: &QpCap) -> c::QpCap {
    c::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) const fn cap_from_c(cap: &c::QpCap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) fn to_c(from: &QpAttr) -> c::QpAttr {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut attr: c::QpAttr = unsafe { mem::zeroed() };
    attr.qp_state = from.state as u32;
    attr.cur_qp_state = from.cur_state as u32;
    attr.path_mtu = from.path_mtu as u32;
    attr.path_mig_state = u32::from(from.path_mig_state);
    attr.qkey = from.qkey.0;
    attr.rq_psn = from.rq_psn.value();
    attr.sq_psn = from.sq_psn.value();
    attr.dest_qp_num = from.dest_qpn.value();
    attr.qp_access_flags = from.access_flags.bits();
    attr.ah_attr = ah_attr(&from.av);
    attr.alt_ah_attr = ah_attr(&from.alt_av);
    attr.pkey_index = from.pkey_index;
    attr.alt_pkey_index = from.alt_pkey_index;
    attr.en_sqd_async_notify = u8::from(from.en_sqd_async_notify);
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

/// The attributes that a library reports. A field that holds no value of its kind keeps its
/// default: a provider need not fill in what a QP in its state does not have.
pub(crate) fn from_c(from: &c::QpAttr) -> QpAttr {
    let default = QpAttr::default();
    QpAttr {
        state: QpState::from_code(from.qp_state).unwrap_or(default.state),
        cur_state: QpState::from_code(from.cur_qp_state).unwrap_or(default.cur_state),
        path_mtu: Mtu::from_code(from.path_mtu).unwrap_or(default.path_mtu),
        path_mig_state: u8::try_from(from.path_mig_state).unwrap_or(default.path_mig_state),
        qkey: QKey(from.qkey),
        rq_psn: Psn::new(from.rq_psn),
        sq_psn: Psn::new(from.sq_psn),
        dest_qpn: Qpn::new(from.dest_qp_num),
        access_flags: Access::from_bits_retain(from.qp_access_flags),
        av: av(&from.ah_attr),
        alt_av: av(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify != 0,
        sq_draining: from.sq_draining != 0,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::from_code(from.min_rnr_timer).unwrap_or(default.min_rnr_timer),
        port_num: from.port_num,
        timeout: AckTimeout::from_code(from.timeout).unwrap_or(default.timeout),
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: AckTimeout::from_code(from.alt_timeout).unwrap_or(default.alt_timeout),
        rate_limit: from.rate_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_a_round_trip() {
        let attr = QpAttr {
            state: QpState::Rtr,
            cur_state: QpState::Init,
            path_mtu: Mtu::Mtu4096,
            qkey: QKey(7),
            rq_psn: Psn::new(0xabcdef),
            dest_qpn: Qpn::new(0x12_3456),
            access_flags: Access::REMOTE,
            av: Av {
                dgid: Gid([9; 16]),
                sgid_index: 3,
                hop_limit: 5,
                traffic_class: 0x60,
                is_global: true,
                port_num: 1,
                ..Av::default()
            },
            min_rnr_timer: RnrTimer::from_code(12).unwrap(),
            timeout: AckTimeout::from_code(14).unwrap(),
            ..QpAttr::default()
        };
        let mut expected = attr.clone();
        // A hop limit of 0 is the default of 64, which is what C gets.
        expected.alt_av.hop_limit = 64;
        assert_eq!(from_c(&to_c(&attr)), expected);
    }

    #[test]
    fn a_state_that_does_not_exist_is_no_panic() {
        let mut c = to_c(&QpAttr::default());
        (c.qp_state, c.path_mtu, c.timeout) = (77, 0, 200);
        let attr = from_c(&c);
        assert_eq!((attr.state, attr.path_mtu), (QpState::Reset, Mtu::Mtu256));
    }
}
