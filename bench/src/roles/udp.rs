//! A bare UDP stream with segmentation offload, over the same sockets as RoCEv2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use link::udp::{Options, SendError, Transmit, UdpLink};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{hear, say};
use crate::Outcome;

/// The stream has ended when nothing has come for this time.
const QUIET: Duration = Duration::from_millis(300);
/// The stream must begin within this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// Receives one stream; reports when it is ready, and then its bytes and seconds.
pub(super) fn receiver(port: u16) -> Outcome<()> {
    let mut link = UdpLink::bind(port, Options::default())?;
    say("")?;
    let mut bytes = 0;
    let (mut first, mut last) = (None, Instant::now());
    loop {
        if link.recv(&mut |datagram| bytes += datagram.bytes.len() as u64)? > 0 {
            last = Instant::now();
            first.get_or_insert(last);
        } else if !ready(link.fds(), PollFlags::IN, if first.is_some() { QUIET } else { PATIENCE })?
        {
            break;
        }
    }
    let seconds = last.duration_since(first.ok_or("nothing was received")?).as_secs_f64();
    say(&format!("{bytes} {seconds}"))?;
    while hear()?.is_some() {}
    Ok(())
}

/// Sends datagrams of `segment` bytes for `seconds`, as many in one call as the kernel splits;
/// reports the bytes it sent.
pub(super) fn sender(to: IpAddr, port: u16, segment: usize, seconds: f64) -> Outcome<()> {
    let link = UdpLink::send_only(port, Options::default())?;
    let contents = vec![0x5a; segment * link.max_gso_segments(segment)];
    let src: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut bytes = 0;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let mut rest = &contents[..];
        while !rest.is_empty() {
            let transmit = Transmit {
                dst: to,
                src,
                traffic_class: 0,
                hop_limit: 0,
                contents: rest,
                segment_size: Some(segment),
            };
            match link.send(transmit) {
                Ok(()) => rest = &[],
                Err(SendError::NotSplit { sent }) => rest = &rest[sent..],
                Err(SendError::WouldBlock { sent }) => {
                    rest = &rest[sent..];
                    ready(link.fds(), PollFlags::OUT, QUIET)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        bytes += contents.len() as u64;
    }
    say(&bytes.to_string())
}

/// Waits until one of `fds` is ready; false if none is in time.
fn ready<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    flags: PollFlags,
    patience: Duration,
) -> Outcome<bool> {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, flags)).collect();
    Ok(poll(&mut fds, Some(&Timespec::try_from(patience)?))? > 0)
}
