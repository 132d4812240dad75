//! Two processes exchange messages over a reliable connection.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example ping_pong             # the server prints its address
//! cargo run --release -p peerdma-verbs --example ping_pong HOST:PORT   # the client
//! ```

mod meet;

use std::net::TcpStream;
use std::time::Instant;

use meet::{Outcome, connect, done, listen};
use verbs::{Access, HostBuf, QpSpec, SendRequest};

const ROUNDS: u32 = 10_000;
const SIZE: u32 = 64;

fn main() -> Outcome<()> {
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
        None => listen()?,
    };
    // A receive must be posted before the peer can send the first message.
    qp.post_recv(0, &[pong])?;
    connect(&qp, &mut peer)?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        if server.is_some() {
            buffer.write(0, &round.to_ne_bytes())?;
            qp.post_send(&SendRequest::send(1, &[ping]).signaled())?;
            done(&cq)?; // the ping is sent ...
            done(&cq)?; // ... and the pong is here, in whichever order
            qp.post_recv(0, &[pong])?;
        } else {
            done(&cq)?;
            qp.post_recv(0, &[pong])?;
            qp.post_send(&SendRequest::send(1, &[pong]).signaled())?;
            done(&cq)?;
        }
    }
    let half = start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * ROUNDS);
    println!("{ROUNDS} rounds of {SIZE} bytes, {half:.2} us per half round");
    Ok(())
}
