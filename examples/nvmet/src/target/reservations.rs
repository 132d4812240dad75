//! Reservations of a namespace (NVMe 1.4, 8.8): hosts register keys, and one of them, or all, may
//! keep others from writing or from any access. They end with the target.

use std::collections::BTreeMap;

use crate::wire::Status;

/// A host, by its identifier.
pub type HostId = [u8; 16];

/// What hosts may do while there is a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(clippy::exhaustive_enums, reason = "the types of the specification")]
pub enum Kind {
    /// Only the holder writes; all read.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Only registrants write; all read.
    WriteExclusiveRegistrants = 3,
    /// Only registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// As [`WriteExclusiveRegistrants`](Self::WriteExclusiveRegistrants), and all hold it.
    WriteExclusiveAll = 5,
    /// As [`ExclusiveAccessRegistrants`](Self::ExclusiveAccessRegistrants), and all hold it.
    ExclusiveAccessAll = 6,
}

/// What a host does to the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways")]
pub enum Access {
    /// It reads them.
    Read,
    /// It changes them, or makes changes last.
    Write,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the actions of the specification")]
pub enum Action {
    /// A host becomes a registrant.
    Register {
        /// Its key from now on.
        new: u64,
    },
    /// A registrant leaves. `None`: whatever its key is.
    Unregister {
        /// Its key.
        current: Option<u64>,
    },
    /// A registrant has another key. `None`: whatever its key was.
    Replace {
        /// Its key so far.
        current: Option<u64>,
        /// Its key from now on.
        new: u64,
    },
    /// A registrant holds a reservation.
    Acquire {
        /// Its key.
        current: u64,
        /// The reservation.
        kind: Kind,
    },
    /// The registrants of a key leave; if one of them is the holder, another reservation begins.
    Preempt {
        /// The key of the host that asks.
        current: u64,
        /// The key of those that leave; 0: all, where all are holders.
        of: u64,
        /// The new reservation.
        kind: Kind,
    },
    /// The holder gives the reservation up.
    Release {
        /// Its key.
        current: u64,
        /// The reservation.
        kind: Kind,
    },
    /// The reservation ends, and all registrants leave.
    Clear {
        /// The key of the host that asks.
        current: u64,
    },
}

/// The reservation of a namespace, if there is one, and the hosts that take part.
#[derive(Debug, Default)]
pub struct Reservations {
    generation: u32,
    registrants: BTreeMap<HostId, u64>,
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    kind: Kind,
    /// `None`: all registrants.
    holder: Option<HostId>,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();

/// Hosts that may be registered.
const REGISTRANTS: usize = 1024;
/// Bytes of the header of a report, and of each registrant, with identifiers of 16 bytes.
const REPORT_ENTRY: usize = 64;

impl Kind {
    /// By its number.
    pub fn from_number(number: u8) -> Option<Self> {
        use Kind::*;
        let all = [
            WriteExclusive,
            ExclusiveAccess,
            WriteExclusiveRegistrants,
            ExclusiveAccessRegistrants,
            WriteExclusiveAll,
            ExclusiveAccessAll,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }

    fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    fn is_for_holder_alone(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    fn keeps_from_reading(self) -> bool {
        use Kind::{ExclusiveAccess, ExclusiveAccessAll, ExclusiveAccessRegistrants};
        matches!(self, ExclusiveAccess | ExclusiveAccessRegistrants | ExclusiveAccessAll)
    }
}

impl Held {
    fn new(kind: Kind, holder: HostId) -> Self {
        Self { kind, holder: (!kind.is_of_all()).then_some(holder) }
    }
}

impl Reservations {
    /// Whether a host may access the blocks now.
    ///
    /// # Errors
    ///
    /// Reservation Conflict.
    #[doc(alias = "nvmet_pr_check_cmd_access")]
    pub fn check(&self, host: &HostId, access: Access) -> Result<(), Status> {
        let Some(held) = self.held else { return Ok(()) };
        let may = match access {
            Access::Read if !held.kind.keeps_from_reading() => true,
            _ if held.kind.is_for_holder_alone() => held.holder == Some(*host),
            _ => self.registrants.contains_key(host),
        };
        if may { Ok(()) } else { Err(CONFLICT) }
    }

    /// Carries out a command of a host.
    ///
    /// # Errors
    ///
    /// Reservation Conflict; Invalid Field if another reservation is to be released than there is,
    /// or nobody is named who is to leave.
    pub fn act(&mut self, host: HostId, action: Action) -> Result<(), Status> {
        let key = self.registrants.get(&host).copied();
        match action {
            Action::Register { new } => match key {
                Some(key) if key == new => return Ok(()),
                Some(_) => return Err(CONFLICT),
                None if self.registrants.len() == REGISTRANTS => {
                    return Err(Status::INTERNAL_ERROR.dnr());
                }
                None => drop(self.registrants.insert(host, new)),
            },
            Action::Unregister { current } => {
                is_key(key, current)?;
                self.leave(&host);
            }
            Action::Replace { current, new } => {
                is_key(key, current)?;
                self.registrants.insert(host, new);
            }
            Action::Acquire { current, kind } => {
                is_key(key, Some(current))?;
                return self.acquire(host, kind);
            }
            Action::Preempt { current, of, kind } => {
                is_key(key, Some(current))?;
                self.preempt(host, of, kind)?;
            }
            Action::Release { current, kind } => {
                is_key(key, Some(current))?;
                return self.release(host, kind);
            }
            Action::Clear { current } => {
                is_key(key, Some(current))?;
                self.registrants.clear();
                self.held = None;
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn acquire(&mut self, host: HostId, kind: Kind) -> Result<(), Status> {
        let wanted = Held::new(kind, host);
        if *self.held.get_or_insert(wanted) == wanted { Ok(()) } else { Err(CONFLICT) }
    }

    fn release(&mut self, host: HostId, kind: Kind) -> Result<(), Status> {
        match self.held {
            Some(held) if held.holder.is_none_or(|holder| holder == host) => {
                if held.kind != kind {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.held = None;
                Ok(())
            }
            // There is nothing that this host holds.
            _ => Ok(()),
        }
    }

    fn preempt(&mut self, host: HostId, of: u64, kind: Kind) -> Result<(), Status> {
        let others = |of: Option<u64>, registrants: &BTreeMap<HostId, u64>| {
            let meant =
                |(id, key): &(&HostId, &u64)| **id != host && of.is_none_or(|of| **key == of);
            registrants.iter().filter(meant).map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let (leaving, begins) = match self.held {
            Some(Held { holder: None, .. }) if of == 0 => (others(None, &self.registrants), true),
            _ if of == 0 => return Err(Status::INVALID_FIELD.dnr()),
            Some(Held { holder: Some(holder), .. }) => {
                let is_holders = self.registrants.get(&holder) == Some(&of);
                (others(Some(of), &self.registrants), is_holders)
            }
            _ => (others(Some(of), &self.registrants), false),
        };
        if leaving.is_empty() && !begins && self.registrants.get(&host) != Some(&of) {
            return Err(CONFLICT);
        }
        leaving.iter().for_each(|id| self.leave(id));
        if begins {
            self.held = Some(Held::new(kind, host));
        }
        Ok(())
    }

    /// A registrant leaves. What it holds alone ends, and what all hold ends with the last one.
    fn leave(&mut self, host: &HostId) {
        self.registrants.remove(host);
        let Some(held) = self.held else { return };
        let ends = match held.holder {
            Some(holder) => holder == *host,
            None => self.registrants.is_empty(),
        };
        if ends {
            self.held = None;
        }
    }

    /// The report, with identifiers of 16 bytes.
    #[doc(alias = "nvme_reservation_status_ext")]
    pub fn report(&self) -> Vec<u8> {
        let mut page = vec![0; REPORT_ENTRY * (1 + self.registrants.len())];
        let mut at = |offset: usize, bytes: &[u8]| {
            page[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        at(0, &self.generation.to_le_bytes());
        at(4, &[self.held.map_or(0, |held| held.kind as u8)]);
        // CAST: at most REGISTRANTS.
        at(5, &(self.registrants.len() as u16).to_le_bytes());
        for (number, (host, key)) in self.registrants.iter().enumerate() {
            let entry = REPORT_ENTRY * (1 + number);
            let holds = |held: Held| held.holder.is_none_or(|holder| holder == *host);
            // Controllers have no numbers before a host connects.
            at(entry, &[0xff, 0xff, self.held.is_some_and(holds).into()]);
            at(entry + 8, &key.to_le_bytes());
            at(entry + 16, host);
        }
        page
    }
}

/// A host must be a registrant, and know its key unless that is ignored.
fn is_key(key: Option<u64>, current: Option<u64>) -> Result<(), Status> {
    match key {
        Some(key) if current.is_none_or(|current| current == key) => Ok(()),
        _ => Err(CONFLICT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: HostId = [1; 16];
    const TWO: HostId = [2; 16];
    const THREE: HostId = [3; 16];

    /// Two registrants, with the keys 10 and 20.
    fn two_registrants() -> Reservations {
        let mut all = Reservations::default();
        for (host, new) in [(ONE, 10), (TWO, 20)] {
            all.act(host, Action::Register { new }).expect("it is new");
        }
        all
    }

    /// The hosts that may read, and those that may write.
    fn allowed(all: &Reservations) -> [Vec<u8>; 2] {
        [Access::Read, Access::Write].map(|access| {
            let hosts = [ONE, TWO, THREE].into_iter();
            hosts.filter(|host| all.check(host, access).is_ok()).map(|host| host[0]).collect()
        })
    }

    #[test]
    fn each_kind_keeps_others_from_what_it_says() {
        use Kind::*;
        for (kind, expected) in [
            (WriteExclusive, [vec![1, 2, 3], vec![1]]),
            (ExclusiveAccess, [vec![1], vec![1]]),
            (WriteExclusiveRegistrants, [vec![1, 2, 3], vec![1, 2]]),
            (ExclusiveAccessRegistrants, [vec![1, 2], vec![1, 2]]),
            (WriteExclusiveAll, [vec![1, 2, 3], vec![1, 2]]),
            (ExclusiveAccessAll, [vec![1, 2], vec![1, 2]]),
        ] {
            let mut all = two_registrants();
            assert_eq!(allowed(&all)[1], [1, 2, 3], "without a reservation");
            all.act(ONE, Action::Acquire { current: 10, kind }).expect("nobody has it");
            assert_eq!(allowed(&all), expected, "{kind:?}");
            all.act(ONE, Action::Release { current: 10, kind }).expect("it is its own");
            assert_eq!(allowed(&all)[1], [1, 2, 3], "it is over");
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
        assert_eq!([0, 7].map(Kind::from_number), [None; 2]);
    }

    #[test]
    fn only_who_knows_its_key_does_anything() {
        let mut all = two_registrants();
        let kind = Kind::WriteExclusive;
        for action in [
            Action::Register { new: 11 },
            Action::Unregister { current: Some(20) },
            Action::Replace { current: Some(20), new: 1 },
            Action::Acquire { current: 20, kind },
            Action::Preempt { current: 20, of: 20, kind },
            Action::Release { current: 20, kind },
            Action::Clear { current: 20 },
        ] {
            assert_eq!(all.act(ONE, action), Err(CONFLICT), "{action:?}");
            let is_registration = matches!(action, Action::Register { .. });
            assert!(is_registration || all.act(THREE, action) == Err(CONFLICT), "{action:?}");
        }
        assert_eq!(all.generation, 2);
        all.act(ONE, Action::Register { new: 10 }).expect("it has that key");
        all.act(ONE, Action::Replace { current: None, new: 12 }).expect("its key is ignored");
        all.act(ONE, Action::Unregister { current: None }).expect("likewise");
        assert_eq!((all.generation, all.registrants.len()), (4, 1));
    }

    #[test]
    fn a_second_holder_is_refused_and_a_holder_that_leaves_ends_it() {
        let mut all = two_registrants();
        let kind = Kind::WriteExclusiveRegistrants;
        for _ in 0..2 {
            all.act(ONE, Action::Acquire { current: 10, kind }).expect("it is its own");
        }
        assert_eq!(all.act(TWO, Action::Acquire { current: 20, kind }), Err(CONFLICT));
        let other = Action::Acquire { current: 10, kind: Kind::WriteExclusive };
        assert_eq!(all.act(ONE, other), Err(CONFLICT));
        all.act(TWO, Action::Release { current: 20, kind }).expect("it has none to release");
        let other = Action::Release { current: 10, kind: Kind::WriteExclusive };
        assert_eq!(all.act(ONE, other), Err(Status::INVALID_FIELD.dnr()));
        assert!(all.held.is_some());
        all.act(ONE, Action::Unregister { current: Some(10) }).expect("it may leave");
        assert_eq!(all.held, None);
        // What all hold ends with the last of them.
        let kind = Kind::WriteExclusiveAll;
        all.act(ONE, Action::Register { new: 10 }).expect("it is new");
        all.act(ONE, Action::Acquire { current: 10, kind }).expect("nobody has it");
        all.act(TWO, Action::Acquire { current: 20, kind }).expect("it has it, as all do");
        all.act(ONE, Action::Unregister { current: None }).expect("it may leave");
        assert!(all.held.is_some());
        all.act(TWO, Action::Unregister { current: None }).expect("it may leave");
        assert_eq!(all.held, None);
    }

    #[test]
    fn who_preempts_the_holder_holds_the_reservation_itself() {
        let mut all = two_registrants();
        all.act(THREE, Action::Register { new: 20 }).expect("keys may be the same");
        let kind = Kind::ExclusiveAccess;
        all.act(TWO, Action::Acquire { current: 20, kind }).expect("nobody has it");
        let preempt = |of, kind| Action::Preempt { current: 10, of, kind };
        assert_eq!(all.act(ONE, preempt(0, kind)), Err(Status::INVALID_FIELD.dnr()));
        assert_eq!(all.act(ONE, preempt(99, kind)), Err(CONFLICT), "nobody has that key");
        all.act(ONE, preempt(20, Kind::WriteExclusive)).expect("it knows the key");
        let held = Held { kind: Kind::WriteExclusive, holder: Some(ONE) };
        assert_eq!((all.held, all.registrants.len()), (Some(held), 1));
        // Its own: another kind, and it stays.
        all.act(ONE, preempt(10, kind)).expect("it is its own");
        assert_eq!(all.held, Some(Held { kind, holder: Some(ONE) }));
        // Of others than the holder only the registration ends.
        all.act(TWO, Action::Register { new: 21 }).expect("it may come again");
        all.act(ONE, preempt(21, Kind::WriteExclusive)).expect("it knows the key");
        assert_eq!((all.held.map(|held| held.kind), all.registrants.len()), (Some(kind), 1));
    }

    #[test]
    fn the_report_has_the_holder_and_each_registrant() {
        let mut all = two_registrants();
        let kind = Kind::ExclusiveAccessRegistrants;
        all.act(TWO, Action::Acquire { current: 20, kind }).expect("nobody has it");
        let report = all.report();
        assert_eq!((report.len(), &report[..7]), (192, &[2, 0, 0, 0, 4, 2, 0][..]));
        assert_eq!(
            (&report[64..67], report[72], &report[80..96]),
            (&[255, 255, 0][..], 10, &ONE[..])
        );
        assert_eq!((&report[128..131], report[136]), (&[255, 255, 1][..], 20));
        all.act(ONE, Action::Clear { current: 10 }).expect("any registrant may");
        assert_eq!(all.report()[..7], [3, 0, 0, 0, 0, 0, 0]);
    }
}
