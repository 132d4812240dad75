//! What happens where there is no io_uring.

mod common;

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use common::{Folder, pattern};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use storage::{Client, ClientConfig, Engine, Error};
use umem::HostBuf;

/// Set for the copy of this program that can have no io_uring.
const CHILD: &str = "PEERDMA_TEST_WITHOUT_IO_URING";

#[test]
fn without_io_uring_system_calls_are_used_and_logged() {
    if std::env::var_os(CHILD).is_some() {
        return without();
    }
    // A limit applies to the whole process.
    let name = "without_io_uring_system_calls_are_used_and_logged";
    let program = std::env::current_exe().expect("this program");
    let run = Command::new(program).args(["--exact", name]).env(CHILD, "1").output();
    let run = run.expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{err}");
    assert!(out.contains("1 passed"), "{out}");
}

fn without() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    let folder = Folder::new("fallback");
    let bytes = pattern(1, 65536);
    let file = folder.file("file", &bytes);
    let memory = HostBuf::anonymous(65536).expect("memory");
    let before = getrlimit(Resource::Nofile);
    // No descriptor is left for a ring.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).expect("less is permitted");
    let none = Client::new(&ClientConfig { engine: Engine::Uring, ..ClientConfig::default() });
    let disk = Client::new(&ClientConfig::default()).expect("system calls do");
    setrlimit(Resource::Nofile, before).expect("as it was");
    assert!(matches!(none, Err(Error::NoRing { .. })), "{none:?}");
    assert!(!disk.has_ring());
    assert_eq!(disk.read(&file, 0, &disk.attach_host(&memory), 0, 65536), Ok(65536));
    let mut seen = vec![0; bytes.len()];
    memory.read(0, &mut seen).expect("inside");
    assert!(seen == bytes);
    let said = log.text();
    assert!(said.contains("WARN") && said.contains("no io_uring ("), "{said}");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
