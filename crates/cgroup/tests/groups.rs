//! Groups of a host whose files a test wrote.

use std::fs;
use std::path::{Path, PathBuf};

use cgroup::{Groups, RdmaResource};

/// The root directory of a host, which is removed at the end.
struct Host(PathBuf);

impl Host {
    fn empty(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("cgroup-{test}-{}", std::process::id()));
        fs::create_dir_all(&root).expect("it can be made");
        Self(root)
    }

    /// A process of `/a/b`, a sibling group, and limits at two levels.
    fn new(test: &str) -> Self {
        let host = Self::empty(test);
        let write = |path: &str, text: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().expect("in the root")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        };
        write("proc/self/cgroup", "4:memory,dmem:/old\n0::/a/b\n");
        write("sys/fs/cgroup/a/b/rdma.max", "nic0 hca_handle=max hca_object=5\n");
        write("sys/fs/cgroup/a/rdma.max", "nic0 hca_handle=3 hca_object=4\n");
        write("sys/fs/cgroup/a/c/rdma.max", "nic0 hca_handle=1 hca_object=1\n");
        write("sys/fs/cgroup/memory,dmem/old/dmem.max", "drm/0000:03:00.0/vram 4096\n");
        host
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_group_and_each_one_above_it_limit_a_process() {
    let host = Host::new("above");
    let groups = Groups::of_self(host.path());
    let limits = |resource| {
        let limits = groups.rdma_max("nic0", resource).into_iter();
        limits.map(|limit| (limit.group.to_string(), limit.most)).collect::<Vec<_>>()
    };
    let of = |path: &str, most| (format!("cgroup {path}"), most);
    assert_eq!(limits(RdmaResource::HcaObject), [of("/a/b", 5), of("/a", 4)]);
    assert_eq!(limits(RdmaResource::HcaHandle), [of("/a", 3)]);
    assert!(groups.rdma_max("nic1", RdmaResource::HcaObject).is_empty());
}

#[test]
fn a_controller_of_version_1_has_groups_of_its_own() {
    let host = Host::new("version");
    let groups = Groups::of_self(host.path());
    assert_eq!(groups.dmem_max("drm/0000:03:00.0/vram")[0].most, 4096);
    assert_eq!(groups.own("dmem").expect("it is there").to_string(), "cgroup /old");
    assert_eq!(groups.own("rdma").expect("it is there").to_string(), "cgroup /a/b");
}

#[test]
fn a_group_has_those_below_it() {
    let host = Host::new("below");
    let groups = Groups::of_self(host.path());
    let files = groups.files("rdma", "rdma.max");
    let (own, above) = (&files[0].group, &files[1].group);
    assert_eq!(own.ids_below().len(), 1);
    let ids = above.ids_below();
    assert_eq!(ids.len(), 3, "itself, and two below");
    assert!(ids.contains(&own.id().expect("it is there")));
}

#[test]
fn a_host_without_groups_limits_nothing() {
    let host = Host::empty("nothing");
    let groups = Groups::of_self(host.path());
    assert!(groups.own("rdma").is_none());
    assert!(groups.rdma_max("nic0", RdmaResource::HcaObject).is_empty());
}
