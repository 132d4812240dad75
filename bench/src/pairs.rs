//! Servers and their clients: third-party programs, one pair or several at once.

use crate::Outcome;
use crate::child::{Program, free_ports};

/// Where server and client run.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The command prefix that puts the server where it belongs.
    pub(crate) server: Vec<String>,
    /// The same for the client.
    pub(crate) client: Vec<String>,
    /// How the client calls the server.
    pub(crate) host: String,
    /// How the server calls the client.
    pub(crate) back: String,
}

impl Place {
    /// Both on this host.
    pub(crate) fn here() -> Self {
        let host = "127.0.0.1".to_owned();
        Self { server: Vec::new(), client: Vec::new(), back: host.clone(), host }
    }
}

/// What to start, word by word.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
}

/// Starts a server, and its client once it listens, with the words for a port; returns what the
/// client prints.
pub(crate) fn one(
    place: &Place,
    env: &[(&str, &str)],
    words: impl Fn(&str) -> Words,
) -> Outcome<String> {
    Ok(all(place, env, 1, words)?.remove(0))
}

/// The same of so many pairs at once: no client starts before all servers listen.
pub(crate) fn all(
    place: &Place,
    env: &[(&str, &str)],
    count: usize,
    words: impl Fn(&str) -> Words,
) -> Outcome<Vec<String>> {
    let mut servers = Vec::with_capacity(count);
    for port in free_ports(count)? {
        let words = words(&port.to_string());
        servers.push((Program::start(&place.server, env, &words.server)?, port, words.client));
    }
    for (server, port, _) in &mut servers {
        server.wait_listening(*port)?;
    }
    let pairs = servers
        .into_iter()
        .map(|(server, _, client)| Ok((Program::start(&place.client, env, &client)?, server)))
        .collect::<Outcome<Vec<_>>>()?;
    pairs
        .into_iter()
        .map(|(client, server)| {
            let text = client.finish()?;
            server.finish()?;
            Ok(text)
        })
        .collect()
}
