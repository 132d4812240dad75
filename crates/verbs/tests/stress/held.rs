//! What a process holds and must release.

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

/// Its threads and open files, to explain why there are more.
pub(crate) fn names() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let threads = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let fds = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let files = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let threads: Vec<String> = threads.map(|name| name.trim_end().to_owned()).collect();
    let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
    format!("threads of process 0 {threads:?}, files {files:?}")
}
