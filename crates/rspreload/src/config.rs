//! Which sockets become rsockets, and their sizes.

#![cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]

use core::ffi::c_int;
use std::sync::OnceLock;

use threads::first::First;

/// Which programs and sockets become rsockets.
const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// The settings from the administrator's file and from the environment.
pub(crate) struct Config {
    rules: Vec<Rule>,
    program: String,
    /// Sizes to set on each socket, as options of `SOL_RDMA`; 0 leaves a size alone.
    pub(crate) sizes: [c_int; 3],
    /// Connections begin as kernel sockets.
    pub(crate) is_fork_safe: bool,
}

/// One line of the file. A field that is `None` matches anything.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// How the name of the program begins.
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

/// The settings of this process: read at its first socket.
pub(crate) fn config() -> &'static Config {
    static READ: First = First::new();
    static CONFIG: OnceLock<Config> = OnceLock::new();
    READ.call(|| {
        let _ = CONFIG.set(Config::read());
    });
    CONFIG.get().expect("it was read")
}

impl Config {
    fn read() -> Self {
        let number =
            |name| environment::var(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let program = std::env::args_os().next();
        let program = program
            .as_deref()
            .and_then(|path| std::path::Path::new(path).file_name())
            .map_or_else(|| comm.trim().to_owned(), |name| name.to_string_lossy().into_owned());
        Self {
            rules: parse(&std::fs::read_to_string(FILE).unwrap_or_default()),
            program,
            sizes: ["RS_SQ_SIZE", "RS_RQ_SIZE", "RS_INLINE"].map(number),
            is_fork_safe: number("RDMAV_FORK_SAFE") != 0,
        }
    }

    /// Whether a socket must become an rsocket.
    pub(crate) fn wants(&self, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return false;
        }
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let protocol = match (protocol, kind) {
            (0, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
            (0, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
            _ => protocol,
        };
        if !matches!(
            (kind, protocol),
            (libc::SOCK_STREAM, libc::IPPROTO_TCP) | (libc::SOCK_DGRAM, libc::IPPROTO_UDP)
        ) {
            return false;
        }
        self.rules.is_empty()
            || self.rules.iter().any(|rule| {
                let begins = |name: &String| {
                    let start = self.program.get(..name.len());
                    start.is_some_and(|start| start.eq_ignore_ascii_case(name))
                };
                let is = |wanted: Option<c_int>, is| wanted.is_none_or(|wanted| wanted == is);
                rule.program.as_ref().is_none_or(begins)
                    && is(rule.domain, domain)
                    && is(rule.kind, kind)
                    && is(rule.protocol, protocol)
            })
    }
}

fn parse(text: &str) -> Vec<Rule> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(rule).collect()
}

fn rule(line: &str) -> Option<Rule> {
    let mut words = line.split_whitespace();
    let program = words.next()?;
    Some(Rule {
        program: (program != "*").then(|| program.to_owned()),
        domain: word(
            words.next()?,
            &["AF_", "PF_"],
            &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6)],
        )?,
        kind: word(
            words.next()?,
            &["SOCK_"],
            &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)],
        )?,
        protocol: word(
            words.next()?,
            &["IPPROTO_"],
            &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)],
        )?,
    })
}

/// A word of a rule; `None` if it is unknown, in which case the line is not a rule.
fn word(word: &str, prefixes: &[&str], known: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let upper = word.to_ascii_uppercase();
    let bare = prefixes.iter().find_map(|prefix| upper.strip_prefix(prefix)).unwrap_or(&upper);
    known.iter().find(|(name, _)| *name == bare).map(|(_, value)| Some(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config {
            rules: parse(text),
            program: "iperf3".to_owned(),
            sizes: [0; 3],
            is_fork_safe: false,
        }
    }

    #[test]
    fn without_rules_every_internet_socket_becomes_an_rsocket() {
        let config = config("# nothing\n");
        assert!(config.wants(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
        assert!(config.wants(libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP));
        assert!(!config.wants(libc::AF_UNIX, libc::SOCK_STREAM, 0));
        assert!(!config.wants(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP));
        assert!(!config.wants(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP));
    }

    #[test]
    fn rules_choose_programs_and_sockets() {
        let config = config("IPERF inet SOCK_STREAM tcp\nother * * *\niperf3 inet bogus *\n");
        assert!(config.wants(libc::AF_INET, libc::SOCK_STREAM, 0));
        assert!(!config.wants(libc::AF_INET, libc::SOCK_DGRAM, 0));
        assert!(!config.wants(libc::AF_INET6, libc::SOCK_STREAM, 0));
        let any = self::config("* PF_INET6 * *");
        assert!(any.wants(libc::AF_INET6, libc::SOCK_DGRAM, 0));
        assert!(!any.wants(libc::AF_INET, libc::SOCK_DGRAM, 0));
    }
}
