//! Real dma-bufs of the kernel.
//!
//! Few machines have all the devices, and a test that did not run must not look like a test that
//! passed. So this is a separate program, which reports what it did not test, or fails if the
//! environment promised the device: `PEERDMA_REQUIRE=udmabuf,dma-heap,vgem,vfio`. Programs of
//! `interop/c` provide the last two devices: `VGEM_FENCE` is the command line of `vgem_fence`,
//! `VFIO_BUFFER` that of `vfio_buffer`.

use std::io::{Read, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dmabuf::{
    Direction, DmaBuf, ExportError, Fence, FenceStatus, ImportError, Memory, NameError, PollEvents,
    RwFlags, SyncFile, SyncFileError, TimedOut, Timeline, Usage, bufinfo,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

const SIZE: u64 = 8192;
const NOW: Option<Duration> = Some(Duration::ZERO);

fn main() {
    let required = std::env::var("PEERDMA_REQUIRE").unwrap_or_default();
    let is_required = |name: &str| required.split(',').any(|item| item.trim() == name);
    let skip = |what: &str, name: &str, why: &str| {
        println!("{what} ... NOT TESTED: {why}");
        assert!(!is_required(name), "PEERDMA_REQUIRE names {name}: {why}");
    };

    let what = "kernel dma-buf by udmabuf";
    match DmaBuf::export_from(&Memory::Udmabuf, SIZE, "real") {
        Ok(buf) => {
            assert!(DmaBuf::export(SIZE, "real").expect("memory exists").is_kernel());
            a_dma_buf_of_the_kernel(buf, "udmabuf");
            println!("{what} ... ok");
        }
        Err(refusal) => skip(what, "udmabuf", &refusal.to_string()),
    }

    let what = "kernel dma-buf by a dma-heap";
    match DmaBuf::export_from(&Memory::Heap("system".to_owned()), SIZE - 1, "real") {
        Ok(buf) => {
            a_dma_buf_of_the_kernel(buf, "system");
            println!("{what} ... ok");
        }
        Err(refusal @ ExportError::System { .. }) => skip(what, "dma-heap", &refusal.to_string()),
        Err(refusal) => panic!("{refusal}"),
    }

    let what = "kernel fences by vgem";
    match Owner::start("VGEM_FENCE") {
        Some(mut vgem) => {
            fences_of_the_kernel(&mut vgem);
            vgem.end();
            println!("{what} ... ok");
        }
        None => skip(what, "vgem", "VGEM_FENCE names no program"),
    }

    let what = "kernel dma-buf by vfio";
    match Owner::start("VFIO_BUFFER") {
        Some(vfio) => {
            device_memory_is_refused(&vfio);
            vfio.end();
            println!("{what} ... ok");
        }
        None => skip(what, "vfio", "VFIO_BUFFER names no program"),
    }
}

/// What every kernel dma-buf can do.
fn a_dma_buf_of_the_kernel(buf: DmaBuf, exporter: &str) {
    // Imported by its fd, with all earlier handles gone.
    let fd = buf.dup_fd(true).expect("a free fd");
    drop(buf);
    let buf = DmaBuf::import(fd.as_fd()).expect("a dma-buf of the kernel");
    assert!(buf.is_kernel() && !buf.is_dynamic());
    assert_eq!((buf.exporter_name(), buf.size(), &*buf.name()), (exporter, SIZE, "real"));
    assert_eq!(buf.seek(SeekFrom::End(0)), Ok(SIZE));

    let mapping = buf.map(0, SIZE).expect("system memory can be mapped");
    assert!(mapping.needs_brackets());
    for direction in [Direction::Bidirectional, Direction::FromDevice, Direction::ToDevice] {
        mapping.begin_cpu_access(direction).expect("plain memory").end().expect("plain memory");
    }

    // The name is the kernel's: another process also sees it.
    buf.set_name("renamed").expect("short");
    assert_eq!(buf.name(), "renamed");
    let text = std::fs::read_to_string(format!(
        "/proc/self/fdinfo/{}",
        std::os::fd::AsRawFd::as_raw_fd(&buf.fd())
    ));
    assert!(text.expect("our own fd").contains("name:\trenamed"));
    assert!(matches!(buf.set_name(&"n".repeat(32)), Err(NameError::TooLong { .. })));

    // Nobody uses it.
    assert_eq!(buf.poll(PollEvents::all()), PollEvents::all());
    let file = buf.export_sync_file(RwFlags::WRITE).expect("the kernel has them since 6.0");
    assert!(file.is_kernel());
    assert_eq!(file.status(), Ok(FenceStatus::Signaled));
    assert_eq!(file.wait(NOW), Ok(()));
    let again = SyncFile::from_fd(file.as_fd()).expect("a sync_file");
    let merged = file.merge(&again, "merged").expect("two files of the kernel");
    assert!(merged.is_kernel());
    assert_eq!(merged.info().expect("a sync_file").name, "merged");
    buf.import_sync_file(RwFlags::READ | RwFlags::WRITE, &merged).expect("signaled");
    let bad = RwFlags::from_bits_retain(4);
    assert!(matches!(buf.export_sync_file(bad), Err(SyncFileError::BadFlags { flags: 4 })));

    // The kernel cannot wait for our fence, so the import is refused.
    let engine = Timeline::new("gpu", "copy0");
    let ours = SyncFile::new(&engine.point()).expect("a free fd");
    let refusal = buf.import_sync_file(RwFlags::READ, &ours).unwrap_err();
    assert!(matches!(refusal, SyncFileError::NotTheKernels { .. }));
    engine.signal(1);
    buf.import_sync_file(RwFlags::READ, &ours).expect("there is nothing to wait for");

    let info = bufinfo().buffers.into_iter().find(|info| info.ino == buf.info().ino);
    assert!(info.expect("listed").is_kernel);
}

/// A buffer of a driver with fences on it.
fn fences_of_the_kernel(vgem: &mut Owner) {
    let buf = DmaBuf::import(vgem.buf.as_fd()).expect("a dma-buf of the kernel");
    assert_eq!((buf.size(), buf.is_kernel()), (SIZE, true));

    // Work that reads: readers continue, writers wait.
    vgem.order(b'r');
    assert_eq!(buf.poll(PollEvents::all()), PollEvents::READ);
    let status = |flags| buf.export_sync_file(flags).and_then(|file| file.status());
    assert_eq!(status(RwFlags::READ), Ok(FenceStatus::Signaled));
    assert_eq!(status(RwFlags::WRITE), Ok(FenceStatus::Active));
    vgem.order(b's');
    assert_eq!(buf.poll_wait(PollEvents::WRITE, None), PollEvents::WRITE);

    // Work that writes: everybody waits.
    vgem.order(b'w');
    assert!(buf.poll(PollEvents::all()).is_empty());
    assert!(buf.poll_wait(PollEvents::all(), NOW).is_empty());
    let file = buf.export_sync_file(RwFlags::READ).expect("a free fd");
    assert_eq!(file.wait(NOW), Err(TimedOut));
    let info = file.info().expect("a sync_file");
    assert_eq!((info.status, &*info.fences[0].driver), (FenceStatus::Active, "vgem"));
    file.set_deadline(Instant::now()).expect("the kernel has them since 6.6");

    // Imported into one of our buffers, and merged with one of our fences.
    let own = DmaBuf::export_from(&Memory::Memfd, 4096, "own").expect("memory exists");
    own.import_sync_file(RwFlags::WRITE, &file).expect("a fence that follows");
    assert!(own.poll(PollEvents::READ).is_empty());
    assert_eq!(own.info().fences[0].0, Usage::Write);
    let ours = SyncFile::new(&Fence::signaled_stub()).expect("a free fd");
    let both = ours.merge(&file, "both").expect("a free fd");
    assert!(!both.is_kernel());
    assert_eq!(both.status(), Ok(FenceStatus::Active));

    vgem.order(b's');
    assert_eq!(file.wait(None), Ok(()));
    assert_eq!(buf.poll_wait(PollEvents::READ, None), PollEvents::READ);
    assert_eq!(own.poll_wait(PollEvents::READ, None), PollEvents::READ);
    assert_eq!(both.wait(None), Ok(()));
    assert_eq!(both.status(), Ok(FenceStatus::Signaled));
}

/// A buffer that the CPU cannot map is of no use to a NIC that copies.
fn device_memory_is_refused(vfio: &Owner) {
    use std::os::fd::AsRawFd;
    let refusal = DmaBuf::import(vfio.buf.as_fd()).unwrap_err();
    let number = vfio.buf.as_raw_fd();
    let exporter = "vfio_pci_core".to_owned();
    let errno = rustix::io::Errno::INVAL;
    assert_eq!(refusal, ImportError::CannotMap { fd: number, exporter, errno });
    let text = refusal.to_string();
    assert!(text.contains("is a dma-buf of vfio_pci_core, which the CPU cannot map"), "{text}");
}

/// A program that has a device, and its buffer.
struct Owner {
    child: Child,
    orders: UnixStream,
    buf: OwnedFd,
}

impl Owner {
    /// Starts the program that a variable names, with its arguments.
    fn start(variable: &str) -> Option<Self> {
        let line = std::env::var(variable).ok()?;
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next()?);
        command.args(words);
        let (mut orders, theirs) = UnixStream::pair().expect("a free fd");
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn().expect("it starts");
        // From here on, only the child has its end.
        drop(command);
        let buf = receive(&mut orders);
        Some(Self { child, orders, buf })
    }

    fn order(&mut self, order: u8) {
        self.orders.write_all(&[order]).expect("it listens");
        let mut done = [0];
        self.orders.read_exact(&mut done).expect("it answers");
        assert_eq!(done, [order]);
    }

    fn end(self) {
        let Self { mut child, orders, .. } = self;
        drop(orders);
        assert!(child.wait().expect("our child").success());
    }
}

fn receive(from: &mut UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [std::io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(&*from, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .expect("it sends the buffer");
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.next().and_then(|mut fds| fds.next()).expect("one fd comes with the byte")
}
