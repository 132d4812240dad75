//! What a process has that must be given back.

use gpu::{Domain, Gpu};

/// The names of the numbers of [`now`].
pub(crate) const NAMES: [&str; 7] = [
    "open files",
    "threads",
    "mapped files of ours",
    "dma-bufs",
    "attachments",
    "bytes of VRAM",
    "bytes of GTT",
];

/// Counts it.
pub(crate) fn now(gpu: &Gpu) -> [u64; NAMES.len()] {
    let entries = |path| std::fs::read_dir(path).expect("procfs").count() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let ours = maps.lines().filter(|line| line.contains("/memfd:")).count() as u64;
    let buffers = dmabuf::bufinfo().buffers;
    let attached: usize = buffers.iter().map(|buffer| buffer.attached.len()).sum();
    [
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        ours,
        buffers.len() as u64,
        attached as u64,
        gpu.used(Domain::Vram),
        gpu.used(Domain::Gtt),
    ]
}
