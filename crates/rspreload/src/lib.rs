//! `librspreload.so.1`: turns the sockets of a program that knows nothing of RDMA into rsockets
//! (`rsocket(7)`).
//!
//! It stands in front of libc's socket calls. A stream or datagram socket of IPv4 or IPv6 becomes
//! an rsocket, for which the program gets a descriptor of `/dev/null` of its own; calls with that
//! descriptor go to `rsend` and similar functions of `librdmacm.so.1`, and all others to libc. A
//! connection that cannot be made as an rsocket is tried once more as an ordinary socket.
//!
//! ```text
//!   send(7)   -> table: 7 is an rsocket known as 12  -> rsend(12)
//!   send(8)   -> table: nothing                      -> libc's send(8)
//! ```
//!
//! | file | what |
//! |---|---|
//! | `/etc/rdma/rsocket/preload_config` | which programs and sockets use rsockets: lines of program, domain, type, protocol, with `*` for any. Without it all do |
//! | `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE` | sizes of queues and of inline data |
//! | `RDMAV_FORK_SAFE=1` | for servers that fork: a connection begins as TCP and becomes an rsocket when it is first used, by the process that uses it. Both sides must set it |
//!
//! It does not reach static binaries, Go, raw system calls and `io_uring`. Sockets do not survive
//! `exec`.
//!
//! It keeps one word per descriptor, so that no call but those of epoll takes a lock, and a signal
//! handler may call the others.

mod config;
#[cfg(not(test))]
mod epoll;
#[cfg(not(test))]
mod fork;
// The test harness is a program like any other: with these names in it, its own libc calls would
// come here.
#[cfg(not(test))]
mod hooks;
#[cfg(not(test))]
mod lifetime;
#[cfg(not(test))]
mod next;
#[cfg(not(test))]
mod poll;
#[cfg(not(test))]
mod process;
mod table;
#[cfg(not(test))]
mod transfer;
