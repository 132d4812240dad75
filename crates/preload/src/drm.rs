//! The software GPU: which paths are its nodes, and the library behind them.
//!
//! `PEERDMA_DRM_NODE` lists one node of each GPU, a render node or what other drivers have in its
//! place. No other device has these nodes: `peerdma run --gpu` chose free names. The first open of
//! a node looks up `libpeerdma.so`, which is loaded as well; from then on every call that may
//! concern a node is passed to it. Until then, and without the variable, nothing here costs more
//! than one load of an atomic.

#![allow(unsafe_code, reason = "C strings, the C environment, and functions of another library")]

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::errno;
use crate::variable::variable;

/// How the paths of nodes begin. A number follows.
const PATHS: [(&[u8], Kind); 5] = [
    (b"/dev/dri/renderD", Kind::Render),
    (b"/dev/dri/card", Kind::Card),
    (b"/dev/accel/accel", Kind::Accel),
    (b"/dev/accel/accel_controlD", Kind::AccelControl),
    (b"/dev/vfio/devices/vfio", Kind::Vfio),
];

/// The file that every VFIO device is bound to.
const IOMMU: &[u8] = b"/dev/iommu";

/// The first render node's minor number; the card that belongs to it has this much less.
const FIRST_RENDER: u32 = 128;

/// A minor number of the range that the kernel assigns to misc devices.
const IOMMU_MINOR: u32 = 126;

/// The most nodes that are considered.
const MOST: usize = 32;

/// The nodes that the variable lists, in its order, encoded by [`Listed::word`]; 0 is the end.
static LISTED: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
static STATE: AtomicU32 = AtomicU32::new(UNREAD);
/// Whether a VFIO device was ever opened.
static HAS_VFIO: AtomicBool = AtomicBool::new(false);

const UNREAD: u32 = 0;
const READING: u32 = 1;
const READ: u32 = 2;

/// The functions of `libpeerdma.so`, with the layout of its `FileOps`.
#[repr(C)]
pub(crate) struct FileOps {
    open: extern "C" fn(node: c_int, kind: c_int, flags: c_int) -> c_int,
    pub(crate) owns: extern "C" fn(fd: c_int) -> bool,
    node: extern "C" fn(fd: c_int, kind: &mut c_int) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int,
    pub(crate) mmap: Mmap,
    pub(crate) forget: extern "C" fn(addr: usize, len: usize),
    pub(crate) is_mapped: extern "C" fn(addr: usize, len: usize) -> bool,
    pub(crate) closed: extern "C" fn(),
    pub(crate) buffer_ioctl:
        unsafe extern "C" fn(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int,
    pub(crate) buffer_mmap: Mmap,
    pub(crate) buffer_poll: extern "C" fn(fd: c_int, events: c_int) -> c_int,
    pub(crate) buffer_seek: extern "C" fn(fd: c_int, offset: i64, whence: c_int) -> i64,
    pub(crate) read: unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize,
    pub(crate) write: unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize,
    pub(crate) node_closed: extern "C" fn(),
}

type Mmap = unsafe extern "C" fn(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void;

static FILE_OPS: AtomicPtr<FileOps> = AtomicPtr::new(core::ptr::null_mut());

/// The functions, if the process has ever opened a node or met a buffer.
pub(crate) fn ops() -> Option<&'static FileOps> {
    // ORDERING: pairs with the release in `open`.
    let ops = FILE_OPS.load(Ordering::Acquire);
    // SAFETY: null, or a table that is static in a library that is never unloaded.
    unsafe { ops.as_ref() }
}

/// The functions, looked up if needed: none in a program without `libpeerdma.so`.
pub(crate) fn find() -> Option<&'static FileOps> {
    if let Some(ops) = ops() {
        return Some(ops);
    }
    // SAFETY: the name is terminated; any library that is loaded may have it, but only ours does.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"peerdma_node_file_ops".as_ptr()) };
    if !found.is_null() {
        // SAFETY: this is the function's signature, in the library of the same build.
        let find: extern "C" fn() -> *const FileOps = unsafe { core::mem::transmute(found) };
        FILE_OPS.store(find().cast_mut(), Ordering::Release);
    }
    ops()
}

/// The kind of a node. `libpeerdma.so` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Render = 0,
    Card = 1,
    Accel = 2,
    AccelControl = 3,
    Vfio = 4,
    Iommu = 5,
}

/// One of our nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    index: usize,
    kind: Kind,
    minor: u32,
}

/// The node by which the variable names a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    kind: Kind,
    minor: u32,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Render, Self::Card, Self::Accel, Self::AccelControl, Self::Vfio, Self::Iommu];

    /// The major number: DRM's, accel's and that of misc devices; for devices whose major number is
    /// assigned when the driver loads, one of those that the kernel assigns last.
    fn major(self) -> u32 {
        match self {
            Self::Render | Self::Card => 226,
            Self::Accel => 261,
            Self::AccelControl => 385,
            Self::Vfio => 386,
            Self::Iommu => 10,
        }
    }
}

impl Listed {
    /// The node under which the GPU of this one is listed.
    fn of(minor: u32, kind: Kind) -> Self {
        match kind {
            Kind::Card => Self { kind: Kind::Render, minor: minor + FIRST_RENDER },
            Kind::AccelControl => Self { kind: Kind::Accel, minor },
            Kind::Render | Kind::Accel | Kind::Vfio | Kind::Iommu => Self { kind, minor },
        }
    }

    fn word(self) -> u32 {
        (self.kind as u32) << 16 | (self.minor + 1)
    }
}

/// Which of our nodes a path names.
///
/// # Safety
///
/// `path` is null or a terminated string.
pub(crate) unsafe fn node(path: *const c_char) -> Option<Node> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller promises that it is terminated.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path == IOMMU {
        read();
        let is_vfio = |known: &AtomicU32| known.load(Ordering::Relaxed) >> 16 == Kind::Vfio as u32;
        let index = LISTED.iter().position(is_vfio)?;
        return Some(Node { index, kind: Kind::Iommu, minor: IOMMU_MINOR });
    }
    let (minor, kind) = parse(path)?;
    read();
    let word = Listed::of(minor, kind).word();
    let index = LISTED.iter().position(|known| known.load(Ordering::Relaxed) == word)?;
    Some(Node { index, kind, minor })
}

/// Which node a descriptor is of.
pub(crate) fn node_of(fd: c_int) -> Option<Node> {
    let ops = ops().filter(|ops| (ops.owns)(fd))?;
    let mut kind = 0;
    let index = usize::try_from((ops.node)(fd, &mut kind)).ok()?;
    let kind = Kind::ALL.into_iter().find(|known| *known as c_int == kind)?;
    let listed = (LISTED.get(index)?.load(Ordering::Relaxed) & 0xffff).checked_sub(1)?;
    let minor = match kind {
        Kind::Card => listed - FIRST_RENDER,
        Kind::Iommu => IOMMU_MINOR,
        _ => listed,
    };
    Some(Node { index, kind, minor })
}

/// The functions, if this descriptor is a VFIO device: the only kind of node that is read and
/// written.
pub(crate) fn vfio(fd: c_int) -> Option<&'static FileOps> {
    let ops = HAS_VFIO.load(Ordering::Relaxed).then(ops)??;
    node_of(fd).filter(|node| node.kind == Kind::Vfio).map(|_| ops)
}

/// Opens a node.
pub(crate) fn open(node: Node, flags: c_int) -> c_int {
    if node.kind == Kind::Vfio {
        HAS_VFIO.store(true, Ordering::Relaxed);
    }
    match find() {
        // CAST: at most MOST.
        Some(ops) => (ops.open)(node.index as c_int, node.kind as c_int, flags),
        None => {
            errno::set(libc::ENXIO);
            -1
        }
    }
}

/// The `st_rdev` of a node.
pub(crate) fn device(node: Node) -> libc::dev_t {
    libc::makedev(node.kind.major(), node.minor)
}

/// Reads the variable, once.
fn read() {
    // ORDERING: pairs with the release store below: a thread that sees READ sees the numbers.
    let state = STATE.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Acquire);
    if state.is_err() {
        return;
    }
    if let Some(value) = variable(c"PEERDMA_DRM_NODE") {
        let nodes = value.split(|&byte| byte == b',').filter_map(parse);
        for ((minor, kind), slot) in nodes.zip(&LISTED) {
            slot.store(Listed::of(minor, kind).word(), Ordering::Relaxed);
        }
    }
    STATE.store(READ, Ordering::Release);
}

/// The kind and number of a node such as `/dev/dri/renderD128`.
fn parse(path: &[u8]) -> Option<(u32, Kind)> {
    PATHS.iter().find_map(|(prefix, kind)| Some((number(path.strip_prefix(*prefix)?)?, *kind)))
}

fn number(digits: &[u8]) -> Option<u32> {
    let mut number = 0u32;
    if digits.is_empty() || digits.len() > 4 {
        return None;
    }
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u32::from(digit - b'0');
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_numbers() {
        assert_eq!(parse(b"/dev/dri/renderD128"), Some((128, Kind::Render)));
        assert_eq!(parse(b"/dev/dri/card0"), Some((0, Kind::Card)));
        assert_eq!(parse(b"/dev/accel/accel3"), Some((3, Kind::Accel)));
        assert_eq!(parse(b"/dev/accel/accel_controlD3"), Some((3, Kind::AccelControl)));
        assert_eq!(parse(b"/dev/vfio/devices/vfio12"), Some((12, Kind::Vfio)));
        for path in ["/dev/dri/renderD", "/dev/dri/renderD12x", "/dev/dri/by-path", "/dev/dri/card"]
        {
            assert_eq!(parse(path.as_bytes()), None, "{path}");
        }
        for path in ["/dev/dri/card12345", "/dev/accel/accel_0", "/dev/accel/card0", "card0"] {
            assert_eq!(parse(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn both_nodes_of_a_gpu_are_listed_as_one() {
        let word = |path: &[u8]| {
            let (minor, kind) = parse(path).expect("a node");
            Listed::of(minor, kind).word()
        };
        assert_eq!(word(b"/dev/dri/card1"), word(b"/dev/dri/renderD129"));
        assert_eq!(word(b"/dev/accel/accel1"), word(b"/dev/accel/accel_controlD1"));
        assert_ne!(word(b"/dev/accel/accel0"), word(b"/dev/dri/renderD0"));
    }

    #[test]
    fn without_the_variable_there_are_no_nodes() {
        // SAFETY: the path is a terminated constant.
        assert_eq!(unsafe { node(c"/dev/dri/renderD128".as_ptr()) }, None);
        // SAFETY: as above.
        assert_eq!(unsafe { node(c"/dev/iommu".as_ptr()) }, None);
    }
}
