//! `peerdma run` and the sysfs door, seen from the programs that go through it: Debian's, Python,
//! static binaries, raw system calls; and what is left when a process dies.
//!
//! No test needs our library to work: a stand-in has its name. Each test has a directory of its
//! own, in which the door must leave nothing, and a mark in the environment that identifies every
//! process it started.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const HCA: &str = "/sys/class/infiniband/peerdma0";

/// The environment of one test.
struct Place {
    directory: PathBuf,
    mark: String,
}

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("peerdma-door-test-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(&mark);
        fs::create_dir_all(directory.join("lib")).unwrap();
        fs::create_dir_all(directory.join("run")).unwrap();
        let place = Self { directory, mark };
        place.compile("void peerdma_stand_in(void) {}", "lib/libpeerdma.so", &["-shared", "-fPIC"]);
        let preload = preload_library();
        fs::copy(&preload, place.path("lib/libpeerdma-preload.so")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn compile(&self, source: &str, name: &str, flags: &[&str]) -> PathBuf {
        let output = self.path(name);
        let text = self.path("source.c");
        fs::write(&text, source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "-o"]).arg(&output).arg(&text).args(flags);
        assert!(compiler.status().expect("a C compiler").success(), "{name}");
        output
    }

    /// The program of programs/door.c.
    fn program(&self, flags: &[&str]) -> PathBuf {
        self.compile(include_str!("programs/door.c"), "program", flags)
    }

    /// A configuration with NICs of these names.
    fn config(&self, names: &[&str]) -> PathBuf {
        let path = self.path("config.toml");
        let nics: Vec<String> =
            names.iter().map(|name| format!("[[nic]]\nname = {name:?}\n")).collect();
        fs::write(&path, nics.concat()).unwrap();
        path
    }

    /// `peerdma run` with these options and this program, with `PEERDMA_DOOR` set to `way`.
    fn run(&self, way: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
        command.arg("run").args(args);
        for name in
            ["LD_PRELOAD", "LD_LIBRARY_PATH", "PEERDMA_NIC", "PEERDMA_LOG", "PEERDMA_CONFIG"]
        {
            command.env_remove(name);
        }
        command
            .env("PEERDMA_LIB_DIR", self.path("lib"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("PEERDMA_DOOR", way)
            .env("PEERDMA_TEST", &self.mark);
        command
    }

    #[track_caller]
    fn text(&self, way: &str, args: &[&str]) -> String {
        let output = self.run(way, args).output().unwrap();
        assert!(output.status.success(), "{way} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The processes of this test that still run: number and name.
    fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("PEERDMA_TEST={}", self.mark);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers
            .filter(|number: &i32| {
                let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
                environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
            })
            .map(|number| {
                let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
                (number, name.trim().to_owned())
            })
            .collect()
    }

    #[track_caller]
    fn supervisor(&self) -> i32 {
        let found: Vec<i32> = self
            .processes()
            .into_iter()
            .filter_map(|(number, name)| (name == "peerdma-door").then_some(number))
            .collect();
        assert_eq!(found.len(), 1, "{:?}", self.processes());
        found[0]
    }

    /// Waits until no process of this test is left; those that outlive `peerdma run` end on their
    /// own.
    #[track_caller]
    fn wait_until_empty(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.processes().is_empty() {
            assert!(Instant::now() < deadline, "left: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.expect_no_files();
    }

    /// Nothing is left when `peerdma run` returns, unless its program left a process.
    #[track_caller]
    fn expect_nothing_left(&self) {
        assert_eq!(self.processes(), []);
        self.expect_no_files();
    }

    #[track_caller]
    fn expect_no_files(&self) {
        let left: Vec<_> = fs::read_dir(self.path("run")).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (number, _) in self.processes() {
            kill(number, libc::SIGKILL);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The preload library beside the program under test, built if it is not there: a package cannot
/// depend on a cdylib.
fn preload_library() -> PathBuf {
    let directory = Path::new(env!("CARGO_BIN_EXE_peerdma")).parent().unwrap();
    let library = directory.join("libpeerdma_preload.so");
    if !library.exists() {
        let profile = match directory.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "peerdma-preload", "--profile", profile]);
        cargo.arg("--target-dir").arg(directory.parent().unwrap());
        assert!(cargo.status().unwrap().success(), "cargo build --package peerdma-preload");
    }
    library
}

/// Makes a system call fail with EPERM for the command and what it starts, as sandboxes do.
fn forbid(command: &mut Command, call: libc::c_long) {
    #[expect(unsafe_code, reason = "the filter must be installed between fork and exec")]
    // SAFETY: `install_refusal` makes system calls and does nothing else.
    unsafe {
        command.pre_exec(move || install_refusal(call))
    };
}

fn install_refusal(call: libc::c_long) -> std::io::Result<()> {
    let instruction = |code: u16, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 0, 1, call as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true)?;
    #[expect(unsafe_code, reason = "no safe form takes a filter")]
    // SAFETY: prctl reads the program, which is alive here, and keeps nothing of it.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn kill(number: i32, signal: i32) {
    #[expect(unsafe_code, reason = "the standard library sends SIGKILL only, and to children only")]
    // SAFETY: kill touches no memory.
    unsafe {
        libc::kill(number, signal);
    }
}

/// A running program, whose lines are read one by one.
struct Dialog {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Dialog {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("peerdma runs");
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn end(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }
}

const BOTH: [&str; 2] = ["auto", "preload"];

#[test]
fn the_tools_of_the_system_see_the_tree() {
    let place = Place::new();
    for way in BOTH {
        let text = |args: &[&str]| place.text(way, args);
        assert_eq!(text(&["cat", &format!("{HCA}/node_type")]), "1: CA\n", "{way}");
        assert_eq!(text(&["ls", "/sys/class/infiniband"]), "peerdma0\n");
        assert!(text(&["ls", "-l", "/sys/class/infiniband"]).contains("peerdma0 -> ../../devices"));
        assert_eq!(text(&["ls", "-l", &format!("{HCA}/ports/1/pkeys/")]).lines().count(), 2);
        assert_eq!(text(&["stat", "-L", "-c", "%F", HCA]), "directory\n");
        assert_eq!(text(&["stat", "-c", "%F %a", &format!("{HCA}/fw_ver")]), "regular file 444\n");
        assert_eq!(
            text(&["readlink", "-f", &format!("{HCA}/device")]),
            "/sys/devices/virtual/peerdma/peerdma0\n"
        );
        assert_eq!(text(&["sh", "-c", &format!("test -r {HCA}/fw_ver && echo yes")]), "yes\n");
        place.expect_nothing_left();
    }
}

#[test]
fn python_sees_the_tree() {
    let place = Place::new();
    let script = "import os, sys\n\
        hca = '/sys/class/infiniband/peerdma0'\n\
        assert os.listdir('/sys/class/infiniband') == ['peerdma0']\n\
        assert open(hca + '/ports/1/state').read() == '4: ACTIVE\\n'\n\
        assert open(hca + '/ports/1/link_layer').read() == 'Ethernet\\n'\n\
        assert [e.name for e in os.scandir(hca + '/ports')] == ['1']\n\
        assert os.path.realpath(hca + '/device') == '/sys/devices/virtual/peerdma/peerdma0'\n\
        assert os.path.isdir(hca) and os.path.islink(hca) and not os.path.exists(hca + '/no')\n\
        assert os.access(hca + '/fw_ver', os.R_OK)\n\
        print('fine')\n";
    for way in BOTH {
        assert_eq!(place.text(way, &["python3", "-c", script]), "fine\n", "{way}");
    }
    place.expect_nothing_left();
}

#[test]
fn classes_are_listed_beside_the_kernels() {
    let place = Place::new();
    let shown = place.text("auto", &["ls", "/sys/class"]);
    let mut classes: Vec<&str> = shown.lines().collect();
    classes.retain(|class| !class.starts_with("infiniband"));
    let mut kernels: Vec<String> = fs::read_dir("/sys/class")
        .unwrap()
        .map(|at| at.unwrap().file_name().into_string().unwrap())
        .collect();
    kernels.retain(|class| !class.starts_with("infiniband"));
    kernels.sort();
    classes.sort_unstable();
    assert_eq!(classes, kernels);
    assert!(shown.lines().any(|class| class == "infiniband"));
    let address = "cd /sys/class; cat net/lo/address; ls -d infiniband/peerdma0";
    assert_eq!(
        place.text("auto", &["sh", "-c", address]),
        "00:00:00:00:00:00\ninfiniband/peerdma0\n"
    );
}

#[test]
fn raw_system_calls_see_the_tree() {
    let place = Place::new();
    let program = place.program(&[]);
    let program = program.to_str().unwrap();
    for part in ["raw", "edge", "threads", "storm"] {
        assert_eq!(place.text("auto", &[program, part]), format!("{part} ok\n"));
    }
    place.expect_nothing_left();
}

#[test]
fn a_static_binary_sees_the_tree() {
    let place = Place::new();
    let program = place.program(&["-static"]);
    for part in ["raw", "threads"] {
        assert_eq!(place.text("auto", &[program.to_str().unwrap(), part]), format!("{part} ok\n"));
    }
}

#[test]
fn a_directory_backs_the_door_where_mounts_are_forbidden() {
    let place = Place::new();
    let program = place.program(&[]);
    let program = program.to_str().unwrap();
    let mut command = place.run("auto", &[program, "raw"]);
    forbid(command.env("PEERDMA_LOG", "info"), libc::SYS_fsopen);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "raw ok\n", "{output:?}");
    let hint = "in a directory (`peerdma doctor` shows what this host permits)";
    assert!(String::from_utf8_lossy(&output.stderr).contains(hint), "{output:?}");
    place.expect_nothing_left();
}

#[test]
fn without_a_door_sys_is_the_kernels() {
    let place = Place::new();
    let status = place.run("auto", &["--no-door", "test", "-e", "/sys/bus/peerdma"]).status();
    assert_eq!(status.unwrap().code(), Some(1));
    let status = place.run("off", &["test", "-e", "/sys/bus/peerdma"]).status();
    assert_eq!(status.unwrap().code(), Some(1));
}

#[test]
fn nics_are_those_of_the_configuration_or_some_of_them() {
    let place = Place::new();
    let config = place.config(&["a0", "b1", "c2"]);
    let script = "ls /sys/class/infiniband; cat /sys/class/infiniband_verbs/uverbs1/ibdev; \
        echo $PEERDMA_NIC";
    let text = |way: &str, args: &[&str]| {
        let output = place.run(way, args).env("PEERDMA_CONFIG", &config).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for way in BOTH {
        let all = text(way, &["sh", "-c", script]);
        assert_eq!(all, (Some(0), "a0\nb1\nc2\nb1\na0,b1,c2\n".to_owned()));
        let some = text(way, &["--nic", "a0", "--nic", "c2", "sh", "-c", script]);
        assert_eq!(some, (Some(0), "a0\nc2\nc2\na0,c2\n".to_owned()));
    }
    assert_eq!(text("auto", &["--nic", "d3", "true"]).0, Some(1));
}

#[test]
fn the_library_is_found_by_path_and_by_preload() {
    let place = Place::new();
    let names = place.path("lib/libpeerdma.names");
    let mut command = place.run("auto", &["sh", "-c", "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD"]);
    let output = command.env("LD_LIBRARY_PATH", "/before").output().unwrap();
    let names = names.to_str().unwrap();
    let preload = place.path("lib/libpeerdma-preload.so");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{names}:/before\n{}:{names}/libibverbs.so.1\n", preload.display())
    );
    let maps = place.text("auto", &["cat", "/proc/self/maps"]);
    assert!(maps.contains("lib/libpeerdma.so"), "{maps}");
    let entries = fs::read_dir(place.path("lib/libpeerdma.names")).unwrap();
    assert_eq!(entries.count(), 4);
}

#[test]
fn the_status_is_the_programs() {
    let place = Place::new();
    let status = |way: &str, args: &[&str]| {
        let output = place.run(way, args).output().unwrap();
        output.status.code().unwrap()
    };
    for way in BOTH {
        assert_eq!(status(way, &["true"]), 0);
        assert_eq!(status(way, &["sh", "-c", "exit 7"]), 7);
        assert_eq!(status(way, &["sh", "-c", "kill -TERM $$"]), 128 + libc::SIGTERM);
        assert_eq!(status(way, &["sh", "-c", "kill -KILL $$"]), 128 + libc::SIGKILL);
        assert_eq!(status(way, &["peerdma-no-such-program"]), 127);
        assert_eq!(status(way, &["/etc/passwd"]), 126);
        place.expect_nothing_left();
    }
}

#[test]
fn streams_pass_through_and_end_when_the_program_ends_them() {
    let place = Place::new();
    let mut dialog = Dialog::start(place.run("auto", &["cat"]));
    dialog.say("hello");
    assert_eq!(dialog.line(), "hello");
    assert_eq!(dialog.end(), Some(0));
    // The program closes its output and continues: the end of the stream is seen before the end of
    // the program.
    let mut dialog = Dialog::start(place.run("auto", &["sh", "-c", "exec >&-; read line; exit 4"]));
    assert_eq!(dialog.line(), "");
    dialog.say("go on");
    assert_eq!(dialog.end(), Some(4));
    place.expect_nothing_left();
}

#[test]
fn signals_reach_the_program() {
    let place = Place::new();
    let program = place.program(&[]);
    for way in BOTH {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            let mut dialog = Dialog::start(place.run(way, &[program.to_str().unwrap(), "signal"]));
            assert_eq!(dialog.line(), "ready");
            kill(dialog.pid(), signal);
            assert_eq!(dialog.end(), Some(signal));
            place.expect_nothing_left();
        }
    }
}

#[test]
fn a_killed_front_takes_the_program_with_it() {
    let place = Place::new();
    let program = place.program(&[]);
    for way in BOTH {
        let mut dialog = Dialog::start(place.run(way, &[program.to_str().unwrap(), "signal"]));
        assert_eq!(dialog.line(), "ready");
        kill(dialog.pid(), libc::SIGKILL);
        assert_eq!(dialog.child.wait().unwrap().signal(), Some(libc::SIGKILL));
        place.wait_until_empty();
    }
}

#[test]
fn a_killed_supervisor_is_replaced() {
    let place = Place::new();
    let program = place.program(&[]);
    let mut dialog = Dialog::start(place.run("auto", &[program.to_str().unwrap(), "step"]));
    assert_eq!(dialog.line(), "ready");
    dialog.say("before");
    assert_eq!(dialog.line(), "read");
    kill(place.supervisor(), libc::SIGKILL);
    for _ in 0..3 {
        dialog.say("after");
        assert_eq!(dialog.line(), "read");
    }
    // The status is lost with the parent, unless Yama made us adopt the program.
    assert!(matches!(dialog.end(), Some(5 | 125)));
    place.wait_until_empty();
}

#[test]
fn a_daemon_keeps_the_door_and_nothing_else() {
    let place = Place::new();
    let (fifo, out) = (place.path("fifo"), place.path("out"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let daemon = format!(
        "setsid sh -c 'read line < {}; cat {HCA}/node_type > {}' < /dev/null > /dev/null 2>&1 & exit 3",
        fifo.display(),
        out.display()
    );
    // Its output is a pipe, which ends although the daemon still runs.
    let output = place.run("auto", &["sh", "-c", &daemon]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    place.supervisor();
    fs::write(&fifo, "go\n").unwrap();
    place.wait_until_empty();
    assert_eq!(fs::read_to_string(&out).unwrap(), "1: CA\n");
}

#[test]
fn a_nested_run_shows_the_tree_of_the_outer_one_or_its_own() {
    let place = Place::new();
    let peerdma = env!("CARGO_BIN_EXE_peerdma");
    let list = ["ls", "/sys/class/infiniband"];
    let same = [&[peerdma, "run", "--"][..], &list].concat();
    assert_eq!(place.text("auto", &same), "peerdma0\n");
    // The kernel allows one listener; the inner one falls back to preload, which comes first in
    // libc.
    let other = [&[peerdma, "run", "--nic", "b1"][..], &list].concat();
    let mut command = place.run("auto", &other);
    command.env("PEERDMA_CONFIG", place.config(&["a0", "b1"])).env("PEERDMA_LOG", "warn");
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "b1\n");
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(notes.lines().count(), 1, "{notes}");
    place.expect_nothing_left();
}

#[test]
fn a_sandbox_that_forbids_seccomp_is_no_failure() {
    // A sandbox that allows no seccomp is a filter itself.
    let place = Place::new();
    let mut command = place.run("auto", &["cat", &format!("{HCA}/node_type")]);
    forbid(&mut command, libc::SYS_seccomp);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1: CA\n", "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    // The log says what to ask.
    let asked = command.env("PEERDMA_LOG", "warn").output().unwrap();
    let notes = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(notes.contains("no seccomp user notification here (`peerdma doctor`"), "{notes}");
    place.expect_nothing_left();
}

#[test]
fn a_missing_library_is_reported() {
    let place = Place::new();
    let mut command = place.run("auto", &["true"]);
    let output = command.env("PEERDMA_LIB_DIR", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("/nowhere") && text.contains("PEERDMA_LIB_DIR"), "{text}");
}
