//! Entry points for fuzz targets.

use crate::peers::survey;
use crate::view::{GpuView, LONGEST, short};

/// Reads `bytes` as a process's report on its GPU, and as the result of an act there, since the
/// reader of these prints them.
pub fn answer(bytes: &[u8]) {
    let is_harmless = |text: &String| assert_eq!(*text, short(text));
    for after in [0, 7] {
        let Some((view, next)) = GpuView::decode(bytes, after) else { continue };
        assert!(next.is_none_or(|next| next > after), "each answer goes on");
        [&view.name, &view.preset, &view.pci].into_iter().for_each(is_harmless);
        for buffer in &view.buffers {
            is_harmless(&buffer.place);
            buffer.importers.iter().for_each(is_harmless);
        }
        let said = view.encode();
        if said.len() <= LONGEST {
            assert_eq!(GpuView::decode(&said, after), Some((view, next)));
        }
    }
    if let Some((_, why)) = survey::heard(bytes) {
        why.iter().for_each(is_harmless);
    }
}
