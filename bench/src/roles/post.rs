//! A process that posts to a QP of a library, by crate `verbs` and by the library's own call.

use std::time::{Duration, Instant};

use verbs::{Access, HostBuf, QpSpec, SendRequest};
use verbs_abi::wr::Sge;

use super::{hear, say};
use crate::Outcome;
use crate::bare::post::Write;

/// Requests between two looks at the completion queue; the last is signaled.
const ROUND: usize = 64;
const ROUNDS: u32 = 3000;

/// `verbs` and `direct` tell how many nanoseconds a WRITE of 8 bytes takes to be posted.
#[allow(unsafe_code, reason = "the direct call")]
pub(super) fn run() -> Outcome<()> {
    let devices = verbs::devices()?;
    let context = devices.first().ok_or("there is no device")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(2 * ROUND as u32)?;
    let buffer = HostBuf::anonymous(4096)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (one, other) = (pd.create_qp(&QpSpec::rc(&cq))?, pd.create_qp(&QpSpec::rc(&cq))?);
    one.connect(&other.endpoint()?)?;
    other.connect(&one.endpoint()?)?;
    let (from, to) = (mr.slice(0, 8), mr.remote(64));
    let quiet = SendRequest::write(1, &[from], to);
    let last = quiet.clone().signaled();
    let sge = Sge { addr: mr.remote(0).addr, length: 8, lkey: mr.lkey().0 };
    let qp = one.library_qp().ok_or("the device is not a library's")?;
    // SAFETY: the QP lives until the end of this function.
    let mut direct = unsafe { Write::new(qp, sge, (to.addr, to.rkey.0)) };
    say("")?;
    while let Some(words) = hear()? {
        let by_verbs = match words.first().map(String::as_str) {
            Some("verbs") => true,
            Some("direct") => false,
            _ => return Err(format!("it does not know {words:?}").into()),
        };
        let mut took = Duration::ZERO;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            if by_verbs {
                for _ in 1..ROUND {
                    one.post_send(&quiet)?;
                }
                one.post_send(&last)?;
            } else {
                for _ in 1..ROUND {
                    direct.post(false)?;
                }
                direct.post(true)?;
            }
            took += start.elapsed();
            let wc = cq.wait()?;
            if !wc.is_success() {
                return Err(format!("{wc:?}").into());
            }
        }
        say(&format!("{}", took.as_secs_f64() * 1e9 / f64::from(ROUNDS) / ROUND as f64))?;
    }
    Ok(())
}
