//! A program with more rights than the user who starts it takes no file names from that user's
//! variables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use interop::need::Need;
use interop::scratch::own;
use interop::{Mode, Output, Program, Scratch, compile_installed, needs};

/// The owner of programs and secrets. The programs are started by nobody.
const OWNER: u32 = 65533;
/// The content of a file that only the owner can read.
const SECRET: &str = "the-owners-secret";

/// The requirements for starting a program of one user as another.
const NEEDS: [Need; 3] = [Need::Root, Need::Program("setpriv"), Need::Header("infiniband/verbs.h")];

/// A verbs program, and a directory in which every user may create files.
struct Stage {
    program: PathBuf,
    files: PathBuf,
    scratch: Scratch,
}

impl Stage {
    fn new(mode: u32) -> Self {
        let scratch = Scratch::new();
        let program = compile_installed("pcap_loop", &scratch);
        own(&program, OWNER, mode);
        let files = scratch.file("files");
        fs::create_dir(&files).expect("a scratch directory is writable");
        own(&files, OWNER, 0o777);
        Self { program, files, scratch }
    }

    fn program(&self) -> Program {
        Program::new(&self.program).mode(Mode::Plain).args(["close"]).as_nobody()
    }

    /// Starts the program with every variable that names a file to write.
    fn told_to_write(&self) -> Output {
        let plan = "[[fault]]\ndo = \"duplicate\"\nnth = 1\n";
        let plan = self.scratch.write("plan.toml", plan, 65534, 0o644);
        let name = |file: &str| self.files.join(file);
        self.program()
            .env("PEERDMA_PCAP", name("pcap"))
            .env("PEERDMA_REPORT", name("report"))
            .env("PEERDMA_FAULT", plan)
            .env("PEERDMA_FAULT_REPORT", name("faults"))
            .env("PEERDMA_EXPLAIN", name("explain"))
            .env("PEERDMA_LOG", "debug")
            .output()
    }

    /// Starts the program with a file as its configuration, and with a log that reports its errors.
    fn told_to_read(&self, config: &Path) -> Output {
        self.program().env("PEERDMA_CONFIG", config).env("PEERDMA_LOG", "debug").output()
    }

    /// A configuration with an error.
    fn config(&self, owner: u32, mode: u32) -> PathBuf {
        self.scratch.write("config.toml", &format!("[[nic]]\n{SECRET} = 1\n"), owner, mode)
    }

    fn made(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.files).expect("made above");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_program_of_the_same_user_takes_file_names_from_variables() {
    let [a, b, c] = NEEDS;
    needs!(a, b, c);
    let stage = Stage::new(0o755);
    let output = stage.told_to_write();
    assert_eq!(stage.made(), ["faults", "pcap", "report"], "{output}");
    assert!(!output.stderr.is_empty(), "the log was asked for");
    let output = stage.told_to_read(&stage.config(65534, 0o600));
    assert!(output.stderr.contains(SECRET), "{output}");
}

#[test]
fn a_configuration_of_another_user_is_not_quoted() {
    let [a, b, c] = NEEDS;
    needs!(a, b, c);
    let stage = Stage::new(0o755);
    let config = stage.config(OWNER, 0o644);
    let output = stage.told_to_read(&config);
    assert!(output.stderr.contains(&*config.to_string_lossy()), "{output}");
    assert!(output.stderr.contains("belongs to uid 65533"), "{output}");
    assert!(!output.stderr.contains(SECRET), "{output}");
}

/// Requires that a program ignores the variables.
#[track_caller]
fn is_not_told(stage: &Stage) {
    for output in [stage.told_to_write(), stage.told_to_read(&stage.config(OWNER, 0o600))] {
        assert!(output.stdout.contains("ok"), "{output}");
        assert_eq!(output.stderr, "", "{output}");
    }
    assert_eq!(stage.made(), [""; 0]);
}

#[test]
fn a_set_user_id_program_ignores_the_variables_of_its_user() {
    let [a, b, c] = NEEDS;
    needs!(a, b, c);
    is_not_told(&Stage::new(0o4755));
}

#[test]
fn a_program_with_file_capabilities_ignores_the_variables_of_its_user() {
    let [a, b, c] = NEEDS;
    needs!(a, b, c, Need::Program("setcap"));
    let stage = Stage::new(0o755);
    let done = Command::new("setcap").arg("cap_net_raw+ep").arg(&stage.program).status();
    assert!(done.expect("the test asked for it with needs!").success());
    is_not_told(&stage);
}
