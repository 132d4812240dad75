//! How the processes of an example find each other: over TCP, in place of whatever a real program
//! uses.
#![allow(dead_code, reason = "each example uses its part")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use verbs::aio::Listener;
use verbs::{Cq, Endpoint, Qp, RKey, Remote, Wc};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Waits for a peer to connect, at an address that is printed.
pub(crate) fn listen() -> Outcome<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    Ok(listener.accept()?.0)
}

/// Listens at an address that is printed.
pub(crate) async fn bind() -> Outcome<Listener> {
    let listener = Listener::bind("0.0.0.0:0").await?;
    let here = listener.nic().ip_addr().ok_or("the NIC has no address")?;
    println!("{}", SocketAddr::new(here, listener.local_addr().port()));
    Ok(listener)
}

/// Sends the peer the address of a QP, and returns that of the peer's.
pub(crate) fn exchange(here: Endpoint, peer: &mut TcpStream) -> Outcome<Endpoint> {
    peer.write_all(&here.to_bytes())?;
    Ok(Endpoint::from_bytes(&receive(peer)?)?)
}

/// Sends the peer the address of this QP, and connects the QP to the peer's, whose address the peer
/// sends.
pub(crate) fn connect(qp: &Qp, peer: &mut TcpStream) -> Outcome<()> {
    qp.connect(&exchange(qp.endpoint()?, peer)?)?;
    // Nothing may be sent before the other side is also connected.
    tell(peer)?;
    hear(peer)
}

/// Sends the peer the address and key of memory that it may use.
pub(crate) fn offer(peer: &mut TcpStream, memory: Remote) -> Outcome<()> {
    peer.write_all(&memory.addr.to_be_bytes())?;
    Ok(peer.write_all(&memory.rkey.0.to_be_bytes())?)
}

/// Receives the address and key of memory that the peer [`offer`]s.
pub(crate) fn accept(peer: &mut TcpStream) -> Outcome<Remote> {
    let (addr, rkey) = (receive(peer)?, receive(peer)?);
    Ok(Remote { addr: u64::from_be_bytes(addr), rkey: RKey(u32::from_be_bytes(rkey)) })
}

pub(crate) fn receive<const N: usize>(peer: &mut TcpStream) -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    peer.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Tells the peer that something is done.
pub(crate) fn tell(peer: &mut TcpStream) -> Outcome<()> {
    Ok(peer.write_all(b"!")?)
}

/// Waits until the peer [`tell`]s.
pub(crate) fn hear(peer: &mut TcpStream) -> Outcome<()> {
    receive::<1>(peer).map(drop)
}

/// The next completion, which must come soon and be successful.
pub(crate) fn done(cq: &Cq) -> Outcome<Wc> {
    let wc = cq.wait_timeout(Duration::from_secs(20))?.ok_or("no completion in 20 seconds")?;
    if wc.is_success() {
        Ok(wc)
    } else {
        Err(format!("a request ended with {:?}", wc.status).into())
    }
}

/// Another process of this program, with an argument, and the connection to it.
pub(crate) struct Process {
    pub(crate) stream: TcpStream,
    child: Child,
}

/// Starts this program again, with the argument `part`. There, [`parent`] returns the other end of
/// the connection.
pub(crate) fn start(part: &str) -> Outcome<Process> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let child = Command::new(std::env::current_exe()?).args([part, &address]).spawn()?;
    Ok(Process { stream: listener.accept()?.0, child })
}

/// The part that this process was started for and the connection to its parent; `None` in the
/// process that the user started.
pub(crate) fn parent() -> Outcome<Option<(String, TcpStream)>> {
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => Ok(None),
        [part, address] => Ok(Some((part.clone(), TcpStream::connect(address)?))),
        _ => Err("this program takes no arguments".into()),
    }
}

impl Process {
    /// Waits for the process to end, which must be successful.
    pub(crate) fn wait(mut self) -> Outcome<()> {
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a process ended with {status}").into()) }
    }
}
