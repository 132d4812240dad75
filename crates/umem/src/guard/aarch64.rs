//! The guarded routines for aarch64.
//!
//! Every routine is a leaf that never touches the stack and uses caller-saved registers only, so
//! that the fixup can return to the caller from any of its instructions. Results come back in `x0`
//! (value) and `x1` (0, or 1 after a fault; `x0` then holds the address that the kernel reported).

use std::arch::global_asm;

use crate::pieces::Pieces;

/// Nothing to detect: the baseline has the widest moves that the routines use.
pub(super) fn prepare() {}

/// Copies as many of the first bytes as can be copied and checksummed in one pass: none here.
///
/// # Safety
///
/// None; the x86_64 counterpart has conditions.
pub(super) unsafe fn copy_crc32(
    _dst: &mut [u8],
    _src: *const u8,
    crc: u32,
) -> Result<(usize, u32), Option<usize>> {
    Ok((0, crc))
}

/// Copies pieces and checksums them in one pass: not available here.
///
/// # Safety
///
/// None; the x86_64 counterpart has conditions.
pub(super) unsafe fn copy_pieces_crc32(
    _dst: &mut [u8],
    _pieces: Pieces,
    _src: *const u8,
    _crcs: &mut [u32],
) -> bool {
    false
}

/// Whether pieces of this length can be checksummed: not here.
pub(super) fn folds(_len: usize) -> bool {
    false
}

/// Checksums pieces: not available here.
pub(super) fn crc32_pieces(_bytes: &[u8], _pieces: Pieces, _crcs: &mut [u32]) -> bool {
    false
}

// `copy` works as its x86_64 counterpart: the bulk first, then the naturally aligned word that
// holds the last byte.
//
// ORDERING: aarch64 may reorder any two stores. The tail is stored with `stlr*` (release): it
// becomes visible after everything the bulk stored, and pairs with the acquire load of the thread
// that polls the last byte.
global_asm!(
    r#"
    .pushsection .text.peerdma_umem_guard,"ax",%progbits
    .globl peerdma_umem_guard_start
    .hidden peerdma_umem_guard_start
    .globl peerdma_umem_guard_end
    .hidden peerdma_umem_guard_end
    .globl peerdma_umem_guard_fixup
    .hidden peerdma_umem_guard_fixup
    .globl peerdma_umem_copy
    .hidden peerdma_umem_copy
    .globl peerdma_umem_fill
    .hidden peerdma_umem_fill
    .globl peerdma_umem_compare_swap
    .hidden peerdma_umem_compare_swap
    .globl peerdma_umem_fetch_add
    .hidden peerdma_umem_fetch_add
    .p2align 6
peerdma_umem_guard_start:

    // x0 destination, x1 source, x2 length
    .type peerdma_umem_copy, %function
peerdma_umem_copy:
    .cfi_startproc
    cmp x2, #8
    b.lo 60f
    add x3, x0, x2
    add x4, x1, x2
    ldur x5, [x4, #-8]
    sub x6, x3, #1
    and x6, x6, #0xfffffffffffffff8
    subs x7, x6, x0
    b.eq 50f
    add x4, x1, x7
    cmp x7, #64
    b.hs 30f
    cmp x7, #32
    b.hs 20f
    cmp x7, #16
    b.hs 15f
    cmp x7, #8
    b.hs 12f
    // bulk of 1 to 7; at least 8 source bytes exist
    ldr x8, [x1]
    tbz x7, #2, 10f
    str w8, [x0], #4
    lsr x8, x8, #32
10: tbz x7, #1, 11f
    strh w8, [x0], #2
    lsr x8, x8, #16
11: tbz x7, #0, 50f
    strb w8, [x0]
    b 50f
12: // bulk of 8 to 15
    ldr x8, [x1]
    ldur x9, [x4, #-8]
    str x8, [x0]
    stur x9, [x6, #-8]
    b 50f
15: // bulk of 16 to 31
    ldr q0, [x1]
    ldur q1, [x4, #-16]
    str q0, [x0]
    stur q1, [x6, #-16]
    b 50f
20: // bulk of 32 to 63
    ldp q0, q1, [x1]
    ldp q2, q3, [x4, #-32]
    stp q0, q1, [x0]
    stp q2, q3, [x6, #-32]
    b 50f
30: // bulk of 64 and more: the first 16 and the last 64 unaligned, the middle with aligned stores
    ldr q0, [x1]
    ldp q4, q5, [x4, #-64]
    ldp q6, q7, [x4, #-32]
    str q0, [x0]
    add x8, x0, #16
    and x8, x8, #0xfffffffffffffff0
    sub x9, x8, x0
    add x1, x1, x9
    mov x0, x8
    sub x10, x6, #64
    cmp x0, x10
    b.hs 32f
31: ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    stp q0, q1, [x0]
    stp q2, q3, [x0, #32]
    add x1, x1, #64
    add x0, x0, #64
    cmp x0, x10
    b.lo 31b
32: stp q4, q5, [x6, #-64]
    stp q6, q7, [x6, #-32]

50: // the tail: x6 aligned start, x3 end, x5 the last 8 source bytes
    sub x7, x3, x6
    cmp x7, #8
    b.ne 51f
    stlr x5, [x6]
    b 63f
51: mov x8, #8
    sub x8, x8, x7
    lsl x8, x8, #3
    lsr x5, x5, x8
    tbz x7, #2, 52f
    stlr w5, [x6]
    lsr x5, x5, #32
    add x6, x6, #4
52: tbz x7, #1, 53f
    stlrh w5, [x6]
    lsr x5, x5, #16
    add x6, x6, #2
53: tbz x7, #0, 63f
    stlrb w5, [x6]
    b 63f

60: // 0 to 7 bytes
    cmp x2, #4
    b.ne 61f
    tst x0, #3
    b.ne 61f
    ldr w8, [x1]
    str w8, [x0]
    b 63f
61: cbz x2, 63f
62: ldrb w8, [x1], #1
    stlrb w8, [x0]
    add x0, x0, #1
    subs x2, x2, #1
    b.ne 62b
63: mov x0, #0
    mov x1, #0
    ret
    .cfi_endproc
    .size peerdma_umem_copy, . - peerdma_umem_copy

    // x0 destination, w1 byte, x2 length
    .p2align 4
    .type peerdma_umem_fill, %function
peerdma_umem_fill:
    .cfi_startproc
    dup v0.16b, w1
70: cmp x2, #16
    b.lo 71f
    str q0, [x0], #16
    sub x2, x2, #16
    b 70b
71: cbz x2, 72f
    strb w1, [x0], #1
    sub x2, x2, #1
    b 71b
72: mov x0, #0
    mov x1, #0
    ret
    .cfi_endproc
    .size peerdma_umem_fill, . - peerdma_umem_fill

    // x0 address, x1 compare, x2 swap. Exclusives rather than CAS: the baseline (ARMv8.0) has no
    // LSE. The old value is stored back on a mismatch, so that a page without write permission
    // faults either way, as on x86.
    .p2align 4
    .type peerdma_umem_compare_swap, %function
peerdma_umem_compare_swap:
    .cfi_startproc
80: ldaxr x3, [x0]
    cmp x3, x1
    csel x4, x2, x3, eq
    stlxr w5, x4, [x0]
    cbnz w5, 80b
    dmb ish
    mov x0, x3
    mov x1, #0
    ret
    .cfi_endproc
    .size peerdma_umem_compare_swap, . - peerdma_umem_compare_swap

    // x0 address, x1 addend
    .p2align 4
    .type peerdma_umem_fetch_add, %function
peerdma_umem_fetch_add:
    .cfi_startproc
90: ldaxr x3, [x0]
    add x4, x3, x1
    stlxr w5, x4, [x0]
    cbnz w5, 90b
    dmb ish
    mov x0, x3
    mov x1, #0
    ret
    .cfi_endproc
    .size peerdma_umem_fetch_add, . - peerdma_umem_fetch_add
peerdma_umem_guard_end:

    // The signal handler continues here, with the faulting address in x0.
    .type peerdma_umem_guard_fixup, %function
peerdma_umem_guard_fixup:
    .cfi_startproc
    mov x1, #1
    ret
    .cfi_endproc
    .size peerdma_umem_guard_fixup, . - peerdma_umem_guard_fixup
    .popsection
"#
);

/// Reads the program counter of an interrupted context.
///
/// # Safety
///
/// `context` is the third argument of a signal handler installed with `SA_SIGINFO`.
pub(super) unsafe fn program_counter(context: *const libc::ucontext_t) -> usize {
    // SAFETY: the caller promises a valid context; the kernel filled the registers.
    let pc = unsafe { (*context).uc_mcontext.pc };
    pc as usize
}

/// Makes the interrupted context continue at `pc` with `value` as its first result register.
///
/// # Safety
///
/// As for [`program_counter`], and the code at `pc` must accept the registers of the interrupted
/// routine.
pub(super) unsafe fn resume_at(context: *mut libc::ucontext_t, pc: usize, value: usize) {
    // SAFETY: the caller promises a valid context; the field is plain data that `sigreturn` loads.
    let registers = unsafe { &mut (*context).uc_mcontext };
    registers.pc = pc as u64;
    registers.regs[0] = value as u64;
}
