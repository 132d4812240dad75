//! The guarded routines for x86_64.
//!
//! Every routine is a leaf that never touches the stack and uses caller-saved registers only, so
//! that the fixup can return to the caller from any of its instructions. Results come back in `rax`
//! (value) and `rdx` (0, or 1 after a fault; `rax` then holds the address that the kernel
//! reported).

use std::arch::global_asm;
use std::sync::atomic::{AtomicU8, Ordering};

#[path = "x86_64/fold.rs"]
mod fold;

pub(super) use fold::{copy_crc32, copy_pieces_crc32, crc32_pieces, folds};

/// Whether the copy may use 32-byte registers; zero until [`prepare`] ran. The routine reads it.
static HAS_AVX: AtomicU8 = AtomicU8::new(0);

/// Detects the processor's features. The routines work before this, more slowly.
pub(super) fn prepare() {
    use std::arch::is_x86_feature_detected as has;
    HAS_AVX.store(u8::from(has!("avx")), Ordering::Relaxed);
    fold::prepare();
}

// `copy`, in words. Let `t` be the address of the naturally aligned 8-byte word that holds the last
// byte of the destination. Everything below `t` is the bulk and is stored first, in any order. The
// bytes from `t` on are the tail and are stored after it by naturally aligned moves in ascending
// order, so that the last byte becomes visible last.
//
// ORDERING: x86 keeps ordinary stores in program order. The stores inside one `rep movsb` may
// become visible in any order, but a discrete store that follows the instruction becomes visible
// after all of them (Intel SDM volume 3, "Fast-String Operation and Out-of-Order Stores", which
// recommends exactly this for a flag behind string data). The tail is such a store, therefore no
// fence is needed. It pairs with the acquire load of the thread that polls the last byte.
//
// The moves for the bulk were chosen by measurements against glibc's memcpy
// (`examples/copy_speed.rs`). A loop of 32-byte moves with aligned stores is as fast at every size,
// and does not depend on how source and destination are aligned to each other; `rep movsb` has a
// start-up cost of some 15 ns, and several cores slow down badly for particular alignments. So AVX
// is used where the processor has it. Otherwise 16-byte moves serve up to 2 KiB, and from there on
// `rep movsb`, which moves whole lines without reading the destination first (ERMS). No path uses
// non-temporal stores: a peer that polls the last byte wants the data in the cache.
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
    .globl peerdma_umem_fold
    .hidden peerdma_umem_fold
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
"#,
    include_str!("x86_64/fold.s"),
    r#"
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
    fold = sym fold::FOLD,
    lanes = sym fold::LANES,
    reduce = sym fold::REDUCE,
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
/// As for [`program_counter`], and the code at `pc` must accept the registers of the interrupted
/// routine.
pub(super) unsafe fn resume_at(context: *mut libc::ucontext_t, pc: usize, value: usize) {
    // SAFETY: the caller promises a valid context; the field is a plain array that `sigreturn`
    // loads.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = pc as libc::greg_t;
    registers[libc::REG_RAX as usize] = value as libc::greg_t;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::plain::peerdma_umem_copy;
    use crate::guard::{Mode, recheck};
    use crate::{HostBuf, Umem};

    /// Other tests may run meanwhile: the flag changes how they copy, and not what they copy.
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
        assert_eq!(crate::guard::mode(), Mode::Guarded);
        assert!(umem.write(0, &[1; 4 * 4096]).is_err());
        umem.write(0, &[1; 2 * 4096]).expect("before the hole");
        prepare();
    }
}
