//! The same suite on the Linux kernel's `rdma_rxe`, in a virtual machine; its results are kept in
//! `interop/pyverbs/rxe.toml`, since the machine takes minutes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::suite::Suite;
use super::verdicts::Reader;
use crate::sh::{Outcome, check, root, target_dir, tool, watch};
use crate::suites::{Verdict, Verdicts};

const FILE: &str = "interop/pyverbs/rxe.toml";
/// For the whole suite, under emulation on a loaded machine.
const SECONDS: &str = "1600";
/// The device, its netdev, and the file system that shares this machine's root.
const MODULES: [&str; 7] =
    ["virtio_pci", "9pnet_virtio", "9p", "veth", "rdma_rxe", "ib_uverbs", "rdma_ucm"];

/// The results of the suite on a kernel's device.
#[derive(Debug)]
pub(crate) struct Rxe {
    /// The kernel's release.
    pub(crate) kernel: String,
    pub(crate) verdicts: Verdicts,
}

impl Rxe {
    /// The results of the last run.
    pub(crate) fn read() -> Outcome<Self> {
        let text = fs::read_to_string(root().join(FILE)).map_err(|err| format!("{FILE}: {err}"))?;
        Self::parse(&text).map_err(|why| format!("{FILE}: {why}"))
    }

    /// Runs the suite in a machine.
    pub(crate) fn run(suite: &Suite) -> Outcome<Self> {
        let tests = suite.dir.to_str().filter(|path| !path.contains([' ', '\'']));
        let tests = tests.ok_or("the path of the tests has no place on a kernel's command line")?;
        let vm = target_dir().join("vm");
        check(tool(script("fetch.sh")).arg(&vm))?;
        let initrd = target_dir().join("pyverbs/rxe.cpio");
        let mut make = tool(script("mkinitrd.sh"));
        make.args([&vm.join("kernel"), &initrd]);
        for module in MODULES {
            make.args(["-m", module]);
        }
        make.args(["-p", "ip", "-p", "rdma"]);
        make.args(["-f", &format!("{}:/test.sh", script("guest/pyverbs.sh").display())]);
        check(&mut make)?;

        let mut boot = tool(script("run.sh"));
        boot.args([&vm, &initrd]).args(["-t", SECONDS, "-a", &format!("tests={tests}")]);
        boot.args(["--", "-virtfs"]);
        boot.arg("local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap");
        let (mut reader, mut kernel, mut section) =
            (Reader::default(), String::new(), String::new());
        let ended = watch(&mut boot, |line| match (line.strip_prefix("=== "), &*section) {
            (Some(name), "" | "kernel") => section = name.to_owned(),
            (_, "kernel") => line.clone_into(&mut kernel),
            _ => reader.read(line),
        })?;
        let _ = fs::remove_file(&initrd);
        if !ended {
            return Err("the machine did not come to the end of its script".to_owned());
        }
        Ok(Self { kernel, verdicts: reader.finish() })
    }

    /// Keeps it for later runs.
    pub(crate) fn write(&self) -> Outcome {
        fs::write(root().join(FILE), self.text()).map_err(|err| format!("{FILE}: {err}"))
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# What became of rdma-core's tests on the Linux kernel's rdma_rxe. Written by `cargo xtask pyverbs --rxe`.\n\n\
             kernel = {}\n\n[tests]\n",
            quoted(&self.kernel)
        );
        for (test, verdict) in &self.verdicts.tests {
            let words = match verdict {
                Verdict::Passed => "pass".to_owned(),
                Verdict::Skipped(why) => format!("skip: {why}"),
                Verdict::Failed(why) => format!("fail: {why}"),
            };
            writeln!(text, "{} = {}", quoted(test), quoted(&words)).expect("a String takes all");
        }
        text
    }

    fn parse(text: &str) -> Outcome<Self> {
        let table: Table = text.parse().map_err(|err| format!("{err}"))?;
        let kernel = table.get("kernel").and_then(Value::as_str).ok_or("no kernel")?;
        let tests = table.get("tests").and_then(Value::as_table).ok_or("no tests")?;
        let verdict = |(test, value): (&String, &Value)| {
            let words = value.as_str().and_then(|words| {
                Some(match words.split_once(": ").unwrap_or((words, "")) {
                    ("pass", _) => Verdict::Passed,
                    ("skip", why) => Verdict::Skipped(why.to_owned()),
                    ("fail", why) => Verdict::Failed(why.to_owned()),
                    _ => return None,
                })
            });
            Ok((test.clone(), words.ok_or(format!("{test}: {value}"))?))
        };
        let tests: Outcome<BTreeMap<_, _>> = tests.iter().map(verdict).collect();
        Ok(Self { kernel: kernel.to_owned(), verdicts: Verdicts { tests: tests? } })
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(root()).join("interop/vm").join(name)
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_unchanged() {
        let tests = [
            ("test_a.A.test_a", Verdict::Passed),
            ("test_a.A.test_b", Verdict::Skipped("no \"b\" here: it isn't".to_owned())),
            ("test_a.A.test_c", Verdict::Failed("AssertionError: 1 != 2".to_owned())),
        ];
        let tests = tests.map(|(test, verdict)| (test.to_owned(), verdict));
        let kept = Rxe { kernel: "7.2".to_owned(), verdicts: Verdicts { tests: tests.into() } };
        let read = Rxe::parse(&kept.text()).unwrap();
        assert_eq!((read.kernel, read.verdicts.tests), (kept.kernel, kept.verdicts.tests));
        assert!(Rxe::parse("kernel = \"7.2\"\n[tests]\na = \"perhaps\"\n").is_err());
    }
}
