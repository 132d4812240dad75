//! Two processes exchange messages over a reliable connection.
//!
//! ```text
//! cargo run --release -p verbs --example ping_pong             # the server prints its address
//! cargo run --release -p verbs --example ping_pong HOST:PORT   # the client
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use verbs::{Access, Cq, Endpoint, Gid, HostBuf, Psn, Qp, QpSpec, Qpn, SendRequest};

const ROUNDS: u32 = 10_000;
const SIZE: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let context = verbs::devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let buffer = HostBuf::anonymous(4096)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let (ping, pong) = (mr.slice(0, SIZE), mr.slice(2048, SIZE));
    let server = std::env::args().nth(1);
    let mut peer = match &server {
        Some(address) => TcpStream::connect(address)?,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?);
            listener.accept()?.0
        }
    };
    // A receive has to wait for the first message before the peer can send it.
    qp.post_recv(0, &[pong])?;
    connect(&qp, &mut peer)?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        if server.is_some() {
            buffer.write(0, &round.to_ne_bytes())?;
            qp.post_send(&SendRequest::send(1, &[ping]).signaled())?;
            wait_for_both(&cq, 2)?;
            qp.post_recv(0, &[pong])?;
        } else {
            wait_for_both(&cq, 1)?;
            qp.post_recv(0, &[pong])?;
            qp.post_send(&SendRequest::send(1, &[pong]).signaled())?;
            wait_for_both(&cq, 1)?;
        }
    }
    let half = start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * ROUNDS);
    println!("{ROUNDS} rounds of {SIZE} bytes, {half:.2} us half a round");
    Ok(())
}

fn wait_for_both(cq: &Cq, completions: u32) -> Result<(), Box<dyn Error>> {
    for _ in 0..completions {
        let wc = cq.wait()?;
        assert!(wc.is_success(), "request {} ended with {:?}", wc.wr_id, wc.status);
    }
    Ok(())
}

/// Tells the peer where this QP is, and connects it to where the peer says its own is.
fn connect(qp: &Qp, peer: &mut TcpStream) -> Result<(), Box<dyn Error>> {
    let here = qp.endpoint()?;
    peer.write_all(&here.gid.0)?;
    peer.write_all(&here.qpn.value().to_be_bytes())?;
    peer.write_all(&here.psn.value().to_be_bytes())?;
    let (mut gid, mut qpn, mut psn) = ([0; 16], [0; 4], [0; 4]);
    peer.read_exact(&mut gid)?;
    peer.read_exact(&mut qpn)?;
    peer.read_exact(&mut psn)?;
    let (qpn, psn) = (u32::from_be_bytes(qpn), u32::from_be_bytes(psn));
    qp.connect(&Endpoint { gid: Gid(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })?;
    Ok(())
}
