//! A process that posts to a QP of a library, by crate `verbs` and by the library's own call.

use std::time::Instant;

use verbs::{Access, HostBuf, QpSpec, SendRequest};
use verbs_abi::wr::Sge;

use super::{hear, say};
use crate::Outcome;
use crate::bare::post::Write;
use crate::sample::Sample;

/// Requests between two looks at the completion queue; the last is signaled.
const ROUND: usize = 64;

/// Tells, for each line that it hears, how many nanoseconds a WRITE of 8 bytes takes to be posted:
/// by crate `verbs`, and directly, in so many rounds of each. These alternate, so that nothing else
/// that happens on the machine is counted for one of them.
#[allow(unsafe_code, reason = "the direct call")]
pub(super) fn run(rounds: u32) -> Outcome<()> {
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
    let direct = unsafe { Write::new(qp, sge, (to.addr, to.rkey.0)) };
    let by_verbs = || {
        for _ in 1..ROUND {
            one.post_send(&quiet)?;
        }
        Outcome::Ok(one.post_send(&last)?)
    };
    let directly = || {
        for _ in 1..ROUND {
            direct.post(false)?;
        }
        direct.post(true)
    };
    let timed = |post: &dyn Fn() -> Outcome<()>| {
        let start = Instant::now();
        post()?;
        let took = start.elapsed();
        let wc = cq.wait()?;
        if !wc.is_success() {
            return Err(format!("{wc:?}").into());
        }
        Outcome::Ok(took.as_secs_f64() * 1e9 / ROUND as f64)
    };
    say("")?;
    while hear()?.is_some() {
        let (mut verbs, mut bare) = (Sample::default(), Sample::default());
        for _ in 0..rounds {
            verbs.push(timed(&by_verbs)?);
            bare.push(timed(&directly)?);
        }
        say(&format!("{} {}", verbs.median(), bare.median()))?;
    }
    Ok(())
}
