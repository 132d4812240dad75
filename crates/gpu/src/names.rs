//! The names of buffers and their dma-bufs.

/// The name of a buffer of a GPU.
pub(crate) fn bo(gpu: &str, id: u64) -> String {
    format!("{gpu}.bo{id}")
}

/// The name of a dma-buf that shows a part of the buffer `bo`.
pub(crate) fn window(bo: &str, offset: u64) -> String {
    format!("{bo}+{offset:#x}")
}

/// Whether a dma-buf of this name shows the buffer `bo`, a part of it, or several buffers with `bo`
/// among them: `gpu0.bo1`, `gpu0.bo1+0x1000`, `gpu0.bo1-3+bo7`.
pub(crate) fn is_of(bo: &str, name: &str) -> bool {
    let number = |text: &str| text.strip_prefix("bo")?.parse::<u64>().ok();
    let split = |name: &str| name.rsplit_once('.').map(|(gpu, rest)| (gpu.len(), rest.to_owned()));
    let (Some((at, wanted)), Some((other_at, list))) = (split(bo), split(name)) else {
        return false;
    };
    let Some(wanted) = number(&wanted) else { return false };
    let is_in = |run: &str| match run.split_once('-') {
        Some((first, last)) => {
            number(first).is_some_and(|first| first <= wanted)
                && last.parse().is_ok_and(|last: u64| wanted <= last)
        }
        None => number(run) == Some(wanted),
    };
    at == other_at && bo[..at] == name[..at] && list.split('+').any(is_in)
}
