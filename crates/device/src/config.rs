//! The configuration file: which NICs there are and how each behaves.
//!
//! Without a file there is one NIC, `peerdma0`, over the netdev of the default route. The file is named by
//! `PEERDMA_CONFIG`; every key is optional:
//!
//! ```toml
//! [[nic]]
//! name = "peerdma0"
//! preset = "mlx5"          # mlx5 | irdma | efa | rxe
//! netdev = "eth0"          # default: the default route's
//! udp_port = 4791
//! force_udp = false        # true: RoCEv2 even between processes of one host
//! direct = true            # false: never touch a peer's memory without its engine
//! max_dm_size = "256K"
//! ```

use std::path::Path;

use serde::Deserialize;

use crate::refusal::{Kind, Refusal, Result};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The NICs, in the order programs see them.
    #[serde(default, rename = "nic")]
    pub nics: Vec<NicConfig>,
}

/// One NIC.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct NicConfig {
    /// The device name programs see.
    pub name: String,
    /// Whose behaviour it follows where real NICs differ.
    pub preset: Preset,
    /// The netdev whose addresses are its GIDs; the default route's if none is named.
    pub netdev: Option<String>,
    /// The UDP port of RoCEv2.
    pub udp_port: u16,
    /// Whether to use UDP even between processes of one host.
    pub force_udp: bool,
    /// Whether one-sided operations on one host may run without the target's engine.
    pub direct: bool,
    /// Bytes of device memory of one process.
    #[serde(deserialize_with = "size")]
    pub max_dm_size: u64,
    /// Bytes in each direction of a ring between two processes; a power of two.
    #[serde(deserialize_with = "size")]
    pub ring_size: u64,
}

/// A NIC whose behaviour is followed where real ones differ (`docs/semantics.md` 2.6).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Preset {
    /// Imports dma-bufs dynamically.
    #[default]
    Mlx5,
    /// Pins dma-bufs, and lets exporters revoke them.
    Irdma,
    /// Pins dma-bufs.
    Efa,
    /// Imports no dma-buf.
    Rxe,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            name: "peerdma0".to_owned(),
            preset: Preset::default(),
            netdev: None,
            udp_port: 4791,
            force_udp: false,
            direct: true,
            max_dm_size: 256 << 10,
            ring_size: 256 << 10,
        }
    }
}

impl Config {
    /// Reads the file that `PEERDMA_CONFIG` names, or gives the default.
    pub fn load() -> Result<Self> {
        match std::env::var_os("PEERDMA_CONFIG") {
            Some(path) if !path.is_empty() => Self::read(Path::new(&path)),
            _ => Ok(Self { nics: vec![NicConfig::default()] }),
        }
    }

    /// Reads one file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Refusal::new(Kind::NoDevice, format!("PEERDMA_CONFIG: {}: {error}", path.display()))
        })?;
        Self::parse(&text).map_err(|refusal| {
            Refusal::new(
                refusal.kind(),
                format!("PEERDMA_CONFIG: {}: {}", path.display(), refusal.what()),
            )
        })
    }

    /// Reads the text of a file. A file that names no NIC has the default one.
    pub fn parse(text: &str) -> Result<Self> {
        let mut config: Self =
            toml::from_str(text).map_err(|error| Refusal::new(Kind::Invalid, error.to_string()))?;
        if config.nics.is_empty() {
            config.nics.push(NicConfig::default());
        }
        for nic in &config.nics {
            nic.check()?;
        }
        Ok(config)
    }
}

impl NicConfig {
    fn check(&self) -> Result<()> {
        let name_is_plain =
            self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if self.name.is_empty() || self.name.len() > 32 || !name_is_plain {
            crate::refusal::refuse!(
                Invalid,
                "nic name {:?}: 1 to 32 letters, digits, '_' or '-'",
                self.name
            );
        }
        if !self.ring_size.is_power_of_two() || !(1 << 14..=1 << 26).contains(&self.ring_size) {
            crate::refusal::refuse!(
                Invalid,
                "ring_size {}: a power of two from 16K to 64M",
                self.ring_size
            );
        }
        Ok(())
    }
}

/// A size: a number of bytes, or a string with K, M or G.
fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Text(text) => {
            let (digits, shift) = match text.trim().split_at(text.trim().len().saturating_sub(1)) {
                (digits, "K" | "k") => (digits, 10),
                (digits, "M" | "m") => (digits, 20),
                (digits, "G" | "g") => (digits, 30),
                _ => (text.trim(), 0),
            };
            digits
                .parse::<u64>()
                .ok()
                .and_then(|number| number.checked_mul(1 << shift))
                .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a size")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("").unwrap().nics, [NicConfig::default()]);
    }

    #[test]
    fn sizes_take_suffixes() {
        let config = Config::parse("[[nic]]\nmax_dm_size = \"1M\"\nring_size = 65536").unwrap();
        assert_eq!((config.nics[0].max_dm_size, config.nics[0].ring_size), (1 << 20, 1 << 16));
    }

    #[test]
    fn mistakes_are_named() {
        let what = |text| Config::parse(text).unwrap_err().what().to_owned();
        assert!(what("[[nic]]\nnmae = \"x\"").contains("nmae"));
        assert!(what("[[nic]]\nname = \"a/b\"").contains("a/b"));
        assert!(what("[[nic]]\nmax_dm_size = \"1T\"").contains("1T"));
        assert!(what("[[nic]]\nring_size = 1000").contains("1000"));
    }
}
