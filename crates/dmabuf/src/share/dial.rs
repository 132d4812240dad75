//! Connecting to an exporting process, once.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use descriptors::strangers::{self, PeerSocket};
use rustix::io::Errno;

use super::link::Link;
use super::message::{Reply, Request};
use super::{ANSWER_LIMIT, Token, socket};
use crate::exporter::ExporterError;
use crate::fork::{self, Locked, Room};

/// Why a process cannot import a buffer of another process.
#[derive(Debug)]
pub(crate) enum ImportRefused {
    /// No process serves the buffer, or not with this file.
    NoExporter(String),
    /// Another user's process has the exporter's name.
    Stranger { uid: u32 },
    /// The kernel refused.
    System { call: &'static str, errno: Errno },
}

impl Link {
    /// The connection to a process: the existing one, or a new one.
    pub(super) fn to(token: Token) -> Result<Arc<Self>, ImportRefused> {
        let existing = || links().get(&token).and_then(Weak::upgrade);
        if let Some(link) = existing().filter(|link| !link.is_gone()) {
            return Ok(link);
        }
        let made = Arc::new(Self::connect(token)?);
        let first = {
            let mut links = links();
            links.retain(|_, link| link.strong_count() > 0);
            let first = links.get(&token).and_then(Weak::upgrade);
            let first = first.filter(|link| !link.is_gone());
            if first.is_none() {
                links.insert(token, Arc::downgrade(&made));
            }
            first
        };
        Ok(first.unwrap_or(made))
    }

    fn connect(token: Token) -> Result<Self, ImportRefused> {
        let system = |call| move |errno| ImportRefused::System { call, errno };
        let socket = socket::new_socket().map_err(system("socket"))?;
        // It is not yet known which process listens there.
        let is_sealed = strangers::refuse_descriptors(&socket);
        let name = token.socket_name().map_err(system("connect"))?;
        rustix::net::connect(&socket, &name).map_err(|errno| match errno {
            Errno::CONNREFUSED => {
                ImportRefused::NoExporter("the process that exported it is gone".to_owned())
            }
            Errno::AGAIN => ImportRefused::NoExporter(
                "the process that exported it does not accept connections".to_owned(),
            ),
            errno => ImportRefused::System { call: "connect", errno },
        })?;
        let cred = descriptors::peer_cred(socket.as_fd()).map_err(system("SO_PEERCRED"))?;
        if !cred.is_same_user() {
            drop(PeerSocket::born(socket, cred, is_sealed));
            return Err(ImportRefused::Stranger { uid: cred.uid });
        }
        strangers::take_descriptors(&socket);
        let (notes, theirs) = socket::pair().map_err(system("socketpair"))?;
        let link = Self::new(socket, notes, cred.pid, ANSWER_LIMIT).map_err(system("eventfd"))?;
        let refused = |error: ExporterError| ImportRefused::NoExporter(error.to_string());
        match link.ask(&Request::Hello, None, &[theirs]).map_err(refused)?.0 {
            Reply::Done => {}
            Reply::Refused(error) => return Err(refused(error)),
            _ => return Err(refused(link.lied("it greets strangely"))),
        }
        link.listen().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            ImportRefused::System { call: "pthread_create", errno }
        })?;
        Ok(link)
    }
}

type Links = BTreeMap<Token, Weak<Link>>;

fn links() -> MutexGuard<'static, Links> {
    static LINKS: Mutex<Links> = Mutex::new(BTreeMap::new());
    fork::hold(Room::Links, || Box::new(links()));
    LINKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked for MutexGuard<'static, Links> {
    /// The connections belong to the parent.
    fn forget(&mut self) {
        self.clear();
    }
}
