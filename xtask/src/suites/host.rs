//! A separate host for the suite: its tests of raw packets send frames that must not leave it.

use std::process::Command;

use crate::sh::{Outcome, tool};

/// An address of such a host.
pub(crate) const ADDRESS: &str = "10.77.9.1";

/// A netdev whose addresses are usable at once, so that the GID table does not change while the
/// tests read it. The other end of its wire is on the same host, and nobody listens there.
const SET_UP: &str = "\
set -e
ip link set lo up
ip link add eth0 type veth peer name far0
ip link set eth0 addrgenmode none
ip link set far0 addrgenmode none
ip link set eth0 mtu ${MTU:-1500}
ip link set far0 mtu ${MTU:-1500}
ip addr add 10.77.9.1/24 dev eth0
if [ -e /proc/net/if_inet6 ]; then
    ip addr add fd77::1/64 dev eth0 nodad
    ip addr add fe80::77/64 dev eth0 nodad
fi
ip link set eth0 up
ip link set far0 up
ip route add default via 10.77.9.254
";

/// Some tests need huge pages. If we are root on the machine, a few are reserved meanwhile, by one
/// run at a time, since their number is machine-wide. If that is refused, or memory is too
/// fragmented, those tests skip.
const SET_ASIDE: &str = "\
pool=/sys/kernel/mm/hugepages/hugepages-2048kB
if [ -w $pool/nr_hugepages ] && exec 9< $pool/nr_hugepages && flock 9; then
    before=$(cat $pool/nr_hugepages)
    trap 'echo $before 2>&- > $pool/nr_hugepages || true' EXIT
    trap 'exit 1' HUP INT TERM
    echo $((before + 32)) 2>&- > $pool/nr_hugepages || true
    [ $(cat $pool/free_hugepages) -ge 32 ] || echo $before > $pool/nr_hugepages
fi
\"$0\" \"$@\"
";

/// A command line that runs the one after it in a network namespace of its own, as root there; with
/// huge pages reserved, if wanted.
///
/// `MTU` in its environment is that of the netdev, 1500 without it.
pub(crate) fn of_its_own(has_huge_pages: bool) -> Outcome<Command> {
    let script = [SET_UP, if has_huge_pages { SET_ASIDE } else { "exec \"$0\" \"$@\"\n" }].concat();
    let mut command = unshared("--net")?;
    command.args(["sh", "-c", &script]);
    Ok(command)
}

/// A command line that runs the one after it in a mount namespace of its own, as root there.
pub(crate) fn with_mounts_of_its_own() -> Outcome<Command> {
    unshared("--mount")
}

fn unshared(namespace: &str) -> Outcome<Command> {
    // A user who is root already stays root.
    for rights in [&[namespace][..], &["--user", "--map-root-user", namespace]] {
        let is_possible =
            tool("unshare").args(rights).arg("true").status().is_ok_and(|s| s.success());
        if is_possible {
            let mut command = Command::new("unshare");
            command.args(rights).arg("--");
            return Ok(command);
        }
    }
    Err(format!("`unshare {namespace}` is refused: the tests need a namespace of their own"))
}
