//! Moving a QP from state to state, and querying its attributes.

use iba::qp::check_transition;
use iba::{AttrMask, Mtu, QpAttr, QpState, QpType};

use crate::env::Env;
use crate::error::ModifyError;
use crate::pace::RateLimit;
use crate::path::PathCaps;
use crate::qp::Qp;

impl Qp {
    /// Sets the attributes that `mask` names, and moves to another state if [`AttrMask::STATE`] is
    /// among them.
    ///
    /// Either everything is set or, on an error, nothing. The device first checks the values that
    /// only it can judge (GID and P_Key indices, port, limits on READ depth). Entering ERR flushes
    /// both queues; entering RESET empties them without a completion (IBA 10.3.1).
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify<E: Env>(
        &mut self,
        env: &mut E,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        let from = self.state();
        // The program names a current state because the QP may have gone to SQE on its own (IBA
        // 11.2.5).
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(ModifyError::CurrentState { claimed: attr.cur_state, actual: from });
        }
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        check_transition(self.qp_type, from, to, mask)
            .map_err(|error| ModifyError::Transition { qp_type: self.qp_type, error })?;
        check_ranges(attr, mask)?;

        self.set(attr, mask);
        match to {
            QpState::Reset => self.reset(),
            QpState::Err if from != QpState::Err => {
                self.resp.forget_answers();
                self.enter_error(env);
            }
            QpState::Rtr if from == QpState::Init => self.start_receiving(),
            QpState::Rts if from == QpState::Rtr => {
                self.req.start(self.attr.sq_psn);
                self.load_retries();
            }
            QpState::Sqd => {
                self.attr.state = to;
                if from == QpState::Rts {
                    self.req.draining = true;
                    self.check_drained(env);
                }
                self.load_retries();
            }
            QpState::Rts if from != QpState::Rts => {
                self.req.draining = false;
                self.load_retries();
            }
            _ => {}
        }
        self.attr.state = to;
        Ok(())
    }

    /// The attributes of the QP and its progress: its state, the next sequence number in each
    /// direction, and whether it still drains.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr =
            QpAttr { cur_state: self.state(), sq_draining: self.req.draining, ..self.attr.clone() };
        if matches!(self.state(), QpState::Rts | QpState::Sqd | QpState::Sqe) {
            attr.sq_psn = self.req.max;
        }
        if self.state().receives() {
            attr.rq_psn = self.resp.psn;
        }
        attr
    }

    fn set(&mut self, from: &QpAttr, mask: AttrMask) {
        use AttrMask as A;

        macro_rules! set {
            ($($flag:ident: $($field:ident),+;)+) => {
                $(if mask.contains(A::$flag) { $(self.attr.$field = from.$field;)+ })+
            };
        }
        set! {
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: av;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_av, alt_pkey_index, alt_port_num, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            DEST_QPN: dest_qpn;
        }
        if mask.contains(A::RATE_LIMIT) {
            self.set_pace(RateLimit { kbps: from.rate_limit, ..RateLimit::default() });
        }
    }

    fn reset(&mut self) {
        self.attr = QpAttr::default();
        self.comm_est = false;
        self.congestion.restart();
        self.ack_delay.reset();
        self.set_pace(RateLimit::default());
        self.sq.clear();
        self.rq.clear();
        self.req.start(self.attr.sq_psn);
        self.resp.start(self.attr.rq_psn);
        self.set_path(PathCaps::wire(self.attr.path_mtu));
    }

    fn start_receiving(&mut self) {
        self.resp.start(self.attr.rq_psn);
        // A datagram QP has no path MTU of its own; the largest, until the device sets that of the
        // port.
        let mtu = if self.qp_type == QpType::Ud { Mtu::Mtu4096 } else { self.attr.path_mtu };
        self.set_path(PathCaps::wire(mtu));
    }

    fn load_retries(&mut self) {
        self.req.retries = self.attr.retry_cnt;
        self.req.rnr_retries = self.attr.rnr_retry;
    }
}

/// Checks the values that have a range and no type that enforces it.
fn check_ranges(attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    let limits = [
        (AttrMask::RETRY_CNT, "retry_cnt", u32::from(attr.retry_cnt), 7),
        (AttrMask::RNR_RETRY, "rnr_retry", u32::from(attr.rnr_retry), 7),
        (AttrMask::PATH_MIG_STATE, "path_mig_state", u32::from(attr.path_mig_state), 2),
        (AttrMask::AV, "ah_attr.grh.flow_label", attr.av.flow_label, 0xf_ffff),
        (AttrMask::AV, "ah_attr.sl", u32::from(attr.av.sl), 15),
    ];
    for (flag, attribute, value, max) in limits {
        if mask.contains(flag) && value > max {
            return Err(ModifyError::Range { attribute, value, max });
        }
    }
    Ok(())
}
