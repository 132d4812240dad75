//! Contexts and objects are limited by the `rdma.max` of the control groups of a process, each
//! together with the other processes of that group (`docs/semantics.md` 2.7).
//!
//! The groups are directories that the test writes. The other process is this program again, with
//! its root directory in its environment.

#[path = "common/actor.rs"]
mod actor;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use verbs::soft::{self, NicConfig};
use verbs::{Access, Context, Device, HostBuf, Kind, Pd, Refusal};

use actor::Actor;

const NIC: &str = "PEERDMA_TEST_CGROUP_NIC";
const ROOT: &str = "PEERDMA_TEST_CGROUP_ROOT";
/// Far more than the kernel needs to end a process.
const PATIENCE: Duration = Duration::from_secs(30);

/// Root directories of two processes, of `/job/a` and `/job/b`, that see the same groups.
struct Groups {
    directory: PathBuf,
    nic: String,
}

impl Groups {
    fn new(test: &str) -> Self {
        let nic = format!("cg{}-{test}", std::process::id());
        let directory = std::env::temp_dir().join(&nic);
        for process in ["a", "b"] {
            let root = directory.join(process);
            fs::create_dir_all(root.join("proc/self")).unwrap();
            fs::write(root.join("proc/self/cgroup"), format!("0::/job/{process}\n")).unwrap();
            fs::create_dir_all(root.join("sys/fs")).unwrap();
            fs::create_dir_all(directory.join("groups/job").join(process)).unwrap();
            std::os::unix::fs::symlink(directory.join("groups"), root.join("sys/fs/cgroup"))
                .unwrap();
        }
        Self { directory, nic }
    }

    fn set(&self, group: &str, limits: &str) {
        let file = self.directory.join("groups").join(group).join("rdma.max");
        fs::write(file, format!("{} {limits}\n", self.nic)).unwrap();
    }

    fn root(&self, process: &str) -> PathBuf {
        self.directory.join(process)
    }

    fn device(&self, process: &str) -> Device {
        device(&self.nic, &self.root(process))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn device(nic: &str, root: &Path) -> Device {
    let (name, cgroup_root) = (nic.to_owned(), root.to_owned());
    soft::device(NicConfig { name, cgroup_root, ..NicConfig::default() }).unwrap()
}

fn other(groups: &Groups) -> Actor {
    let variables = [(NIC, groups.nic.clone().into()), (ROOT, groups.root("b"))];
    Actor::start("the_part_of_the_other_process", variables)
}

#[test]
fn the_part_of_the_other_process() {
    let (Ok(nic), Ok(root)) = (std::env::var(NIC), std::env::var(ROOT)) else { return };
    let device = device(&nic, Path::new(&root));
    let (mut contexts, mut pds): (Vec<Context>, Vec<Pd>) = (vec![], vec![]);
    for line in std::io::stdin().lines() {
        let said = match line.unwrap().as_str() {
            "open" => device.open().map(|context| contexts.push(context)),
            "pd" => contexts[0].alloc_pd().map(|pd| pds.push(pd)),
            _ => {
                pds.clear();
                Ok(())
            }
        };
        println!(
            "said: {}",
            said.map_or_else(|refusal| format!("{:?}", refusal.kind()), |()| "ok".into())
        );
    }
}

fn kind<T>(result: Result<T, Refusal>) -> Option<Kind> {
    result.err().map(|refusal| refusal.kind())
}

#[test]
fn every_object_is_charged_and_a_destroyed_one_is_free_again() {
    let groups = Groups::new("objects");
    groups.set("job/a", "hca_handle=max hca_object=3");
    let context = groups.device("a").open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let buffer = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE).unwrap();
    let cq = context.create_cq(16).unwrap();
    let refusal = context.alloc_pd().unwrap_err();
    assert_eq!(refusal.kind(), Kind::WouldBlock);
    let words = format!("rdma.max of cgroup /job/a allows 3 hca_object of {}", groups.nic);
    assert!(refusal.what().contains(&words), "{refusal}");
    assert!(refusal.what().contains("`peerdma doctor`"), "{refusal}");
    assert_eq!(kind(context.alloc_dm(64)), Some(Kind::WouldBlock));
    assert_eq!(kind(pd.reg_mr(&buffer, Access::LOCAL_WRITE)), Some(Kind::WouldBlock));
    drop(mr);
    let second = context.alloc_pd().unwrap();
    assert_eq!(kind(context.create_cq(16)), Some(Kind::WouldBlock));
    drop((cq, second));
    // The limit is looked at with each object.
    groups.set("job/a", "hca_handle=max hca_object=1");
    assert_eq!(kind(context.alloc_pd()), Some(Kind::WouldBlock));
    groups.set("job/a", "hca_handle=max hca_object=max");
    context.alloc_pd().unwrap();
}

#[test]
fn the_group_above_limits_the_processes_of_both_groups_together() {
    let groups = Groups::new("above");
    groups.set("job", "hca_handle=2 hca_object=3");
    groups.set("job/b", "hca_handle=max hca_object=2");
    let device = groups.device("a");
    let context = device.open().unwrap();
    let mut other = other(&groups);
    assert_eq!(other.ask("open"), "ok");
    assert_eq!(other.ask("open"), "WouldBlock", "two contexts in all");
    assert_eq!(kind(device.open()), Some(Kind::WouldBlock));

    assert_eq!(other.ask("pd"), "ok");
    assert_eq!(other.ask("pd"), "ok");
    assert_eq!(other.ask("pd"), "WouldBlock", "two by its own group");
    let held = context.alloc_pd().unwrap();
    assert_eq!(kind(context.alloc_pd()), Some(Kind::WouldBlock), "three by the one above");
    assert_eq!(other.ask("free"), "ok");
    let more = context.alloc_pd().unwrap();
    drop((held, more));
    // What a process had ends with it.
    assert_eq!(other.ask("pd"), "ok");
    assert_eq!(other.ask("pd"), "ok");
    other.kill();
    let start = Instant::now();
    let (mut pds, mut refusals) = (Vec::new(), 0);
    while pds.len() < 3 {
        match context.alloc_pd() {
            Ok(pd) => pds.push(pd),
            Err(refusal) => {
                refusals += 1;
                assert!(start.elapsed() < PATIENCE, "{refusal} after {refusals}");
            }
        }
    }
    assert_eq!(kind(context.alloc_pd()), Some(Kind::WouldBlock));
}

#[test]
fn a_limit_for_another_device_is_none() {
    let groups = Groups::new("another");
    let file = groups.directory.join("groups/job/rdma.max");
    fs::write(file, "mlx5_0 hca_handle=0 hca_object=0\n").unwrap();
    groups.device("a").open().unwrap().alloc_pd().unwrap();
}
