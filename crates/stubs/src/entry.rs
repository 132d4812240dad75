//! Functions of a library of names: each passes the index of its name, and jumps through a table.

/// The table behind functions that [`plain`](crate::plain) and [`versioned`](crate::versioned)
/// make: `COUNT` of them, defined next to it. The first call of any of them goes to `$load`, which
/// fills the table; `$refused` gets the index of a function that nothing serves, and answers the
/// program.
#[macro_export]
macro_rules! table {
    ($load:path, $refused:path) => {
        /// Where each function jumps to: `first`, until the table was filled; then a function of
        /// `libpeerdma.so`, or `refuse`.
        pub(crate) static TABLE: [core::sync::atomic::AtomicPtr<()>; COUNT] =
            [const { core::sync::atomic::AtomicPtr::new(first as *mut ()) }; COUNT];

        /// Where a function that nothing serves jumps to.
        pub(crate) fn refusing() -> *mut () {
            refuse as *mut ()
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn go() {
            core::arch::naked_asm!("lea r11, [rip + {table}]", "jmp [r11 + 8*rax]", table = sym TABLE)
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn go() {
            core::arch::naked_asm!(
                "adrp x17, {table}",
                "add x17, x17, :lo12:{table}",
                "ldr x17, [x17, w16, uxtw #3]",
                "br x17",
                table = sym TABLE,
            )
        }

        /// The first call of any function: keeps its arguments, fills the table, and starts over.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn first() {
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rax",
                "mov [rsp + 8], rdi",
                "mov [rsp + 16], rsi",
                "mov [rsp + 24], rdx",
                "mov [rsp + 32], rcx",
                "mov [rsp + 40], r8",
                "mov [rsp + 48], r9",
                "movups [rsp + 64], xmm0",
                "movups [rsp + 80], xmm1",
                "movups [rsp + 96], xmm2",
                "movups [rsp + 112], xmm3",
                "movups [rsp + 128], xmm4",
                "movups [rsp + 144], xmm5",
                "movups [rsp + 160], xmm6",
                "movups [rsp + 176], xmm7",
                "call {load}",
                "mov rax, [rsp]",
                "mov rdi, [rsp + 8]",
                "mov rsi, [rsp + 16]",
                "mov rdx, [rsp + 24]",
                "mov rcx, [rsp + 32]",
                "mov r8, [rsp + 40]",
                "mov r9, [rsp + 48]",
                "movups xmm0, [rsp + 64]",
                "movups xmm1, [rsp + 80]",
                "movups xmm2, [rsp + 96]",
                "movups xmm3, [rsp + 112]",
                "movups xmm4, [rsp + 128]",
                "movups xmm5, [rsp + 144]",
                "movups xmm6, [rsp + 160]",
                "movups xmm7, [rsp + 176]",
                "leave",
                "jmp {go}",
                load = sym $load,
                go = sym go,
            )
        }

        /// The first call of any function: keeps its arguments, fills the table, and starts over.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn first() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-224]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp x8, x16, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "bl {load}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x8, x16, [sp, #80]",
                "ldp q0, q1, [sp, #96]",
                "ldp q2, q3, [sp, #128]",
                "ldp q4, q5, [sp, #160]",
                "ldp q6, q7, [sp, #192]",
                "ldp x29, x30, [sp], #224",
                "b {go}",
                load = sym $load,
                go = sym go,
            )
        }

        /// A function that nothing serves: only its index matters.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn refuse() {
            core::arch::naked_asm!("mov edi, eax", "jmp {refused}", refused = sym $refused)
        }

        /// A function that nothing serves: only its index matters.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn refuse() {
            core::arch::naked_asm!("mov w0, w16", "b {refused}", refused = sym $refused)
        }
    };
}

/// One function without a version.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! plain {
    ($name:ident, $index:literal) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "names of C")]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov eax, {index}",
                "mov eax, {index}",
                "mov eax, {index}",
                "jmp {go}",
                index = const $index,
                go = sym go,
            )
        }
    };
}

/// One function without a version.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! plain {
    ($name:ident, $index:literal) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "names of C")]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov w16, {index}",
                "nop",
                "nop",
                "nop",
                "b {go}",
                index = const $index,
                go = sym go,
            )
        }
    };
}

/// One function of a version node.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! versioned {
    ($name:ident, $local:literal, $version:literal, $index:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $local, ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl ", $local),
            concat!(".type ", $local, ", @function"),
            concat!($local, ":"),
            "mov eax, {index}",
            "mov eax, {index}",
            "mov eax, {index}",
            "jmp {go}",
            concat!(".size ", $local, ", . - ", $local),
            $version,
            ".popsection",
            index = const $index,
            go = sym go,
        );
    };
}

/// One function of a version node.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! versioned {
    ($name:ident, $local:literal, $version:literal, $index:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $local, ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl ", $local),
            concat!(".type ", $local, ", @function"),
            concat!($local, ":"),
            "mov w16, {index}",
            "b {go}",
            concat!(".size ", $local, ", . - ", $local),
            $version,
            ".popsection",
            index = const $index,
            go = sym go,
        );
    };
}
