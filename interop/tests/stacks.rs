//! Stacks on top of verbs: UCX, libfabric, and Open MPI over both.
//!
//! Each program may use only peerdma's transports, so that it fails instead of falling back, and
//! the counters of its device tell how many bytes took which path.

use std::path::Path;
use std::time::Duration;

use interop::need::Need;
use interop::{
    Artefacts, Finished, Mode, Mpi, Netns, Output, Pair, Port, Program, Scratch, Veth, compile_mpi,
    needs,
};

macro_rules! two_hosts {
    ($($more:expr),*) => {
        needs!(
            Need::Root, Need::Namespaces, Need::Program("ip"), Need::Program("nsenter"),
            Need::Program("setpriv") $(, $more)*
        )
    };
}

#[test]
fn ucx_finds_the_device() {
    needs!(Need::Program("ucx_info"));
    let out = Program::new("ucx_info").args(["-d"]).output();
    for words in ["Transport: rc_verbs", "Transport: ud_verbs", "Device: peerdma0:1"] {
        out.success().says(words);
    }
}

/// The number of messages of a test, and their size.
const MESSAGES: u64 = 100;
const BYTES: u64 = 20_000;

/// UCX's transports over verbs: reliable connections, and datagrams that UCX makes reliable.
const TRANSPORTS: [&str; 2] = ["rc_v", "ud_v"];

/// A test of UCP, the layer that MPI uses, over one transport of verbs.
fn ucx(test: &str, transport: &str) -> Pair {
    let (messages, bytes) = (MESSAGES.to_string(), BYTES.to_string());
    Pair::new("ucx_perftest")
        .args(["-t", test, "-n", &messages, "-w", "10", "-s", &bytes])
        .both(|program| {
            program
                .env("UCX_TLS", format!("{transport},self"))
                .env("UCX_NET_DEVICES", "peerdma0:1")
                .env("PEERDMA_LOG", "info")
        })
        .limit(Duration::from_secs(60))
}

/// Requires that every message was sent, and that the device of one side carried at least their
/// bytes by the expected carrier.
#[track_caller]
fn carried(done: &Finished, packets: &str, largest: u64) {
    let last = done.client.stdout.lines().find(|line| line.starts_with("Final:"));
    let sent = last.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    assert_eq!(sent, Some(MESSAGES), "{}", done.client);
    let carried = [&done.client, &done.server].map(|side| {
        let count = |name| side.counters().get(name).copied().unwrap_or(0);
        count(packets) * largest + count("direct_bytes")
    });
    let most = carried.into_iter().max();
    assert!(most >= Some(MESSAGES * BYTES), "{carried:?} bytes\n{}\n{}", done.client, done.server);
}

const UCP_TESTS: [&str; 6] =
    ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_am_lat"];

#[test]
fn ucx_over_one_host() {
    needs!(Need::Program("ucx_perftest"));
    for transport in TRANSPORTS {
        for test in UCP_TESTS {
            // A record of a ring is 32 KiB at most.
            carried(&ucx(test, transport).run(), "tx_shm_packets", 32 << 10);
        }
    }
}

#[test]
fn ucx_over_two_hosts() {
    two_hosts!(Need::Program("ucx_perftest"));
    let veth = Veth::new();
    for transport in TRANSPORTS {
        for test in UCP_TESTS {
            carried(&ucx(test, transport).across(&veth).run(), "tx_udp_packets", 4096);
        }
    }
}

/// The layer below, which calls verbs directly.
#[test]
fn ucx_by_its_lower_layer() {
    two_hosts!(Need::Program("ucx_perftest"));
    let veth = Veth::new();
    for (test, transport, layout) in [
        ("am_lat", "rc_verbs", "bcopy"),
        ("am_bw", "rc_verbs", "zcopy"),
        ("put_lat", "rc_verbs", "bcopy"),
        ("put_bw", "rc_verbs", "zcopy"),
        ("get", "rc_verbs", "zcopy"),
        ("fadd", "rc_verbs", "short"),
        ("am_lat", "ud_verbs", "short"),
    ] {
        let size = if layout == "short" { "8" } else { "4000" };
        let args = ["-d", "peerdma0:1", "-x", transport, "-D", layout, "-t", test, "-s", size];
        let done = Pair::new("ucx_perftest")
            .args(args)
            .args(["-n", "100", "-w", "10"])
            .both(|program| program.env("PEERDMA_LOG", "info"))
            .across(&veth)
            .run();
        done.client.says("Final:");
        assert!(done.client.counters()["tx_udp_packets"] >= 100, "{test}\n{}", done.client);
    }
}

#[test]
fn libfabric_finds_the_device() {
    needs!(Need::Program("fi_info"));
    let out = Program::new("fi_info").args(["-p", "verbs"]).output();
    for words in [
        "domain: peerdma0\n",
        "domain: peerdma0-dgram\n",
        "protocol: FI_PROTO_RDMA_CM_IB_RC",
        "protocol: FI_PROTO_IB_UD",
        "protocol: FI_PROTO_RXM",
    ] {
        out.success().says(words);
    }
}

/// Messages of `fi_pingpong`, for each size up to `largest`.
const PINGS: u64 = 50;
const SIZES: [u64; 6] = [64, 256, 1024, 4096, 65_536, 1 << 20];

/// `fi_pingpong` over an endpoint of a provider, which checks the bytes (`-c`). Clients use the
/// control port of the server. The name of each host is its address.
fn pingpong(provider: &str, endpoint: &str, [server, client]: [(&Netns, &str); 2]) -> Finished {
    let port = Port::lease();
    let number = port.number();
    let peerdma = Artefacts::find().peerdma();
    let program = |options: String, (netns, address): (&Netns, &str)| {
        let line = format!(
            "hostname {address}; exec '{}' run -- \
             fi_pingpong -p '{provider}' -e {endpoint} -c -I {PINGS} {options}",
            peerdma.display()
        );
        Program::new("unshare")
            .args(["--uts", "sh", "-c", &line])
            .mode(Mode::Plain)
            .env("PEERDMA_LOG", "info")
            .in_netns(netns)
            .limit(Duration::from_secs(60))
    };
    let mut running = program(format!("-B {number}"), server).start();
    running.wait_listening(number);
    let client = program(format!("-P {number} {}", server.1), client).output();
    if !client.status.success() {
        running.end_unless_ended(Duration::from_secs(3));
    }
    Finished { server: running.finish(), client }
}

/// Requires that all sizes went both ways, and that the devices carried at least their bytes.
#[track_caller]
fn all_sizes_went(done: &Finished, largest: u64, packets: &str, bytes_of_a_packet: u64) {
    let sizes: Vec<u64> = SIZES.into_iter().filter(|size| *size <= largest).collect();
    for side in [&done.client, &done.server] {
        side.success();
        // A line for each size, with the messages sent and those acknowledged.
        let done: Vec<_> =
            side.stdout.lines().filter(|line| line.contains(&format!("={PINGS}"))).collect();
        assert_eq!(done.len(), sizes.len(), "{side}");
        let count = |name| side.all_counters(name).into_iter().sum::<u64>();
        let carried = count(packets) * bytes_of_a_packet + count("direct_bytes");
        let sent: u64 = sizes.iter().map(|size| size * PINGS).sum();
        assert!(carried >= sent, "{carried} of {sent} bytes\n{side}");
    }
}

/// Connected endpoints, datagrams, and reliable datagrams over connections. A datagram is limited
/// to the MTU.
const ENDPOINTS: [(&str, &str, u64); 3] =
    [("verbs", "msg", 1 << 20), ("verbs", "dgram", 4096), ("verbs;ofi_rxm", "rdm", 1 << 20)];

#[test]
fn libfabric_over_one_host() {
    two_hosts!(Need::Program("fi_pingpong"));
    let veth = Veth::new();
    let host = (&veth.left, veth.left_address());
    for (provider, endpoint, largest) in ENDPOINTS {
        let done = pingpong(provider, endpoint, [host, host]);
        // A record of a ring is 32 KiB at most.
        all_sizes_went(&done, largest, "tx_shm_packets", 32 << 10);
    }
}

#[test]
fn libfabric_over_two_hosts() {
    two_hosts!(Need::Program("fi_pingpong"));
    let veth = Veth::new();
    let hosts = [(&veth.left, veth.left_address()), (&veth.right, veth.right_address())];
    for (provider, endpoint, largest) in ENDPOINTS {
        let done = pingpong(provider, endpoint, hosts);
        all_sizes_went(&done, largest, "tx_udp_packets", 4096);
    }
}

/// Bytes that each rank of `mpi.c` receives.
const BYTES_OF_A_RANK: u64 = 8 * (1 + 1_000 + 10_000 + 300_000 + (4 << 20));

/// The MPI program on two hosts, a rank on each.
fn mpi(
    scratch: &Scratch,
    hosts: [&Netns; 2],
    options: &[(&str, &str)],
    env: &[(&str, &str)],
) -> Output {
    let program = compile_mpi("mpi", scratch);
    let program = program.to_str().expect("our own path");
    let mpirun = Path::new("mpirun");
    let mpi = Mpi { mpirun, program: &[program], gpu: None, options, env };
    mpi.between(hosts, scratch.path()).limit(Duration::from_secs(90)).output()
}

/// Requires that both ranks checked every byte, and that the devices sent at least those bytes to
/// the other host.
#[track_caller]
fn all_ranks_succeed(out: &Output) {
    for rank in 0..2 {
        out.success()
            .says(&format!("rank {rank} of 2 received {BYTES_OF_A_RANK} bytes, all right"));
    }
    let packets = out.all_counters("tx_udp_packets");
    assert_eq!(packets.len(), 2, "a device for each rank\n{out}");
    for count in packets {
        assert!(count * 4096 >= BYTES_OF_A_RANK, "{count} packets\n{out}");
    }
}

#[test]
fn mpi_by_ucx() {
    two_hosts!(Need::Program("mpirun"), Need::Program("mpicc"), Need::Program("ucx_info"));
    let veth = Veth::new();
    let scratch = Scratch::new();
    let options = [("pml", "ucx"), ("osc", "ucx"), ("btl", "self")];
    let env = [("UCX_TLS", "rc_v,self"), ("UCX_NET_DEVICES", "peerdma0:1")];
    all_ranks_succeed(&mpi(&scratch, [&veth.left, &veth.right], &options, &env));
}

/// The same by libfabric: messages of Open MPI's matching layer over reliable datagrams over
/// connections of verbs.
#[test]
fn mpi_by_libfabric() {
    two_hosts!(Need::Program("mpirun"), Need::Program("mpicc"), Need::Program("fi_info"));
    let veth = Veth::new();
    let scratch = Scratch::new();
    let options = [("pml", "cm"), ("mtl", "ofi"), ("osc", "pt2pt"), ("btl", "self")];
    let env = [("FI_PROVIDER", "verbs,ofi_rxm")];
    all_ranks_succeed(&mpi(&scratch, [&veth.left, &veth.right], &options, &env));
}
