//! A process that sends back what it receives, by futures.

use verbs::aio::{Cq, Qp, QpOptions};
use verbs::owned::Buffer;

use super::{hear, say};
use crate::benches::futures::{both, spin};
use crate::{Outcome, exchange};

/// Reports its endpoint. `connect ENDPOINT` connects; `echo COUNT` sends as many messages of 8
/// bytes back.
pub(super) fn run() -> Outcome<()> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = Cq::polled(&context, 256)?;
    let qp = cq.create_qp(&pd, &QpOptions::default())?;
    say(&exchange::show(&qp.endpoint()?))?;
    let mut buffer = pd.register(vec![0_u8; 8])?;
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
