//! What a host is told without having asked at that moment (NVMe 1.4, 5.2): namespaces that came,
//! went or changed.

use std::collections::BTreeSet;

/// A bit of Asynchronous Event Configuration, and of OAES.
#[doc(alias = "NVME_AEN_CFG_NS_ATTR")]
pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// The log page Changed Namespace List.
pub const CHANGED_NAMESPACES: u8 = 0x04;
/// Entries of that page.
const ENTRIES: usize = 1024;

/// The result of an event: a notice (type 2) that a namespace attribute changed (0), and the log
/// page that tells more.
const NOTICE: u64 = 2 | (CHANGED_NAMESPACES as u64) << 16;

/// The events of a controller.
#[derive(Debug, Default)]
pub struct Events {
    enabled: u32,
    changed: BTreeSet<u32>,
    notice: Notice,
}

/// Of changes the host is told once, until it has read which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Notice {
    #[default]
    None,
    /// It waits for a request to answer.
    Waits,
    /// The host has it.
    Sent,
}

impl Events {
    /// The events that the host has enabled.
    pub fn enabled(&self) -> u32 {
        self.enabled
    }

    /// Sets them.
    pub fn enable(&mut self, events: u32) {
        self.enabled = events;
    }

    /// A namespace came, went or changed.
    pub fn namespace_changed(&mut self, nsid: u32) {
        self.changed.insert(nsid);
        if self.enabled & NAMESPACE_ATTRIBUTE != 0 && self.notice == Notice::None {
            self.notice = Notice::Waits;
        }
    }

    /// The result of a request that is to be answered now.
    pub fn take(&mut self) -> Option<u64> {
        (self.notice == Notice::Waits).then(|| {
            self.notice = Notice::Sent;
            NOTICE
        })
    }

    /// The page Changed Namespace List. Unless the host retains the event, it is told of the next
    /// change.
    pub fn changed_namespaces(&mut self, retain: bool) -> Vec<u8> {
        let mut page = vec![0; 4 * ENTRIES];
        if self.changed.len() > ENTRIES {
            page[..4].fill(0xff);
        } else {
            for (entry, nsid) in page.chunks_exact_mut(4).zip(&self.changed) {
                entry.copy_from_slice(&nsid.to_le_bytes());
            }
        }
        if !retain {
            self.changed.clear();
            self.notice = Notice::None;
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_changes_there_is_one_event_until_the_page_is_read() {
        let mut events = Events::default();
        events.namespace_changed(7);
        assert_eq!(events.take(), None, "the host did not ask for it");
        events.enable(NAMESPACE_ATTRIBUTE);
        events.namespace_changed(3);
        events.namespace_changed(3);
        assert_eq!((events.take(), events.take()), (Some(0x04_0002), None));
        events.namespace_changed(9);
        assert_eq!(events.take(), None, "it has not read of the first ones");
        let page = events.changed_namespaces(true);
        assert_eq!(page[..16], [3, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(events.changed_namespaces(false), page, "it was retained");
        assert_eq!(events.changed_namespaces(false), [0; 4096]);
        events.namespace_changed(1);
        assert_eq!(events.take(), Some(NOTICE));
    }

    #[test]
    fn more_changes_than_the_page_has_room_for_are_all_namespaces() {
        let mut events = Events::default();
        (1..=1024).for_each(|nsid| events.namespace_changed(nsid));
        assert_eq!(events.changed_namespaces(true)[4092..], 1024u32.to_le_bytes());
        events.namespace_changed(1025);
        let page = events.changed_namespaces(false);
        assert_eq!((&page[..4], page[4..].iter().any(|byte| *byte != 0)), (&[0xff; 4][..], false));
    }
}
