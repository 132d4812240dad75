//! A process that sends back what it receives, by futures.

use verbs::aio::Qp;
use verbs::owned::Buffer;

use super::{hear, say};
use crate::benches::futures::{polled_qp, spin};
use crate::{Outcome, exchange};

/// Reports its endpoint. `connect ENDPOINT` connects; `echo COUNT` sends as many messages of 8
/// bytes back.
pub(super) fn run() -> Outcome<()> {
    let qp = polled_qp()?;
    say(&exchange::show(&qp.endpoint()?))?;
    let mut buffer = qp.pd().register(vec![0_u8; 8])?;
    while let Some(words) = hear()? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["connect", peer] => qp.connect(&exchange::endpoint(peer)?)?,
            ["echo", count] => {
                say("")?;
                buffer = spin(echo(&qp, buffer, count.parse()?))?;
            }
            _ => return Err(format!("an echo does not know {words:?}").into()),
        }
        say("")?;
    }
    Ok(())
}

async fn echo(qp: &Qp, mut buffer: Buffer, count: u64) -> Outcome<Buffer> {
    for _ in 0..count {
        let message = qp.recv().await?;
        buffer.fill_with(&message);
        drop(message);
        let (result, back) = qp.send(buffer).await;
        result?;
        buffer = back;
    }
    Ok(buffer)
}
