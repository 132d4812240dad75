//! Programs of the connection manager, on one host or over a wire.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::netns::{Netns, Veth};
use crate::output::Output;
use crate::port::Port;
use crate::program::Program;
use crate::running::Running;

/// The hosts of a server and its clients.
#[derive(Debug)]
pub struct Place {
    veth: Option<Veth>,
    /// The port that programs get.
    pub port: Port,
}

impl Place {
    /// The log message of a listener.
    pub const LISTENS: &str = "listening on";

    /// Enough for a loaded machine.
    pub const LIMIT: Duration = Duration::from_secs(120);

    /// One host.
    pub fn here() -> Self {
        Self { veth: None, port: Port::lease() }
    }

    /// Two hosts.
    pub fn wire() -> Self {
        Self { veth: Some(Veth::new()), port: Port::lease() }
    }

    /// The server's address.
    pub fn host(&self) -> String {
        self.veth.as_ref().map_or_else(own_address, |veth| veth.left_address().to_owned())
    }

    /// The client's address.
    pub fn peer(&self) -> String {
        self.veth.as_ref().map_or_else(own_address, |veth| veth.right_address().to_owned())
    }

    /// The port in digits.
    pub fn port(&self) -> String {
        self.port.number().to_string()
    }

    /// A program on the server's host.
    pub fn server(&self, server: Program) -> Program {
        self.at(|veth| &veth.left, server)
    }

    /// A program on the clients' host.
    pub fn client(&self, client: Program) -> Program {
        self.at(|veth| &veth.right, client)
    }

    /// Starts a server and waits until it, or its log, reports that it is ready.
    #[track_caller]
    pub fn serve(&self, server: Program, ready: &str) -> Running {
        let log = "peerdma::cm=info,peerdma::rsocket=info";
        let mut server = self.server(server.env("PEERDMA_LOG", log)).start();
        server.wait_says(ready);
        server
    }

    /// `PROGRAM -p PORT ARGS` and `PROGRAM -p PORT ARGS -s HOST`: the form of most programs of
    /// rdmacm-utils.
    #[track_caller]
    pub fn pair(&self, program: &str, args: &[&str]) -> (Output, Output) {
        let (host, port) = (self.host(), self.port());
        let program = || Program::new(program).args(["-p", &port]).args(args);
        let server = self.serve(program(), Self::LISTENS);
        let client = self.client(program().args(["-s", &host])).output();
        (server.finish(), client)
    }

    fn at<'a>(&'a self, host: impl Fn(&'a Veth) -> &'a Netns, program: Program) -> Program {
        let program = program.limit(Self::LIMIT);
        match &self.veth {
            Some(veth) => program.in_netns(host(veth)),
            None => program,
        }
    }
}

/// An address of this host's NIC.
///
/// # Panics
///
/// If `ibv_devinfo` shows no NIC with a GID.
pub fn own_address() -> String {
    let out = Program::new("ibv_devinfo").args(["-v"]).output();
    let gid = out.stdout.lines().find(|line| line.contains("GID[")).expect("a NIC has a GID");
    let gid = gid.split_whitespace().find(|word| word.contains("::")).expect("a GID in words");
    let gid: Ipv6Addr = gid.trim_end_matches(',').parse().expect("a GID is an address");
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |v4| v4.to_string())
}
