//! A device under attack, with a connection that checks every byte.
//!
//! `PEERDMA_HOSTILE_SECONDS` sets the length of the attacks, which is short in CI;
//! `PEERDMA_HOSTILE_SEED` varies them.

use interop::need::Need;
use interop::{Mode, Output, Port, Program, Scratch, Veth, compile, needs};

/// The result of an attack.
struct Siege {
    server: Output,
    client: Output,
    attacker: Output,
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// The number that follows a word in a program's last line.
fn of(out: &Output, word: &str) -> u64 {
    let words: Vec<&str> = out.stdout.split_whitespace().collect();
    let at = words.iter().position(|said| *said == word);
    let value = at.and_then(|at| words.get(at + 1)).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no number of {word} in {out}"))
}

/// The addresses of server and client, and the other arguments of both.
struct Family {
    server: &'static str,
    client: &'static str,
    more: &'static [&'static str],
}

const V4: Family = Family { server: "10.77.0.1", client: "10.77.0.2", more: &[] };
const V6: Family = Family { server: "fd77::1", client: "fd77::2", more: &["v6"] };

fn besiege(family: &Family, attack: &[&str]) -> Siege {
    let veth = Veth::new();
    let scratch = Scratch::new();
    let besieged = compile("besieged", &scratch);
    let port = Port::lease();
    let seconds = number("PEERDMA_HOSTILE_SECONDS", 8);
    let mut server = Program::new(&besieged)
        .args([port.number().to_string()])
        .args(family.more)
        .env("PEERDMA_LOG", "info,peerdma::drop=debug")
        .in_netns(&veth.left)
        .limit(std::time::Duration::from_secs(seconds + 120))
        .start();
    server.wait_listening(port.number());
    // Longer than the attack, to see its aftermath.
    let client = Program::new(&besieged)
        .args([port.number().to_string(), "10.77.0.1".to_owned(), (seconds + 4).to_string()])
        .args(family.more)
        .env("PEERDMA_LOG", "info")
        .in_netns(&veth.right)
        .limit(std::time::Duration::from_secs(seconds + 120))
        .start();
    server.wait_says("that is all");
    let printed = server.printed();
    let aims = printed.lines().filter_map(|line| line.strip_prefix("aim "));
    let aims = aims.flat_map(|qpn| ["--aim", qpn]);
    // An attacker that sees the packets needs no QPNs.
    let aims = aims.filter(|_| attack.is_empty());
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/hostile");
    let seed = number("PEERDMA_HOSTILE_SEED", 1).to_string();
    let attacker = Program::new(env!("CARGO_BIN_EXE_hostile"))
        .args([family.server, family.client, &seconds.to_string(), &seed, corpus])
        .args(attack)
        .args(aims)
        .mode(Mode::Plain)
        .in_netns(&veth.right)
        .limit(std::time::Duration::from_secs(seconds + 60))
        .output();
    let client = client.finish();
    let server = server.finish();
    println!("{}{}{}", attacker.stdout, server.stdout, client.stdout);
    Siege { server, client, attacker }
}

impl Siege {
    /// Both ends live, nothing outside their regions changed, their memory grew only a little, the
    /// last exchange was correct, and dropped packets are counted.
    #[track_caller]
    fn withstood(&self) {
        self.attacker.success();
        assert!(of(&self.attacker, "sent") > 500, "{}", self.attacker);
        for out in [&self.server, &self.client] {
            out.success().says("canaries intact").says("last right");
            let memory: Vec<u64> = out
                .stdout
                .split_whitespace()
                .skip_while(|word| *word != "rss")
                .skip(1)
                .filter_map(|word| word.parse().ok())
                .collect();
            let [before, after] = memory[..] else { panic!("no memory in {out}") };
            assert!(before > 0 && after < before + (16 << 10), "{before} to {after} KiB: {out}");
        }
        assert!(of(&self.server, "exchanges") > 20, "{}", self.server);
        let counted = self.server.counters();
        for name in ["rx_unknown_qpn", "rx_icrc_encapsulated", "rx_malformed_packets"] {
            assert!(counted.get(name).is_some_and(|count| *count > 0), "{name}: {}", self.server);
        }
        self.server.names_its_drops();
    }

    /// Requires that the server counted the guesses.
    #[track_caller]
    fn counts(&self, names: &[&str]) {
        let counted = self.server.counters();
        for name in names {
            assert!(counted.get(name).is_some_and(|count| *count > 0), "{name}: {counted:?}");
        }
    }
}

macro_rules! two_hosts {
    ($($more:expr),*) => {
        needs!(
            Need::Root,
            Need::Namespaces,
            Need::Program("ip"),
            Need::Program("nsenter"),
            Need::Program("setpriv"),
            Need::Program("ethtool"),
            Need::Program("gcc")
            $(, $more)*
        )
    };
}

/// An attacker that sees nothing guesses QPNs, PSNs and keys: no connection is disturbed. All
/// guesses are counted and logged; so are those of an attacker that knows a QPN, and even the first
/// PSN.
#[track_caller]
fn guesses(family: &Family) {
    let siege = besiege(family, &[]);
    siege.withstood();
    siege.counts(&["duplicate_request", "out_of_sequence", "resp_remote_access_errors"]);
    for out in [&siege.server, &siege.client] {
        let troubles = ["errors", "wrong"].map(|word| of(out, word));
        assert_eq!((of(out, "connections"), troubles), (1, [0, 0]), "{out}");
    }
}

/// An attacker that sees the packets can do what the peer could do: end a connection, write to its
/// region. Nothing more: memory outside the region is unchanged, and the next connection works.
#[track_caller]
fn knows_the_numbers(family: &Family) {
    let siege = besiege(family, &["--knowing"]);
    siege.withstood();
    assert!(of(&siege.attacker, "learned") > 20, "{}", siege.attacker);
    let counted = siege.server.counters();
    let games = ["duplicate_request", "out_of_sequence"];
    assert!(games.iter().any(|name| counted.contains_key(name)), "{counted:?}");
}

#[test]
fn guesses_disturb_no_connection() {
    two_hosts!();
    guesses(&V4);
}

#[test]
fn guesses_disturb_no_connection_over_ipv6() {
    two_hosts!(Need::Ipv6);
    guesses(&V6);
}

#[test]
fn an_attacker_that_knows_the_numbers_can_do_what_the_peer_can_and_no_more() {
    two_hosts!();
    knows_the_numbers(&V4);
}

#[test]
fn an_attacker_that_knows_the_numbers_over_ipv6_can_do_what_the_peer_can_and_no_more() {
    two_hosts!(Need::Ipv6);
    knows_the_numbers(&V6);
}
