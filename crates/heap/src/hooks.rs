//! The functions of C.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::{pid_t, size_t};

use crate::below::{self, Next};
use crate::fork;
use crate::heap::{HEAP, length};
use crate::pages;

/// A block of this length or alignment lies in the file, and a smaller one is libc's.
const LEAST: usize = 4096;

/// A block of the file, or null for one that is to be libc's.
fn large(size: usize, align: usize) -> *mut c_void {
    if size < LEAST && align < LEAST {
        return ptr::null_mut();
    }
    HEAP.alloc(size, align).cast()
}

fn is_ours(block: *mut c_void) -> bool {
    pages::holds(block.addr())
}

fn fail<T>(errno: c_int, result: T) -> T {
    // SAFETY: the address of the thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno };
    result
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    let block = large(size, 1);
    // SAFETY: the caller's contract.
    if block.is_null() { unsafe { below::malloc(size) } } else { block }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    let bytes = count.checked_mul(size).filter(|bytes| *bytes >= LEAST);
    let block = bytes.map_or(ptr::null_mut(), |bytes| HEAP.alloc_zeroed(bytes));
    if !block.is_null() {
        return block.cast();
    }
    // SAFETY: the caller's contract; it refuses a product that wraps.
    unsafe { below::calloc(count, size) }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    if is_ours(block) {
        // SAFETY: the caller's contract.
        unsafe { HEAP.free(block.cast()) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { below::free(block) };
    }
}

/// `free` of C23, for blocks of `malloc`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_sized(block: *mut c_void, _size: size_t) {
    // SAFETY: the caller's contract.
    unsafe { free(block) };
}

/// `free` of C23, for blocks of `aligned_alloc`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: size_t, _size: size_t) {
    // SAFETY: the caller's contract.
    unsafe { free(block) };
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { malloc(size) };
    }
    if !is_ours(block) {
        // SAFETY: the caller's contract.
        return unsafe { realloc_of_libc(block, size) };
    }
    if size == 0 {
        // SAFETY: the caller's contract.
        unsafe { HEAP.free(block.cast()) };
        return ptr::null_mut();
    }
    // SAFETY: the caller's contract.
    let moved = unsafe { HEAP.resize(block.cast(), size) };
    if !moved.is_null() {
        return moved.cast();
    }
    // SAFETY: libc's allocator takes any size.
    let moved = unsafe { below::malloc(size) };
    if moved.is_null() {
        return moved;
    }
    // SAFETY: the caller's contract.
    let has = unsafe { length(block.cast()) };
    // SAFETY: both blocks have this length.
    unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), has.min(size)) };
    // SAFETY: the caller's contract.
    unsafe { HEAP.free(block.cast()) };
    moved
}

/// A block of libc's that becomes a large one moves.
///
/// # Safety
///
/// As for `realloc`.
unsafe fn realloc_of_libc(block: *mut c_void, size: usize) -> *mut c_void {
    let known = if size < LEAST { None } else { USABLE_SIZE.known() };
    // SAFETY: the caller's contract.
    let has = known.map_or(0, |address| unsafe { usable_size(address, block) });
    // One that is large already stays: there was no room when it was made.
    let moved = if has > 0 && has < LEAST { large(size, 1) } else { ptr::null_mut() };
    if moved.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { below::realloc(block, size) };
    }
    // SAFETY: both blocks have this length.
    unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), has.min(size)) };
    // SAFETY: the caller's contract.
    unsafe { below::free(block) };
    moved
}

/// Through the name, which may be another allocator's.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(bytes) => unsafe { libc::realloc(block, bytes) },
        None => fail(libc::ENOMEM, ptr::null_mut()),
    }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // libc takes the next power of two.
    let rounded = align.checked_next_power_of_two();
    let block = rounded.map_or(ptr::null_mut(), |align| large(size, align));
    // SAFETY: the caller's contract.
    if block.is_null() { unsafe { below::memalign(align, size) } } else { block }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    if !align.is_power_of_two() {
        return fail(libc::EINVAL, ptr::null_mut());
    }
    // SAFETY: the caller's contract.
    unsafe { memalign(align, size) }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's contract.
    let block = unsafe { memalign(align, size) };
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's contract.
    unsafe { *out = block };
    0
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(size: size_t) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { memalign(rustix::param::page_size(), size) }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    let page = rustix::param::page_size();
    match size.max(1).checked_next_multiple_of(page) {
        // SAFETY: the caller's contract.
        Some(size) => unsafe { memalign(page, size) },
        None => fail(libc::ENOMEM, ptr::null_mut()),
    }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> size_t {
    if is_ours(block) {
        // SAFETY: the caller's contract.
        return unsafe { length(block.cast()) };
    }
    // SAFETY: the caller's contract.
    USABLE_SIZE.address().map_or(0, |address| unsafe { usable_size(address, block) })
}

/// The only one of libc's allocator that has no second name.
static USABLE_SIZE: Next = Next::new(c"malloc_usable_size");

/// # Safety
///
/// The address is that of libc's `malloc_usable_size`, and the block libc's.
unsafe fn usable_size(address: *mut c_void, block: *mut c_void) -> usize {
    type Function = unsafe extern "C" fn(*mut c_void) -> size_t;
    // SAFETY: the function has this signature.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
    // SAFETY: the caller's promise.
    unsafe { next(block) }
}

/// A fork without handlers.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> pid_t {
    type Function = unsafe extern "C" fn() -> pid_t;
    static NEXT: Next = Next::new(c"_Fork");
    let Some(address) = NEXT.address() else { return fail(libc::ENOSYS, -1) };
    // SAFETY: libc's function of this name has this signature.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
    fork::prepare();
    // SAFETY: the caller's contract.
    let pid = unsafe { next() };
    if pid == 0 {
        fork::child()
    } else {
        fork::parent()
    }
    pid
}

type Main = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The program's function, and what it is called with.
struct Start {
    main: Main,
    arg: *mut c_void,
}

unsafe extern "C" fn start(given: *mut c_void) -> c_int {
    fork::child();
    // SAFETY: `clone` below passes this. The child has a copy of its parent's stack.
    let Start { main, arg } = unsafe { given.cast::<Start>().read() };
    // SAFETY: the program's function takes the program's argument.
    unsafe { main(arg) }
}

/// A child without its parent's memory is a fork. The last three are there only if the flags ask
/// for them; what a caller without them leaves in their place goes to libc, which ignores it, too.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    main: Option<Main>,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent: *mut pid_t,
    tls: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    type Function = unsafe extern "C" fn(
        Option<Main>,
        *mut c_void,
        c_int,
        *mut c_void,
        *mut pid_t,
        *mut c_void,
        *mut pid_t,
    ) -> c_int;
    static NEXT: Next = Next::new(c"clone");
    let Some(address) = NEXT.address() else { return fail(libc::ENOSYS, -1) };
    // SAFETY: libc's function of this name has this signature.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
    let Some(program) = main.filter(|_| flags & libc::CLONE_VM == 0) else {
        // SAFETY: the caller's contract.
        return unsafe { next(main, stack, flags, arg, parent, tls, child) };
    };
    let mut given = Start { main: program, arg };
    let given: *mut Start = &raw mut given;
    fork::prepare();
    // SAFETY: the caller's contract; `start` calls the caller's function.
    let pid = unsafe { next(Some(start), stack, flags, given.cast(), parent, tls, child) };
    fork::parent();
    pid
}

/// Handlers of a fork that others register come behind ours.
///
/// # Safety
///
/// As for libc's function of this name, which `pthread_atfork` calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    of: *mut c_void,
) -> c_int {
    type Function = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    static NEXT: Next = Next::new(c"__register_atfork");
    fork::begin();
    let Some(address) = NEXT.address() else { return libc::ENOMEM };
    // SAFETY: libc's function of this name has this signature.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
    // SAFETY: the caller's contract.
    unsafe { next(prepare, parent, child, of) }
}

type Handler = Option<unsafe extern "C" fn()>;

/// For `libpeerdma.so`: the descriptor of the file that has `len` bytes at `addr`, and the offset
/// of the first of them. -1 if they are not of this heap, and a negative errno, less than that, if
/// they are and no file has them.
///
/// # Safety
///
/// `offset` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn peerdma_heap_at(addr: usize, len: usize, offset: *mut u64) -> c_int {
    match HEAP.place(addr, len) {
        Ok((fd, at)) => {
            // SAFETY: the caller's promise.
            unsafe { *offset = at };
            fd
        }
        Err(None) => -1,
        // EPERM is 1.
        Err(Some(errno)) => -1 - errno.raw_os_error(),
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    fork::begin();
    let _ = USABLE_SIZE.address();
}
