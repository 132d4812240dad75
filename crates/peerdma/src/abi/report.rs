//! `PEERDMA_REPORT`: a process reports at its end how the memory of its dma-bufs was reached, and
//! what happened to it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::{fmt, io};

use gpu::GpuStats;
use threads::whole::Mutex;

/// Names the file to which the report is added; `-` is standard error.
const REPORT: &str = "PEERDMA_REPORT";

/// The counters in the order of the report: lines, each of words with a number after each.
const LINES: [(&str, &[&str]); 4] = [
    (
        "bytes of dma-bufs",
        &["bus address", "through the host bridge", "system memory", "CPU mapping", "bounced"],
    ),
    ("paging", &["page faults", "put off", "prefetched", "invalidations"]),
    ("software GPU", &["moves", "evictions", "bytes moved", "stale accesses"]),
    (
        "messages",
        &["direct", "bytes of them", "ring packets", "UDP packets", "packets within the process"],
    ),
];
const NUMBERS: usize = 18;

/// The numbers of the report, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers([u64; NUMBERS]);

impl Numbers {
    fn now() -> Self {
        let (nic, gpu) = (device::counters_of_process(), GpuStats::of_process());
        Self([
            nic.dmabuf_bus_address_bytes,
            nic.dmabuf_host_bridge_bytes,
            nic.dmabuf_system_bytes,
            nic.dmabuf_cpu_bytes,
            nic.dmabuf_bounce_bytes,
            nic.page_faults,
            nic.page_faults_pending,
            nic.page_prefetch,
            nic.page_invalidations,
            gpu.moves,
            gpu.evictions,
            gpu.moved_bytes,
            gpu.stale_accesses,
            nic.direct_operations,
            nic.direct_bytes,
            nic.tx_shm_packets + nic.rx_shm_packets,
            nic.tx_udp_packets + nic.rx_udp_packets,
            nic.loopback_packets,
        ])
    }

    fn since(&self, before: &Self) -> Self {
        let mut numbers = *self;
        numbers.0.iter_mut().zip(before.0).for_each(|(now, before)| *now -= before.min(*now));
        numbers
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.0.iter();
        for (line, words) in LINES {
            write!(f, "  {line:<17} ")?;
            for (word, number) in words.iter().zip(&mut numbers) {
                write!(f, "  {word} {number}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The process that opened a device last, and what its parents had counted before, which a forked
/// child inherits.
static BEGAN: Mutex<Option<(u32, Numbers)>> = Mutex::new(None);

/// Called when a device is opened.
pub(super) fn begin() {
    if environment::var_os(REPORT).is_none() {
        return;
    }
    // Counting takes locks that are held across a fork.
    let (pid, now) = (std::process::id(), Numbers::now());
    let mut began = BEGAN.lock();
    if began.is_none_or(|(whose, _)| whose != pid) {
        *began = Some((pid, now));
    }
}

/// Called when the process ends. Reports nothing if it opened no device.
pub(super) fn finish() {
    let began = *BEGAN.lock();
    let Some((_, before)) = began.filter(|(pid, _)| *pid == std::process::id()) else { return };
    let Some(file) = environment::var_os(REPORT) else { return };
    let numbers = Numbers::now().since(&before);
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("peerdma report: {program} ({})\n{numbers}", std::process::id());
    if let Err(error) = write(Path::new(&file), &text) {
        tracing::warn!("{REPORT}: {}: {error}", file.display());
    }
}

/// In one write, as several processes may write to the file.
fn write(file: &Path, text: &str) -> io::Result<()> {
    if file == Path::new("-") {
        return io::stderr().write_all(text.as_bytes());
    }
    File::options().append(true).create(true).open(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_word() {
        assert_eq!(LINES.iter().map(|(_, words)| words.len()).sum::<usize>(), NUMBERS);
        let numbers = Numbers(std::array::from_fn(|index| 100 + index as u64));
        let text = numbers.to_string();
        assert_eq!(text.lines().count(), LINES.len());
        assert!(text.contains("  bus address 100  through the host bridge 101  system memory 102"));
        assert!(
            text.contains("  stale accesses 112\n") && text.contains("process 117\n"),
            "{text}"
        );
        assert_eq!(numbers.since(&numbers), Numbers([0; NUMBERS]));
    }
}
