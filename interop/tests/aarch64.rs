//! peerdma built for arm64, in an emulated machine with Debian's kernel and programs for arm64.
//!
//! The emulator runs on x86-64, which orders memory more strictly than ARM does, and so cannot show
//! a missing barrier; `cargo xtask loom` is for those.

use std::path::Path;

use interop::arm64::{Programs, build, cross_built, directory, sides};
use interop::need::{Need, full};
use interop::{Scratch, compile_arm64, needs, perftest};

/// The address of peerdma in the machine, and of the kernel's device.
const OURS: &str = "10.78.0.1";
const KERNELS: &str = "10.78.0.2";

/// The programs of one device, in the words of a program and its arguments.
struct Side {
    start: &'static str,
    address: &'static str,
    device: &'static str,
    gid: &'static str,
}

const PEERDMA: Side = Side { start: "ours", address: OURS, device: "peerdma0", gid: "0" };
const RXE: Side = Side { start: "kernels", address: KERNELS, device: "rxe0", gid: "1" };

/// Adds a program on both sides: pingpongs, perftest, or our own with their options.
fn on_both(
    programs: Programs,
    server: &Side,
    client: &Side,
    program: &str,
    args: &str,
) -> Programs {
    let gid = if program.starts_with("ib_") { "-x" } else { "-g" };
    let line = |side: &Side| {
        let Side { start, device, gid: index, .. } = side;
        format!("{start} {program} -d {device} {gid} {index} {args}")
    };
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).expect("a name");
    let name = format!("{name} {args}: {} serves", server.device);
    programs.pair(&name, &line(server), &format!("{} {}", line(client), server.address))
}

#[test]
fn the_demo_and_programs_behind_the_door() {
    needs!(Need::Arm64);
    build();
    let scratch = Scratch::new();
    let out = Programs::default()
        .run("demo", "/built/peerdma demo --rounds 2")
        .run("version", "uname -m")
        // A static program, whose calls are answered by the supervisor behind the filter.
        .run("sysfs", "/built/peerdma run -- /debian/bin/busybox cat /sys/class/infiniband/peerdma0/node_type")
        .run("rdma", "/built/peerdma run -- /usr/bin/rdma link")
        .run("devinfo", "/built/peerdma run -- /usr/bin/ibv_devinfo -v")
        .boot(scratch.path());
    out.section("demo").says("every byte was checked");
    out.section("version").says("aarch64");
    out.section("sysfs").says("1: CA");
    out.section("rdma").says("link peerdma0/1 state ACTIVE");
    out.section("devinfo").says("hca_id:\tpeerdma0").says("PORT_ACTIVE");
}

#[test]
fn the_programs_of_debian() {
    needs!(Need::Arm64);
    build();
    let scratch = Scratch::new();
    let mut programs = Programs::default();
    let both =
        |programs, program: &str, args: &str| on_both(programs, &PEERDMA, &PEERDMA, program, args);
    for (program, args) in [
        ("ibv_rc_pingpong", "-c -n 100 -s 70001"),
        ("ibv_rc_pingpong", "-c -e -n 50 -s 4096"),
        ("ibv_uc_pingpong", "-c -n 50 -s 4000"),
        ("ibv_ud_pingpong", "-c -n 50 -s 1000"),
        ("ibv_srq_pingpong", "-c -n 50 -s 4096 -q 4"),
    ] {
        programs = both(programs, program, args);
    }
    let tests: &[&str] = &["-n 50 -s 65536"];
    let sizes: &[&str] = &["-n 50 -s 65536", "-n 5 -a"];
    let bandwidth = ["ib_send_bw", "ib_write_bw", "ib_read_bw"];
    for program in bandwidth {
        for args in if full() { sizes } else { tests } {
            programs = both(programs, program, &format!("-F {args}"));
        }
    }
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat", "ib_atomic_bw"] {
        programs = both(programs, program, "-F -n 50");
    }
    programs = programs.pair(
        "rping",
        &format!("ours rping -s -a {OURS} -V -C 10"),
        &format!("ours rping -c -a {OURS} -V -C 10"),
    );
    let out = programs.boot(scratch.path());
    for name in out.names() {
        let section = out.section(name);
        if name.starts_with("ibv_") {
            section.says(" iters in").never_says("invalid data");
        } else if name.starts_with("ib_") && name.ends_with("client") {
            assert!(!perftest::rows(section).is_empty(), "{section}");
        }
    }
    for side in sides(&out, "rping") {
        side.never_says("mismatch");
    }
}

/// The kernel's `rdma_rxe` of that machine, each once as server and once as client; the program of
/// our own does every operation at many sizes, and compares every byte.
#[test]
fn the_kernels_device() {
    needs!(Need::Arm64, Need::Header("infiniband/verbs.h"));
    build();
    let scratch = Scratch::new();
    compile_arm64("xfer", &scratch);
    let mut programs = Programs::default();
    for (server, client) in [(&PEERDMA, &RXE), (&RXE, &PEERDMA)] {
        programs = on_both(programs, server, client, "ibv_rc_pingpong", "-c -n 50 -s 9001 -m 1024");
        programs = on_both(programs, server, client, "/files/xfer", "-m 4096");
        let address = server.address;
        programs = programs.pair(
            &format!("rping: {} serves", server.device),
            &format!("{} rping -s -a {address} -V -C 5", server.start),
            &format!("{} rping -c -a {address} -V -C 5", client.start),
        );
    }
    let out = programs.boot(scratch.path());
    for name in out.names() {
        let section = out.section(name);
        match name.split(' ').next() {
            Some("ibv_rc_pingpong") => section.says("50 iters in").never_says("invalid data"),
            Some("xfer") if name.ends_with("client") => section.says("every exchange was right"),
            _ => section.never_says("mismatch"),
        };
    }
}

/// Tests of crates that touch memory, know system calls by number, or keep order between threads
/// and processes: the fault guard, rings, the filter of the door, page faults, checksums.
#[test]
fn tests_of_crates() {
    needs!(Need::Arm64);
    let crates: &[&str] =
        &["umem", "link", "threads", "launcher", "wire", "hmm", "dmabuf", "descriptors"];
    let packages = crates.iter().map(|name| format!("peerdma-{name}")).collect::<Vec<_>>();
    let args = ["test", "--no-run", "--lib", "--tests"].into_iter();
    let mut tests = cross_built(args.chain(packages.iter().flat_map(|name| ["-p", name])));
    assert!(tests.len() >= crates.len(), "each has tests: {tests:?}");
    // They need the repository, and what the machine of the group `vm` has.
    tests.retain(|test| !["fuzz_dictionary", "kernel"].iter().any(|no| name(test).starts_with(no)));
    let scratch = Scratch::new();
    let mut programs = Programs::default();
    for test in &tests {
        let path = test.strip_prefix(directory()).expect("cargo puts them there");
        // The rings; others of its tests wait for times that are short for an emulated processor.
        let only = if name(test).starts_with("link-") { " shm::" } else { "" };
        programs = programs.run(name(test), &format!("/built/{}{only}", path.display()));
    }
    let out = programs.boot(scratch.path());
    for test in &tests {
        let section = out.section(name(test));
        section.says("ok").never_says("NOT TESTED");
        eprintln!("{}: {}", name(test), section.stdout.matches(" ... ok").count());
    }
}

/// The file's, with cargo's number: two crates have a test of the same name.
fn name(test: &Path) -> &str {
    test.file_name().and_then(|name| name.to_str()).expect("cargo's names are ASCII")
}
