//! Memory of programs in a file that peers map: `peerdma run --shared-heap`.

use std::time::Duration;

use interop::need::Need;
use interop::{Finished, Output, Pair, Program, Scratch, Veth, compile, needs};

const LOG: &str = "peerdma::path=debug,peerdma::counters=info";
/// What the log says of a region that is reached by a mapping.
const MAPPED: &str = "reach this region directly: by a mapping of its file";
const ORDINARY: &str = "reach this region directly: by process_vm_writev";

fn on_heap(program: Program) -> Program {
    program.shared_heap().env("PEERDMA_LOG", LOG)
}

/// perftest, which registers memory of `memalign`. Requires that all regions are files, and that
/// operations needed no packet.
#[track_caller]
fn perftest(program: &'static str, args: &[&str]) {
    let done = Pair::new(program).args(["-F", "-n", "1000"]).args(args).both(on_heap).run();
    for side in [&done.server, &done.client] {
        side.says(MAPPED).never_says(ORDINARY);
    }
    // A queue of operations may be packets, before the peer has answered for the first time.
    let direct = done.client.counters().get("direct_operations").copied();
    assert!(direct >= Some(500), "{direct:?} in\n{}", done.client);
}

#[test]
fn perftest_writes_to_a_mapping() {
    needs!(Need::Program("ib_write_bw"));
    for size in ["8", "4096", "65536"] {
        perftest("ib_write_bw", &["-s", size]);
    }
    perftest("ib_write_lat", &["-s", "8"]);
}

#[test]
fn perftest_reads_from_a_mapping() {
    needs!(Need::Program("ib_read_bw"));
    perftest("ib_read_bw", &["-s", "65536"]);
}

#[test]
fn perftest_has_atomics_without_packets() {
    needs!(Need::Program("ib_atomic_bw"));
    perftest("ib_atomic_bw", &[]);
}

#[test]
fn the_log_says_what_a_region_without_a_shared_heap_is() {
    needs!(Need::Program("ib_write_bw"));
    let log = |program: Program| program.env("PEERDMA_LOG", LOG);
    let done = Pair::new("ib_write_bw").args(["-F", "-n", "100"]).both(log).run();
    for side in [&done.server, &done.client] {
        side.says(ORDINARY).says("memory=\"ordinary memory\"").never_says(MAPPED);
    }
}

/// UCX, whose own allocation is by malloc then, and which checks nothing itself.
#[test]
fn ucx_allocates_from_it() {
    needs!(Need::Program("ucx_perftest"));
    for test in ["ucp_put_bw", "ucp_get", "tag_bw"] {
        let done = Pair::new("ucx_perftest")
            .args(["-t", test, "-n", "200", "-w", "10", "-s", "65536"])
            .both(|program| {
                on_heap(program).env("UCX_TLS", "rc_v,self").env("UCX_NET_DEVICES", "peerdma0:1")
            })
            .run();
        done.client.says("Final:").says(MAPPED);
        done.server.says(MAPPED).never_says(ORDINARY);
    }
}

/// libfabric, by a program that checks the bytes.
#[test]
fn libfabric_allocates_from_it() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ip"),
        Need::Program("nsenter"),
        Need::Program("setpriv"),
        Need::Program("fi_pingpong")
    );
    // A host with a name of its own has one address.
    let veth = Veth::new();
    let done = fi_pingpong(&veth);
    for side in [&done.server, &done.client] {
        side.success().says(MAPPED).never_says(ORDINARY);
    }
}

fn fi_pingpong(veth: &Veth) -> Finished {
    let port = interop::Port::lease();
    let (number, address) = (port.number(), veth.left_address());
    let peerdma = interop::Artefacts::find().peerdma();
    let program = |options: String| {
        let line = format!(
            "hostname {address}; exec '{}' run --shared-heap -- fi_pingpong \
             -p 'verbs;ofi_rxm' -e rdm -c -I 20 {options}",
            peerdma.display()
        );
        Program::new("unshare")
            .args(["--uts", "sh", "-c", &line])
            .mode(interop::Mode::Plain)
            .env("PEERDMA_LOG", LOG)
            .in_netns(&veth.left)
    };
    let mut server = program(format!("-B {number}")).start();
    server.wait_listening(number);
    let client = program(format!("-P {number} {address}")).output();
    if !client.status.success() {
        server.end_unless_ended(Duration::from_secs(3));
    }
    Finished { server: server.finish(), client }
}

fn shared_heap(args: &[&str]) -> Output {
    let scratch = Scratch::new();
    let program = compile("shared_heap", &scratch);
    on_heap(Program::new(program)).args(args).output()
}

#[test]
fn a_child_of_a_fork_has_its_own_bytes_while_a_peer_writes_to_its_parent() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = shared_heap(&[]);
    out.success().says("ok").says(MAPPED).never_says(ORDINARY);
    // Ten atomics, which need a mapping, and three WRITEs behind the first, which may be a packet.
    let direct = out.all_counters("direct_operations");
    assert!(direct.iter().any(|count| *count >= 13), "{direct:?} in\n{out}");
}

#[test]
fn a_child_of_clone_has_its_own_bytes() {
    needs!(Need::Header("infiniband/verbs.h"));
    shared_heap(&["clone"]).success().says("ok");
}

#[test]
fn a_child_that_nobody_announced_is_refused_in_words() {
    needs!(Need::Header("infiniband/verbs.h"));
    shared_heap(&["syscall"]).success().says("ok").says("that a system call made");
}

#[test]
fn programs_that_fork_with_open_devices_go_on_as_ever() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("fork", &scratch);
    for name in ["child_idle", "both", "husks", "orphan"] {
        on_heap(Program::new(&program)).args([name]).output().success().says("ok");
    }
    let storm = compile("fork_storm", &scratch);
    on_heap(Program::new(storm)).args(["100"]).output().success().says("ok");
}

#[test]
fn shells_and_interpreters_run_on_it() {
    let shell = "x=$(seq 100000 | wc -c); (y=$x; test $y = 588895) && echo $x | cat";
    Program::new("bash").shared_heap().args(["-c", shell]).output().success().says("588895");
    let python = "
import os, subprocess, threading
b = bytearray(1 << 20)
b[5] = 7
stop = False
def churn():
    while not stop:
        bytearray(50000)
threads = [threading.Thread(target=churn) for _ in range(3)]
for t in threads: t.start()
for i in range(20):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        ok = b[5] == 7
        b[5] = 9
        bytearray(1 << 21)
        os.write(w, b'y' if ok else b'n')
        os._exit(0)
    assert os.read(r, 1) == b'y'
    assert os.waitpid(pid, 0)[1] == 0 and b[5] == 7
    os.close(r); os.close(w)
stop = True
for t in threads: t.join()
assert subprocess.run(['true']).returncode == 0
print('memfd:peerdma-heap' in open('/proc/self/maps').read())
";
    let out = Program::new("python3").shared_heap().args(["-W", "ignore", "-c", python]).output();
    out.success().says("True");
}
