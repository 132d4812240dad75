//! The next hop of an address vector.
//!
//! Over RoCE, the kernel puts the Ethernet address of the next hop into a QP that is being
//! connected, or into an address handle, before a driver sees either (`ib_resolve_eth_dmac`). So it
//! fails for a host that does not exist: after a second, or at once if there is no route. Datagrams
//! of a socket need no such address, but programs learn of a dead peer from it. The wait is without
//! the engine's lock.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iba::Av;
use link::neighbour;

use crate::Hca;
use crate::engine::Engine;
use crate::ids::{PdId, QpId};
use crate::refusal::{Result, refuse};

/// How long the kernel waits for a neighbour (`rdma_addr_find_l2_eth_by_grh`).
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two checks, at first and at most: an answer on a local network takes a
/// fraction of a millisecond.
const LOOKS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(10)];

impl Hca {
    /// Creates an address handle, whose only state is the count in its protection domain.
    ///
    /// # Errors
    ///
    /// [`Kind::TimedOut`](crate::Kind) if the next hop does not answer,
    /// [`Kind::Unreachable`](crate::Kind) if there is no route.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, pd: PdId, av: &Av) -> Result<()> {
        let engine = self.alive()?;
        engine.check_av(av)?;
        let to = engine.next_hop(av);
        drop(engine);
        wait_for("create_ah", to)?;
        self.alive()?.count_ah(pd, true)
    }

    /// Waits for the next hop of a QP that is being connected.
    pub(crate) fn wait_for_next_hop(&self, id: QpId, av: &Av) -> Result<()> {
        let engine = self.alive()?;
        let is_connected =
            engine.qps.get(id).is_some_and(|entry| entry.context.qp_type.is_connected());
        // The engine refuses an address vector that breaks a rule.
        let is_good = is_connected && engine.check_av(av).is_ok();
        let to = if is_good { engine.next_hop(av) } else { None };
        drop(engine);
        wait_for("modify_qp", to)
    }
}

impl Engine {
    /// Where packets to an address are sent, if it belongs to another host. The Ethernet address of
    /// a group follows from its IP address.
    fn next_hop(&self, av: &Av) -> Option<SocketAddr> {
        let (port, udp_port) = (&self.common.nic.port, self.common.nic.config.udp_port);
        if av.dgid.is_multicast() || port.gids.contains(&av.dgid) {
            return None;
        }
        let ip = av.dgid.to_ip();
        if ip.is_unspecified() {
            return None;
        }
        Some(match ip {
            // Such an address does not say which network it belongs to.
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, udp_port, 0, port.ifindex).into()
            }
            ip => (ip, udp_port).into(),
        })
    }
}

fn wait_for(who: &str, to: Option<SocketAddr>) -> Result<()> {
    let Some(to) = to else { return Ok(()) };
    let began = Instant::now();
    let [mut pause, longest] = LOOKS;
    loop {
        match neighbour::is_known(to) {
            Ok(true) => return Ok(()),
            Ok(false) if began.elapsed() < PATIENCE => {}
            Ok(false) => refuse!(
                TimedOut,
                "{who}: the next hop to {} does not answer (ARP or neighbour discovery)",
                to.ip()
            ),
            Err(error) => match error.kind() {
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                    refuse!(Unreachable, "{who}: no route to {}: {error}", to.ip())
                }
                _ => {
                    warn_once(&error);
                    return Ok(());
                }
            },
        }
        if pause == LOOKS[0] {
            neighbour::solicit(to);
        }
        thread::sleep(pause);
        pause = (2 * pause).min(longest);
    }
}

/// Where the kernel does not say, a missing peer is noticed by its silence.
#[cold]
fn warn_once(error: &io::Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            target: "peerdma::neighbour",
            "the kernel does not say which hosts exist ({error}): QPs are also connected to hosts that do not"
        );
    }
}
