//! A fork in the middle of transfers: the parent's go on, the child has a client of its own or
//! none.

use std::time::Duration;

use umem::HostBuf;

use crate::{Client, ClientConfig, Engine, Error, File, OpenOptions};

const REQUESTS: u64 = 16;
const LEN: u32 = 256 << 10;
/// Far longer than a request takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file that goes with the test.
struct Made(std::path::PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn client(engine: Engine) -> crate::Result<Client> {
    Client::new(&ClientConfig { engine, ..ClientConfig::default() })
}

/// What the child finds: a ring that is its parent's is refused in words, system calls and a client
/// of its own work. 0 if all of that holds.
fn child(engine: Engine, old: &Client, file: &File, want: &[u8]) -> i32 {
    let memory = HostBuf::anonymous(LEN as usize).expect("memory");
    let holds = |client: &Client| {
        let buffer = client.attach_host(&memory);
        let mut seen = vec![0; LEN as usize];
        client.read(file, 0, &buffer, 0, LEN.into()).is_ok_and(|got| got == u64::from(LEN))
            && memory.read(0, &mut seen).is_ok()
            && seen == want[..LEN as usize]
    };
    let old_is_right = match engine {
        Engine::Uring => {
            let buffer = old.attach_host(&memory);
            let asked = old.read(file, 0, &buffer, 0, LEN.into());
            matches!(asked, Err(Error::Broken { .. }))
        }
        _ => holds(old),
    };
    if !old_is_right {
        return 1;
    }
    match client(engine) {
        Ok(own) if holds(&own) => 0,
        Ok(_) => 2,
        Err(_) => 3,
    }
}

#[test]
fn a_fork_in_the_middle_of_transfers_leaves_the_parents_alone() {
    let made = Made(std::env::temp_dir().join(format!("storage-fork-{}", std::process::id())));
    let bytes: Vec<u8> = (0..REQUESTS * u64::from(LEN))
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    std::fs::write(&made.0, &bytes).expect("room on the disk");
    let file = File::open(&made.0, &OpenOptions::default()).expect("just made");
    for engine in [Engine::Calls, Engine::Uring] {
        let Ok(client) = client(engine) else {
            eprintln!("there is no {engine:?}");
            continue;
        };
        let memory = HostBuf::anonymous(REQUESTS as usize * LEN as usize).expect("memory");
        let (buffer, queue) = (client.attach_host(&memory), client.queue());
        for id in 0..REQUESTS {
            let at = id * u64::from(LEN);
            queue.read(id, &file, at, &buffer, at, LEN).expect("room in the queue");
        }
        // SAFETY: the child uses what it makes itself, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let status = child(engine, &client, &file, &bytes);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(status) };
        }
        assert!(pid > 0);
        let mut done = std::collections::BTreeSet::new();
        while done.len() < REQUESTS as usize {
            let completion = queue.wait(PATIENCE).expect("it completes");
            assert_eq!(completion.result, Ok(u64::from(LEN)), "{engine:?}");
            assert!(done.insert(completion.id));
        }
        let mut seen = vec![0; bytes.len()];
        memory.read(0, &mut seen).expect("inside");
        assert!(seen == bytes, "{engine:?}");
        let mut status = 0;
        // SAFETY: the child of above; the status is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "{engine:?}: the child");
        drop((buffer, queue));
    }
}
