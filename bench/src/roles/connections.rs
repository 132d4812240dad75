//! Two processes with connections by address: many at once, or one after the other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs::cm::{ConnParam, Event, EventChannel, EventKind, Id};
use verbs::{Access, Context, Cq, HostBuf, Mr, Pd, Qp, QpCap, QpSpec, SendRequest, Wc};

use super::{hear, say};
use crate::Outcome;
use crate::machine::Resident;
use crate::sample::Sample;

/// Nothing on one host takes this long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests that may wait for the passive side.
const BACKLOG: u32 = 1024;
/// Bytes of a message, and where one that arrives is put.
const MESSAGE: u32 = 8;
const ARRIVED: u64 = 64;
/// Receives that a connection has posted. The first message finds one.
const RECEIVES: u32 = 2;

/// What a side of the connections has.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    channel: EventChannel,
    memory: HostBuf,
    mr: Mr,
    live: Vec<(Id, Qp)>,
}

impl Side {
    fn open() -> Outcome<Self> {
        let devices = verbs::devices()?;
        let context = devices.first().ok_or("there is no device")?.open()?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
        let channel = EventChannel::new(&context)?;
        let memory = HostBuf::anonymous(4096)?;
        let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
        Ok(Self { context, pd, cq, channel, memory, mr, live: Vec::new() })
    }

    /// A QP that can receive.
    fn qp(&self) -> Outcome<Qp> {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: RECEIVES, ..QpSpec::rc(&self.cq).cap };
        let qp = self.pd.create_qp(&QpSpec { cap, ..QpSpec::rc(&self.cq) })?;
        (0..RECEIVES).try_for_each(|_| self.receive(&qp))?;
        Ok(qp)
    }

    fn receive(&self, qp: &Qp) -> Outcome<()> {
        Ok(qp.post_recv(0, &[self.mr.slice(ARRIVED, MESSAGE)])?)
    }

    fn send(&self, qp: &Qp) -> Outcome<()> {
        Ok(qp.post_send(&SendRequest::send(1, &[self.mr.slice(0, MESSAGE)]).signaled())?)
    }

    /// Polls until `count` requests have completed.
    fn poll(&self, count: usize) -> Outcome<()> {
        let began = Instant::now();
        let mut left = count;
        while left > 0 {
            match self.cq.poll() {
                Some(wc) if Wc::is_success(&wc) => left -= 1,
                Some(wc) => return Err(format!("a request ended with {:?}", wc.status).into()),
                None if began.elapsed() > PATIENCE => return Err("no completion came".into()),
                None => {}
            }
        }
        Ok(())
    }

    fn event(&self) -> Outcome<Event> {
        Ok(self.channel.event(PATIENCE)?.ok_or("no event came")?)
    }

    /// Takes an event of a passive side. Returns whether a connection is established.
    fn serve(&mut self) -> Outcome<bool> {
        let Event { id, kind, .. } = self.event()?;
        match kind {
            EventKind::ConnectRequest { .. } => {
                let qp = self.qp()?;
                id.accept(&qp, &ConnParam::default())?;
                self.live.push((id, qp));
                Ok(false)
            }
            EventKind::Established { .. } => Ok(true),
            // Of the connection before.
            EventKind::Disconnected { .. } => {
                id.disconnect()?;
                Ok(false)
            }
            EventKind::TimewaitExit => Ok(false),
            other => Err(format!("an event that was not expected: {other:?}").into()),
        }
    }

    fn established(&self) -> Outcome<Id> {
        loop {
            let Event { id, kind, .. } = self.event()?;
            match kind {
                EventKind::Established { .. } => return Ok(id),
                EventKind::Disconnected { .. } | EventKind::TimewaitExit => {}
                other => return Err(format!("a connection failed: {other:?}").into()),
            }
        }
    }

    fn ask(&self, to: SocketAddr) -> Outcome<(Id, Qp)> {
        let (id, qp) = (self.channel.create_id()?, self.qp()?);
        id.resolve(None, to)?;
        id.connect(&qp, &ConnParam::default())?;
        Ok((id, qp))
    }
}

/// Listens, and reports where. `accept N` reports when N connections are established, and how many
/// KiB they have added; `echo N M` sends M messages of each of N connections back, one connection
/// after the other; `end` ends all.
pub(super) fn acceptor() -> Outcome<()> {
    let mut side = Side::open()?;
    let listener = side.channel.create_id()?;
    let ip = side.context.default_gid().ok_or("the device has no address")?.gid.to_ip();
    let at = listener.bind((ip, 0).into())?;
    listener.listen(BACKLOG)?;
    say(&at.to_string())?;
    while let Some(words) = hear()? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["accept", count] => {
                let (before, count) = (Resident::now(), count.parse::<usize>()?);
                for done in 0..count {
                    while !side.serve().map_err(|why| format!("{done} of {count}: {why}"))? {}
                }
                say(&Resident::now().since(before).all.to_string())?;
            }
            ["echo", connections, messages] => {
                for _ in 0..connections.parse::<usize>()? {
                    while !side.serve()? {}
                    echo(&side, messages.parse()?)?;
                }
                say("")?;
            }
            ["end"] => {
                side.live.clear();
                say("")?;
            }
            _ => return Err(format!("an acceptor does not know {words:?}").into()),
        }
    }
    Ok(())
}

/// Sends messages of the last connection back.
fn echo(side: &Side, messages: usize) -> Outcome<()> {
    let (_, qp) = side.live.last().ok_or("there is no connection")?;
    // What arrives, and what was sent back before.
    for message in 0..messages {
        side.poll(if message == 0 { 1 } else { 2 })?;
        side.receive(qp)?;
        side.memory.write(0, &message.to_ne_bytes())?;
        side.send(qp)?;
    }
    side.poll(1)
}

/// `connect ADDRESS N` makes N connections at once, and reports the seconds that it took and the
/// KiB that they have added; `first ADDRESS N M` makes N connections, one after the other, and
/// sends M messages on each, of which it reports the median microseconds of the first and of the
/// later ones, from the call that sends to the answer; `end` ends all.
pub(super) fn connector() -> Outcome<()> {
    let mut side = Side::open()?;
    say("")?;
    while let Some(words) = hear()? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["connect", to, count] => {
                let (to, count) = (to.parse()?, count.parse::<usize>()?);
                let (before, began) = (Resident::now(), Instant::now());
                for done in 0..count {
                    let asked = side.ask(to);
                    side.live.push(asked.map_err(|why| format!("request {done}: {why}"))?);
                }
                for done in 0..count {
                    side.established().map_err(|why| format!("{done} of {count}: {why}"))?;
                }
                let took = began.elapsed().as_secs_f64();
                say(&format!("{took} {}", Resident::now().since(before).all))?;
            }
            ["first", to, connections, messages] => {
                let (to, messages) = (to.parse()?, messages.parse()?);
                let (mut first, mut later) = (Sample::default(), Sample::default());
                for _ in 0..connections.parse::<usize>()? {
                    let (id, qp) = side.ask(to)?;
                    side.established()?;
                    for message in 0..messages {
                        let began = Instant::now();
                        side.send(&qp)?;
                        side.poll(2)?;
                        let took = began.elapsed().as_secs_f64() * 1e6;
                        if message == 0 { &mut first } else { &mut later }.push(took);
                        side.receive(&qp)?;
                    }
                    side.live.push((id, qp));
                }
                say(&format!("{} {}", first.median(), later.median()))?;
            }
            ["end"] => {
                side.live.clear();
                say("")?;
            }
            _ => return Err(format!("a connector does not know {words:?}").into()),
        }
    }
    Ok(())
}
