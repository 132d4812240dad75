//! Multicast by the application: a message is written into the NIC once, and sent from there to
//! many peers.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example dm_multicast
//! ```
//!
//! Unlike a multicast group, each peer has a reliable connection. On hardware the message crosses
//! the host's bus once, however many peers there are.

mod meet;

use std::net::TcpStream;

use meet::{Outcome, connect, done, hear, parent, start, tell};
use verbs::{Access, Context, HostBuf, QpSpec, SendRequest};

const PEERS: usize = 6;
const SIZE: u32 = 4096;

fn message() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn sender(context: &Context) -> Outcome<()> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let dm = context.alloc_dm(SIZE.into())?;
    let mr = pd.reg_dm_mr(&dm, 0, SIZE.into(), Access::LOCAL_WRITE)?;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = start("receiver")?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        connect(&qp, &mut peer.stream)?;
        hear(&mut peer.stream)?; // it has posted its receive
        peers.push((peer, qp));
    }
    dm.write(0, &message())?; // one write ...
    for (_, qp) in &peers {
        qp.post_send(&SendRequest::send(0, &[mr.slice(0, SIZE)]).signaled())?; // ... many sends
    }
    for _ in &peers {
        done(&cq)?;
    }
    for (peer, _qp) in peers {
        peer.wait()?;
    }
    println!("one write of {SIZE} bytes, {PEERS} sends, every byte correct");
    Ok(())
}

fn receiver(context: &Context, mut sender: TcpStream) -> Outcome<()> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let buffer = HostBuf::anonymous(SIZE as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    qp.post_recv(0, &[mr.slice(0, SIZE)])?;
    connect(&qp, &mut sender)?;
    tell(&mut sender)?;
    let got = done(&cq)?;
    let mut bytes = vec![0; SIZE as usize];
    buffer.read(0, &mut bytes)?;
    if got.byte_len != SIZE || bytes != message() {
        return Err("the bytes that arrived are not the message".into());
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    match parent()? {
        None => sender(&context),
        Some((_, stream)) => receiver(&context, stream),
    }
}
