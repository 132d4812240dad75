//! The target of the demo: carries out the lines on its standard input, and answers each with `ok`
//! or a reason.

use std::io::{BufRead, Write};

use super::memory::{Kind, Memory};
use super::peer::{Outcome, endpoint};
use super::report::PeerMemory;
use super::side::Side;

pub(crate) fn run(size: u32) -> Outcome<()> {
    let side = Side::open(size)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match obey(&side, &line) {
            Ok(answer) => format!("ok {answer}"),
            Err(error) => error.to_string(),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", answer.trim())?;
        out.flush()?;
    }
    Ok(())
}

fn obey(side: &Side, line: &str) -> Outcome<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let memory = |name: &str| -> Outcome<&Memory> {
        let kind = Kind::named(name).ok_or("no such memory")?;
        Ok(&side.memories[kind as usize])
    };
    match words.as_slice() {
        ["connect", gid, qpn, psn] => {
            side.qp.connect(&endpoint(gid, qpn, psn)?)?;
            let here = side.qp.endpoint()?;
            let gid: String = here.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut answer = format!("{gid} {} {}", here.qpn.value(), here.psn.value());
            for memory in &side.memories {
                let at = memory.mr().remote(0);
                answer.push_str(&format!(" {}:{}", at.addr, at.rkey.0));
            }
            return Ok(answer);
        }
        ["gpu"] => return Ok(PeerMemory::of(side)?.to_line()),
        ["clear", kind] => memory(kind)?.clear()?,
        ["fill", kind, offset, length, seed] => {
            memory(kind)?.fill(offset.parse()?, length.parse()?, seed.parse()?)?;
        }
        ["check", kind, offset, length, seed] => {
            memory(kind)?.check(offset.parse()?, length.parse()?, seed.parse()?)?;
        }
        ["word", kind, offset, word] => memory(kind)?.set_word(offset.parse()?, word.parse()?)?,
        ["isword", kind, offset, want] => {
            let got = memory(kind)?.word(offset.parse()?)?;
            if got != want.parse::<u64>()? {
                return Err(format!("the word is {got}, expected {want}").into());
            }
        }
        ["receive", kind, offset, length] => {
            let slice = memory(kind)?.mr().slice(offset.parse()?, length.parse()?);
            side.qp.post_recv(0, &[slice])?;
        }
        ["received", length, imm] => {
            let wc = side.completion()?;
            let (length, imm) = (length.parse::<u32>()?, imm.parse::<u32>()?);
            if wc.byte_len != length || wc.imm.unwrap_or(0) != imm {
                return Err(
                    format!("received {} bytes, immediate {:?}", wc.byte_len, wc.imm).into()
                );
            }
        }
        ["sink", kind, length, count] => {
            sink(side, memory(kind)?, length.parse()?, count.parse()?)?
        }
        _ => return Err(format!("cannot read {line:?}").into()),
    }
    Ok(String::new())
}

/// Receives `count` messages, after reporting that it is ready.
fn sink(side: &Side, memory: &Memory, length: u32, count: u32) -> Outcome<()> {
    const AHEAD: u32 = 64;
    let post = || side.qp.post_recv(0, &[memory.mr().slice(0, length)]);
    for _ in 0..count.min(AHEAD) {
        post()?;
    }
    println!("ok");
    for done in 0..count {
        side.completion()?;
        if done + AHEAD < count {
            post()?;
        }
    }
    Ok(())
}
