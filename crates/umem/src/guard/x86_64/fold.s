
    # The CRC-32 of pieces of 256 bytes or a multiple, and, if \copy, a copy of them.
    #
    # rdi destination, rsi source, rdx length of a piece, rcx how many, r8 their CRCs, r9 bytes from the end of one to the next:
    # in the destination if there is one, where the source is without gaps, else in the source
    .macro peerdma_umem_fold_pieces copy
    vbroadcasti32x4 zmm4, [rip + {fold}]
    vbroadcasti32x4 zmm5, [rip + {fold} + 16]
    vmovdqu64 zmm14, [rip + {lanes}]
    .p2align 4
70: mov r10, rdx
    mov eax, [r8]
    not eax
    vmovd xmm13, eax
    vmovdqu64 zmm0, [rsi]
    vmovdqu64 zmm1, [rsi + 64]
    vmovdqu64 zmm2, [rsi + 128]
    vmovdqu64 zmm3, [rsi + 192]
    add rsi, 256
    .if \copy
    vmovdqu64 [rdi], zmm0
    vmovdqu64 [rdi + 64], zmm1
    vmovdqu64 [rdi + 128], zmm2
    vmovdqu64 [rdi + 192], zmm3
    add rdi, 256
    .endif
    vpxorq zmm0, zmm0, zmm13
    sub r10, 256
    jz 72f
    .p2align 4
71: vmovdqu64 zmm6, [rsi]
    vmovdqu64 zmm7, [rsi + 64]
    vmovdqu64 zmm8, [rsi + 128]
    vmovdqu64 zmm9, [rsi + 192]
    add rsi, 256
    .if \copy
    vmovdqu64 [rdi], zmm6
    vmovdqu64 [rdi + 64], zmm7
    vmovdqu64 [rdi + 128], zmm8
    vmovdqu64 [rdi + 192], zmm9
    add rdi, 256
    .endif
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
    sub r10, 256
    jnz 71b
72: # four registers to one
    vpclmulqdq zmm10, zmm0, zmm5, 0x00
    vpclmulqdq zmm0, zmm0, zmm5, 0x11
    vpternlogq zmm1, zmm0, zmm10, 0x96
    vpclmulqdq zmm10, zmm1, zmm5, 0x00
    vpclmulqdq zmm1, zmm1, zmm5, 0x11
    vpternlogq zmm2, zmm1, zmm10, 0x96
    vpclmulqdq zmm10, zmm2, zmm5, 0x00
    vpclmulqdq zmm2, zmm2, zmm5, 0x11
    vpternlogq zmm3, zmm2, zmm10, 0x96
    # its four parts to the last one
    vpclmulqdq zmm10, zmm3, zmm14, 0x00
    vpclmulqdq zmm11, zmm3, zmm14, 0x11
    vextracti32x4 xmm12, zmm3, 3
    vpxorq zmm10, zmm10, zmm11
    vextracti64x4 ymm11, zmm10, 1
    vpxor ymm10, ymm10, ymm11
    vextracti128 xmm11, ymm10, 1
    vpxor xmm12, xmm12, xmm10
    vpxor xmm10, xmm12, xmm11
    # 128 bits to 96, to 64, and to the remainder (Barrett)
    vpclmulqdq xmm11, xmm10, [rip + {reduce}], 0x00
    vpsrldq xmm10, xmm10, 8
    vpxor xmm10, xmm10, xmm11
    vpand xmm11, xmm10, [rip + {reduce} + 32]
    vpclmulqdq xmm11, xmm11, [rip + {reduce}], 0x10
    vpsrldq xmm10, xmm10, 4
    vpxor xmm10, xmm10, xmm11
    vpand xmm11, xmm10, [rip + {reduce} + 32]
    vpclmulqdq xmm11, xmm11, [rip + {reduce} + 16], 0x10
    vpand xmm11, xmm11, [rip + {reduce} + 32]
    vpclmulqdq xmm11, xmm11, [rip + {reduce} + 16], 0x00
    vpxor xmm10, xmm10, xmm11
    vpextrd eax, xmm10, 1
    not eax
    mov [r8], eax
    add r8, 4
    .if \copy
    add rdi, r9
    .else
    add rsi, r9
    .endif
    dec rcx
    jnz 70b
    vzeroupper
    xor eax, eax
    xor edx, edx
    ret
    .endm

    .p2align 4
    .type peerdma_umem_copy_fold, @function
peerdma_umem_copy_fold:
    .cfi_startproc
    peerdma_umem_fold_pieces 1
    .cfi_endproc
    .size peerdma_umem_copy_fold, . - peerdma_umem_copy_fold

    .p2align 4
    .type peerdma_umem_fold, @function
peerdma_umem_fold:
    .cfi_startproc
    peerdma_umem_fold_pieces 0
    .cfi_endproc
    .size peerdma_umem_fold, . - peerdma_umem_fold
    .purgem peerdma_umem_fold_pieces

