//! The answers of the kernel, by the module.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};

use pci::{Bdf, MapType};

const ASK: &str = "/proc/p2pdma/ask";
const PAIRS: &str = "/proc/p2pdma/pairs";

/// What the module asks the kernel for us.
pub(crate) struct Kernel(File);

impl Kernel {
    pub(crate) fn open() -> Result<Self, String> {
        let file = File::options().read(true).write(true).open(ASK);
        file.map(Self).map_err(|error| format!("{ASK}: {error}"))
    }

    /// The answer to a question.
    pub(crate) fn ask(&mut self, question: &str) -> Result<String, String> {
        let mut answer = String::new();
        let mut ask = || {
            self.0.write_all(question.as_bytes())?;
            self.0.rewind()?;
            self.0.read_to_string(&mut answer)
        };
        ask().map_err(|error| format!("{question}: {error}"))?;
        Ok(answer)
    }

    /// The answer, if it is a number.
    pub(crate) fn number(&mut self, question: &str) -> Result<i64, String> {
        let answer = self.ask(question)?;
        answer.parse().map_err(|_| format!("{question}: {answer:?} is no number"))
    }
}

/// Provider, client, map type and distance of each pair of functions.
pub(crate) fn pairs() -> Result<Vec<(Bdf, Bdf, MapType, u32)>, String> {
    let text = fs::read_to_string(PAIRS).map_err(|error| format!("{PAIRS}: {error}"))?;
    let parse = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let [provider, client, map_type, distance] = words[..] else { return None };
        // enum pci_p2pdma_map_type
        let map_type = match map_type {
            "1" => MapType::None,
            "2" => MapType::NotSupported,
            "3" => MapType::BusAddr,
            "4" => MapType::ThruHostBridge,
            _ => return None,
        };
        let (provider, client) = (provider.parse().ok()?, client.parse().ok()?);
        Some((provider, client, map_type, distance.parse().ok()?))
    };
    text.lines().map(|line| parse(line).ok_or_else(|| format!("{PAIRS}: {line}"))).collect()
}
