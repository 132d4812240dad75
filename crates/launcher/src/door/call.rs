//! The watched system calls (those that take a path): their numbers, and names for their arguments.

/// One watched system call.
pub(super) struct Watched {
    number: libc::c_long,
    /// An argument and a mask: with any of these bits set the call does not concern us, and the
    /// filter allows it.
    pub(super) unless: Option<(u32, u32)>,
    decode: fn(&[u64; 6]) -> Call,
}

impl Watched {
    /// The system call number, as BPF sees it.
    pub(super) fn number(&self) -> u32 {
        self.number as u32
    }
}

/// A watched call with its arguments; addresses are the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// What the path is relative to: a descriptor of the program, or `AT_FDCWD`.
    pub(super) dir: i32,
    /// Where the path is.
    pub(super) path: u64,
    /// What the call asks for.
    pub(super) ask: Ask,
}

/// What a call asks of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// `open`, `openat`: flags.
    Open(u64),
    /// `openat2`: address and size of its `struct open_how`.
    Open2 { how: u64, size: u64 },
    /// `stat`, `lstat`, `newfstatat`: where the result goes.
    Stat { out: u64, follow: bool },
    /// `statx`.
    Statx { out: u64, follow: bool, mask: u32 },
    /// `access`, `faccessat`, `faccessat2`.
    Access { mode: u32, follow: bool },
    /// `readlink`, `readlinkat`: where the target goes, and how much room there is.
    ReadLink { out: u64, size: u64 },
    /// `getxattr`, `lgetxattr`.
    GetXattr { follow: bool },
    /// `listxattr`, `llistxattr`.
    ListXattr { follow: bool },
}

/// Every watched call, the frequent ones first.
///
/// A call that creates a file is not watched: nothing can be created in `/sys`. `AT_EMPTY_PATH` is
/// how libc spells `fstat`, which needs no help.
pub(super) const WATCHED: &[Watched] = &[
    Watched {
        number: libc::SYS_openat,
        unless: Some((2, libc::O_CREAT as u32)),
        decode: |a| Call { dir: fd(a[0]), path: a[1], ask: Ask::Open(a[2]) },
    },
    Watched {
        number: libc::SYS_newfstatat,
        unless: Some((3, libc::AT_EMPTY_PATH as u32)),
        decode: |a| {
            let ask = Ask::Stat { out: a[2], follow: follows(a[3]) };
            Call { dir: fd(a[0]), path: a[1], ask }
        },
    },
    Watched {
        number: libc::SYS_statx,
        unless: Some((2, libc::AT_EMPTY_PATH as u32)),
        decode: |a| {
            let ask = Ask::Statx { out: a[4], follow: follows(a[2]), mask: a[3] as u32 };
            Call { dir: fd(a[0]), path: a[1], ask }
        },
    },
    #[cfg(target_arch = "x86_64")]
    Watched {
        number: libc::SYS_open,
        unless: Some((1, libc::O_CREAT as u32)),
        decode: |a| here(a[0], Ask::Open(a[1])),
    },
    #[cfg(target_arch = "x86_64")]
    Watched {
        number: libc::SYS_stat,
        unless: None,
        decode: |a| here(a[0], Ask::Stat { out: a[1], follow: true }),
    },
    #[cfg(target_arch = "x86_64")]
    Watched {
        number: libc::SYS_lstat,
        unless: None,
        decode: |a| here(a[0], Ask::Stat { out: a[1], follow: false }),
    },
    #[cfg(target_arch = "x86_64")]
    Watched {
        number: libc::SYS_access,
        unless: None,
        decode: |a| here(a[0], Ask::Access { mode: a[1] as u32, follow: true }),
    },
    #[cfg(target_arch = "x86_64")]
    Watched {
        number: libc::SYS_readlink,
        unless: None,
        decode: |a| here(a[0], Ask::ReadLink { out: a[1], size: int(a[2]) }),
    },
    Watched {
        number: libc::SYS_faccessat,
        unless: None,
        decode: |a| {
            let ask = Ask::Access { mode: a[2] as u32, follow: true };
            Call { dir: fd(a[0]), path: a[1], ask }
        },
    },
    Watched {
        number: libc::SYS_faccessat2,
        unless: Some((3, libc::AT_EMPTY_PATH as u32)),
        decode: |a| {
            let ask = Ask::Access { mode: a[2] as u32, follow: follows(a[3]) };
            Call { dir: fd(a[0]), path: a[1], ask }
        },
    },
    Watched {
        number: libc::SYS_readlinkat,
        unless: None,
        decode: |a| Call {
            dir: fd(a[0]),
            path: a[1],
            ask: Ask::ReadLink { out: a[2], size: int(a[3]) },
        },
    },
    Watched {
        number: libc::SYS_openat2,
        unless: None,
        decode: |a| Call { dir: fd(a[0]), path: a[1], ask: Ask::Open2 { how: a[2], size: a[3] } },
    },
    Watched {
        number: libc::SYS_getxattr,
        unless: None,
        decode: |a| here(a[0], Ask::GetXattr { follow: true }),
    },
    Watched {
        number: libc::SYS_lgetxattr,
        unless: None,
        decode: |a| here(a[0], Ask::GetXattr { follow: false }),
    },
    Watched {
        number: libc::SYS_listxattr,
        unless: None,
        decode: |a| here(a[0], Ask::ListXattr { follow: true }),
    },
    Watched {
        number: libc::SYS_llistxattr,
        unless: None,
        decode: |a| here(a[0], Ask::ListXattr { follow: false }),
    },
];

/// Gives the arguments of a watched call their names.
pub(super) fn decode(number: i32, args: &[u64; 6]) -> Option<Call> {
    let watched = WATCHED.iter().find(|watched| watched.number == libc::c_long::from(number))?;
    Some((watched.decode)(args))
}

/// The calls without a directory argument start at the working directory.
fn here(path: u64, ask: Ask) -> Call {
    Call { dir: libc::AT_FDCWD, path, ask }
}

/// CAST: a descriptor is an int in the low half of its register; the high half is undefined.
fn fd(argument: u64) -> i32 {
    argument as i32
}

/// CAST: the size of readlink is an int; a negative one becomes 0, which is also refused with
/// EINVAL.
fn int(argument: u64) -> u64 {
    u64::try_from(argument as i32).unwrap_or(0)
}

fn follows(flags: u64) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW as u64 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_get_their_names() {
        let at_fdcwd = libc::AT_FDCWD as u32 as u64;
        let nofollow = libc::AT_SYMLINK_NOFOLLOW as u64;
        assert_eq!(
            decode(libc::SYS_newfstatat as i32, &[at_fdcwd, 10, 20, nofollow, 0, 0]),
            Some(Call { dir: libc::AT_FDCWD, path: 10, ask: Ask::Stat { out: 20, follow: false } })
        );
        assert_eq!(decode(libc::SYS_read as i32, &[0; 6]), None);
    }
}
