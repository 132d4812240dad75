//! Whether anybody still holds what a dead process exported.
//!
//! A buffer's fd outlives its exporter, in whoever imported it or was merely sent it. Nobody keeps count of that but the
//! kernel, so the processes of this user are asked one by one, in `/proc`. Done only when room is short, or somebody
//! joins, and a process has died. Processes that this one cannot see (another pid namespace) are not counted.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Those of `files`, each a device and an inode, that some process has open.
pub(super) fn held_files(files: &[(u64, u64)]) -> BTreeSet<(u64, u64)> {
    let wanted: BTreeSet<_> = files.iter().copied().filter(|file| *file != (0, 0)).collect();
    let mut held = BTreeSet::new();
    if wanted.is_empty() {
        return held;
    }
    let Ok(processes) = fs::read_dir("/proc") else {
        // Nobody can be asked: everything counts as held.
        return wanted;
    };
    let numbered = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| name.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let processes = processes.flatten().filter(|process| numbered(&process.file_name()));
    for process in processes {
        // Processes of others, and those that end just now, cannot be read.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(file) = fs::metadata(descriptor.path()) else { continue };
            let file = (file.dev(), file.ino());
            if wanted.contains(&file) {
                held.insert(file);
            }
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_as_long_as_a_descriptor_is_open() {
        let file = fs::File::open("/proc/self/exe").expect("ourselves");
        let meta = file.metadata().expect("a file");
        let id = (meta.dev(), meta.ino());
        assert_eq!(held_files(&[id, (0, 0)]), BTreeSet::from([id]));
        assert_eq!(held_files(&[(u64::MAX, 1)]), BTreeSet::new());
        assert_eq!(held_files(&[]), BTreeSet::new());
    }
}
