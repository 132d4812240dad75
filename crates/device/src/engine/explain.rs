//! A sentence for each work request that failed.

use std::fmt::Write as _;

use iba::{QpState, Qpn, WcStatus};
use transport::Account;
use transport::env::{Reason, Side};

use super::Engine;
use super::common::Common;
use super::env::QpEnv;
use super::failures::Failed;
use crate::ids::{QpId, SrqId};
use crate::qp::QpContext;

/// Why no answer may have come from another host.
const HELD: &str = " Here another process has that port: a process of another user that runs peerdma would forward answers, but \
                    the kernel's rxe, or any other program, keeps them";

impl QpEnv<'_, '_> {
    /// Explains why a work request fails: in the log, in the file of `peerdma explain`, and for
    /// callers that ask later.
    #[cold]
    pub(super) fn explain(&mut self, account: &Account) {
        let words = words(self.common, self.context, account);
        let ends_qp = account.status != WcStatus::TmRndvIncomplete;
        let (qpn, wr_id) = (self.context.qpn, account.wr_id);
        self.common.trace_failure(&words);
        self.common.remember_failure(Failed { qpn, wr_id, words, ends_qp });
    }
}

impl Common {
    /// The same for an operation on a tag list, which belongs to no QP: no receive there has the
    /// handle that it names.
    #[cold]
    pub(super) fn explain_no_such_tag(&mut self, srq: SrqId, wr_id: u64, handle: u32) {
        let (status, reason) = (WcStatus::TmErr, Reason::NoSuchTag);
        let (name, number, srq) = (status.name(), status as u8, srq.handle());
        let words = format!(
            "{name} ({number}): removing the receive with handle {handle:#x}, wr_id {wr_id:#x}, SRQ {srq}: {reason}"
        );
        self.remember_failure(Failed { qpn: Qpn::default(), wr_id, words, ends_qp: false });
    }

    fn remember_failure(&mut self, failed: Failed) {
        tracing::warn!(target: "peerdma::completion", "{}", failed.words);
        self.write_explanation(&failed.words);
        self.failures.remember(failed);
    }

    /// Adds a sentence to the file of `peerdma explain`.
    #[cold]
    pub(super) fn write_explanation(&mut self, words: &str) {
        if let Some(path) = &self.nic.config.explain {
            self.failures.write(path, words);
        }
    }
}

impl Engine {
    /// Says why a QP is about to be moved to the error state, for [`explain`](Self::explain): for
    /// those that do it in the program's stead. The first reason stays until the QP is reset.
    pub fn note_end(&mut self, id: QpId, why: &'static str) {
        if let Some(entry) = self.qps.get_mut(id).filter(|entry| entry.qp.state() != QpState::Err) {
            entry.context.ended.get_or_insert(why);
        }
    }

    /// Why a work request of a QP failed, in a sentence: what it was, what the peer answered, and
    /// what was tried. For a flushed request, why the QP was in error, if a work request of it
    /// failed. The last few hundred failures are known.
    pub fn explain(&self, qpn: Qpn, wr_id: u64, status: WcStatus) -> Option<String> {
        if status == WcStatus::Success {
            return None;
        }
        let mut of_qp = self.common.failures.of_qp(qpn);
        if status == WcStatus::WrFlushErr {
            let first = of_qp.find(|failed| failed.ends_qp);
            let ended = || self.qps.get(self.qps.id_of(qpn)?)?.context.ended;
            return Some(first.map_or_else(
                || flushed(qpn, wr_id, ended()),
                |first| format!("flushed, as another work request had failed: {}", first.words),
            ));
        }
        let failed = of_qp.find(|failed| failed.wr_id == wr_id)?;
        Some(failed.words.clone())
    }
}

/// What is known of a QP in error that nobody explained.
const UNKNOWN: &str = "no work request of it is known to have failed: the program moved it to the \
                       error state, or an asynchronous event has the reason";

/// The sentence for a flushed request of a QP without a known failed work request.
fn flushed(qpn: Qpn, wr_id: u64, ended: Option<&str>) -> String {
    let (status, reason) = (WcStatus::WrFlushErr, Reason::Flushed);
    let (name, number, why) = (status.name(), status as u8, ended.unwrap_or(UNKNOWN));
    format!("{name} ({number}): wr_id {wr_id:#x}, QP {qpn}: {reason}; {why}")
}

/// The sentence.
fn words(common: &Common, context: &QpContext, account: &Account) -> String {
    let mut words = format!("{} ({}): ", account.status.name(), account.status as u8);
    // Writing to a string does not fail.
    let _ = write_what(&mut words, account);
    let _ = write!(words, ", QP {}", context.qpn);
    let _ = write_where(&mut words, common, context, account);
    let _ = write!(words, ": {}", account.reason);
    let _ = write_how(&mut words, common, context, account);
    words
}

fn write_what(words: &mut String, account: &Account) -> std::fmt::Result {
    match account.opcode {
        Some(opcode) => write!(words, "{} of {} bytes", opcode.name(), account.length)?,
        None => write!(words, "receive with room for {} bytes", account.length)?,
    }
    write!(words, ", wr_id {:#x}", account.wr_id)?;
    if let Some((rkey, address)) = account.remote {
        write!(words, ", to key {:#x} at {address:#x}", rkey.0)?;
    }
    Ok(())
}

fn write_where(
    words: &mut String,
    common: &Common,
    context: &QpContext,
    account: &Account,
) -> std::fmt::Result {
    if !context.qp_type.is_connected() {
        return Ok(());
    }
    let way = if account.side == Side::Send { "to" } else { "from" };
    write!(words, " {way} QP {} at {}", context.dest_qpn, context.av.dgid.to_ip())?;
    let route = context.route;
    if route.is_none() {
        write!(words, " (not connected)")
    } else if route.is_loopback() {
        write!(words, " (this process)")
    } else if let Some(vf) = route.peer() {
        write!(words, " (shared memory, process of VF {vf})")
    } else {
        let index = context.av.sgid_index;
        let own = common.nic.port.sgid(index).to_ip();
        let port = common.nic.config.udp_port;
        write!(words, " (UDP port {port} from {own}, sgid_index {index})")
    }
}

/// What was tried, if that is informative.
fn write_how(
    words: &mut String,
    common: &Common,
    context: &QpContext,
    account: &Account,
) -> std::fmt::Result {
    if account.side == Side::Recv {
        return match account.psns {
            Some((psn, _)) if context.qp_type.is_connected() => {
                write!(words, "; PSN {psn} was expected")
            }
            _ => Ok(()),
        };
    }
    if !context.qp_type.is_reliable() {
        return Ok(());
    }
    match account.psns {
        Some((first, last)) => write!(words, "; sent as PSN {first} to {last}")?,
        None => write!(words, "; never sent")?,
    }
    write!(words, ", last acknowledged PSN {}", account.acknowledged)?;
    let (retries, rnr) = (account.retries, account.rnr_retries);
    match account.reason {
        Reason::AckTimeout | Reason::SequenceNak => {
            write!(words, "; {} of {} retries used", retries.0, retries.1)?;
            if let Some(timeout) = account.timeout {
                write!(words, ", ACK timeout {timeout:.1?}")?;
            }
            if let Some(vf) = context.route.peer().filter(|vf| !common.out.shm.has(*vf)) {
                write!(words, "; no process has VF {vf} any more")?;
            }
            if context.route.is_udp() && account.reason == Reason::AckTimeout {
                write!(
                    words,
                    "; does that host have the address, the QP number and UDP port {} open?",
                    common.nic.config.udp_port
                )?;
                if common.out.udp.is_deaf() {
                    words.push_str(HELD);
                }
            }
        }
        Reason::RnrNak => write!(words, "; {} of {} RNR retries used", rnr.0, rnr.1)?,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
