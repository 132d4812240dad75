//! MPI programs with a rank on each of two hosts.

use std::path::Path;

use crate::artefacts::Artefacts;
use crate::netns::{Netns, Veth};
use crate::program::{Mode, Program};

/// An MPI program, and its settings of Open MPI.
#[derive(Clone, Copy, Debug)]
pub struct Mpi<'a> {
    /// The path of `mpirun`.
    pub mpirun: &'a Path,
    /// The program and its arguments.
    pub program: &'a [&'a str],
    /// The driver of its software GPUs.
    pub gpu: Option<&'a str>,
    /// Parameters of Open MPI's components.
    pub options: &'a [(&'a str, &'a str)],
    /// Variables of the ranks.
    pub env: &'a [(&'a str, &'a str)],
}

impl Mpi<'_> {
    /// The command that runs it with a rank on each host of a pair. Its temporary files are in
    /// `base`.
    pub fn between(&self, hosts: [&Netns; 2], base: &Path) -> Program {
        let word = |path: &Path| path.to_str().expect("our own paths are UTF-8").to_owned();
        let (mpirun, base) = (word(self.mpirun), word(base));
        let hosts_words = ["--host", "10.77.0.1,10.77.0.2", "-np", "2"];
        let mut words = vec!["exec", &mpirun, "--allow-run-as-root"];
        words.extend(hosts_words);
        let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/sh/mpi-agent.sh");
        let common = [
            ("plm_rsh_agent", agent),
            ("oob_tcp_if_include", Veth::INTERFACE),
            ("orte_tmpdir_base", &base),
        ];
        for (name, value) in common.iter().chain(self.options) {
            words.extend(["--mca", name, value]);
        }
        for (name, _) in self.env {
            words.extend(["-x", name]);
        }
        let peerdma = word(&Artefacts::find().peerdma());
        let gpu = self.gpu.map(|preset| format!("--gpu={preset}"));
        words.extend(["-x", "PEERDMA_LOG", &peerdma, "run"]);
        words.extend(gpu.as_deref());
        words.push("--");
        words.extend(self.program);
        let line = format!("hostname 10.77.0.1; {}", words.join(" "));
        let mut shell = Program::new("unshare")
            .args(["--uts", "sh", "-c", &line])
            .mode(Mode::Plain)
            .env("INTEROP_OTHER_NETNS", hosts[1].path())
            .env("PEERDMA_LOG", "info")
            .in_netns(hosts[0]);
        for (name, value) in self.env {
            shell = shell.env(name, value);
        }
        shell
    }
}
