//! The screen as characters: a function of what it shows and of how large the terminal is.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line as Words, Span, Text};
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};

use super::cell::Cell;
use super::pane::{Column, Pane};
use super::screen::Screen;

/// Lines from which all panes are shown, one below the other.
const ALL_PANES: u16 = 4 * Pane::ALL.len() as u16;
/// Lines from which there is room for what is known of the selected line.
const WITH_DETAIL: u16 = 10;
/// Lines of it.
const DETAIL: u16 = 3;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let detail = if area.height >= WITH_DETAIL { DETAIL } else { 0 };
    let keys = u16::from(area.height >= 4);
    let rows = [
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(detail),
        Constraint::Length(keys),
    ];
    let [tabs, body, about, hint] = Layout::vertical(rows).areas(area);
    draw_tabs(frame, tabs, screen);
    if !screen.has_seen() {
        frame.render_widget(Paragraph::new("asking the processes"), body);
    } else if body.height >= ALL_PANES {
        draw_all(frame, body, screen);
    } else {
        draw_pane(frame, body, screen, screen.active());
    }
    draw_detail(frame, about, screen);
    draw_keys(frame, hint, screen);
}

/// The names of the panes and how many lines each has; only the active one where there is no room.
fn draw_tabs(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let words = |pane: Pane| format!(" {} {} ", pane.title(), screen.lines(pane).0.len());
    let marked = Style::new().add_modifier(Modifier::REVERSED);
    let style = |pane| if pane == screen.active() { marked } else { Style::new() };
    let all: Vec<Span<'_>> =
        Pane::ALL.into_iter().map(|pane| Span::styled(words(pane), style(pane))).collect();
    let line = Words::from(all);
    let active = Words::styled(words(screen.active()), marked);
    let fits = line.width() <= usize::from(area.width);
    frame.render_widget(if fits { line } else { active }, area);
}

fn draw_all(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    // A title and the names of the columns stand before the lines.
    let needs = Pane::ALL.map(|pane| screen.lines(pane).0.len().clamp(1, 4096) as u16 + 2);
    let heights = share(needs, area.height, screen.active() as usize);
    let areas = Layout::vertical(heights.map(Constraint::Length)).split(area);
    for (pane, area) in Pane::ALL.into_iter().zip(areas.iter()) {
        let rows = [Constraint::Length(1), Constraint::Fill(1)];
        let [title, list] = Layout::vertical(rows).areas(*area);
        let words = Words::from(pane.title()).bold();
        let is_active = pane == screen.active();
        frame.render_widget(if is_active { words.reversed() } else { words }, title);
        draw_pane(frame, list, screen, pane);
    }
}

/// How high each pane is: what it needs, if there is room; else an equal share, and the active one
/// has what others leave over.
fn share<const N: usize>(needs: [u16; N], height: u16, active: usize) -> [u16; N] {
    let each = height / N as u16;
    let mut heights = needs.map(|need| need.min(each));
    let mut left = height - heights.iter().sum::<u16>();
    for at in std::iter::once(active).chain(0..N) {
        let more = (needs[at] - heights[at]).min(left);
        heights[at] += more;
        left -= more;
    }
    heights
}

fn draw_pane(frame: &mut Frame<'_>, area: Rect, screen: &Screen, pane: Pane) {
    let (lines, selected) = screen.lines(pane);
    if lines.is_empty() {
        let nothing = match pane {
            Pane::Processes => "no process has a NIC open",
            Pane::Qps => "no queue pairs",
            Pane::Losses => "nothing was lost, refused or late",
            Pane::Gpus => "no process has a GPU open",
            Pane::Buffers => "no buffers",
        };
        frame.render_widget(Paragraph::new(nothing).dim(), area);
        return;
    }
    let columns = pane.columns();
    let shown = fitting(columns, area.width);
    let is_right = |at: usize| !matches!(lines[0].cells[at], Cell::Text(_));
    let aligned = |at: usize, words: String| {
        let alignment = if is_right(at) { Alignment::Right } else { Alignment::Left };
        Text::from(words).alignment(alignment)
    };
    let sorted = screen.sorted(pane);
    let names = shown.iter().map(|at| {
        let name = aligned(*at, columns[*at].name.to_owned());
        if sorted == Some(*at) { name.underlined() } else { name }
    });
    let rows = lines.iter().map(|line| {
        let texts = shown.iter().map(|at| {
            let cell = &line.cells[*at];
            aligned(*at, cell.write()).style(colour(pane, columns[*at].name, cell))
        });
        Row::new(texts.collect::<Vec<_>>())
    });
    let widths = shown.iter().map(|at| match at + 1 == columns.len() && !is_right(*at) {
        true => Constraint::Fill(1),
        false => Constraint::Length(columns[*at].width),
    });
    let table = Table::new(rows, widths).header(Row::new(names.collect::<Vec<_>>()).bold());
    let is_active = pane == screen.active();
    let mark = if is_active { Modifier::REVERSED } else { Modifier::empty() };
    let table = table.row_highlight_style(Style::new().add_modifier(mark));
    let mut state = TableState::new().with_selected(is_active.then_some(selected));
    frame.render_stateful_widget(table, area, &mut state);
}

/// The columns that a list has room for, by their rank, in their order; the first in any case.
fn fitting(columns: &[Column], width: u16) -> Vec<usize> {
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|at| columns[*at].rank);
    let mut used = 0;
    let mut shown: Vec<usize> = by_rank
        .into_iter()
        .take_while(|at| {
            used += columns[*at].width + u16::from(used > 0);
            used <= width || *at == 0
        })
        .collect();
    shown.sort_unstable();
    shown
}

/// States and amounts that call for a look.
fn colour(pane: Pane, column: &str, cell: &Cell) -> Style {
    let is_some = matches!(cell, Cell::Count(Some(count)) if *count > 0);
    match (pane, column, cell) {
        (Pane::Qps, "STATE", Cell::Text(state)) if state == "RTS" => Style::new().fg(Color::Green),
        (Pane::Qps, "STATE", Cell::Text(state)) if matches!(state.as_str(), "ERR" | "SQE") => {
            Style::new().fg(Color::Red)
        }
        (_, "LOSSES" | "RETRIES", _) if is_some => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

/// What is known of the selected line, and has no column.
fn draw_detail(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let (lines, selected) = screen.lines(screen.active());
    let detail = lines.get(selected).map_or("", |line| &line.detail);
    frame.render_widget(Paragraph::new(detail).wrap(Wrap { trim: true }), area);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let pane = screen.active();
    let sorted = screen.sorted(pane).map_or("nothing", |at| pane.columns()[at].name);
    let words = format!("q quit  tab pane  up/down line  s sort (by {sorted})  r reverse");
    frame.render_widget(Paragraph::new(words).dim(), area);
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::example;
    use super::*;

    fn screen() -> Screen {
        let mut screen = Screen::default();
        let at = Instant::now();
        screen.see(example::busy(at, 1));
        screen.see(example::busy(at + Duration::from_secs(1), 2));
        screen
    }

    fn shown(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no terminal");
        terminal.draw(|frame| draw(frame, screen)).expect("memory does not fail");
        let buffer = terminal.backend().buffer();
        let row = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
    }

    /// Compares with a file; `PEERDMA_BLESS=1` writes it.
    #[track_caller]
    fn assert_shown(name: &str, shown: String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join(format!("src/cli/top/screens/{name}.txt"));
        if environment::var_os("PEERDMA_BLESS").is_some() {
            return std::fs::write(path, shown).expect("writable");
        }
        assert_eq!(shown, std::fs::read_to_string(path).expect("a file"), "\n{shown}");
    }

    fn press(screen: &mut Screen, code: KeyCode) {
        let _ = screen.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn a_usual_terminal_shows_the_active_pane_and_what_is_selected() {
        let mut screen = screen();
        assert_shown("processes", shown(&screen, 80, 12));
        press(&mut screen, KeyCode::Tab);
        assert_shown("queue_pairs", shown(&screen, 80, 12));
    }

    #[test]
    fn a_high_terminal_shows_all_panes() {
        assert_shown("all", shown(&screen(), 100, 30));
    }

    #[test]
    fn a_narrow_terminal_shows_the_columns_that_fit() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Tab);
        assert_shown("narrow", shown(&screen, 34, 6));
    }

    #[test]
    fn before_the_first_sample_it_says_what_it_waits_for() {
        assert!(shown(&Screen::default(), 80, 24).contains("asking the processes"));
    }

    #[test]
    fn no_size_of_a_terminal_is_a_mistake() {
        for screen in [screen(), Screen::default()] {
            for (width, height) in (0..70).flat_map(|width| (0..30).map(move |it| (width * 3, it)))
            {
                let _ = shown(&screen, width, height);
            }
        }
    }

    #[test]
    fn states_that_call_for_a_look_have_a_colour() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Tab);
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).expect("no terminal");
        terminal.draw(|frame| draw(frame, &screen)).expect("memory does not fail");
        let buffer = terminal.backend().buffer();
        let colour_of = |word: &str| {
            let text = shown(&screen, 80, 12);
            let (y, line) = text.lines().enumerate().find(|(_, line)| line.contains(word))?;
            let x = line.find(word).expect("it was found");
            Some(buffer[(u16::try_from(x).ok()?, u16::try_from(y).ok()?)].fg)
        };
        assert_eq!(colour_of("RTS"), Some(Color::Green));
        assert_eq!(colour_of("ERR"), Some(Color::Red));
    }

    #[test]
    fn panes_share_the_height_and_the_active_one_has_the_rest() {
        assert_eq!(share([3, 4, 3], 20, 0), [3, 4, 3], "there is room for all");
        assert_eq!(share([3, 40, 40], 30, 2), [3, 10, 17]);
        assert_eq!(share([40, 40, 40], 30, 1), [10, 10, 10]);
        assert_eq!(share([40, 40, 40], 2, 1), [0, 2, 0]);
    }
}
