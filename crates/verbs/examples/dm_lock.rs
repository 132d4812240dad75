//! A lock in the memory of a NIC, taken by processes that share nothing else.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example dm_lock
//! ```
//!
//! The lock is a word of device memory: 0 is free, otherwise it is the number of the holder. A
//! client takes it by CMP_SWAP, changes the guarded data by a READ and a WRITE, and releases it. On
//! hardware no attempt uses the host's memory bus. Without the lock, changes would be lost, which
//! the count at the end would show.

mod meet;

use std::net::TcpStream;
use std::sync::atomic::Ordering;

use meet::{Outcome, accept, connect, done, hear, offer, parent, start, tell};
use verbs::{Access, Context, HostBuf, QpSpec, SendRequest};

const CLIENTS: u64 = 4;
const ROUNDS: u64 = 5000;

/// Holds the lock and the data it guards, and takes no part in the operations.
fn owner(context: &Context) -> Outcome<()> {
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let pd = context.alloc_pd()?;
    let dm = context.alloc_dm(8)?;
    dm.write(0, &0u64.to_ne_bytes())?;
    let lock = pd.reg_dm_mr(&dm, 0, 8, access)?;
    let counter = HostBuf::anonymous(4096)?;
    let guarded = pd.reg_mr(&counter, access)?;
    let cq = context.create_cq(1)?;
    let mut clients = Vec::new();
    for number in 1..=CLIENTS {
        let mut client = start(&number.to_string())?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        connect(&qp, &mut client.stream)?;
        offer(&mut client.stream, lock.remote(0))?;
        offer(&mut client.stream, guarded.remote(0))?;
        clients.push((client, qp));
    }
    for (client, _) in &mut clients {
        tell(&mut client.stream)?; // all start at once
    }
    for (client, _qp) in clients {
        client.wait()?;
    }
    let count = counter.load_u64(0, Ordering::Relaxed)?;
    let mut holder = [0; 8];
    dm.read(0, &mut holder)?;
    if (count, holder) != (CLIENTS * ROUNDS, [0; 8]) {
        let what = format!("the clients counted to {count}, and the lock is held by {holder:?}");
        return Err(what.into());
    }
    println!("{CLIENTS} clients counted to {count}, and the lock is free");
    Ok(())
}

fn client(context: &Context, me: u64, mut owner: TcpStream) -> Outcome<()> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let words = HostBuf::anonymous(4096)?;
    let mr = pd.reg_mr(&words, Access::LOCAL_WRITE)?;
    let (old, value) = (mr.slice(0, 8), mr.slice(8, 8));
    connect(&qp, &mut owner)?;
    let (lock, guarded) = (accept(&mut owner)?, accept(&mut owner)?);
    hear(&mut owner)?;
    let run = |request: SendRequest<'_>| -> Outcome<u64> {
        qp.post_send(&request.signaled())?;
        done(&cq)?;
        Ok(words.load_u64(0, Ordering::Relaxed)?)
    };
    for _ in 0..ROUNDS {
        while run(SendRequest::compare_swap(1, old, lock, 0, me))? != 0 {}
        run(SendRequest::read(2, &[value], guarded))?;
        words.store_u64(8, words.load_u64(8, Ordering::Relaxed)? + 1, Ordering::Relaxed)?;
        run(SendRequest::write(3, &[value], guarded))?;
        let holder = run(SendRequest::compare_swap(4, old, lock, me, 0))?;
        if holder != me {
            return Err(
                format!("client {me} held the lock, and then it was held by {holder}").into()
            );
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    match parent()? {
        None => owner(&context),
        Some((number, stream)) => client(&context, number.parse()?, stream),
    }
}
