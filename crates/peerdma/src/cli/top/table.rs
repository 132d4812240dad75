//! The report for people.

use std::fmt::Write as _;

use ::gpu::Member;
use view::{Process, Qp, qp_state_name, qp_type_name};

use super::sample::{LOSSES, RECEIVED, Rates, SENT, Sample};

pub(super) fn of(sample: &Sample, rates: &Rates) -> String {
    let mut text = String::new();
    for (nic, (name, gathered)) in sample.nics.iter().enumerate() {
        // Writing to a String cannot fail.
        let count = gathered.processes.len() + gathered.missing.len();
        let noun = if count == 1 { "process" } else { "processes" };
        let _ = writeln!(text, "{name}: {count} {noun}");
        for (comm, pid, it) in &gathered.processes {
            process(&mut text, nic, comm, *pid, it, rates);
        }
        for missing in &gathered.missing {
            let pid = missing.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
            let comm = missing.comm.as_deref().unwrap_or("?");
            let _ = writeln!(text, "  {pid} {comm}, uid {}: {}", missing.uid, missing.reason);
        }
    }
    sample.gpus.iter().for_each(|member| gpu(&mut text, member));
    text
}

fn process(text: &mut String, nic: usize, comm: &str, pid: u32, process: &Process, rates: &Rates) {
    let rate = |counters: &[&str]| number(rates.sum(nic, process, counters));
    let _ = writeln!(
        text,
        "  {pid} {comm}: {} packets/s out, {} packets/s in, {} bytes/s direct; QPs: {}, MRs: {} of \
         {} bytes, CQs: {}, connection ids: {}",
        rate(&SENT),
        rate(&RECEIVED),
        rate(&["direct_bytes"]),
        process.qps.len(),
        process.mrs.len(),
        process.mrs.iter().map(|mr| mr.length).sum::<u64>(),
        process.cqs.len(),
        process.cm_ids.len(),
    );
    let lost: Vec<String> = LOSSES
        .iter()
        .map(|name| (name, process.counter(name)))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !lost.is_empty() {
        let _ = writeln!(text, "    lost, refused or late: {}", lost.join(", "));
    }
    for it in &process.qps {
        qp(text, nic, process, it, rates);
    }
    if let Some(failure) = process.failures.last() {
        let _ = writeln!(text, "    last failure: {failure}");
    }
}

fn qp(text: &mut String, nic: usize, process: &Process, qp: &Qp, rates: &Rates) {
    let rate = rates.of_qp(nic, process, qp);
    let (sent, received) =
        (number(rate.as_ref().map(|it| it.sent)), number(rate.map(|it| it.received)));
    let remote = qp.remote_qpn.map(|qpn| format!(" to {qpn:#x}")).unwrap_or_default();
    let _ = write!(
        text,
        "    QP {:#x} {} {}{remote}: {sent} packets/s out, {received} packets/s in, {} sends and \
         {} receives posted",
        qp.qpn,
        qp_type_name(qp.kind),
        qp_state_name(qp.state),
        qp.sends,
        qp.receives,
    );
    if qp.timeouts > 0 {
        let _ = write!(text, ", {} timeouts without an answer", qp.timeouts);
    }
    if let Some(path) = &qp.path {
        let _ = write!(text, "; {} ({})", path.carrier, path.why);
    }
    text.push('\n');
}

fn gpu(text: &mut String, member: &Member) {
    let pid = member.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let view = match &member.view {
        Ok(view) => view,
        Err(why) => {
            let _ = writeln!(text, "{} of {pid}: {why}", member.gpu);
            return;
        }
    };
    let moves: u64 = view.buffers.iter().map(|buffer| buffer.moves).sum();
    let in_vram = view.buffers.iter().filter(|buffer| buffer.place == "VRAM").count();
    let _ = writeln!(
        text,
        "{} ({}) of {pid}: VRAM {} of {}, GTT {} of {}; {in_vram} of {} buffers in VRAM, {moves} \
         moves",
        view.name,
        view.preset,
        view.vram_used,
        view.vram,
        view.gtt_used,
        view.gtt,
        view.buffers.len(),
    );
}

/// A rate, or that there is none yet.
fn number(rate: Option<f64>) -> String {
    rate.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.0}"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::example::sample;
    use super::*;

    #[test]
    fn people_read_the_path_and_why_it_was_taken() {
        let at = Instant::now();
        let (before, now) = (sample(at, 1, 1), sample(at + Duration::from_secs(1), 6, 4));
        let text = of(&now, &Rates::between(&before, &now));
        assert!(text.starts_with("peerdma0: 1 process\n"), "{text}");
        assert!(text.contains("4711 ping: 5 packets/s out"), "{text}");
        assert!(text.contains("QP 0x11 RC RTS: 3 packets/s out"), "{text}");
        assert!(text.contains("UDP (the address belongs to another host)"), "{text}");
    }
}
