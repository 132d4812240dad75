//! Asking every process of a NIC.

use std::io;
use std::time::Duration;

use link::registry::{self, Shown};

use crate::process::Process;

/// What was learnt of one NIC.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "two lists")]
pub struct Gathered {
    /// The processes that answered, by VF, each with the name and the process id that the kernel
    /// has for it; the id is the process's own where it has none here.
    pub processes: Vec<(String, u32, Process)>,
    /// The others.
    pub missing: Vec<Missing>,
}

/// A process that holds a VF, and did not show its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what is known of it")]
pub struct Missing {
    /// Its VF.
    pub vf: u16,
    /// Its process id, if it has one here.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its name, if /proc shows it.
    pub comm: Option<String>,
    /// Why, in words.
    pub reason: String,
}

/// Asks the processes of `nic` in this network namespace that belong to this user, and waits at
/// most `patience` in total.
///
/// # Errors
///
/// If the processes cannot be found, because /proc cannot be read.
pub fn gather(nic: &str, patience: Duration) -> io::Result<Gathered> {
    let mut gathered = Gathered::default();
    for seen in registry::look(nic, patience)? {
        let reason = match seen.shown {
            Shown::Bytes(bytes) => match Process::decode(&bytes) {
                Ok(process) if process.vf == seen.vf => {
                    let comm = seen.comm.unwrap_or_default();
                    gathered.processes.push((comm, seen.pid.unwrap_or(process.pid), process));
                    continue;
                }
                Ok(process) => format!("it answers for VF {}", process.vf),
                Err(bad) => bad.to_string(),
            },
            Shown::Nothing => "it did not answer in time".to_owned(),
            Shown::Refused(reason) => reason,
            _ => continue,
        };
        let registry::Seen { vf, pid, uid, comm, .. } = seen;
        gathered.missing.push(Missing { vf, pid, uid, comm, reason });
    }
    Ok(gathered)
}
