//! The seccomp filter: a classic BPF program over the number and arguments of a system call.
//!
//! Calls that are not watched are allowed whatever their arguments, which the kernel determines
//! once and remembers in a bitmap: they run no BPF. It cannot read paths, so each watched call
//! costs a round trip to the supervisor; a flag argument exempts some.

use super::call::WATCHED;
use super::socket_call::WATCHED_SOCKETS;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

/// Numbers from here on are those of the x32 ABI (`__X32_SYSCALL_BIT`), which has calls of its own.
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`.
const NR: u32 = 0;
const ARCH_AT: u32 = 4;
const ARGS: u32 = 16;

/// The program. Architectures other than the native one (32-bit programs) pass unseen.
pub(super) fn program() -> Vec<libc::sock_filter> {
    let mut code = vec![
        load(ARCH_AT),
        jump(libc::BPF_JEQ, ARCH, 1, 0),
        give(libc::SECCOMP_RET_ALLOW),
        load(NR),
        jump(libc::BPF_JGE, X32, 0, 1),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    for watched in WATCHED {
        match watched.unless {
            None => code.extend([
                jump(libc::BPF_JEQ, watched.number(), 0, 1),
                give(libc::SECCOMP_RET_USER_NOTIF),
            ]),
            Some((argument, mask)) => code.extend([
                jump(libc::BPF_JEQ, watched.number(), 0, 4),
                // The low half: both architectures are little-endian, and flags fit in 32 bits.
                load(ARGS + 8 * argument),
                jump(libc::BPF_JSET, mask, 0, 1),
                give(libc::SECCOMP_RET_ALLOW),
                give(libc::SECCOMP_RET_USER_NOTIF),
            ]),
        }
    }
    for watched in WATCHED_SOCKETS {
        // Each comparison takes two instructions, and the verdict one.
        let left = |done: usize| 2 * (watched.only.len() - done) as u8;
        code.push(jump(libc::BPF_JEQ, watched.number(), 0, left(0) + 2));
        for (done, (argument, value)) in watched.only.iter().enumerate() {
            // The low half: these arguments are ints.
            code.push(load(ARGS + 8 * argument));
            code.push(jump(libc::BPF_JEQ, *value, 0, left(done + 1) + 1));
        }
        code.push(give(libc::SECCOMP_RET_USER_NOTIF));
        code.push(give(libc::SECCOMP_RET_ALLOW));
    }
    code.push(give(libc::SECCOMP_RET_ALLOW));
    code
}

fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

fn jump(condition: u32, operand: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | condition | libc::BPF_K, if_true, if_false, operand)
}

fn give(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    let code = u16::try_from(code).expect("BPF opcodes have 16 bits");
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn verdict(arch: u32, number: u32, args: [u32; 6]) -> u32 {
        let program = program();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            let test = match u32::from(code) & 0xf0 {
                _ if u32::from(code) & 7 != libc::BPF_JMP => false,
                libc::BPF_JEQ => accumulator == k,
                libc::BPF_JGE => accumulator >= k,
                libc::BPF_JSET => accumulator & k != 0,
                other => panic!("jump {other:#x}"),
            };
            at += 1;
            match u32::from(code) & 7 {
                libc::BPF_RET => return k,
                libc::BPF_LD => {
                    accumulator = match k {
                        NR => number,
                        ARCH_AT => arch,
                        argument => args[((argument - ARGS) / 8) as usize],
                    };
                }
                libc::BPF_JMP => at += usize::from(if test { jt } else { jf }),
                other => panic!("class {other}"),
            }
        }
    }

    #[test]
    fn paths_are_watched_and_nothing_else() {
        let number = |call: libc::c_long| call as u32;
        let openat = number(libc::SYS_openat);
        assert_eq!(verdict(ARCH, openat, [0; 6]), libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(verdict(ARCH, number(libc::SYS_read), [0; 6]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(ARCH, openat | X32, [0; 6]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(0x4000_0003, openat, [0; 6]), libc::SECCOMP_RET_ALLOW);
        for watched in WATCHED {
            assert_eq!(verdict(ARCH, watched.number(), [0; 6]), libc::SECCOMP_RET_USER_NOTIF);
        }
    }

    #[test]
    fn only_sockets_of_netlink_rdma_are_watched() {
        let socket = |family: libc::c_int, protocol: u32| {
            let args = [family as u32, libc::SOCK_RAW as u32, protocol, 0, 0, 0];
            verdict(ARCH, libc::SYS_socket as u32, args)
        };
        assert_eq!(socket(libc::AF_NETLINK, 20), libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(socket(libc::AF_NETLINK, 0), libc::SECCOMP_RET_ALLOW, "routes");
        assert_eq!(socket(libc::AF_INET, 20), libc::SECCOMP_RET_ALLOW);
        let bind = |length| verdict(ARCH, libc::SYS_bind as u32, [3, 0, length, 0, 0, 0]);
        assert_eq!(bind(12), libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(bind(16), libc::SECCOMP_RET_ALLOW, "IPv4");
        let option = |level| verdict(ARCH, libc::SYS_setsockopt as u32, [3, level, 1, 0, 4, 0]);
        assert_eq!(option(270), libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(option(libc::SOL_SOCKET as u32), libc::SECCOMP_RET_ALLOW);
        let name = verdict(ARCH, libc::SYS_getsockname as u32, [3, 0, 0, 0, 0, 0]);
        assert_eq!(name, libc::SECCOMP_RET_USER_NOTIF);
        for other in [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_recvmsg] {
            assert_eq!(verdict(ARCH, other as u32, [0; 6]), libc::SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn a_flag_exempts_a_call() {
        let openat = libc::SYS_openat as u32;
        let creating = [0, 0, libc::O_CREAT as u32, 0, 0, 0];
        assert_eq!(verdict(ARCH, openat, creating), libc::SECCOMP_RET_ALLOW);
        let fstat = [3, 0, 0, libc::AT_EMPTY_PATH as u32, 0, 0];
        assert_eq!(verdict(ARCH, libc::SYS_newfstatat as u32, fstat), libc::SECCOMP_RET_ALLOW);
    }
}
