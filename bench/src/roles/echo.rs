//! A process that sends back what it receives, by futures.

use verbs::aio::Qp;
use verbs::owned::Buffer;

use super::{hear, say};
use crate::benches::futures::{both, polled_qp, spin};
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
    let mut message = qp.recv().await?;
    for left in (0..count).rev() {
        buffer.fill_with(&message);
        drop(message);
        if left == 0 {
            let (result, buffer) = qp.send(buffer).await;
            result?;
            return Ok(buffer);
        }
        let ((result, back), next) = both(qp.send(buffer), qp.recv()).await;
        result?;
        (buffer, message) = (back, next?);
    }
    Ok(buffer)
}
