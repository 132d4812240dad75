//! The calls that limit the rate of a QP ([`crate::pace`]).

use iba::AttrMask;

use crate::error::ModifyError;
use crate::pace::{Pace, RateLimit};
use crate::qp::Qp;

impl Qp {
    /// Sets how fast the QP may send, in a state and for a type that allows
    /// [`AttrMask::RATE_LIMIT`]. Packets that the old limit held back may go at once.
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn modify_rate_limit(&mut self, limit: RateLimit) -> Result<(), ModifyError> {
        let state = self.state();
        iba::qp::check_transition(self.qp_type, state, state, AttrMask::RATE_LIMIT)
            .map_err(|error| ModifyError::Transition { qp_type: self.qp_type, error })?;
        self.set_pace(limit);
        Ok(())
    }

    pub(crate) fn set_pace(&mut self, limit: RateLimit) {
        self.attr.rate_limit = limit.kbps;
        self.pace = Pace::new(limit);
        self.req.paced_until = None;
    }

    /// How fast the QP may send.
    pub fn rate_limit(&self) -> RateLimit {
        self.pace.limit()
    }

    /// Bytes that a packet of requests may carry: with a limit, as many as on a wire.
    pub(crate) fn segment(&self) -> u32 {
        if self.pace.is_limited() { self.path.path_mtu.bytes() } else { self.path.segment }
    }
}
