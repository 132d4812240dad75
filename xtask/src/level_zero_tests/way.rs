//! The ways in which the suite is run.

use std::fs;
use std::path::PathBuf;

use crate::sh::{Outcome, target_dir};

/// A way of running the suite.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Way {
    /// The preset of the GPUs.
    pub(crate) preset: &'static str,
    /// Whether the loader's validation layer sees each call first.
    is_validated: bool,
}

/// All of them.
pub(crate) const WAYS: [Way; 2] =
    [Way { preset: "xe", is_validated: false }, Way { preset: "xe", is_validated: true }];

impl Way {
    /// Its name in words, as in `on` in the list of expectations.
    pub(crate) fn words(&self) -> String {
        format!("{} {}", self.preset, if self.is_validated { "validated" } else { "plain" })
    }

    /// The variables by which the loader adds the layer.
    pub(crate) fn variables(&self) -> &'static [&'static str] {
        match self.is_validated {
            true => &["ZE_ENABLE_VALIDATION_LAYER", "ZE_ENABLE_PARAMETER_VALIDATION"],
            false => &[],
        }
    }

    /// Where a run leaves its output.
    pub(crate) fn scratch(&self) -> PathBuf {
        target_dir().join("level-zero-tests").join(self.words().replace(' ', "-"))
    }

    /// The configuration of the machine for a share of the tests: two GPUs of its own, since those
    /// of one name share their memory, and the tests allocate all of it.
    pub(crate) fn config(&self, share: usize) -> Outcome<PathBuf> {
        let dir = self.scratch();
        fs::create_dir_all(&dir).map_err(|err| format!("{}: {err}", dir.display()))?;
        let file = dir.join(format!("peerdma.{share}.toml"));
        let words = self.words().replace(' ', "-");
        let gpu = |number| format!("[[gpu]]\nname = \"{words}-{share}-{number}\"\n");
        let text = gpu(0) + &gpu(1);
        fs::write(&file, text).map_err(|err| format!("{}: {err}", file.display()))?;
        Ok(file)
    }
}
