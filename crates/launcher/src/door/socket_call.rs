//! The watched system calls that make and describe sockets of NETLINK_RDMA. The filter sees a
//! descriptor's number and not its file, so other sockets' calls come here, too, where an argument
//! does not tell them apart; they are few, and none of them moves data.

/// `struct sockaddr_nl`: family, padding, port, groups.
pub(super) const ADDRESS: usize = 12;

/// `NETLINK_RDMA`.
const NETLINK_RDMA: u32 = 20;
/// `SOL_NETLINK`.
const SOL_NETLINK: u32 = 270;

/// What a program asks of such a socket; addresses are the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// `socket`: the type with its flags.
    Open { kind: u64 },
    /// `bind` to an address of this length.
    Bind { fd: i32, address: u64 },
    /// `getsockname`.
    Name { fd: i32, address: u64, length: u64 },
    /// `setsockopt` of netlink's level.
    SetOption { fd: i32 },
}

/// One watched system call.
pub(super) struct WatchedSocket {
    number: libc::c_long,
    /// Arguments and the values that they must have; otherwise the filter allows the call.
    pub(super) only: &'static [(u32, u32)],
    decode: fn(&[u64; 6]) -> Ask,
}

impl WatchedSocket {
    /// The system call number, as BPF sees it.
    pub(super) fn number(&self) -> u32 {
        self.number as u32
    }
}

/// Every such call.
pub(super) const WATCHED_SOCKETS: &[WatchedSocket] = &[
    WatchedSocket {
        number: libc::SYS_socket,
        only: &[(0, libc::AF_NETLINK as u32), (2, NETLINK_RDMA)],
        decode: |a| Ask::Open { kind: a[1] },
    },
    WatchedSocket {
        number: libc::SYS_bind,
        // No other family's addresses are as long.
        only: &[(2, ADDRESS as u32)],
        decode: |a| Ask::Bind { fd: fd(a[0]), address: a[1] },
    },
    WatchedSocket {
        number: libc::SYS_getsockname,
        only: &[],
        decode: |a| Ask::Name { fd: fd(a[0]), address: a[1], length: a[2] },
    },
    WatchedSocket {
        number: libc::SYS_setsockopt,
        only: &[(1, SOL_NETLINK)],
        decode: |a| Ask::SetOption { fd: fd(a[0]) },
    },
];

/// Gives the arguments of such a call their names.
pub(super) fn decode(number: i32, args: &[u64; 6]) -> Option<Ask> {
    let is_it = |watched: &&WatchedSocket| watched.number == libc::c_long::from(number);
    Some((WATCHED_SOCKETS.iter().find(is_it)?.decode)(args))
}

/// CAST: a descriptor is an int in the low half of its register; the high half is undefined.
fn fd(argument: u64) -> i32 {
    argument as i32
}
