//! One process writes into the memory of another, which takes no part.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example one_sided_write             # the target prints its address
//! cargo run --release -p peerdma-verbs --example one_sided_write HOST:PORT   # the writer
//! ```

mod meet;

use std::net::TcpStream;

use meet::{Outcome, accept, connect, done, hear, listen, offer, tell};
use verbs::{Access, HostBuf, QpSpec, SendRequest};

const LENGTH: u32 = 1 << 20;

fn main() -> Outcome<()> {
    let context = verbs::devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let buffer = HostBuf::anonymous(LENGTH as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;

    if let Some(address) = std::env::args().nth(1) {
        let mut target = TcpStream::connect(address)?;
        connect(&qp, &mut target)?;
        let there = accept(&mut target)?;
        buffer.fill(0, 0x5a, LENGTH as usize)?;
        qp.post_send(&SendRequest::write(1, &[mr.slice(0, LENGTH)], there).signaled())?;
        println!("wrote {LENGTH} bytes: {:?}", done(&cq)?.status);
        tell(&mut target)
    } else {
        let mut writer = listen()?;
        connect(&qp, &mut writer)?;
        offer(&mut writer, mr.remote(0))?;
        // The target learns only from the writer that the bytes are there; nothing completes on its
        // side.
        hear(&mut writer)?;
        let mut bytes = vec![0; LENGTH as usize];
        buffer.read(0, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0x5a) {
            return Err("the bytes there are not those that the peer wrote".into());
        }
        println!("{LENGTH} bytes, every one correct");
        Ok(())
    }
}
