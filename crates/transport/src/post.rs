//! Posting work requests: the checks that need no memory access.

use iba::{QpType, WrOpcode};

use crate::error::PostError;
use crate::qp::Qp;
use crate::raw::ETHERNET_HEADER;
use crate::wqe::Wqe;
use crate::wr::{Data, RecvWr, Request, SendWr};

/// The longest message (IBA 9.7.1).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

impl Qp {
    /// Puts a request on the send queue.
    ///
    /// In SQE and ERR it is accepted, and [`Qp::poll_transmit`] flushes it (IBA 10.3.1). Memory
    /// keys are checked when the request is carried out; a wrong one is a completion error, not an
    /// error here.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.post_send_with(|to| wr.fill(to))
    }

    /// As [`Qp::post_send`], with a request that `fill` writes in place, as moving it is expensive.
    /// Before that, it is [`SendWr::EMPTY`].
    ///
    /// # Errors
    /// The errors of `fill`, and those of [`Qp::post_send`].
    #[inline]
    pub fn post_send_with<X: From<PostError>>(
        &mut self,
        fill: impl FnOnce(&mut SendWr) -> Result<(), X>,
    ) -> Result<(), X> {
        self.sq.push_back(Wqe::EMPTY);
        let Some(wqe) = self.sq.back_mut() else { return Ok(()) };
        let filled = fill(&mut wqe.wr).and_then(|()| Ok(self.check_last()?));
        match (filled, self.sq.back_mut()) {
            (Ok(length), Some(wqe)) => {
                wqe.length = length;
                Ok(())
            }
            (filled, _) => {
                self.sq.pop_back();
                filled.map(|_| ())
            }
        }
    }

    /// Whether the send queue accepts the last request in it, and how many bytes that covers.
    #[inline]
    fn check_last(&self) -> Result<u32, PostError> {
        let Some(Wqe { wr, .. }) = self.sq.back() else { return Ok(0) };
        let state = self.state();
        if !state.accepts_sends() {
            return Err(PostError::State(state));
        }
        let is_described = match wr.opcode {
            WrOpcode::BindMw => matches!(wr.data, Data::Bind(_)),
            WrOpcode::Flush => matches!(wr.data, Data::Flush(_)),
            _ => matches!(wr.data, Data::Sges(_) | Data::Inline(_)),
        };
        if !has_operation(self.qp_type, wr.opcode) || !is_described {
            return Err(PostError::Opcode { qp_type: self.qp_type, opcode: wr.opcode });
        }
        if self.sq.len() > self.cap.max_send_wr as usize {
            return Err(PostError::Full(self.cap.max_send_wr));
        }
        match &wr.data {
            Data::Sges(sges) if sges.len() > self.cap.max_send_sge as usize => {
                return Err(PostError::Sges { count: sges.len(), max: self.cap.max_send_sge });
            }
            // The caller passes the eight bytes by value (`ibv_wr_atomic_write`).
            Data::Inline(_) if wr.opcode == WrOpcode::AtomicWrite => {}
            Data::Inline(bytes) => {
                // Nothing can be stored in inline data (`ibv_post_send(3)`, table of flags).
                let max = if wr.opcode.is_read_like() { 0 } else { self.cap.max_inline_data };
                if bytes.len() > max as usize || wr.opcode.is_read_like() {
                    return Err(PostError::Inline { length: bytes.len(), max });
                }
            }
            Data::Sges(_) | Data::Bind(_) | Data::Flush(_) => {}
        }
        if self.qp_type == QpType::Ud && wr.ud.is_none() {
            return Err(PostError::NoDestination);
        }
        let mut length = wr.data.length();
        if wr.opcode.is_atomic() {
            // The provider's rule in rdma-core (`validate_send_wr` of rxe): room for eight, of
            // which eight are used.
            if length < 8 {
                return Err(PostError::AtomicLength(length));
            }
            length = 8;
        } else if wr.opcode == WrOpcode::AtomicWrite {
            if length != 8 {
                return Err(PostError::AtomicLength(length));
            }
        } else if wr.opcode == WrOpcode::LocalInv {
            length = 0;
        }
        if self.qp_type == QpType::RawPacket && length < u64::from(ETHERNET_HEADER) {
            return Err(PostError::FrameLength(length));
        }
        match u32::try_from(length) {
            Ok(bytes) if length <= MAX_MESSAGE => Ok(bytes),
            _ => Err(PostError::Length(length)),
        }
    }

    /// Puts requests on the send queue: all of them, or none if one is refused (`ibv_wr_complete`
    /// of `ibv_wr_post(3)`).
    pub fn post_sends(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let before = self.sq.len();
        for wr in wrs {
            if let Err(error) = self.post_send(wr) {
                // Nothing was sent since, so the new requests are the last ones.
                self.sq.truncate(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Puts a request on the receive queue.
    ///
    /// In ERR it is accepted, and [`Qp::poll_transmit`] flushes it (IBA 10.3.1).
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.post_recv_with(|to| {
            *to = wr;
            Ok(())
        })
    }

    /// As [`Qp::post_recv`], with a request that `fill` writes in place, over
    /// [`RecvWr::EMPTY`]: moving one that was just written waits for its parts to be written.
    ///
    /// # Errors
    /// The errors of `fill`, and those of [`Qp::post_recv`].
    #[inline]
    pub fn post_recv_with<X: From<PostError>>(
        &mut self,
        fill: impl FnOnce(&mut RecvWr) -> Result<(), X>,
    ) -> Result<(), X> {
        self.check_receive()?;
        self.rq.push_back(RecvWr::EMPTY);
        let Some(wr) = self.rq.back_mut() else { return Ok(()) };
        let filled = fill(wr).and_then(|()| {
            let (count, max) = (wr.sges.len(), self.cap.max_recv_sge);
            let fits = count <= max as usize;
            if fits { Ok(()) } else { Err(PostError::Sges { count, max }.into()) }
        });
        if filled.is_err() {
            self.rq.pop_back();
        }
        filled
    }

    /// The receive that was posted last, if it is still in the queue.
    pub fn last_receive(&self) -> Option<&RecvWr> {
        self.rq.back()
    }

    /// Whether the receive queue takes one more.
    #[inline]
    fn check_receive(&self) -> Result<(), PostError> {
        if self.has_srq {
            return Err(PostError::HasSrq);
        }
        let state = self.state();
        if !state.accepts_receives() {
            return Err(PostError::State(state));
        }
        if self.receives() >= self.cap.max_recv_wr as usize {
            return Err(PostError::Full(self.cap.max_recv_wr));
        }
        Ok(())
    }
}

/// `ibv_post_send(3)`, table of opcodes. SEND_WITH_INV over UC stands in that table, but no packet
/// of UC can carry it (IBA table 38).
const fn has_operation(qp_type: QpType, opcode: WrOpcode) -> bool {
    match qp_type {
        QpType::Rc | QpType::XrcSend => true,
        QpType::Uc => matches!(
            opcode,
            WrOpcode::Send
                | WrOpcode::SendWithImm
                | WrOpcode::RdmaWrite
                | WrOpcode::RdmaWriteWithImm
                | WrOpcode::LocalInv
                | WrOpcode::BindMw
        ),
        QpType::Ud => matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm),
        QpType::RawPacket => matches!(opcode, WrOpcode::Send),
        _ => false,
    }
}
