//! Three processes: A has a GPU and moves a buffer all the time, B registered that buffer, which A
//! passed on, and C writes and reads it by RDMA. Each of them is killed in turn: the rules allow
//! every outcome, and no process hangs.
//!
//! The processes are this program again, with a role in its environment; they talk over their
//! standard input and output.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use gpu::{Domain, Gpu, GpuConfig, Orphans, Place};
use verbs::soft::{self, NicConfig};
use verbs::{Access, Endpoint, Gid, HostBuf, Psn, QpSpec, Qpn, RKey, Remote, SendRequest};

const ROLE: &str = "PEERDMA_TEST_ROLE";
const NIC: &str = "PEERDMA_TEST_NIC";
const SIZE: usize = 256 << 10;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
/// Far longer than anything here takes: a process that is silent for this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of the scene. Dropping it kills it.
struct Actor {
    child: Child,
    to: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Actor {
    fn start(role: &str, nic: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_code_of_a_child_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(NIC, nic)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take();
        let lines = lines_of(child.stdout.take().unwrap());
        Self { child, to, lines }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    #[track_caller]
    fn hear(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("a process hangs"),
            Err(RecvTimeoutError::Disconnected) => panic!("a process ended too early"),
        }
    }

    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The output of a process: lines that begin with `>`. The rest is from the test harness.
fn lines_of(from: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if let Some((_, said)) = line.split_once('>')
                && sender.send(said.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn say(line: &str) {
    println!(">{line}");
}

struct Scene {
    a: Actor,
    b: Actor,
    c: Actor,
    nic: String,
}

impl Scene {
    fn new(orphans: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nic = format!("three{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let a = Actor::start(&format!("exporter {orphans}"), &nic);
        let place = a.hear();
        let mut b = Actor::start("server", &nic);
        let region = b.ask(&place);
        let c = Self::client(&mut b, &nic, &region);
        Self { a, b, c, nic }
    }

    /// A client that is connected to a new QP of the server.
    fn client(b: &mut Actor, nic: &str, region: &str) -> Actor {
        let mut c = Actor::start("client", nic);
        let endpoint = c.hear();
        let answer = b.ask(&format!("connect {endpoint}"));
        assert_eq!(c.ask(&format!("{answer} {region}")), "connected");
        c
    }

    fn is_a_moving(&mut self) {
        let before: u64 = self.a.ask("moves").parse().unwrap();
        let mut after = before;
        while after < before + 4 {
            std::thread::sleep(Duration::from_millis(2));
            after = self.a.ask("moves").parse().unwrap();
        }
    }
}

#[test]
fn traffic_goes_on_while_another_process_moves_the_buffer() {
    let mut scene = Scene::new("keep");
    scene.is_a_moving();
    assert_eq!(scene.c.ask("run 200"), "200 ok");
    scene.is_a_moving();
}

#[test]
fn a_killed_client_harms_no_other_process() {
    let mut scene = Scene::new("keep");
    scene.c.tell("run 1000000");
    scene.is_a_moving();
    scene.c.kill();
    scene.is_a_moving();
    let region = scene.b.ask("region");
    scene.c = Scene::client(&mut scene.b, &scene.nic, &region);
    assert_eq!(scene.c.ask("run 50"), "50 ok");
}

#[test]
fn a_killed_server_ends_its_clients_and_not_the_gpu() {
    let mut scene = Scene::new("keep");
    scene.c.tell("run 1000000");
    scene.is_a_moving();
    scene.b.kill();
    let end = scene.c.hear();
    assert!(end.ends_with("RetryExcErr"), "{end}");
    scene.is_a_moving();
}

#[test]
fn a_killed_gpu_leaves_the_bytes_where_they_are() {
    let mut scene = Scene::new("keep");
    assert_eq!(scene.c.ask("run 20"), "20 ok");
    // Between two moves: a process that dies in the middle of a move takes the bytes with it.
    assert_eq!(scene.a.ask("rest"), "resting");
    assert_eq!(scene.c.ask("run 1"), "1 ok");
    scene.a.kill();
    assert_eq!(scene.c.ask("run 50"), "50 ok");
}

/// A refusal by the exporter of another process fails one access, and is not permanent.
#[test]
fn a_reset_in_another_process_fails_the_accesses_of_its_time() {
    let mut scene = Scene::new("keep");
    assert_eq!(scene.c.ask("run 20"), "20 ok");
    assert_eq!(scene.a.ask("rest"), "resting");
    assert_eq!(scene.a.ask("reset"), "resetting");
    let end = scene.c.ask("run 1");
    assert!(end.ends_with("RemAccessErr"), "{end}");
    assert_eq!(scene.a.ask("back"), "back");
    let region = scene.b.ask("region");
    scene.c = Scene::client(&mut scene.b, &scene.nic, &region);
    assert_eq!(scene.c.ask("run 50"), "50 ok");
}

#[test]
fn a_killed_gpu_that_takes_its_memory_along_is_an_access_error() {
    let mut scene = Scene::new("revoke");
    scene.c.tell("run 1000000");
    scene.is_a_moving();
    scene.a.kill();
    let end = scene.c.hear();
    assert!(end.ends_with("RemAccessErr"), "{end}");
}

/// Not a test: the code of the child processes.
#[test]
fn the_code_of_a_child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.split_once(' ') {
        Some(("exporter", orphans)) => exporter(orphans),
        _ if role == "server" => server(),
        _ => client(),
    }
    std::process::exit(0);
}

fn exporter(orphans: &str) {
    let orphans = if orphans == "keep" { Orphans::Keep } else { Orphans::Revoke };
    let config = GpuConfig {
        vram: 16 << 20,
        gtt: 16 << 20,
        shared: false,
        orphans: Some(orphans),
        ..GpuConfig::default()
    };
    let gpu = Gpu::open(&config).unwrap();
    let bo = gpu.alloc(SIZE as u64, Place::VISIBLE_VRAM).unwrap();
    let buffer = bo.export().unwrap();
    say(&format!("{} {}", std::process::id(), buffer.fd().as_raw_fd()));
    let is_resting = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                for domain in [Domain::Gtt, Domain::Vram] {
                    if !is_resting.load(Ordering::SeqCst) {
                        gpu.move_to(&bo, domain).unwrap().wait(None).unwrap();
                    }
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let mut resetting: Option<gpu::Resetting> = None;
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.as_str() {
                "reset" => {
                    resetting = Some(gpu.begin_reset());
                    say("resetting");
                }
                "back" => {
                    drop(resetting.take());
                    say("back");
                }
                "moves" => say(&gpu.stats().moves.to_string()),
                "rest" => {
                    is_resting.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    say("resting");
                }
                _ => break,
            }
        }
        std::process::exit(0);
    });
}

fn open() -> (verbs::Context, verbs::Pd) {
    let config = NicConfig { name: std::env::var(NIC).unwrap(), ..NicConfig::default() };
    let context = soft::device(config).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

fn endpoint_line(endpoint: &Endpoint) -> String {
    let gid: String = endpoint.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{gid} {} {}", endpoint.qpn.value(), endpoint.psn.value())
}

fn endpoint_of(words: &[&str]) -> Endpoint {
    Endpoint {
        gid: Gid(u128::from_str_radix(words[0], 16).unwrap().to_be_bytes()),
        qpn: Qpn::new(words[1].parse().unwrap()),
        psn: Psn::new(words[2].parse().unwrap()),
    }
}

fn server() {
    let (context, pd) = open();
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    let place = lines.next().unwrap();
    let (pid, fd) = place.split_once(' ').unwrap();
    let passed =
        File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")).unwrap();
    let region = pd.reg_dmabuf_mr(passed.as_fd(), 0, SIZE as u64, 0, ALL).unwrap();
    drop(passed);
    let told = format!("{} {}", region.remote(0).addr, region.rkey().0);
    say(&told);
    let cq = context.create_cq(16).unwrap();
    let mut qps = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["connect", peer @ ..] => {
                let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
                qp.connect(&endpoint_of(peer)).unwrap();
                say(&endpoint_line(&qp.endpoint().unwrap()));
                qps.push(qp);
            }
            _ => say(&told),
        }
    }
}

fn client() {
    let (context, pd) = open();
    let cq = context.create_cq(16).unwrap();
    let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
    say(&endpoint_line(&qp.endpoint().unwrap()));
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    let line = lines.next().unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    qp.connect(&endpoint_of(&words)).unwrap();
    let there = Remote { addr: words[3].parse().unwrap(), rkey: RKey(words[4].parse().unwrap()) };
    say("connected");
    let host = HostBuf::anonymous(2 * SIZE).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    for line in lines {
        let rounds: u64 = line.strip_prefix("run ").unwrap().parse().unwrap();
        say(&run(rounds, &cq, &qp, &host, &local, there));
    }
}

fn run(
    rounds: u64,
    cq: &verbs::Cq,
    qp: &verbs::Qp,
    host: &HostBuf,
    local: &verbs::Mr,
    there: Remote,
) -> String {
    let length = SIZE as u32;
    for round in 0..rounds {
        let sent: Vec<u8> = (0..SIZE).map(|i| (i * 7 + i / 251) as u8 ^ round as u8).collect();
        host.write(0, &sent).unwrap();
        let write = SendRequest::write(1, &[local.slice(0, length)], there).signaled();
        let read = SendRequest::read(2, &[local.slice(SIZE as u64, length)], there).signaled();
        for request in [write, read] {
            if qp.post_send(&request).is_err() {
                return format!("{round} the QP accepts nothing");
            }
            let Some(done) = cq.wait_timeout(PATIENCE).unwrap() else {
                return format!("{round} nothing completed");
            };
            if !done.is_success() {
                return format!("{round} {:?}", done.status);
            }
        }
        let mut got = vec![0; SIZE];
        host.read(SIZE, &mut got).unwrap();
        if got != sent {
            return format!("{round} a byte is wrong");
        }
    }
    format!("{rounds} ok")
}
