//! Network namespaces: two hosts on one machine.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::need::{self, Need};
use crate::program::Program;

/// A network namespace, held open by a sleeping process of ours.
///
/// It has no name under `/run/netns`, so it vanishes with the process, and its interfaces with it.
#[derive(Debug)]
pub struct Netns {
    holder: Child,
}

/// Two namespaces joined by a veth pair.
#[derive(Debug)]
pub struct Veth {
    /// The host with address 10.77.0.1, where servers run.
    pub left: Netns,
    /// The host with address 10.77.0.2, where clients run.
    pub right: Netns,
}

impl Netns {
    /// A new namespace with its loopback up.
    #[track_caller]
    pub fn new() -> Self {
        let before = std::fs::read_link("/proc/self/ns/net").expect("namespaces exist");
        // pdeathsig: if the test is killed, the namespace ends with it.
        let holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .expect("`setpriv` starts: the test asked for namespaces with needs!");
        let netns = Self { holder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(netns.path()).is_ok_and(|now| now == before) {
            assert!(Instant::now() < deadline, "`unshare --net` did not enter a new namespace");
            std::thread::sleep(Duration::from_millis(1));
        }
        netns.ip(&["link", "set", "lo", "up"]);
        netns
    }

    /// The path for `nsenter --net=`.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// Runs `ip ARGS` inside.
    #[track_caller]
    pub fn ip(&self, args: &[&str]) {
        self.tool("ip", args);
    }

    /// Waits until an interface can send.
    #[track_caller]
    fn wait_carrier(&self, interface: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.tool("ip", &["-o", "link", "show", interface]).contains("LOWER_UP") {
            assert!(Instant::now() < deadline, "{interface} has no carrier");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a tool inside and returns what it printed; it must succeed.
    #[track_caller]
    pub fn tool(&self, name: &str, args: &[&str]) -> String {
        let out = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .arg(name)
            .args(args)
            .output()
            .expect("`nsenter` starts");
        assert!(out.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

impl Default for Netns {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Several hosts behind one bridge.
#[derive(Debug)]
pub struct Lan {
    switch: Netns,
    /// The hosts.
    pub hosts: Vec<Netns>,
}

impl Lan {
    /// Creates this many hosts.
    #[track_caller]
    pub fn new(hosts: usize) -> Self {
        let switch = Netns::new();
        switch.ip(&["link", "add", "br0", "type", "bridge"]);
        switch.ip(&["link", "set", "br0", "up"]);
        let mut lan = Self { switch, hosts: Vec::new() };
        for index in 0..hosts {
            let host = Netns::new();
            let (port, holder) = (format!("port{index}"), host.holder.id().to_string());
            let far = ["peer", "name", "eth0", "netns", &holder];
            lan.switch.ip(&[&["link", "add", &port, "type", "veth"], &far[..]].concat());
            lan.switch.ip(&["link", "set", &port, "master", "br0", "up"]);
            host.ip(&["addr", "add", &format!("{}/24", Self::address(index)), "dev", "eth0"]);
            host.ip(&["link", "set", "eth0", "up"]);
            host.ip(&["route", "add", "default", "via", "10.79.0.254"]);
            lan.hosts.push(host);
        }
        for host in &lan.hosts {
            host.wait_carrier("eth0");
        }
        lan
    }

    /// The address of a host.
    pub fn address(index: usize) -> String {
        format!("10.79.0.{}", index + 1)
    }

    /// Disconnects a host from the switch; the carrier of its interface stays up.
    #[track_caller]
    pub fn cut_off(&self, index: usize) {
        self.switch.ip(&["link", "set", &format!("port{index}"), "nomaster"]);
    }

    /// Reconnects it.
    #[track_caller]
    pub fn reconnect(&self, index: usize) {
        self.switch.ip(&["link", "set", &format!("port{index}"), "master", "br0"]);
    }
}

/// A namespace with a tap device whose other end is in a [`Vm`](crate::Vm).
#[derive(Debug)]
pub struct Tap {
    /// The host with address 10.78.0.1.
    pub host: Netns,
}

impl Tap {
    /// The tap's name.
    pub const INTERFACE: &str = "tap0";
    /// The address of the host.
    pub const HOST: &str = "10.78.0.1";
    /// The address of the machine.
    pub const GUEST: &str = "10.78.0.2";

    /// A host that is connected to a machine which is started later, with an MTU for packets of the
    /// largest path MTU.
    #[track_caller]
    pub fn new() -> Self {
        let host = Netns::new();
        host.ip(&["tuntap", "add", Self::INTERFACE, "mode", "tap"]);
        let address = format!("{}/24", Self::HOST);
        host.ip(&["addr", "add", &address, "dev", Self::INTERFACE]);
        host.ip(&["link", "set", Self::INTERFACE, "mtu", "4300", "up"]);
        Self { host }
    }
}

impl Default for Tap {
    fn default() -> Self {
        Self::new()
    }
}

impl Veth {
    /// The name of the interface on both sides.
    pub const INTERFACE: &str = "veth0";

    /// Two connected hosts, with IPv4 and IPv6, and an MTU for packets of the largest path MTU.
    #[track_caller]
    pub fn new() -> Self {
        let (left, right) = (Netns::new(), Netns::new());
        let peer = right.holder.id().to_string();
        left.ip(&[
            "link",
            "add",
            Self::INTERFACE,
            "mtu",
            "4200",
            "type",
            "veth",
            "peer",
            "name",
            Self::INTERFACE,
            "mtu",
            "4200",
            "netns",
            &peer,
        ]);
        for (host, last) in [(&left, "1"), (&right, "2")] {
            host.ip(&["addr", "add", &format!("10.77.0.{last}/24"), "dev", Self::INTERFACE]);
            if need::check(Need::Ipv6).is_ok() {
                // nodad: an address under duplicate detection cannot be bound for a second or two.
                let v6 = format!("fd77::{last}/64");
                host.ip(&["addr", "add", &v6, "dev", Self::INTERFACE, "nodad"]);
            }
            host.ip(&["link", "set", Self::INTERFACE, "up"]);
        }
        // The carrier comes up a moment later; packets sent before that are lost.
        for host in [&left, &right] {
            host.wait_carrier(Self::INTERFACE);
        }
        let pair = Self { left, right };
        pair.ip_default_route();
        pair
    }

    /// Takes the left netdev down and up again, and requires that an `ibv_asyncwatch` reports both.
    pub fn goes_down_and_up(&self, watch: Program) {
        let mut watch = watch.in_netns(&self.left).start();
        watch.wait_says("async event FD");
        self.left.ip(&["link", "set", Self::INTERFACE, "down"]);
        watch.wait_says("IBV_EVENT_PORT_ERR");
        self.left.ip(&["link", "set", Self::INTERFACE, "up"]);
        watch.wait_says("IBV_EVENT_PORT_ACTIVE");
        watch.kill();
        watch.finish();
    }

    /// The address of the left host.
    pub fn left_address(&self) -> &'static str {
        "10.77.0.1"
    }

    /// The address of the right host.
    pub fn right_address(&self) -> &'static str {
        "10.77.0.2"
    }

    /// Disables segmentation offloads, so that a capture sees the packets of a real wire.
    #[track_caller]
    pub fn without_offloads(&self) {
        for host in [&self.left, &self.right] {
            for feature in ["gso", "gro", "tx-udp-segmentation"] {
                host.tool("ethtool", &["-K", Self::INTERFACE, feature, "off"]);
            }
        }
    }

    /// Sets the default route, whose netdev the device uses.
    fn ip_default_route(&self) {
        self.left.ip(&["route", "add", "default", "via", "10.77.0.2"]);
        self.right.ip(&["route", "add", "default", "via", "10.77.0.1"]);
    }
}

impl Default for Veth {
    fn default() -> Self {
        Self::new()
    }
}
