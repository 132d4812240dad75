//! A program and how it is started: its use of peerdma, its user, its namespaces.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::artefacts::Artefacts;
use crate::netns::Netns;
use crate::output::Output;
use crate::running::Running;
use crate::scratch::Scratch;
use crate::tag::{self, Tag};

/// The numeric ids of Debian's `nobody` and `nogroup`.
const NOBODY: &str = "65534";

/// How a program uses peerdma.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// `peerdma run -- PROGRAM`.
    Run,
    /// `LD_LIBRARY_PATH` alone: the loader finds our `libibverbs.so.1` before the system's.
    Library,
    /// `LD_PRELOAD` alone: for programs whose RPATH names another libibverbs.
    Preload,
    /// Not at all: with the system's own library.
    Plain,
}

/// A program that can be started any number of times.
#[derive(Clone, Debug)]
pub struct Program {
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    mode: Mode,
    gpu: Option<String>,
    pcap: Option<PathBuf>,
    rsockets: bool,
    shared_heap: bool,
    netns: Option<String>,
    own_pid_namespace: bool,
    nobody: bool,
    leaves_daemon: bool,
    limit: Duration,
    scratch: Arc<Scratch>,
}

impl Program {
    /// `name` (a path, or looked up in PATH), run by `peerdma run`.
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            mode: Mode::Run,
            gpu: None,
            rsockets: false,
            shared_heap: false,
            pcap: None,
            netns: None,
            own_pid_namespace: false,
            nobody: false,
            leaves_daemon: false,
            limit: Duration::from_secs(60),
            scratch: Arc::new(Scratch::new()),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Adds a variable to the program's environment.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Chooses how it uses peerdma.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Gives it software GPUs with this driver, by `peerdma run`.
    #[must_use]
    pub fn gpu(mut self, preset: &str) -> Self {
        self.gpu = Some(preset.to_owned());
        self
    }

    /// Records its packets in a file, by `peerdma run`.
    #[must_use]
    pub fn pcap(mut self, file: &Path) -> Self {
        self.pcap = Some(file.to_owned());
        self
    }

    /// Turns its sockets into rsockets, by `peerdma run`.
    #[must_use]
    pub fn rsockets(mut self) -> Self {
        self.rsockets = true;
        self
    }

    /// Lets its larger blocks of memory lie in a file, by `peerdma run`.
    #[must_use]
    pub fn shared_heap(mut self) -> Self {
        self.shared_heap = true;
        self
    }

    /// Runs it in a network namespace.
    #[must_use]
    pub fn in_netns(mut self, netns: &Netns) -> Self {
        self.netns = Some(netns.path());
        self
    }

    /// Runs it in the network namespace at this path.
    #[must_use]
    pub(crate) fn in_netns_at(mut self, path: &str) -> Self {
        self.netns = Some(path.to_owned());
        self
    }

    /// Runs it as the first process of its own pid namespace, with its own `/proc`.
    #[must_use]
    pub fn in_pid_namespace(mut self) -> Self {
        self.own_pid_namespace = true;
        self
    }

    /// Runs it as user and group `nobody`, without capabilities.
    #[must_use]
    pub fn as_nobody(mut self) -> Self {
        self.nobody = true;
        self
    }

    /// The program may leave processes when it ends; the test waits for them with
    /// [`Running::wait_orphans`].
    #[must_use]
    pub fn leaves_daemon(mut self) -> Self {
        self.leaves_daemon = true;
        self
    }

    /// How long it may take before it is killed and the test fails (default: 60 seconds).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts it in a process group of its own.
    ///
    /// # Panics
    ///
    /// If the first word of the command line cannot be executed.
    #[track_caller]
    pub fn start(&self) -> Running {
        let words = self.words();
        let tag = Tag::new();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env(tag::VARIABLE, tag.value())
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD")
            .env_remove("LD_LIBRARY_PATH")
            .current_dir(self.scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let line = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let child = command.spawn().unwrap_or_else(|err| panic!("cannot start {line}: {err}"));
        let scratch = Arc::clone(&self.scratch);
        Running::new(child, line, tag, self.limit, self.leaves_daemon, scratch)
    }

    /// Starts it and waits for its end.
    #[track_caller]
    pub fn output(&self) -> Output {
        self.start().finish()
    }

    /// The command line: namespaces outermost, then the user, then peerdma, then the program.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(netns) = &self.netns {
            words.extend(["nsenter".into(), format!("--net={netns}").into()]);
        }
        if self.own_pid_namespace {
            words.extend(
                ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(Into::into),
            );
        }
        let mut artefacts = None;
        if self.mode != Mode::Plain {
            let built = Artefacts::find();
            artefacts = Some(if self.nobody { built.staged(&self.scratch) } else { built });
        }
        if self.nobody {
            let (uid, gid) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
            words.extend(["setpriv".into(), uid.into(), gid.into(), "--clear-groups".into()]);
        }
        // `env` sets the variables for the program alone, not for nsenter, unshare or setpriv.
        let mut env = self.env.clone();
        match (self.mode, &artefacts) {
            (Mode::Library, Some(a)) => {
                env.push(("LD_LIBRARY_PATH".into(), a.library_dir(&self.scratch).into()));
            }
            (Mode::Preload, Some(a)) => {
                env.push(("LD_PRELOAD".into(), a.preload_list(&self.scratch).into()));
            }
            _ => {}
        }
        if !env.is_empty() {
            words.push("env".into());
            words.extend(env.into_iter().map(|(key, value)| {
                let mut word = key;
                word.push("=");
                word.push(value);
                word
            }));
        }
        if let (Mode::Run, Some(a)) = (self.mode, &artefacts) {
            words.extend([a.peerdma().into_os_string(), "run".into()]);
            words.extend(self.rsockets.then(|| "--rsockets".into()));
            words.extend(self.shared_heap.then(|| "--shared-heap".into()));
            words.extend(self.gpu.as_ref().map(|preset| format!("--gpu={preset}").into()));
            if let Some(file) = &self.pcap {
                words.extend(["--pcap".into(), file.into()]);
            }
            words.push("--".into());
        }
        words.push(self.name.clone());
        words.extend(self.args.iter().cloned());
        words
    }

    /// A directory that lives as long as the program's description; also its working directory.
    pub fn scratch(&self) -> PathBuf {
        self.scratch.path().to_owned()
    }
}
