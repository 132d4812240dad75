//! Two hosts on one machine: network namespaces joined by a veth pair.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::pairs::Place;

const INTERFACE: &str = "veth0";
const ADDRESSES: [&str; 2] = ["10.78.0.1", "10.78.0.2"];

/// A pair of hosts. They have no names and vanish with this value, or with this program.
#[derive(Debug)]
pub(crate) struct Veth {
    hosts: [Netns; 2],
}

#[derive(Debug)]
struct Netns {
    holder: Child,
}

impl Veth {
    /// Two hosts whose link carries IP packets of `mtu` bytes.
    pub(crate) fn new(mtu: u32) -> Outcome<Self> {
        let hosts = [Netns::new()?, Netns::new()?];
        let (mtu, peer) = (mtu.to_string(), hosts[1].holder.id().to_string());
        let own = ["link", "add", INTERFACE, "mtu", &mtu, "type", "veth"];
        let other = ["peer", "name", INTERFACE, "mtu", &mtu, "netns", &peer];
        hosts[0].ip(&[own, other].concat())?;
        for (host, address) in hosts.iter().zip(ADDRESSES) {
            host.ip(&["addr", "add", &format!("{address}/24"), "dev", INTERFACE])?;
            host.ip(&["link", "set", INTERFACE, "up"])?;
        }
        // The device is on the netdev of the default route.
        for (host, gateway) in hosts.iter().zip([ADDRESSES[1], ADDRESSES[0]]) {
            host.wait_carrier()?;
            host.ip(&["route", "add", "default", "via", gateway])?;
        }
        Ok(Self { hosts })
    }

    /// The server on one host, the client on the other.
    pub(crate) fn place(&self) -> Place {
        let [server, client] = self.hosts.each_ref().map(Netns::prefix);
        let [host, back] = ADDRESSES.map(str::to_owned);
        Place { server, client, host, back }
    }
}

impl Netns {
    fn new() -> Outcome<Self> {
        let outside = std::fs::read_link("/proc/self/ns/net")?;
        // pdeathsig: if this program is killed, the namespace ends with it.
        let holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()?;
        let mut netns = Self { holder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(netns.path()).is_ok_and(|inside| inside == outside) {
            if netns.holder.try_wait()?.is_some() || Instant::now() > deadline {
                return Err("no network namespace: this needs CAP_SYS_ADMIN".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    fn prefix(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.path())]
    }

    /// A link is up a moment after it was set up; packets sent before that are lost.
    fn wait_carrier(&self) -> Outcome<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.ip(&["-o", "link", "show", INTERFACE])?.contains("LOWER_UP") {
            if Instant::now() > deadline {
                return Err(format!("{INTERFACE} has no carrier").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn ip(&self, args: &[&str]) -> Outcome<String> {
        let [nsenter, netns] = <[String; 2]>::try_from(self.prefix()).expect("two words");
        let out = Command::new(nsenter).args([&netns, "ip"]).args(args).output()?;
        if !out.status.success() {
            let words = args.join(" ");
            return Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
