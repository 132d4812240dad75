//! What there is at one moment, and what changed between two.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use ::gpu::Member;
use view::{Counts, Gathered, Process, Qp};

/// How long to wait for processes that may be stopped.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sequence numbers are 24 bits.
const PSN_MASK: u32 = 0xff_ffff;

/// Everything at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    /// The NICs and their processes.
    pub(super) nics: Vec<(String, Gathered)>,
    /// The GPUs that processes have open.
    pub(super) gpus: Vec<Member>,
}

impl Sample {
    pub(super) fn take(nics: &[String]) -> io::Result<Self> {
        let ask = |nic: &String| Ok((nic.clone(), view::gather(nic, PATIENCE)?));
        let nics = nics.iter().map(ask).collect::<io::Result<_>>()?;
        Ok(Self { at: Instant::now(), nics, gpus: ::gpu::survey() })
    }
}

/// A process, among those of all NICs and all times.
type Key = (usize, u16, u64);

/// How fast a process and its queue pairs are. What was not there before has no rate.
#[derive(Default)]
pub(super) struct Rates {
    seconds: f64,
    /// Counters of the sample before, by process.
    counters: BTreeMap<Key, Counts>,
    /// Sequence numbers of the sample before, by process and queue pair.
    psns: BTreeMap<(Key, u32), (u32, u32)>,
}

/// Packets of a queue pair in a second, by its sequence numbers.
pub(super) struct QpRate {
    /// Sent, or carried out without a packet.
    pub(super) sent: f64,
    /// Received.
    pub(super) received: f64,
}

impl Rates {
    pub(super) fn between(before: &Sample, now: &Sample) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-6);
        let mut rates = Self { seconds, counters: BTreeMap::new(), psns: BTreeMap::new() };
        for (nic, (_, gathered)) in before.nics.iter().enumerate() {
            for (_, _, process) in &gathered.processes {
                let key = (nic, process.vf, process.nonce);
                rates.counters.insert(key, process.counts());
                let psns = process.qps.iter().map(|qp| ((key, qp.qpn), (qp.sq_psn, qp.rq_psn)));
                rates.psns.extend(psns);
            }
        }
        rates
    }

    /// How fast a counter of a process grows, in a second. One that was not described was 0.
    pub(super) fn of(&self, nic: usize, process: &Process, counter: &str) -> Option<f64> {
        let before = self.counters.get(&(nic, process.vf, process.nonce))?;
        let before = before.get(counter).copied().unwrap_or(0);
        let grown = process.counter(counter).saturating_sub(before);
        // CAST: a rate is rounded when it is shown.
        Some(grown as f64 / self.seconds)
    }

    /// The sum of several counters.
    pub(super) fn sum(&self, nic: usize, process: &Process, counters: &[&str]) -> Option<f64> {
        counters.iter().map(|counter| self.of(nic, process, counter)).sum()
    }

    /// How fast a queue pair is. More than 16 million packets between two samples look like fewer.
    pub(super) fn of_qp(&self, nic: usize, process: &Process, qp: &Qp) -> Option<QpRate> {
        let key = ((nic, process.vf, process.nonce), qp.qpn);
        let (sent, received) = self.psns.get(&key)?;
        let rate =
            |now: u32, before: u32| f64::from(now.wrapping_sub(before) & PSN_MASK) / self.seconds;
        Some(QpRate { sent: rate(qp.sq_psn, *sent), received: rate(qp.rq_psn, *received) })
    }
}

/// Packets that a process sends and receives.
pub(super) const SENT: [&str; 4] =
    ["tx_udp_packets", "tx_shm_packets", "tx_raw_packets", "loopback_packets"];
pub(super) const RECEIVED: [&str; 4] =
    ["rx_udp_packets", "rx_shm_packets", "rx_raw_packets", "rx_loopback_packets"];

/// What shows that something was lost, refused or had to wait.
pub(super) const LOSSES: [&str; 14] = [
    "local_ack_timeout_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "out_of_sequence",
    "duplicate_request",
    "out_of_buffer",
    "send_rnr_nak",
    "rnr_nak_retry_err",
    "dropped_packets",
    "rx_icrc_encapsulated",
    "rx_malformed_packets",
    "req_cqe_error",
    "resp_cqe_error",
    "injected_faults",
];

#[cfg(test)]
mod tests {
    use super::super::example::sample;
    use super::*;

    #[test]
    fn rates_are_what_changed_in_a_second() {
        let at = Instant::now();
        let before = sample(at, 100, 0xff_fffe);
        let now = sample(at + Duration::from_secs(2), 300, 2);
        let rates = Rates::between(&before, &now);
        let process = &now.nics[0].1.processes[0].2;
        assert_eq!(rates.of(0, process, "tx_udp_packets"), Some(100.0));
        let qp = rates.of_qp(0, process, &process.qps[0]).expect("it was there");
        assert_eq!((qp.sent, qp.received), (2.0, 0.0), "the number wrapped");
        let other = Process { nonce: 2, ..process.clone() };
        assert_eq!(rates.of(0, &other, "tx_udp_packets"), None, "it was not there");
    }
}
