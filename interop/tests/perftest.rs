//! perftest: every program, each with all of the most common options that it has.
//!
//! These tests do not check speed; `cargo xtask bench` measures it.

use interop::need::Need;
use interop::{Mode, Pair, needs, perftest};

/// The sizes of `-a`: 2 bytes to 8 MiB.
const ALL_SIZES: usize = 23;

/// Runs a test; the client's table must have `rows` lines, each with a value.
#[track_caller]
fn measure(pair: Pair, rows: usize) {
    let done = pair.run();
    let table = perftest::rows(&done.client);
    assert_eq!(table.len(), rows, "lines of results:\n{}", done.client);
    for row in table {
        // A message rate is printed with two digits: the bandwidth of 2-byte messages may round to
        // zero.
        assert!(row.value >= 0.0 && row.iterations > 0, "{row:?} in:\n{}", done.client);
        assert!(row.bytes < 4096 || row.value > 0.0, "{row:?} in:\n{}", done.client);
    }
}

/// One test per line: name, program, lines of results, arguments.
macro_rules! runs {
    ($($name:ident: $program:literal, $rows:expr $(, $arg:literal)*;)+) => {$(
        #[test]
        fn $name() {
            needs!(Need::Program($program));
            // -F: ignore changes of the CPU frequency.
            measure(Pair::new($program).args(["-F" $(, $arg)*]), $rows);
        }
    )+};
}

runs! {
    write_bw: "ib_write_bw", 1, "-n", "1000";
    write_bw_all: "ib_write_bw", ALL_SIZES, "-a", "-n", "20";
    write_bw_bidirectional: "ib_write_bw", 1, "-b", "-n", "500";
    write_bw_bidirectional_all: "ib_write_bw", ALL_SIZES, "-b", "-a", "-n", "10";
    write_bw_8_qps: "ib_write_bw", 1, "-q", "8", "-n", "200";
    write_bw_inline: "ib_write_bw", 1, "-s", "32", "-I", "64", "-n", "1000";
    write_bw_uc: "ib_write_bw", 1, "-c", "UC", "-n", "500";
    write_bw_post_list: "ib_write_bw", 1, "-l", "8", "-n", "800";
    write_bw_cq_mod_1: "ib_write_bw", 1, "-Q", "1", "-n", "500";
    write_bw_mr_per_qp: "ib_write_bw", 1, "-q", "4", "--mr_per_qp", "-n", "200";
    write_bw_mtu_256: "ib_write_bw", 1, "-m", "256", "-n", "200";
    write_bw_old_post_send: "ib_write_bw", 1, "--use_old_post_send", "-n", "500";
    write_bw_short_queue: "ib_write_bw", 1, "-t", "1", "-n", "200";
    write_lat: "ib_write_lat", 1, "-n", "1000";
    write_lat_all: "ib_write_lat", ALL_SIZES, "-a", "-n", "20";
    write_lat_inline_off: "ib_write_lat", 1, "-I", "0", "-n", "1000";
    write_lat_inline: "ib_write_lat", 1, "-s", "64", "-I", "64", "-n", "1000";
    write_lat_uc: "ib_write_lat", 1, "-c", "UC", "-n", "1000";

    read_bw: "ib_read_bw", 1, "-n", "500";
    read_bw_all: "ib_read_bw", ALL_SIZES, "-a", "-n", "20";
    read_bw_bidirectional: "ib_read_bw", 1, "-b", "-n", "500";
    read_bw_events: "ib_read_bw", 1, "-e", "-n", "500";
    read_bw_8_qps: "ib_read_bw", 1, "-q", "8", "-n", "200";
    read_bw_one_outstanding: "ib_read_bw", 1, "-o", "1", "-n", "200";
    read_lat: "ib_read_lat", 1, "-n", "1000";
    read_lat_all: "ib_read_lat", ALL_SIZES, "-a", "-n", "20";
    read_lat_events: "ib_read_lat", 1, "-e", "-n", "500";

    send_bw: "ib_send_bw", 1, "-n", "500";
    send_bw_all: "ib_send_bw", ALL_SIZES, "-a", "-n", "20";
    send_bw_bidirectional: "ib_send_bw", 1, "-b", "-n", "300";
    send_bw_events: "ib_send_bw", 1, "-e", "-n", "500";
    send_bw_8_qps: "ib_send_bw", 1, "-q", "8", "-n", "100";
    send_bw_inline: "ib_send_bw", 1, "-s", "32", "-I", "64", "-n", "1000";
    send_bw_uc: "ib_send_bw", 1, "-c", "UC", "-n", "300";
    send_bw_ud: "ib_send_bw", 1, "-c", "UD", "-s", "1024", "-n", "300";
    send_bw_srq: "ib_send_bw", 1, "--use-srq", "-q", "4", "-n", "200";
    send_bw_srq_events: "ib_send_bw", 1, "--use-srq", "-q", "4", "-e", "-n", "200";
    send_lat: "ib_send_lat", 1, "-n", "1000";
    send_lat_all: "ib_send_lat", ALL_SIZES, "-a", "-n", "20";
    send_lat_events: "ib_send_lat", 1, "-e", "-n", "300";
    send_lat_inline: "ib_send_lat", 1, "-s", "64", "-I", "64", "-n", "1000";
    send_lat_uc: "ib_send_lat", 1, "-c", "UC", "-n", "1000";
    send_lat_ud: "ib_send_lat", 1, "-c", "UD", "-s", "1024", "-n", "1000";
    send_lat_srq: "ib_send_lat", 1, "--use-srq", "-n", "500";

    atomic_bw: "ib_atomic_bw", 1, "-n", "500";
    atomic_bw_bidirectional: "ib_atomic_bw", 1, "-b", "-n", "500";
    atomic_bw_events: "ib_atomic_bw", 1, "-e", "-n", "500";
    atomic_bw_8_qps: "ib_atomic_bw", 1, "-q", "8", "-n", "200";
    atomic_bw_compare_and_swap: "ib_atomic_bw", 1, "-A", "CMP_AND_SWAP", "-n", "500";
    atomic_lat: "ib_atomic_lat", 1, "-n", "500";
    atomic_lat_events: "ib_atomic_lat", 1, "-e", "-n", "300";
    atomic_lat_compare_and_swap: "ib_atomic_lat", 1, "-A", "CMP_AND_SWAP", "-n", "500";
}

#[test]
fn the_default_run_of_each() {
    for program in [
        "ib_write_bw",
        "ib_write_lat",
        "ib_read_bw",
        "ib_read_lat",
        "ib_send_bw",
        "ib_send_lat",
        "ib_atomic_bw",
        "ib_atomic_lat",
    ] {
        needs!(Need::Program(program));
        measure(Pair::new(program).args(["-F"]), 1);
    }
}

#[test]
fn by_the_library_path_alone() {
    needs!(Need::Program("ib_send_bw"));
    measure(Pair::new("ib_send_bw").args(["-F", "-n", "200"]).mode(Mode::Library), 1);
}

#[test]
fn by_preload_alone() {
    needs!(Need::Program("ib_write_bw"));
    measure(Pair::new("ib_write_bw").args(["-F", "-n", "200"]).mode(Mode::Preload), 1);
}
