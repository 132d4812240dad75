//! A server and its client.

use std::ffi::OsStr;
use std::time::Duration;

use crate::netns::Veth;
use crate::output::Output;
use crate::port::Port;
use crate::program::{Mode, Program};
use crate::running::Running;

/// One program in two roles: `PROGRAM -p PORT ARGS` and `PROGRAM -p PORT ARGS HOST`.
///
/// The pingpongs of libibverbs and the tests of perftest are all of this form.
#[derive(Debug)]
pub struct Pair {
    server: Program,
    client: Program,
    host: String,
    port: Port,
}

/// A running pair.
#[derive(Debug)]
pub struct RunningPair {
    /// The side that listens.
    pub server: Running,
    /// The side that connects.
    pub client: Running,
    _port: Port,
}

/// How long a server may continue after its client failed, to report what it saw.
const GRACE: Duration = Duration::from_secs(3);

/// The results of both sides.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The side that listened.
    pub server: Output,
    /// The side that connected.
    pub client: Output,
}

impl Pair {
    /// Both roles of `name`, on this host.
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        let port = Port::lease();
        let program =
            |port: &Port| Program::new(name.as_ref()).args(["-p", &port.number().to_string()]);
        Self { server: program(&port), client: program(&port), host: "127.0.0.1".to_owned(), port }
    }

    /// Adds arguments to both sides.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(self, args: I) -> Self {
        let args: Vec<_> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
        self.both(|program| program.args(&args))
    }

    /// Chooses how both sides use peerdma.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        self.both(|program| program.mode(mode))
    }

    /// Puts the server on the left host of a veth pair and the client on the right one.
    #[must_use]
    pub fn across(mut self, veth: &Veth) -> Self {
        self.server = self.server.in_netns(&veth.left);
        self.client = self.client.in_netns(&veth.right);
        self.host = veth.left_address().to_owned();
        self
    }

    /// Gives the client another name or address of the server.
    #[must_use]
    pub fn host(mut self, host: &str) -> Self {
        self.host = host.to_owned();
        self
    }

    /// How long each side may take.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        self.both(|program| program.limit(limit))
    }

    /// Changes both sides.
    #[must_use]
    pub fn both(mut self, mut change: impl FnMut(Program) -> Program) -> Self {
        self.server = change(self.server);
        self.client = change(self.client);
        self
    }

    /// Changes the server.
    #[must_use]
    pub fn server(mut self, change: impl FnOnce(Program) -> Program) -> Self {
        self.server = change(self.server);
        self
    }

    /// Changes the client.
    #[must_use]
    pub fn client(mut self, change: impl FnOnce(Program) -> Program) -> Self {
        self.client = change(self.client);
        self
    }

    /// Starts the server, waits until it listens, starts the client.
    #[track_caller]
    pub fn start(self) -> RunningPair {
        let mut server = self.server.start();
        server.wait_listening(self.port.number());
        let client = self.client.args([&self.host]).start();
        RunningPair { server, client, _port: self.port }
    }

    /// Runs both to their end; both must succeed.
    #[track_caller]
    pub fn run(self) -> Finished {
        let done = self.start().finish();
        assert!(
            done.client.status.success() && done.server.status.success(),
            "both sides had to succeed:\n=== client {}\n=== server {}",
            done.client,
            done.server
        );
        done
    }
}

impl RunningPair {
    /// Waits for both to end, whatever their exit status.
    #[track_caller]
    pub fn finish(self) -> Finished {
        let client = self.client.finish();
        let mut server = self.server;
        if !client.status.success() {
            // A server whose client failed may wait for ever.
            server.end_unless_ended(GRACE);
        }
        Finished { server: server.finish(), client }
    }
}
