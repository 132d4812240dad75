//! Whether a path is ours or the kernel's.

use crate::sysfs::{LISTINGS, served};

/// Which part of our tree a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Something below a directory we answer for. The path starts at such a directory, and may
    /// continue with `..` and links, which the kernel walks in the backing.
    Served(Vec<u8>),
    /// A directory that lists names of ours together with the kernel's.
    Listing(&'static str),
}

/// Whether a path as the program wrote it, absolute or not, could be ours. Every path of a program
/// passes through here, so this is a single scan; it may accept a path that is not ours.
///
/// A relative path has the last name of a served directory in it, or starts from a directory of the
/// backing that the program opened, where the kernel resolves it without us.
pub(super) fn may_be_ours(path: &[u8]) -> bool {
    path.windows(7).any(|part| match part[0] {
        b'p' => {
            part == b"peerdma"
                || part == b"peermem"
                || part == b"pci/dev"
                || part.starts_with(b"pci") && part[3].is_ascii_hexdigit()
        }
        b'i' => part == &b"infiniband"[..7],
        b'c' => part == b"config-",
        b'k' => part == b"kallsym",
        b'm' => part == b"modules",
        b'n' => part == b"nv_peer",
        b'y' => part == b"y_peers",
        b'd' => part == b"drm/car" || part == b"drm/ren",
        b'a' => part == b"accel/a",
        b'v' => part == b"vfio-de",
        _ => false,
    }) || ends_with(path, b"class")
        || ends_with(path, b"drm")
        || ends_with(path, b"accel")
        || ends_with(path, b"vfio-dev")
}

/// Whether an absolute path could be that of a counter.
pub(super) fn may_be_counter(path: &[u8]) -> bool {
    path.windows(9).any(|part| part == b"counters/")
}

/// Finds an absolute path in the tree. `.` and `..` are resolved textually, ignoring symbolic
/// links: there are none on the path to the directories we serve.
pub(super) fn find(path: &[u8]) -> Option<Place> {
    let mut walked: Vec<&[u8]> = Vec::new();
    let mut rest = path;
    while let Some(start) = rest.iter().position(|&byte| byte != b'/') {
        let length = rest[start..].iter().position(|&byte| byte == b'/');
        let (name, behind) = match length {
            Some(length) => rest[start..].split_at(length),
            None => (&rest[start..], &b""[..]),
        };
        rest = behind;
        match name {
            b"." => {}
            b".." => drop(walked.pop()),
            name => walked.push(name),
        }
        if let Some(served) = served().find(|served| is_spelt(served, &walked)) {
            return Some(Place::Served([served.as_bytes(), rest].concat()));
        }
    }
    LISTINGS.into_iter().find(|listing| is_spelt(listing, &walked)).map(Place::Listing)
}

fn is_spelt(path: &str, names: &[&[u8]]) -> bool {
    path.split('/').skip(1).map(str::as_bytes).eq(names.iter().copied())
}

/// Whether the last name ends like that of a directory in which names of ours are listed.
fn ends_with(path: &[u8], name: &[u8]) -> bool {
    let end = path.iter().rposition(|&byte| byte != b'/' && byte != b'.').map_or(0, |at| at + 1);
    path[..end].ends_with(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(path: &str) -> String {
        assert!(may_be_ours(path.as_bytes()), "{path}");
        match find(path.as_bytes()) {
            Some(Place::Served(path)) => String::from_utf8(path).unwrap(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn our_paths_are_found_however_they_are_written() {
        assert_eq!(served("/sys/class/infiniband"), "/sys/class/infiniband");
        assert_eq!(served("//sys/./class//infiniband/"), "/sys/class/infiniband/");
        assert_eq!(served("/tmp/../sys/class/infiniband/a"), "/sys/class/infiniband/a");
        assert_eq!(served("/sys/class/net/../infiniband/a"), "/sys/class/infiniband/a");
        assert_eq!(served("/sys/class/infiniband_verbs/x"), "/sys/class/infiniband_verbs/x");
    }

    #[test]
    fn the_rest_of_a_path_below_a_served_directory_is_left_to_the_kernel() {
        let path = "/sys/class/infiniband/peerdma0/device/../peerdma0";
        assert_eq!(served(path), path);
    }

    #[test]
    fn the_module_of_a_real_gpu_is_hidden() {
        for path in [
            "/sys/module/nvidia_peermem/version",
            "/sys/module/nv_peer_mem/version",
            "/sys/kernel/mm/memory_peers/nv_mem/version",
            "/proc/kallsyms",
            "/proc/modules",
        ] {
            assert_eq!(served(path), path);
        }
    }

    #[test]
    fn other_paths_are_not_ours() {
        for path in ["/sys/class/net", "/sys/class/infiniband_mad/x", "/sys/class/infinibandx", "/"]
        {
            assert_eq!(find(path.as_bytes()), None, "{path}");
        }
        for path in ["/etc/passwd", "/usr/lib/libc.so.6", "", ".", "/sys/class/net"] {
            assert!(!may_be_ours(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn the_directory_of_classes_is_ours_alone() {
        for path in ["/sys/class", "/sys/class/", "/sys/class/.", "/sys//class"] {
            assert!(may_be_ours(path.as_bytes()), "{path}");
            assert_eq!(find(path.as_bytes()), Some(Place::Listing("/sys/class")), "{path}");
        }
        for path in ["/sys/class/drm", "/sys/class/net/../drm/"] {
            assert!(may_be_ours(path.as_bytes()), "{path}");
            assert_eq!(find(path.as_bytes()), Some(Place::Listing("/sys/class/drm")), "{path}");
        }
        for path in ["/sys/class/accel", "/sys/class/accel/", "/sys/class/vfio-dev/vfio0"] {
            assert!(may_be_ours(path.as_bytes()), "{path}");
        }
    }
}
