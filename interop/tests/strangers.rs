//! A hostile user of the same host cannot disturb the programs of other users.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use interop::need::Need;
use interop::scratch::own;
use interop::{Mode, Output, Port, Program, Running, Scratch, compile, needs};

/// How long a call may take beside an attack. A successful attack would block it for minutes, or
/// for ever.
const SLOWEST_MS: u64 = 10_000;
/// The limits of one other user: the bytes of its rings, and its connections to a process with
/// 1,024 files. Each connection costs two pages for the ring, and one for the doorbell.
const RINGS: u64 = 64 << 20;
const CONNECTIONS: u64 = 256;
const PAGES: u64 = 3 * 4096;

macro_rules! two_users {
    ($($more:expr),*) => {
        needs!(Need::Root, Need::Program("setpriv"), Need::Header("infiniband/verbs.h") $(, $more)*)
    };
}

/// Starts a victim that repeats calls until it is told to stop.
fn victim(scratch: &Scratch) -> Running {
    let calls = compile("calls", scratch);
    // The started process must be the victim itself, for its pid.
    let mut victim = Program::new(calls).mode(Mode::Library).start();
    victim.wait_says("ready");
    victim
}

/// The program of the other user, who must be able to start it.
fn stranger(scratch: &Scratch, attack: &str, victim: &Running) -> Program {
    let program: PathBuf = scratch.file("stranger");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_stranger"), &program).expect("a scratch directory");
        own(&program, 0, 0o755);
    }
    Program::new(program)
        .mode(Mode::Plain)
        .args([attack.to_owned(), victim.pid().to_string()])
        .limit(Duration::from_secs(100))
}

/// Starts an attack that continues until the returned value is dropped.
fn attack(scratch: &Scratch, attack: &str, victim: &Running) -> Running {
    let mut attacker = stranger(scratch, attack, victim).as_nobody().start();
    attacker.wait_says("attacked");
    attacker
}

/// The number that follows a word in the output.
#[track_caller]
fn of(printed: &str, word: &str) -> u64 {
    let words: Vec<&str> = printed.split_whitespace().collect();
    let at = words.iter().position(|said| *said == word);
    let value = at.and_then(|at| words.get(at + 1)).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no number of {word} in {printed}"))
}

/// Lets the victim make its last calls, and requires that no call failed or took long.
#[track_caller]
fn is_undisturbed(victim: Running) -> Output {
    victim.interrupt();
    let output = victim.finish();
    output.success();
    assert!(of(&output.stdout, "slowest") < SLOWEST_MS, "{output}");
    output
}

/// Bytes of the files of the attacker that a process has mapped.
fn mapped(victim: &Running) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/maps", victim.pid())).expect("it lives");
    let lengths = maps.lines().filter(|line| line.contains("memfd:stranger")).map(|line| {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let (from, to) = range.expect("a line begins with a range");
        let number = |hex| u64::from_str_radix(hex, 16).expect("in hexadecimal");
        number(to) - number(from)
    });
    lengths.sum()
}

#[test]
fn no_call_waits_for_a_guard_slot_of_another_user() {
    two_users!();
    let scratch = Scratch::new();
    let victim = victim(&scratch);
    let attacker = attack(&scratch, "guard", &victim);
    assert!(attacker.printed().contains("welcomed true"), "{}", attacker.printed());
    is_undisturbed(victim);
}

#[test]
fn no_call_waits_for_closing_a_descriptor_of_another_user() {
    two_users!();
    let scratch = Scratch::new();
    let victim = victim(&scratch);
    let mut attacker = stranger(&scratch, "linger", &victim).as_nobody().start();
    attacker.wait_says("connected");
    victim.stop();
    attacker.wait_says("attacked");
    victim.resume();
    assert!(attacker.printed().contains("welcomed true"), "{}", attacker.printed());
    is_undisturbed(victim);
}

#[test]
fn another_user_takes_no_more_than_its_share_of_files_and_memory() {
    two_users!();
    let scratch = Scratch::new();
    let victim = victim(&scratch);
    let attacker = attack(&scratch, "rings", &victim);
    let printed = attacker.printed();
    assert!(of(&printed, "connections") > CONNECTIONS && of(&printed, "welcomed") > 0, "{printed}");
    let mapped = mapped(&victim);
    assert!(mapped <= RINGS + CONNECTIONS * PAGES, "{mapped} bytes mapped: {printed}");
    is_undisturbed(victim);
}

#[test]
fn peers_of_the_same_user_are_served_beside_a_user_that_takes_all_it_can() {
    two_users!(Need::Program("ibv_rc_pingpong"), Need::Program("prlimit"));
    let scratch = Scratch::new();
    let port = Port::lease();
    let args = ["-g", "0", "-c", "-n", "100", "-s", "70000", "-p", &port.number().to_string()];
    let mut server = Program::new("prlimit")
        .mode(Mode::Library)
        .args(["--nofile=1024:1024", "ibv_rc_pingpong"])
        .args(args)
        .start();
    server.wait_listening(port.number());
    let _attacker = attack(&scratch, "rings", &server);
    let client = Program::new("ibv_rc_pingpong").args(args).args(["127.0.0.1"]).output();
    client.says("100 iters in").never_says("invalid data");
    server.finish().says("100 iters in").never_says("invalid data");
}

/// Requires that a listener with so many files left sleeps while connections to it are pending.
#[track_caller]
fn rests(more_files: &str) {
    let scratch = Scratch::new();
    let full = compile("full", &scratch);
    let victim = Program::new(full).mode(Mode::Library).args([more_files]);
    let mut victim = victim.limit(Duration::from_secs(30)).start();
    victim.wait_says("ready");
    let attacker = attack(&scratch, "names", &victim);
    assert!(of(&attacker.printed(), "connections") >= 700, "{}", attacker.printed());
    victim.wait_idle();
    drop(attacker);
    victim.kill();
    let _ = victim.end();
}

#[test]
fn a_listener_with_few_descriptors_left_does_not_spin() {
    two_users!();
    rests("4");
}

#[test]
fn a_listener_that_can_open_nothing_does_not_spin() {
    two_users!();
    rests("-1");
}

#[test]
fn processes_of_the_same_user_get_the_table_and_other_users_do_not() {
    two_users!();
    let scratch = Scratch::new();
    let victim = victim(&scratch);
    // The doorbell, its eventfd, and the table.
    stranger(&scratch, "table", &victim).output().says("descriptors 3");
    stranger(&scratch, "table", &victim).as_nobody().output().says("descriptors 1");
    is_undisturbed(victim);
}

#[test]
fn users_that_a_namespace_does_not_know_are_other_users_there() {
    two_users!(Need::Namespaces, Need::Program("unshare"));
    let scratch = Scratch::new();
    let calls = compile("calls", &scratch);
    let mut victim =
        Program::new("unshare").mode(Mode::Library).args(["--user"]).args([calls]).start();
    victim.wait_says("ready");
    // To the victim both users look like its own.
    stranger(&scratch, "table", &victim).as_nobody().output().says("descriptors 1");
    stranger(&scratch, "table", &victim).output().says("descriptors 1");
    is_undisturbed(victim);
}
