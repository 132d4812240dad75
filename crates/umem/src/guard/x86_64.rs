//! The guarded routines for x86_64.
//!
//! Every routine is a leaf that never touches the stack and uses caller-saved registers only, so that the fixup can
//! return to the caller from any of its instructions. Results come back in `rax` (value) and `rdx` (0, or 1 after a
//! fault; `rax` then holds the address that the kernel reported).

use std::arch::global_asm;
use std::sync::atomic::{AtomicU8, Ordering};

use super::plain::Outcome;

/// Whether the copy may use 32-byte registers; zero until [`prepare`] ran. The routine reads it.
static HAS_AVX: AtomicU8 = AtomicU8::new(0);

/// Whether [`copy_crc32`] can do both at once; zero until [`prepare`] ran.
static HAS_FOLDING: AtomicU8 = AtomicU8::new(0);

/// Looks at the processor. The routines work before this, more slowly.
pub(super) fn prepare() {
    use std::arch::is_x86_feature_detected as has;
    HAS_AVX.store(u8::from(has!("avx")), Ordering::Relaxed);
    HAS_FOLDING.store(u8::from(has!("avx512f") && has!("vpclmulqdq")), Ordering::Relaxed);
}

/// What [`peerdma_umem_copy_fold`] takes at once.
const BLOCK: usize = 256;

/// Copies the first bytes, as many as can be copied and summed up in one pass: how many, and the CRC-32 of what `crc` is that of
/// and of them.
///
/// # Safety
///
/// As for [`super::copy`], of the source.
pub(super) unsafe fn copy_crc32(
    dst: &mut [u8],
    src: *const u8,
    crc: u32,
) -> Result<(usize, u32), Option<usize>> {
    let len = dst.len() / BLOCK * BLOCK;
    if len == 0 || HAS_FOLDING.load(Ordering::Relaxed) == 0 {
        return Ok((0, crc));
    }
    let mut folded = [0; 64];
    // SAFETY: the caller's promise for the source; there are `len` bytes, at least one block, in `dst`, and 64 in `folded`;
    // and the processor has the instructions.
    unsafe { peerdma_umem_copy_fold(dst.as_mut_ptr(), src, len, !crc, folded.as_mut_ptr()) }
        .into_result()?;
    // The register is in what was folded: a CRC that begins with a register of zero ends with the same one.
    Ok((len, super::crc32(!0, &folded)))
}

unsafe extern "C" {
    /// Copies `len` bytes, a multiple of [`BLOCK`] and not zero, and stores at `folded` 64 bytes that take a CRC-32 register from
    /// zero to where these bytes take `register`.
    fn peerdma_umem_copy_fold(
        dst: *mut u8,
        src: *const u8,
        len: usize,
        register: u32,
        folded: *mut u8,
    ) -> Outcome;
}

/// `x` to the power of `n`, modulo the polynomial of CRC-32, as a factor for `vpclmulqdq`: bits reflected, and one up because
/// the product of two reflected factors is one bit short.
const fn power(n: u32) -> u64 {
    let mut value: u32 = 1 << 31;
    let mut i = 0;
    while i < n {
        value = if value & 1 != 0 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
        i += 1;
    }
    (value as u64) << 1
}

/// What moves 16 bytes on by so many bits: the factors of their first and second half.
const fn by(bits: u32) -> [u64; 2] {
    [power(bits + 32), power(bits - 32)]
}

/// By a block, and by the 64 bytes of a register. The routine reads them.
static FOLD: [[u64; 2]; 2] = [by(8 * BLOCK as u32), by(8 * 64)];

// `copy`, in words. Let `t` be the address of the naturally aligned 8-byte word that holds the last byte of the
// destination. Everything below `t` is the bulk and is stored first, in any order. The bytes from `t` on are the tail
// and are stored after it by naturally aligned moves in ascending order, so that the last byte becomes visible last.
//
// ORDERING: x86 keeps ordinary stores in program order. The stores inside one `rep movsb` may become visible in any
// order, but a discrete store that follows the instruction becomes visible after all of them (Intel SDM volume 3,
// "Fast-String Operation and Out-of-Order Stores", which recommends exactly this for a flag behind string data). The
// tail is such a store, therefore no fence is needed. It pairs with the acquire load of whoever polls the last byte.
//
// How the bulk moves was measured against glibc's memcpy (`examples/copy_speed.rs`). A loop of 32-byte moves with
// aligned stores is as fast at every size, and does not depend on how source and destination are aligned to each other;
// `rep movsb` has a start-up cost of some 15 ns and on several cores collapses for particular alignments. So AVX is
// used where the processor has it. Where not, 16-byte moves serve up to 2 KiB, and from there on `rep movsb`, which
// moves whole lines without reading the destination first (ERMS). No path uses non-temporal stores: a peer that polls
// the last byte wants the data in the cache.
//
// `copy_fold` copies and computes the CRC from the same registers. In two passes the second one waits for the stores of the first
// to leave the store buffer: of 4 KiB that is as long as the CRC itself takes. The folding is that of Intel's "Fast CRC Computation
// for Generic Polynomials Using PCLMULQDQ Instruction", with four registers of four parts each.
global_asm!(
    r#"
    .pushsection .text.peerdma_umem_guard,"ax",@progbits
    .globl peerdma_umem_guard_start
    .hidden peerdma_umem_guard_start
    .globl peerdma_umem_guard_end
    .hidden peerdma_umem_guard_end
    .globl peerdma_umem_guard_fixup
    .hidden peerdma_umem_guard_fixup
    .globl peerdma_umem_copy
    .hidden peerdma_umem_copy
    .globl peerdma_umem_copy_fold
    .hidden peerdma_umem_copy_fold
    .globl peerdma_umem_fill
    .hidden peerdma_umem_fill
    .globl peerdma_umem_compare_swap
    .hidden peerdma_umem_compare_swap
    .globl peerdma_umem_fetch_add
    .hidden peerdma_umem_fetch_add
    .p2align 6
peerdma_umem_guard_start:

    # rdi destination, rsi source, rdx length
    .type peerdma_umem_copy, @function
peerdma_umem_copy:
    .cfi_startproc
    cmp rdx, 8
    jb 60f
    mov r11, [rsi + rdx - 8]
    lea r8, [rdi + rdx]
    lea r9, [r8 - 1]
    and r9, -8
    mov rcx, r9
    sub rcx, rdi
    jz 50f
    cmp rcx, 16
    ja 10f
    cmp rcx, 8
    jb 12f
    # bulk of 8 to 16
    mov rax, [rsi]
    mov r10, [rsi + rcx - 8]
    mov [rdi], rax
    mov [r9 - 8], r10
    jmp 50f
12: # bulk of 1 to 7; at least 8 source bytes exist
    mov rax, [rsi]
    test cl, 4
    jz 13f
    mov [rdi], eax
    shr rax, 32
    add rdi, 4
13: test cl, 2
    jz 14f
    mov [rdi], ax
    shr rax, 16
    add rdi, 2
14: test cl, 1
    jz 50f
    mov [rdi], al
    jmp 50f
10: cmp rcx, 32
    ja 20f
    # bulk of 17 to 32
    movups xmm0, [rsi]
    movups xmm1, [rsi + rcx - 16]
    movups [rdi], xmm0
    movups [r9 - 16], xmm1
    jmp 50f
20: cmp rcx, 64
    ja 30f
    # bulk of 33 to 64
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rcx - 32]
    movups xmm3, [rsi + rcx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [r9 - 32], xmm2
    movups [r9 - 16], xmm3
    jmp 50f
30: cmp rcx, 256
    jb 31f
    cmp byte ptr [rip + {has_avx}], 0
    jne 45f
    cmp rcx, 2048
    jae 40f
31: # bulk of 65 to 255, or to 2047: the first 16 and the last 64 unaligned, the middle with aligned stores
    movups xmm0, [rsi]
    movups xmm4, [rsi + rcx - 64]
    movups xmm5, [rsi + rcx - 48]
    movups xmm6, [rsi + rcx - 32]
    movups xmm7, [rsi + rcx - 16]
    movups [rdi], xmm0
    lea rax, [rdi + 16]
    and rax, -16
    sub rax, rdi
    add rdi, rax
    add rsi, rax
    lea rdx, [r9 - 64]
    cmp rdi, rdx
    jae 34f
    .p2align 4
33: movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movaps [rdi], xmm0
    movaps [rdi + 16], xmm1
    movaps [rdi + 32], xmm2
    movaps [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rdi, rdx
    jb 33b
34: movups [r9 - 64], xmm4
    movups [r9 - 48], xmm5
    movups [r9 - 32], xmm6
    movups [r9 - 16], xmm7
    jmp 50f
40: # bulk of 2048 and more: one unaligned line, then whole lines by rep movsb
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    lea rax, [rdi + 64]
    and rax, -64
    sub rax, rdi
    add rdi, rax
    add rsi, rax
    sub rcx, rax
    rep movsb
    jmp 50f
45: # bulk of 256 and more with AVX: the first 32 and the last 128 unaligned, the middle with aligned stores
    vmovups ymm0, [rsi]
    vmovups ymm4, [rsi + rcx - 128]
    vmovups ymm5, [rsi + rcx - 96]
    vmovups ymm6, [rsi + rcx - 64]
    vmovups ymm7, [rsi + rcx - 32]
    vmovups [rdi], ymm0
    lea rax, [rdi + 32]
    and rax, -32
    sub rax, rdi
    add rdi, rax
    add rsi, rax
    lea rdx, [r9 - 128]
    .p2align 4
46: vmovups ymm0, [rsi]
    vmovups ymm1, [rsi + 32]
    vmovups ymm2, [rsi + 64]
    vmovups ymm3, [rsi + 96]
    vmovaps [rdi], ymm0
    vmovaps [rdi + 32], ymm1
    vmovaps [rdi + 64], ymm2
    vmovaps [rdi + 96], ymm3
    add rsi, 128
    add rdi, 128
    cmp rdi, rdx
    jb 46b
    vmovups [r9 - 128], ymm4
    vmovups [r9 - 96], ymm5
    vmovups [r9 - 64], ymm6
    vmovups [r9 - 32], ymm7
    vzeroupper

50: # the tail: r9 aligned start, r8 end, r11 the last 8 source bytes
    lea rcx, [r9 + 8]
    sub rcx, r8
    jnz 51f
    mov [r9], r11
    xor eax, eax
    xor edx, edx
    ret
51: shl ecx, 3
    shr r11, cl
    sub r8, r9
    test r8b, 4
    jz 52f
    mov [r9], r11d
    shr r11, 32
    add r9, 4
52: test r8b, 2
    jz 53f
    mov [r9], r11w
    shr r11, 16
    add r9, 2
53: test r8b, 1
    jz 54f
    mov [r9], r11b
54: xor eax, eax
    xor edx, edx
    ret

60: # 0 to 7 bytes
    cmp rdx, 4
    jne 61f
    test dil, 3
    jnz 61f
    mov eax, [rsi]
    mov [rdi], eax
    jmp 63f
61: xor ecx, ecx
    test rdx, rdx
    jz 63f
62: mov al, [rsi + rcx]
    mov [rdi + rcx], al
    inc rcx
    cmp rcx, rdx
    jb 62b
63: xor eax, eax
    xor edx, edx
    ret
    .cfi_endproc
    .size peerdma_umem_copy, . - peerdma_umem_copy

    # rdi destination, rsi source, rdx length, ecx register, r8 where to store what was folded
    .p2align 4
    .type peerdma_umem_copy_fold, @function
peerdma_umem_copy_fold:
    .cfi_startproc
    vbroadcasti32x4 zmm4, [rip + {fold}]
    vbroadcasti32x4 zmm5, [rip + {fold} + 16]
    vmovdqu64 zmm0, [rsi]
    vmovdqu64 zmm1, [rsi + 64]
    vmovdqu64 zmm2, [rsi + 128]
    vmovdqu64 zmm3, [rsi + 192]
    vmovdqu64 [rdi], zmm0
    vmovdqu64 [rdi + 64], zmm1
    vmovdqu64 [rdi + 128], zmm2
    vmovdqu64 [rdi + 192], zmm3
    vmovd xmm6, ecx
    vpxorq zmm0, zmm0, zmm6
    add rsi, 256
    add rdi, 256
    sub rdx, 256
    jz 71f
    .p2align 4
70: vmovdqu64 zmm6, [rsi]
    vmovdqu64 zmm7, [rsi + 64]
    vmovdqu64 zmm8, [rsi + 128]
    vmovdqu64 zmm9, [rsi + 192]
    vmovdqu64 [rdi], zmm6
    vmovdqu64 [rdi + 64], zmm7
    vmovdqu64 [rdi + 128], zmm8
    vmovdqu64 [rdi + 192], zmm9
    vpclmulqdq zmm10, zmm0, zmm4, 0x00
    vpclmulqdq zmm11, zmm1, zmm4, 0x00
    vpclmulqdq zmm12, zmm2, zmm4, 0x00
    vpclmulqdq zmm13, zmm3, zmm4, 0x00
    vpclmulqdq zmm0, zmm0, zmm4, 0x11
    vpclmulqdq zmm1, zmm1, zmm4, 0x11
    vpclmulqdq zmm2, zmm2, zmm4, 0x11
    vpclmulqdq zmm3, zmm3, zmm4, 0x11
    vpternlogq zmm0, zmm10, zmm6, 0x96
    vpternlogq zmm1, zmm11, zmm7, 0x96
    vpternlogq zmm2, zmm12, zmm8, 0x96
    vpternlogq zmm3, zmm13, zmm9, 0x96
    add rsi, 256
    add rdi, 256
    sub rdx, 256
    jnz 70b
71: # four registers to one
    vpclmulqdq zmm10, zmm0, zmm5, 0x00
    vpclmulqdq zmm0, zmm0, zmm5, 0x11
    vpternlogq zmm1, zmm0, zmm10, 0x96
    vpclmulqdq zmm10, zmm1, zmm5, 0x00
    vpclmulqdq zmm1, zmm1, zmm5, 0x11
    vpternlogq zmm2, zmm1, zmm10, 0x96
    vpclmulqdq zmm10, zmm2, zmm5, 0x00
    vpclmulqdq zmm2, zmm2, zmm5, 0x11
    vpternlogq zmm3, zmm2, zmm10, 0x96
    vmovdqu64 [r8], zmm3
    vzeroupper
    xor eax, eax
    xor edx, edx
    ret
    .cfi_endproc
    .size peerdma_umem_copy_fold, . - peerdma_umem_copy_fold

    # rdi destination, sil byte, rdx length
    .p2align 4
    .type peerdma_umem_fill, @function
peerdma_umem_fill:
    .cfi_startproc
    mov eax, esi
    mov rcx, rdx
    rep stosb
    xor eax, eax
    xor edx, edx
    ret
    .cfi_endproc
    .size peerdma_umem_fill, . - peerdma_umem_fill

    # rdi address, rsi compare, rdx swap
    .p2align 4
    .type peerdma_umem_compare_swap, @function
peerdma_umem_compare_swap:
    .cfi_startproc
    mov rax, rsi
    lock cmpxchg [rdi], rdx
    xor edx, edx
    ret
    .cfi_endproc
    .size peerdma_umem_compare_swap, . - peerdma_umem_compare_swap

    # rdi address, rsi addend
    .p2align 4
    .type peerdma_umem_fetch_add, @function
peerdma_umem_fetch_add:
    .cfi_startproc
    mov rax, rsi
    lock xadd [rdi], rax
    xor edx, edx
    ret
    .cfi_endproc
    .size peerdma_umem_fetch_add, . - peerdma_umem_fetch_add
peerdma_umem_guard_end:

    # The signal handler continues here, with the faulting address in rax.
    .type peerdma_umem_guard_fixup, @function
peerdma_umem_guard_fixup:
    .cfi_startproc
    mov edx, 1
    cmp byte ptr [rip + {has_avx}], 0
    je 99f
    vzeroupper
99: ret
    .cfi_endproc
    .size peerdma_umem_guard_fixup, . - peerdma_umem_guard_fixup
    .popsection
"#,
    has_avx = sym HAS_AVX,
    fold = sym FOLD,
);

/// Reads the program counter of an interrupted context.
///
/// # Safety
///
/// `context` is the third argument of a signal handler installed with `SA_SIGINFO`.
pub(super) unsafe fn program_counter(context: *const libc::ucontext_t) -> usize {
    // SAFETY: the caller promises a valid context; the kernel filled the registers.
    let pc = unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    pc as usize
}

/// Makes the interrupted context continue at `pc` with `value` as its first result register.
///
/// # Safety
///
/// As for [`program_counter`], and the code at `pc` must accept the registers of the interrupted routine.
pub(super) unsafe fn resume_at(context: *mut libc::ucontext_t, pc: usize, value: usize) {
    // SAFETY: the caller promises a valid context; the field is a plain array that `sigreturn` loads.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = pc as libc::greg_t;
    registers[libc::REG_RAX as usize] = value as libc::greg_t;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::plain::peerdma_umem_copy;
    use crate::guard::{Way, recheck};
    use crate::{HostBuf, Umem};

    #[test]
    fn a_processor_without_wide_registers_finds_the_same_crc() {
        recheck();
        let source: Vec<u8> = (0..5000_u32).map(|i| (i * 13 + i / 251) as u8).collect();
        for len in [256, 700, 1024, 4096, 5000] {
            let sum = |folds| {
                let before = HAS_FOLDING.swap(folds, Ordering::Relaxed);
                let mut target = vec![0; len];
                // SAFETY: the source has 5000 bytes.
                let crc = unsafe { crate::guard::copy_crc32(&mut target, source.as_ptr(), 7) };
                HAS_FOLDING.store(before, Ordering::Relaxed);
                assert_eq!(target, source[..len]);
                crc
            };
            let folds = HAS_FOLDING.load(Ordering::Relaxed);
            assert_eq!(sum(0), sum(folds), "{len} bytes");
        }
    }

    #[test]
    fn the_factors_are_those_of_the_literature() {
        // Intel's paper and every implementation of it have these for CRC-32 and four registers of 16 bytes.
        assert_eq!(FOLD[1], [0x1_5444_2bd4, 0x1_c6e4_1596]);
    }

    /// Other tests may run meanwhile: the flag changes how they copy and not what.
    #[test]
    fn a_processor_without_avx_copies_the_same_and_survives_the_same() {
        recheck();
        HAS_AVX.store(0, Ordering::Relaxed);
        let source: Vec<u8> = (0..9000_u32).map(|i| (i * 13 + i / 251) as u8).collect();
        for len in (250..2200).step_by(7).chain([2048, 2055, 2056, 4096, 8999]) {
            for shift in [0, 1, 8, 31] {
                let mut target = vec![0xee_u8; 9100];
                // SAFETY: 31 + 8999 bytes fit in the target, and the source has 9000.
                let outcome = unsafe {
                    peerdma_umem_copy(target.as_mut_ptr().wrapping_add(shift), source.as_ptr(), len)
                };
                assert_eq!(outcome.fault, 0);
                assert_eq!(target[shift..shift + len], source[..len], "{len} bytes at {shift}");
                assert!(target[..shift].iter().all(|byte| *byte == 0xee));
                assert!(target[shift + len..].iter().all(|byte| *byte == 0xee));
            }
        }

        // A fault in the middle of `rep movsb`.
        let memory = HostBuf::anonymous(4 * 4096).expect("memory exists");
        let hole = memory.as_ptr().wrapping_add(2 * 4096);
        // SAFETY: a page of the buffer, which only this test uses.
        unsafe { libc::mprotect(hole.cast(), 4096, libc::PROT_NONE) };
        // SAFETY: the buffer outlives the handle and nothing else uses it.
        let umem = unsafe { Umem::user(memory.as_ptr().expose_provenance(), 4 * 4096) };
        assert_eq!(crate::guard::way(), Way::Guarded);
        assert!(umem.write(0, &[1; 4 * 4096]).is_err());
        umem.write(0, &[1; 2 * 4096]).expect("before the hole");
        prepare();
    }
}
