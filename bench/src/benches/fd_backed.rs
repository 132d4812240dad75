//! WRITE and READ between regions that are both files, which the initiator maps: a copy in user
//! space.

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use verbs::{Access, Cq, HostBuf, Qp, QpSpec, SendRequest, soft};

use super::in_turns;
use crate::bare::memcpy;
use crate::child::Role;
use crate::report::{Report, Row, Target};
use crate::{Outcome, exchange};

/// Message sizes, and the share of `memcpy` that is wanted.
const LENGTHS: [(u32, &str, Target); 4] = [
    (4 << 10, "4 KiB", Target::AtLeast(0.5)),
    (64 << 10, "64 KiB", Target::AtLeast(0.85)),
    (1 << 20, "1 MiB", Target::AtLeast(0.8)),
    (8 << 20, "8 MiB", Target::None),
];
/// How much each measurement moves.
const BYTES: u64 = 2 << 30;
/// Requests in flight: the last of this many is signaled.
const WINDOW: u32 = 16;
const MARK: u8 = 0x5a;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    for (length, name, goal) in LENGTHS {
        let len = length as usize;
        let (mut target, words) = Role::start(&[], "target", &[length.to_string()])?;
        let (peer, memory, fd): (String, String, i32) =
            (words.get(0)?, words.get(1)?, words.get(2)?);
        let there = exchange::memory(&memory)?;

        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let buffer = HostBuf::memfd("bench-source", len)?;
        buffer.fill(0, MARK, len)?;
        let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        target.ask(&format!("connect {}", exchange::show(&qp.endpoint()?)))?;
        qp.connect(&exchange::endpoint(&peer)?)?;
        // The bare copy goes to the very same pages.
        let path = format!("/proc/{}/fd/{fd}", target.pid().as_raw_nonzero());
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mapped = HostBuf::received(std::os::fd::OwnedFd::from(file), len)?;

        let count = (BYTES / u64::from(length)).min(100_000) as u32 / WINDOW * WINDOW;
        let rate = |start: Instant| {
            f64::from(count) * f64::from(length)
                / f64::from(1 << 20)
                / start.elapsed().as_secs_f64()
        };
        let local = [mr.slice(0, length)];
        let write = SendRequest::write(0, &local, there);
        let read = SendRequest::read(0, &local, there);
        for (what, request, to, from) in
            [("WRITE", &write, &mapped, &buffer), ("READ", &read, &buffer, &mapped)]
        {
            // The first writes wait for the peer's answer; then the path is known.
            post(&qp, &cq, request, WINDOW)?;
            let direct = soft::counters(&context)?;
            let (ours, theirs) = in_turns(
                "fd-backed",
                reps,
                report,
                || {
                    let start = Instant::now();
                    post(&qp, &cq, request, count)?;
                    Ok(rate(start))
                },
                || {
                    let start = Instant::now();
                    for _ in 0..count {
                        memcpy(to, from, len);
                    }
                    Ok(rate(start))
                },
            )?;
            let direct = soft::counters(&context)?.direct_operations - direct.direct_operations;
            if direct < u64::from(count) * u64::from(reps) {
                let words = format!("{what}, {name}: only {direct} took the direct path");
                report.note("fd-backed", words);
            }
            // Once more over cleared bytes, to check that the measured operation is also correct.
            to.fill(0, 0, len)?;
            post(&qp, &cq, request, WINDOW)?;
            let mut bytes = vec![0; len];
            buffer.read(0, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != MARK) {
                return Err(format!("{what}, {name}: wrong bytes").into());
            }
            target.ask(&format!("check {MARK}"))?;
            report.row(Row {
                bench: "fd-backed",
                what: format!("{what}, {name}"),
                ours: ours.into(),
                beside: "memcpy".to_owned(),
                theirs: theirs.into(),
                unit: "MiB/s",
                target: goal,
            });
        }
    }
    Ok(())
}

/// Posts a request `count` times, a multiple of [`WINDOW`].
fn post(qp: &Qp, cq: &Cq, request: &SendRequest<'_>, count: u32) -> Outcome<()> {
    let last = request.clone().signaled();
    for _ in 0..count / WINDOW {
        for _ in 1..WINDOW {
            qp.post_send(request)?;
        }
        qp.post_send(&last)?;
        let wc = cq.wait_timeout(Duration::from_secs(20))?.ok_or("no completion in 20 seconds")?;
        if !wc.is_success() {
            return Err(format!("an operation ended with {:?}", wc.status).into());
        }
    }
    Ok(())
}
