//! All processes of this user that share GPUs, as seen by a program that shares none: `peerdma
//! gpu`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::wire::{Ask, MEMBERS, Name, Told};
use crate::act::{ByHand, Came};
use crate::view::GpuView;

/// How long one process may take to report all its buffers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that has a GPU open, as far as it reported.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "what is known of it")]
pub struct Member {
    /// The GPU's name.
    pub gpu: String,
    /// Its number among the processes that share the GPU.
    pub member: u8,
    /// Its pid, from the kernel.
    pub pid: Option<u32>,
    /// Its report, or why nothing is known.
    pub view: Result<GpuView, String>,
}

/// Asks all processes of this user in this network namespace that share a GPU. The result also has
/// stopped processes, without a report.
pub fn survey() -> Vec<Member> {
    // Anybody can give a socket a name that is not text.
    let names = std::fs::read("/proc/net/unix").unwrap_or_default();
    let names = String::from_utf8_lossy(&names);
    let found = listening(&names, &Name::prefix_of_user());
    std::thread::scope(|scope| {
        let ask = |(gpu, member): (String, u8)| scope.spawn(move || ask(gpu, member));
        let asked: Vec<_> = found.into_iter().map(ask).collect();
        asked.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// The GPUs and the numbers of the processes that share them, from the kernel's list of sockets.
fn listening(list: &str, prefix: &str) -> BTreeSet<(String, u8)> {
    let found = list.lines().filter_map(|line| {
        let name = line.split_ascii_whitespace().nth(7)?.strip_prefix('@')?;
        let (gpu, member) = name.strip_prefix(prefix)?.split_once('/')?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let is_name = (1..=32).contains(&gpu.len()) && gpu.bytes().all(plain);
        let member = member.parse().ok().filter(|member| *member < MEMBERS)?;
        is_name.then(|| (gpu.to_owned(), member))
    });
    found.collect()
}

/// A process's report; none if the process is gone, or its socket belongs to another user.
fn ask(gpu: String, member: u8) -> Option<Member> {
    let name = Name::new(&gpu);
    let start = Instant::now();
    let mut whole: Option<Member> = None;
    let mut after = 0;
    loop {
        let (pid, said) = match name.look(member, after) {
            Told::Text { pid, said } => (pid, said),
            Told::Nobody => return None,
            Told::Silence { pid } => {
                let view = Err("it does not answer: is it stopped?".to_owned());
                return Some(Member { gpu, member, pid, view });
            }
        };
        let Some((view, next)) = GpuView::decode(&said, after) else {
            let view = Err("its answer cannot be read: another version?".to_owned());
            return Some(Member { gpu, member, pid, view });
        };
        let whole = match &mut whole {
            Some(Member { view: Ok(known), .. }) => {
                known.buffers.extend(view.buffers);
                whole.as_mut()?
            }
            _ => whole.insert(Member { gpu: gpu.clone(), member, pid, view: Ok(view) }),
        };
        match next.filter(|_| start.elapsed() < PATIENCE) {
            Some(next) => after = next,
            None => return Some(whole.clone()),
        }
    }
}

impl Member {
    /// Performs an act on the GPU in this process, or on one buffer or all. Returns how often it
    /// was done, in words, and why not for the others.
    ///
    /// # Errors
    ///
    /// The process did not answer, or shares other memory by now.
    pub fn act(&self, what: ByHand, buffer: Option<u64>) -> Result<(String, Vec<String>), String> {
        let memory = self.view.as_ref()?.memory;
        let ask = Ask::Act { ledger: memory, what, buffer };
        match Name::new(&self.gpu).tell(self.member, &ask) {
            Told::Text { said, .. } => {
                let (done, why) = heard(&said).ok_or("its answer cannot be read")?;
                Ok((what.act().words(done), why))
            }
            Told::Nobody => Err("it ended".to_owned()),
            Told::Silence { .. } => Err("it does not answer: is it stopped?".to_owned()),
        }
    }
}

/// How often a process reports that it was done, and why not for the others.
pub(crate) fn heard(said: &[u8]) -> Option<(u64, Vec<String>)> {
    let came: Came = toml::from_str(std::str::from_utf8(said).ok()?).ok()?;
    let mut why: Vec<_> = came.why.iter().map(|why| crate::view::short(why)).collect();
    match came.refused.saturating_sub(why.len() as u64) {
        0 => {}
        more => why.push(format!("and {more} more")),
    }
    Some((came.done, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_known_by_their_names_and_others_are_left_alone() {
        let line = |name: &str| format!("0000: 00000002 0 00010000 0005 01 4711 {name}\n");
        let list = [
            "@peerdma/gpu/7/nvidia0/12",
            "@peerdma/gpu/7/nvidia0/0",
            "@peerdma/gpu/7/nvidia0/door",
            "@peerdma/gpu/7/nvidia0/64",
            "@peerdma/gpu/77/nvidia0/1",
            "@peerdma/gpu/7/a b/1",
            "@peerdma/gpu/7//1",
            "/peerdma/gpu/7/nvidia0/3",
            "",
        ];
        let list: String = list.iter().map(|name| line(name)).collect();
        let nvidia = |member| ("nvidia0".to_owned(), member);
        assert_eq!(listening(&list, "peerdma/gpu/7/"), [nvidia(0), nvidia(12)].into());
    }
}
