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

    /// Sends a frame; `None` if the port is closed.
    pub(crate) fn send(&self, frame: &[u8]) -> Option<Result<(), SendError>> {
        self.socket.as_ref().map(|socket| socket.send(frame))
    }

    /// In a forked child, closes what belongs to the parent.
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
    /// How many more polls check the socket each time, as more frames may come.
    heat: u32,
    too_long: u64,
}

impl Frames {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { listener, is_holding: false, heat: LOOKS_UNTIL_SILENT, too_long: 0 }
    }

    /// Whether frames came recently, so that each poll should check.
    pub(super) fn is_hot(&self) -> bool {
        self.heat > 0
    }

    /// Notes whether a check found frames. Returns how many were too long since the last check.
    pub(crate) fn looked(&mut self, found: bool) -> u64 {
        self.heat = if found { LOOKS_UNTIL_SILENT } else { self.heat.saturating_sub(1) };
        let too_long = self.listener.too_long();
        too_long - std::mem::replace(&mut self.too_long, too_long)
    }
}
