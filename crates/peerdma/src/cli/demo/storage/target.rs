//! The other end of the wire: memory that a peer writes, and what lies in it.

use std::io::{BufRead, Write};

use umem::{HostBuf, Umem};
use verbs::{Access, Qp, QpSpec};

use super::super::peer::{Outcome, connect_line, endpoint};

/// Carries out the lines on its standard input.
pub(in super::super) fn run(length: u64) -> Outcome<()> {
    let devices = verbs::devices()?;
    let context = devices.first().ok_or("there is no device")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let memory = HostBuf::anonymous(usize::try_from(length)?)?;
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["connect", gid, qpn, psn] => connect(&qp, &[gid, qpn, psn]).map(|endpoint| {
                let at = mr.remote(0);
                format!("{endpoint} {}:{}", at.addr, at.rkey.0)
            }),
            ["clear"] => clear(&memory, length).map(|()| String::new()),
            ["checksum"] => checksum(&memory, length).map(|sum| sum.to_string()),
            _ => Err(format!("cannot read {line:?}").into()),
        };
        let mut out = std::io::stdout().lock();
        match answer {
            Ok(answer) => writeln!(out, "{}", format!("ok {answer}").trim())?,
            Err(error) => writeln!(out, "{error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn connect(qp: &Qp, [gid, qpn, psn]: &[&str; 3]) -> Outcome<String> {
    qp.connect(&endpoint(gid, qpn, psn)?)?;
    let line = connect_line(&qp.endpoint()?);
    Ok(line.trim_start_matches("connect ").to_owned())
}

const CHUNK: u64 = 1 << 20;

fn clear(memory: &HostBuf, length: u64) -> Outcome<()> {
    let zeros = vec![0; CHUNK as usize];
    for at in (0..length).step_by(CHUNK as usize) {
        // CAST: no more than a chunk.
        let count = CHUNK.min(length - at) as usize;
        Umem::host(memory).write(at, &zeros[..count])?;
    }
    Ok(())
}

fn checksum(memory: &HostBuf, length: u64) -> Outcome<u32> {
    let mut sum = crc32fast::Hasher::new();
    let mut chunk = vec![0; CHUNK as usize];
    for at in (0..length).step_by(CHUNK as usize) {
        // CAST: no more than a chunk.
        let bytes = &mut chunk[..CHUNK.min(length - at) as usize];
        Umem::host(memory).read(at, bytes)?;
        sum.update(bytes);
    }
    Ok(sum.finalize())
}
