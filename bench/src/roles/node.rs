//! A process with a device.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use verbs::{Access, HostBuf, QpSpec, SendRequest};

use super::{hear, say};
use crate::machine::Resident;
use crate::{Outcome, exchange};

/// Nothing on one host takes this long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of each message.
const MESSAGE: u32 = 64;

/// Opens a device and makes `count` QPs; reports how much memory the context took, and how much
/// processor time and memory the QPs.
///
/// Then `endpoints N` gives N of them, evenly spaced; `connect ENDPOINT...` connects those;
/// `receive M` posts M receives on each; `send M` sends as many and waits for them; `received M`
/// waits for the expected messages; `resident` returns its current memory.
pub(super) fn run(count: usize) -> Outcome<()> {
    let before = Resident::now();
    let devices = verbs::devices()?;
    let context = devices.first().ok_or("there is no device")?.open()?;
    let opened = Resident::now().since(before);
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8192)?;
    let buffer = HostBuf::anonymous(4096)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    let message = mr.slice(0, MESSAGE);
    let spec = QpSpec::rc(&cq);

    let with_nothing = Resident::now();
    // Only this thread's time: a thousand QPs are made within a time slice of other processes.
    let start = clock_gettime(ClockId::ThreadCPUTime);
    let qps = (0..count).map(|_| pd.create_qp(&spec)).collect::<verbs::Result<Vec<_>>>()?;
    let took = clock_gettime(ClockId::ThreadCPUTime) - start;
    let seconds = took.tv_sec as f64 + took.tv_nsec as f64 * 1e-9;
    let made = Resident::now().since(with_nothing);
    say(&format!("{} {} {seconds} {}", opened.all, opened.without_files, made.all))?;

    let mut chosen = Vec::new();
    let take = |wanted: u64| -> Outcome<()> {
        for _ in 0..wanted {
            let wc = cq.wait_timeout(PATIENCE)?.ok_or("no completion within 20 seconds")?;
            if !wc.is_success() {
                return Err(format!("a request ended with {:?}", wc.status).into());
            }
        }
        Ok(())
    };
    while let Some(words) = hear()? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut answer = String::new();
        match words.as_slice() {
            ["endpoints", wanted] => {
                let wanted: usize = wanted.parse()?;
                chosen = qps.iter().step_by((count / wanted).max(1)).take(wanted).collect();
                let shown: Vec<_> = chosen
                    .iter()
                    .map(|qp| Ok(exchange::show(&qp.endpoint()?)))
                    .collect::<Outcome<_>>()?;
                answer = shown.join(" ");
            }
            ["connect", peers @ ..] => {
                for (qp, peer) in chosen.iter().zip(peers) {
                    qp.connect(&exchange::endpoint(peer)?)?;
                }
            }
            ["receive", each] => {
                for _ in 0..each.parse::<u64>()? {
                    chosen.iter().try_for_each(|qp| qp.post_recv(0, &[message]))?;
                }
            }
            ["send", each] => {
                for _ in 0..each.parse::<u64>()? {
                    let request = SendRequest::send(0, &[message]).signaled();
                    chosen.iter().try_for_each(|qp| qp.post_send(&request))?;
                    take(chosen.len() as u64)?;
                }
            }
            ["received", each] => take(each.parse::<u64>()? * chosen.len() as u64)?,
            ["resident"] => {
                let now = Resident::now().since(before);
                answer = format!("{} {}", now.all, now.without_files);
            }
            _ => return Err(format!("a node does not know {words:?}").into()),
        }
        say(&answer)?;
    }
    Ok(())
}

/// A region of `length` bytes backed by a memfd, for one peer to write and read. Reports its
/// endpoint, the region, and the descriptor of the file. `connect ENDPOINT` connects; `check BYTE`
/// checks every byte.
pub(super) fn target(length: usize) -> Outcome<()> {
    let devices = verbs::devices()?;
    let context = devices.first().ok_or("there is no device")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let buffer = HostBuf::memfd("bench-target", length)?;
    buffer.fill(0, 1, length)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.reg_mr(&buffer, access)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let file = buffer.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd)).ok_or("no file")?;
    let endpoint = exchange::show(&qp.endpoint()?);
    say(&format!("{endpoint} {} {file}", exchange::show_memory(mr.remote(0))))?;
    while let Some(words) = hear()? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["connect", peer] => qp.connect(&exchange::endpoint(peer)?)?,
            ["check", byte] => {
                let (byte, mut bytes) = (byte.parse::<u8>()?, vec![0; length]);
                buffer.read(0, &mut bytes)?;
                if let Some(at) = bytes.iter().position(|found| *found != byte) {
                    return Err(format!("byte {at} is {}, not {byte}", bytes[at]).into());
                }
            }
            _ => return Err(format!("a target does not know {words:?}").into()),
        }
        say("")?;
    }
    Ok(())
}
