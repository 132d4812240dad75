//! What the screen shows, and what each key does to it.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::pane::{Line, Pane};
use super::sample::{Rates, Sample};

/// How far a key of pages moves.
const PAGE: isize = 10;

/// The screen.
#[derive(Default)]
pub(super) struct Screen {
    /// What there is; nothing before the first sample.
    now: Option<(Sample, Rates)>,
    /// The pane that keys act on.
    active: usize,
    lists: [List; Pane::ALL.len()],
}

/// How a list is shown.
#[derive(Default)]
struct List {
    /// The column by which it is sorted, and whether the smallest of amounts, or the last of
    /// texts, is first. Without one it has the order of the sample.
    sorted: Option<usize>,
    is_reversed: bool,
    /// The line that is selected, which keeps its identity when others come, go or overtake it.
    selected: Option<String>,
    /// Where it was.
    at: usize,
}

impl Screen {
    /// Takes in a sample.
    pub(super) fn see(&mut self, sample: Sample) {
        let rates = self
            .now
            .take()
            .map_or_else(Rates::default, |(before, _)| Rates::between(&before, &sample));
        self.now = Some((sample, rates));
        for at in 0..Pane::ALL.len() {
            self.settle(at);
        }
    }

    /// A key was pressed. Breaks if the screen is to end.
    pub(super) fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        let panes = Pane::ALL.len();
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return ControlFlow::Break(()),
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Tab | KeyCode::Right => self.active = (self.active + 1) % panes,
            KeyCode::BackTab | KeyCode::Left => self.active = (self.active + panes - 1) % panes,
            KeyCode::Up => self.select(-1),
            KeyCode::Down => self.select(1),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.lists[self.active].is_reversed ^= true,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// The pane that keys act on.
    pub(super) fn active(&self) -> Pane {
        Pane::ALL[self.active]
    }

    /// Whether anything was seen.
    pub(super) fn has_seen(&self) -> bool {
        self.now.is_some()
    }

    /// The column by which a list is sorted.
    pub(super) fn sorted(&self, pane: Pane) -> Option<usize> {
        self.list(pane).sorted
    }

    /// The lines of a list in their order, and which is selected.
    pub(super) fn lines(&self, pane: Pane) -> (Vec<Line>, usize) {
        let Some((sample, rates)) = &self.now else { return (Vec::new(), 0) };
        let list = self.list(pane);
        let mut lines = pane.lines(sample, rates);
        if let Some(column) = list.sorted {
            lines.sort_by(|one, other| list.order(&one.cells[column], &other.cells[column]));
        } else if list.is_reversed {
            lines.reverse();
        }
        let selected = list.selected.as_ref();
        let at = selected.and_then(|id| lines.iter().position(|line| line.id == *id));
        let last = lines.len().saturating_sub(1);
        (lines, at.unwrap_or(list.at).min(last))
    }

    fn list(&self, pane: Pane) -> &List {
        // CAST: the order of `Pane::ALL` is that of the declaration.
        &self.lists[pane as usize]
    }

    /// The active list is sorted by its next column, and behind the last one by none.
    fn sort_by_next(&mut self) {
        let columns = self.active().columns().len();
        let list = &mut self.lists[self.active];
        list.sorted = Some(list.sorted.map_or(0, |column| column + 1)).filter(|at| *at < columns);
        list.is_reversed = false;
        self.settle(self.active);
    }

    /// Selects the line that is so many lines further in the active list.
    fn select(&mut self, lines: isize) {
        let (all, at) = self.lines(self.active());
        let at = at.saturating_add_signed(lines).min(all.len().saturating_sub(1));
        let selected = all.into_iter().nth(at).map(|line| line.id);
        let list = &mut self.lists[self.active];
        (list.selected, list.at) = (selected, at);
    }

    /// Remembers where the selected line is now; if it has gone, the one in its place is selected.
    fn settle(&mut self, pane: usize) {
        let (lines, at) = self.lines(Pane::ALL[pane]);
        let list = &mut self.lists[pane];
        list.at = at;
        if list.selected.is_some() {
            list.selected = lines.into_iter().nth(at).map(|line| line.id);
        }
    }
}

impl List {
    /// The order of two values: amounts begin with the largest, others with the smallest.
    fn order(&self, one: &super::cell::Cell, other: &super::cell::Cell) -> Ordering {
        let order = one.compare(other);
        if one.is_amount() != self.is_reversed { order.reverse() } else { order }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::example;
    use super::*;

    fn press(screen: &mut Screen, code: KeyCode) -> ControlFlow<()> {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn ids(screen: &Screen) -> Vec<String> {
        screen.lines(screen.active()).0.into_iter().map(|line| line.cells[0].write()).collect()
    }

    fn seen() -> Screen {
        let mut screen = Screen::default();
        let at = Instant::now();
        screen.see(example::busy(at, 1));
        screen.see(example::busy(at + Duration::from_secs(1), 2));
        screen
    }

    #[test]
    fn tab_and_arrows_go_round_the_panes() {
        let mut screen = seen();
        for pane in Pane::ALL.into_iter().chain([Pane::Processes]) {
            assert_eq!(screen.active(), pane);
            assert!(press(&mut screen, KeyCode::Tab).is_continue());
        }
        assert!(press(&mut screen, KeyCode::BackTab).is_continue());
        assert!(press(&mut screen, KeyCode::Left).is_continue());
        assert_eq!(screen.active(), Pane::Buffers);
    }

    #[test]
    fn q_escape_and_control_c_end_it() {
        let mut screen = Screen::default();
        assert!(press(&mut screen, KeyCode::Char('q')).is_break());
        assert!(press(&mut screen, KeyCode::Esc).is_break());
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(screen.press(interrupt).is_break());
        assert!(press(&mut screen, KeyCode::Char('c')).is_continue());
    }

    #[test]
    fn a_list_is_sorted_by_each_column_in_turn_amounts_from_the_largest() {
        let mut screen = seen();
        assert_eq!(ids(&screen), ["4711", "4712", "99"]);
        let _ = press(&mut screen, KeyCode::Char('s'));
        assert_eq!(ids(&screen), ["4712", "4711", "99"], "by pid");
        let _ = press(&mut screen, KeyCode::Char('r'));
        assert_eq!(ids(&screen), ["99", "4711", "4712"], "the smallest first");
        let _ = press(&mut screen, KeyCode::Char('s'));
        assert_eq!(ids(&screen), ["4711", "4712", "99"], "by name: ping, pong, stopped");
        for _ in 1..Pane::Processes.columns().len() {
            let _ = press(&mut screen, KeyCode::Char('s'));
        }
        assert_eq!((screen.sorted(Pane::Processes), ids(&screen)[0].as_str()), (None, "4711"));
    }

    #[test]
    fn a_selected_line_stays_selected_where_it_moves_and_its_neighbour_when_it_goes() {
        let mut screen = seen();
        let _ = press(&mut screen, KeyCode::Down);
        let selected = |screen: &Screen| {
            let (lines, at) = screen.lines(Pane::Processes);
            lines[at].cells[0].write()
        };
        assert_eq!(selected(&screen), "4712");
        let _ = press(&mut screen, KeyCode::Char('s'));
        assert_eq!((selected(&screen), ids(&screen)[0].as_str()), ("4712".into(), "4712"));
        let mut without = example::busy(Instant::now(), 3);
        without.nics[0].1.processes.remove(1);
        screen.see(without);
        assert_eq!(selected(&screen), "4711");
        let _ = press(&mut screen, KeyCode::End);
        assert_eq!(selected(&screen), "99");
        let _ = press(&mut screen, KeyCode::Home);
        let _ = press(&mut screen, KeyCode::PageUp);
        assert_eq!(selected(&screen), "4711");
    }

    #[test]
    fn keys_without_a_sample_do_nothing() {
        let mut screen = Screen::default();
        for code in [KeyCode::Down, KeyCode::End, KeyCode::Char('s'), KeyCode::Char('r')] {
            assert!(press(&mut screen, code).is_continue());
        }
        assert!(!screen.has_seen() && screen.lines(Pane::Qps).0.is_empty());
    }
}
