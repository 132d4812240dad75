//! Ethernet frames of the port, for raw packet QPs. Each half is a packet socket, which exists
//! while it is needed.

use link::ether::{Listener, OpenError, Port, SendError};

use crate::thresholds::LOOKS_UNTIL_SILENT;

/// The sending half.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    socket: Option<link::ether::Sender>,
    /// QPs that send through it.
    users: u32,
}

impl Sender {
    /// Opens the port for one more QP.
    pub(crate) fn open(&mut self, port: Port) -> Result<(), OpenError> {
        if self.socket.is_none() {
            self.socket = Some(link::ether::Sender::open(port)?);
        }
        self.users += 1;
        Ok(())
    }

    /// One of the QPs went away.
    pub(crate) fn close(&mut self) {
        self.users = self.users.saturating_sub(1);
        if self.users == 0 {
            self.socket = None;
        }
    }

    /// Sends a frame; nothing if the port is closed.
    pub(crate) fn send(&self, frame: &[u8]) -> Option<Result<(), SendError>> {
        self.socket.as_ref().map(|socket| socket.send(frame))
    }

    /// In the child of a fork, closes what is the parent's.
    pub(crate) fn abandon_in_child(&mut self) {
        if let Some(socket) = self.socket.take() {
            socket.abandon_in_child();
        }
    }
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) listener: Listener,
    /// Whether a frame waits for a receive.
    pub(crate) is_holding: bool,
    /// Polls left in which the socket is checked each time, as more may come.
    heat: u32,
    too_long: u64,
}

impl Frames {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { listener, is_holding: false, heat: LOOKS_UNTIL_SILENT, too_long: 0 }
    }

    /// Whether frames came lately, so that each poll should look.
    pub(super) fn is_hot(&self) -> bool {
        self.heat > 0
    }

    /// A look found frames, or none. Says how many were too long since the last look.
    pub(crate) fn looked(&mut self, found: bool) -> u64 {
        self.heat = if found { LOOKS_UNTIL_SILENT } else { self.heat.saturating_sub(1) };
        let too_long = self.listener.too_long();
        too_long - std::mem::replace(&mut self.too_long, too_long)
    }
}
