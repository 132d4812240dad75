//! One process writes into the memory of another, which takes no part.
//!
//! ```text
//! cargo run --release -p verbs --example one_sided_write             # the target prints its address
//! cargo run --release -p verbs --example one_sided_write HOST:PORT   # the writer
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use verbs::{Access, Endpoint, Gid, HostBuf, Psn, QpSpec, Qpn, RKey, Remote, SendRequest};

const LENGTH: u32 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let context = verbs::devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let buffer = HostBuf::anonymous(LENGTH as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;

    let writer = std::env::args().nth(1);
    let mut peer = match &writer {
        Some(address) => TcpStream::connect(address)?,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?);
            listener.accept()?.0
        }
    };

    // Each tells the other where its QP and its memory are.
    let (here, memory) = (qp.endpoint()?, mr.remote(0));
    peer.write_all(&here.gid.0)?;
    for number in [here.qpn.value(), here.psn.value(), memory.rkey.0] {
        peer.write_all(&number.to_be_bytes())?;
    }
    peer.write_all(&memory.addr.to_be_bytes())?;
    let (mut gid, mut numbers, mut addr) = ([0; 16], [[0; 4]; 3], [0; 8]);
    peer.read_exact(&mut gid)?;
    for number in &mut numbers {
        peer.read_exact(number)?;
    }
    peer.read_exact(&mut addr)?;
    let [qpn, psn, rkey] = numbers.map(u32::from_be_bytes);
    qp.connect(&Endpoint { gid: Gid(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })?;
    let there = Remote { addr: u64::from_be_bytes(addr), rkey: RKey(rkey) };

    // Nothing may be written before the other side is connected, too.
    peer.write_all(b"!")?;
    peer.read_exact(&mut [0])?;
    if writer.is_some() {
        buffer.fill(0, 0x5a, LENGTH as usize)?;
        qp.post_send(&SendRequest::write(1, &[mr.slice(0, LENGTH)], there).signaled())?;
        let wc = cq.wait()?;
        println!("wrote {LENGTH} bytes: {:?}", wc.status);
        peer.write_all(b"!")?;
    } else {
        // The target only learns from the writer that the bytes are there; nothing completes on its side.
        peer.read_exact(&mut [0])?;
        let mut bytes = vec![0; LENGTH as usize];
        buffer.read(0, &mut bytes)?;
        let right = bytes.iter().all(|byte| *byte == 0x5a);
        println!("{LENGTH} bytes, {}", if right { "every one right" } else { "WRONG" });
    }
    Ok(())
}
