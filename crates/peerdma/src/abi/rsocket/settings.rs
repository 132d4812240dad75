//! The administrator's settings, in the files of `rsocket(7)`, one number each.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use rsocket::Sizes;

/// The directory of the files.
const DIRECTORY: &str = "/etc/rdma/rsocket";

/// Defaults of sockets.
pub(super) struct Settings {
    pub(super) sizes: Sizes,
    /// How long a waiting call polls before it sleeps.
    pub(super) polling_time: Duration,
}

/// The settings of this process: read at the first socket.
pub(super) static SETTINGS: LazyLock<Settings> =
    LazyLock::new(|| Settings::read(Path::new(DIRECTORY)));

impl Settings {
    fn read(directory: &Path) -> Self {
        let defaults = Sizes::default();
        Self {
            sizes: Sizes {
                sq_size: number::<u16>(directory, "sqsize_default")
                    .map_or(defaults.sq_size, u32::from),
                rq_size: number::<u16>(directory, "rqsize_default")
                    .map_or(defaults.rq_size, u32::from),
                inline: number::<u16>(directory, "inline_default")
                    .map_or(defaults.inline, u32::from),
                send_buffer: number(directory, "wmem_default").unwrap_or(defaults.send_buffer),
                receive_buffer: number(directory, "mem_default").unwrap_or(defaults.receive_buffer),
                mappings: number::<u16>(directory, "iomap_size")
                    .map_or(defaults.mappings, u32::from),
            },
            polling_time: Duration::from_micros(number(directory, "polling_time").unwrap_or(10)),
        }
    }
}

fn number<T: FromStr>(directory: &Path, name: &str) -> Option<T> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    let parsed = text.trim().parse().ok();
    if parsed.is_none() {
        tracing::warn!("{}: not a number: {text:?}", directory.join(name).display());
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_a_number_count() {
        let directory =
            std::env::temp_dir().join(format!("peerdma-rsocket-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("mem_default"), "1000000\n").unwrap();
        fs::write(directory.join("sqsize_default"), "100000\n").unwrap();
        fs::write(directory.join("polling_time"), "0").unwrap();
        let settings = Settings::read(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(settings.sizes, Sizes { receive_buffer: 1_000_000, ..Sizes::default() });
        assert_eq!(settings.polling_time, Duration::ZERO);
    }
}
