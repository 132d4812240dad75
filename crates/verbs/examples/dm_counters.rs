//! Counters in the memory of a NIC, which many processes increment and one reads.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example dm_counters
//! ```
//!
//! Each client adds to counters of device memory by FETCH_ADD. On hardware this touches no memory
//! of the host, and no host CPU takes part. The owner reads them with `ibv_memcpy_from_dm`, while
//! the clients are running and at the end.

mod meet;

use std::net::TcpStream;

use meet::{Outcome, accept, connect, done, hear, offer, parent, start, tell};
use verbs::{Access, Context, Dm, HostBuf, QpSpec, SendRequest};

const CLIENTS: u64 = 4;
const COUNTERS: u64 = 16;
const ROUNDS: u64 = 160;

fn sum(dm: &Dm) -> Outcome<u64> {
    let mut bytes = [0; 8 * COUNTERS as usize];
    dm.read(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).sum())
}

fn owner(context: &Context) -> Outcome<()> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(1)?;
    let dm = context.alloc_dm(8 * COUNTERS)?;
    dm.write(0, &[0; 8 * COUNTERS as usize])?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let counters = pd.reg_dm_mr(&dm, 0, dm.len(), access)?;
    let mut clients = Vec::new();
    for number in 1..=CLIENTS {
        let mut client = start(&number.to_string())?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        connect(&qp, &mut client.stream)?;
        offer(&mut client.stream, counters.remote(0))?;
        clients.push((client, qp));
    }
    for (client, _) in &mut clients {
        tell(&mut client.stream)?; // all start at once
    }
    let meanwhile = sum(&dm)?;
    for (client, _qp) in clients {
        client.wait()?;
    }
    let (got, want) = (sum(&dm)?, ROUNDS * (1..=CLIENTS).sum::<u64>());
    if got != want || meanwhile > got {
        return Err(format!("{meanwhile} early on, {got} at the end: it should be {want}").into());
    }
    println!(
        "{CLIENTS} clients raised {COUNTERS} counters to {got} together; {meanwhile} early on"
    );
    Ok(())
}

/// Adds its own number to one counter after the other.
fn client(context: &Context, me: u64, mut owner: TcpStream) -> Outcome<()> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let buffer = HostBuf::anonymous(4096)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    connect(&qp, &mut owner)?;
    let counters = accept(&mut owner)?;
    hear(&mut owner)?;
    for round in 0..ROUNDS {
        let at = counters.add(8 * (round % COUNTERS));
        qp.post_send(&SendRequest::fetch_add(round, mr.slice(0, 8), at, me).signaled())?;
        done(&cq)?;
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
