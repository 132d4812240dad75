//! Bytes between files and buffers.

mod common;

use std::time::Duration;

use common::{Folder, MB, disk, engines, gpu, machine, pattern};
use dmabuf::{DmaBuf, Memory, Reach};
use gpu::{CopyMode, Place, Preset};
use rustix::io::Errno;
use storage::{Client, ClientConfig, Direct, Engine, Error, File, MAX_TRANSFER, OpenOptions};
use umem::HostBuf;

#[test]
fn a_file_goes_into_memory_of_a_gpu_and_back_without_a_copy_between() {
    let (folder, tree) = (Folder::new("round"), machine(true));
    let gpu = gpu(Preset::Xe, CopyMode::Thread, &tree);
    let bytes = pattern(1, 3 * MB as usize);
    let file = folder.file("from", &bytes);
    for engine in engines() {
        let disk = Client::new(&disk(engine, &tree)).expect("seen before");
        let bo = gpu.alloc(4 * MB, Place::VRAM).expect("room");
        let buffer = disk.attach(&bo.export().expect("exported")).expect("reached");
        assert_eq!(buffer.map_type(), Ok(Reach::BusAddress));
        let before = umem::ways::bytes_by_way();
        assert_eq!(disk.read(&file, 0, &buffer, 4096, 3 * MB), Ok(3 * MB));
        let mut seen = vec![0; bytes.len()];
        bo.read(4096, &mut seen).expect("inside");
        assert!(seen == bytes, "{engine:?}");
        let target = folder.file("to", b"");
        disk.write(&target, MB, &buffer, 4096, 3 * MB).expect("room on the disk");
        let written = std::fs::read(folder.path("to")).expect("just made");
        assert!(written[..MB as usize].iter().all(|byte| *byte == 0), "a hole");
        assert!(written[MB as usize..] == bytes, "{engine:?}");
        // Other tests of this program count as well.
        let ways = umem::ways::bytes_by_way();
        assert!(ways.bus_address - before.bus_address >= 6 * MB);
        let stats = disk.stats();
        assert_eq!((stats.bytes, stats.bounced, stats.failed), (6 * MB, 0, 0));
    }
}

#[test]
fn a_disk_that_does_not_reach_vram_gets_the_buffer_in_system_memory_or_not_at_all() {
    let (folder, tree) = (Folder::new("apart"), machine(false));
    let file = folder.file("from", &pattern(2, MB as usize));
    let disk = Client::new(&disk(Engine::Auto, &tree)).expect("a client");
    let xe = gpu(Preset::Xe, CopyMode::Sync, &tree);
    let bo = xe.alloc(MB, Place::VRAM).expect("room");
    let buffer = disk.attach(&bo.export().expect("exported")).expect("it moves");
    assert_eq!(buffer.map_type(), Ok(Reach::System));
    assert_eq!(disk.read(&file, 0, &buffer, 0, MB), Ok(MB));
    let mut seen = vec![0; MB as usize];
    bo.read(0, &mut seen).expect("inside");
    assert!(seen == pattern(2, MB as usize));
    let nvidia = gpu(Preset::Nvidia, CopyMode::Sync, &tree);
    let bo = nvidia.alloc(MB, Place::VRAM).expect("room");
    let refusal = disk.attach(&bo.export().expect("exported")).expect_err("no way");
    assert!(matches!(refusal, Error::Attach { .. }), "{refusal}");
    assert!(refusal.to_string().contains("host bridge"), "{refusal}");
}

#[test]
fn plain_memory_and_dma_bufs_of_plain_memory_are_buffers_too() {
    let folder = Folder::new("plain");
    let bytes = pattern(3, MB as usize);
    let file = folder.file("from", &bytes);
    for engine in engines() {
        let disk = Client::new(&ClientConfig { engine, ..ClientConfig::default() }).expect("one");
        let memory = HostBuf::anonymous(MB as usize).expect("memory");
        let mut seen = vec![0; MB as usize];
        assert_eq!(disk.read(&file, 0, &disk.attach_host(&memory), 0, MB), Ok(MB));
        memory.read(0, &mut seen).expect("inside");
        assert!(seen == bytes, "{engine:?}");
        // A dma-buf of the kernel, where it has an exporter that we may use, and a memfd.
        for buf in [
            DmaBuf::export(MB, "plain").expect("memory"),
            DmaBuf::export_from(&Memory::Memfd, MB, "plain").expect("memory"),
        ] {
            assert_eq!(disk.read(&file, 0, &disk.attach(&buf).expect("offered"), 0, MB), Ok(MB));
            let mapping = buf.map(0, MB).expect("offered");
            let umem = umem::Umem::dmabuf(mapping, 0, MB).expect("inside");
            umem.read(0, &mut seen).expect("there");
            assert!(seen == bytes, "{engine:?}");
        }
    }
}

#[test]
fn bytes_may_be_sent_through_ordinary_memory_which_is_counted() {
    let (folder, tree) = (Folder::new("bounce"), machine(true));
    let gpu = gpu(Preset::Amdgpu, CopyMode::Sync, &tree);
    let bytes = pattern(4, 2 * MB as usize);
    let file = folder.file("from", &bytes);
    for engine in engines() {
        let config = ClientConfig { bounce: true, ..disk(engine, &tree) };
        let disk = Client::new(&config).expect("seen before");
        let bo = gpu.alloc(2 * MB, Place::VRAM).expect("room");
        let buffer = disk.attach(&bo.export().expect("exported")).expect("reached");
        let before = umem::ways::bytes_by_way().bounced;
        assert_eq!(disk.read(&file, 0, &buffer, 0, 2 * MB), Ok(2 * MB));
        disk.write(&file, 2 * MB, &buffer, 0, 2 * MB).expect("room on the disk");
        assert!(std::fs::read(folder.path("from")).expect("there")[2 * MB as usize..] == bytes);
        assert_eq!(disk.stats().bounced, 4 * MB);
        assert!(umem::ways::bytes_by_way().bounced - before >= 4 * MB);
        std::fs::write(folder.path("from"), &bytes).expect("room on the disk");
    }
}

#[test]
fn the_end_of_a_file_is_a_short_read_and_no_error() {
    let folder = Folder::new("tail");
    let bytes = pattern(5, MB as usize + 4096 + 100);
    let file = folder.file("odd", &bytes);
    for engine in engines() {
        let disk = Client::new(&ClientConfig { engine, ..ClientConfig::default() }).expect("one");
        let memory = HostBuf::anonymous(4 * MB as usize).expect("memory");
        let buffer = disk.attach_host(&memory);
        assert_eq!(disk.read(&file, 0, &buffer, 0, 4 * MB), Ok(bytes.len() as u64));
        let mut seen = vec![0; bytes.len()];
        memory.read(0, &mut seen).expect("inside");
        assert!(seen == bytes, "{engine:?}");
        assert_eq!(disk.read(&file, 2 * MB, &buffer, 0, MB), Ok(0), "behind the end");
    }
}

#[test]
fn direct_io_refuses_what_is_not_aligned_and_names_the_multiple() {
    let folder = Folder::new("aligned");
    let file = folder.file("whole", &pattern(6, 8192));
    let disk = Client::new(&ClientConfig::default()).expect("a client");
    let memory = HostBuf::anonymous(8192).expect("memory");
    let buffer = disk.attach_host(&memory);
    let cached =
        File::open(folder.path("whole"), &OpenOptions { direct: Direct::No, ..Default::default() });
    assert_eq!(disk.read(&cached.expect("there"), 1, &buffer, 3, 77), Ok(77), "no rule for it");
    if !file.is_direct() {
        // Then the warning was logged, and nothing has to be aligned here either.
        assert_eq!(disk.read(&file, 1, &buffer, 3, 77), Ok(77));
        let required = OpenOptions { direct: Direct::Required, ..Default::default() };
        let refusal = File::open(folder.path("whole"), &required).expect_err("it has none");
        assert!(matches!(refusal, Error::NoDirect { .. }), "{refusal}");
        return;
    }
    let multiple = file.alignment().offset;
    for (offset, at, len, said) in
        [(1, 0, 4096, "the offset 0x1"), (0, 0, 77, "the length 0x4d"), (0, 1, 4096, "the address")]
    {
        let refusal = disk.read(&file, offset, &buffer, at, len).expect_err("a rule");
        let text = refusal.to_string();
        let memory = file.alignment().memory;
        assert!(text.contains(said) && text.contains("STATX_DIOALIGN"), "{text}");
        assert!(text.contains(&multiple.to_string()) || text.contains(&memory.to_string()));
    }
}

#[test]
fn a_file_system_without_direct_io_is_said_and_used_through_the_cache() {
    // procfs has none.
    let path = "/proc/self/status";
    let required = OpenOptions { direct: Direct::Required, ..OpenOptions::default() };
    let refusal = File::open(path, &required).expect_err("it has none");
    assert!(matches!(refusal, Error::NoDirect { .. }), "{refusal}");
    let file = File::open(path, &OpenOptions::default()).expect("through the cache");
    assert!(!file.is_direct());
    let disk = Client::new(&ClientConfig::default()).expect("a client");
    let memory = HostBuf::anonymous(65536).expect("memory");
    let got = disk.read(&file, 0, &disk.attach_host(&memory), 0, 65536).expect("it is read");
    let mut seen = vec![0; got as usize];
    memory.read(0, &mut seen).expect("inside");
    assert!(String::from_utf8(seen).expect("text").starts_with("Name:"));
}

#[test]
fn out_of_range_and_read_only_requests_are_refused() {
    let folder = Folder::new("refused");
    let file = folder.file("file", &pattern(7, 8192));
    let disk = Client::new(&ClientConfig::default()).expect("a client");
    let memory = HostBuf::anonymous(2 * MAX_TRANSFER as usize).expect("memory");
    let buffer = disk.attach_host(&memory);
    let queue = disk.queue();
    let size = u64::from(2 * MAX_TRANSFER);
    for (at, len) in [(size, 4096), (size - 4096, 8192), (u64::MAX, 4096), (0, 0)] {
        let refusal = queue.read(0, &file, 0, &buffer, at, len).expect_err("not inside");
        assert!(matches!(refusal, Error::OutOfRange { .. }), "{refusal}");
    }
    let refusal = queue.read(0, &file, 0, &buffer, 0, MAX_TRANSFER + 4096).expect_err("too long");
    assert!(matches!(refusal, Error::OutOfRange { .. }), "{refusal}");
    let only = File::open(folder.path("file"), &OpenOptions::default()).expect("there");
    let refusal = queue.write(0, &only, 0, &buffer, 0, 4096).expect_err("for reading");
    assert!(matches!(refusal, Error::ReadOnly { what: "the file", .. }), "{refusal}");
    let other = Client::new(&ClientConfig::default()).expect("another");
    assert!(other.read(&file, 0, &buffer, 0, 4096).is_err(), "a buffer of another client");
    assert!(queue.poll().is_none(), "what is refused does not complete");
}

#[test]
fn a_full_disk_and_a_bad_one_are_errors_with_the_kernels_number() {
    let full = OpenOptions { write: true, ..OpenOptions::default() };
    let full = File::open("/dev/full", &full).expect("always there");
    // A read where nothing is mapped is EIO; what is mapped before that is read first.
    let bad = File::open("/proc/self/mem", &OpenOptions::default()).expect("our own");
    for engine in engines() {
        let disk = Client::new(&ClientConfig { engine, ..ClientConfig::default() }).expect("one");
        let memory = HostBuf::anonymous(MAX_TRANSFER as usize).expect("memory");
        memory.write(0, &pattern(8, 4096)).expect("inside");
        let buffer = disk.attach_host(&memory);
        let error = disk.write(&full, 0, &buffer, 0, 4096).expect_err("no room");
        assert_eq!(error.errno(), Some(Errno::NOSPC), "{error}");
        let error = disk.read(&bad, 0, &buffer, 0, 4096).expect_err("nothing is there");
        assert_eq!(error.errno(), Some(Errno::IO), "{error}");
        assert_eq!(disk.stats().failed, 2);
        assert!(disk.read(&bad, memory.as_ptr().addr() as u64, &buffer, 8192, 4096).is_ok());
    }
}

#[test]
fn requests_complete_under_their_own_names_and_a_full_client_says_so() {
    let folder = Folder::new("queue");
    let bytes = pattern(9, 64 * 4096);
    let file = folder.file("file", &bytes);
    for engine in engines() {
        let config = ClientConfig { engine, depth: 16, ..ClientConfig::default() };
        let disk = Client::new(&config).expect("seen before");
        let memory = HostBuf::anonymous(bytes.len()).expect("memory");
        let (buffer, queue, other) = (disk.attach_host(&memory), disk.queue(), disk.queue());
        let mut seen = std::collections::BTreeSet::new();
        let mut refused = 0;
        let mut next = 0;
        while seen.len() < 64 {
            while next < 64 {
                match queue.read(next, &file, next * 4096, &buffer, next * 4096, 4096) {
                    Ok(()) => next += 1,
                    Err(Error::Full { depth: 16, .. }) => {
                        refused += 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let done = queue.wait(Duration::from_secs(60)).expect("it ends");
            assert_eq!(done.result, Ok(4096));
            assert!(seen.insert(done.id), "once");
        }
        assert!(refused > 0, "{engine:?}: completions that nobody took count");
        assert!(other.poll().is_none());
        let mut read = vec![0; bytes.len()];
        memory.read(0, &mut read).expect("inside");
        assert!(read == bytes, "{engine:?}");
        // A queue may be dropped before its requests have ended.
        queue.read(1, &file, 0, &buffer, 0, 4096).expect("there is room again");
        drop((queue, other));
    }
}

#[test]
fn a_buffer_is_registered_once_for_all_its_requests() {
    let folder = Folder::new("fixed");
    let file = folder.file("file", &pattern(10, 65536));
    for (engine, fixed) in engines().into_iter().flat_map(|one| [(one, true), (one, false)]) {
        let config = ClientConfig { engine, fixed, ..ClientConfig::default() };
        let disk = Client::new(&config).expect("seen before");
        let buf = DmaBuf::export_from(&Memory::Memfd, 65536, "fixed").expect("memory");
        let buffer = disk.attach(&buf).expect("offered");
        for _ in 0..4 {
            assert_eq!(disk.read(&file, 0, &buffer, 0, 65536), Ok(65536));
        }
        let expected = if fixed && engine == Engine::Uring { 4 } else { 0 };
        assert_eq!(disk.stats().fixed, expected, "{engine:?}");
    }
}
