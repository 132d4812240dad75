//! Links of HTML pages, as far as mdBook writes them: attributes in double quotes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::read;
use crate::sh::Outcome;

/// Makes links of `docs/NAME.md` in the text of a page, where `is_page` knows the name. Links,
/// preformatted blocks and titles stay as they are.
pub(super) fn link_pages(html: &str, mut is_page: impl FnMut(&str) -> bool) -> String {
    const QUIET: [&str; 5] = ["a", "pre", "title", "script", "style"];
    let (mut out, mut inside) = (String::with_capacity(html.len()), Vec::<&str>::new());
    let mut rest = html;
    while !rest.is_empty() {
        let (text, more) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
        if inside.is_empty() {
            push_linked(&mut out, text, &mut is_page);
        } else {
            out.push_str(text);
        }
        let (tag, more) = more.split_at(more.find('>').map_or(more.len(), |at| at + 1));
        out.push_str(tag);
        rest = more;
        let name = tag.trim_start_matches(['<', '/']);
        let name = name.split([' ', '>', '\n']).next().unwrap_or_default();
        if let Some(known) = QUIET.into_iter().find(|quiet| *quiet == name) {
            if !tag.starts_with("</") {
                inside.push(known);
            } else if inside.last() == Some(&known) {
                inside.pop();
            }
        }
    }
    out
}

fn push_linked(out: &mut String, mut text: &str, is_page: &mut impl FnMut(&str) -> bool) {
    while let Some(at) = text.find("docs/") {
        let (before, found) = text.split_at(at);
        out.push_str(before);
        let name = &found["docs/".len()..];
        let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (name, after) = name.split_at(end.unwrap_or(name.len()));
        match after.strip_prefix(".md") {
            Some(after) if is_page(name) => {
                out.push_str(&format!("<a href=\"{name}.html\">docs/{name}.md</a>"));
                text = after;
            }
            _ => {
                out.push_str("docs/");
                text = &found["docs/".len()..];
            }
        }
    }
    out.push_str(text);
}

/// The values of an attribute.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!(" {attribute}=\"");
    html.split(&begin).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// What the links of the pages name that does not exist: a file, or a part of a page. Other sites
/// are not asked.
pub(super) fn dead(site: &Path, pages: &[PathBuf]) -> Outcome<Vec<String>> {
    let mut texts = HashMap::new();
    for page in pages {
        texts.insert(page.clone(), read(page)?);
    }
    let mut wrong = Vec::new();
    for page in pages {
        let shown = page.file_name().unwrap_or_default().to_string_lossy();
        let html = &texts[page];
        for link in values(html, "href").into_iter().chain(values(html, "src")) {
            let elsewhere = ["http://", "https://", "mailto:", "data:", "javascript:"];
            if elsewhere.iter().any(|begin| link.starts_with(begin)) {
                continue;
            }
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let file = file.split('?').next().unwrap_or_default();
            // The page for unknown addresses has links that begin at the root of the site.
            let target = match file.strip_prefix('/') {
                Some(below) => site.join(below),
                None if file.is_empty() => page.clone(),
                None => site.join(file),
            };
            if !target.exists() {
                wrong.push(format!("{shown}: {link}"));
            } else if !part.is_empty()
                && let Some(text) = texts.get(&target)
                && !values(text, "id").contains(&part)
            {
                wrong.push(format!("{shown}: {link}: no such part"));
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pages_become_links_where_they_are_text() {
        let is_page = |name: &str| name == "PCAP";
        let html = "<p>See docs/PCAP.md, docs/NONE.md and <code>docs/PCAP.md</code>.</p>\
            <pre>cat docs/PCAP.md</pre><a href=\"x\">docs/PCAP.md</a>";
        let link = "<a href=\"PCAP.html\">docs/PCAP.md</a>";
        assert_eq!(
            link_pages(html, is_page),
            format!(
                "<p>See {link}, docs/NONE.md and <code>{link}</code>.</p>\
                 <pre>cat docs/PCAP.md</pre><a href=\"x\">docs/PCAP.md</a>"
            )
        );
    }
}
