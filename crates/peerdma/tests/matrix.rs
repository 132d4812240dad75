//! `docs/VERBS_MATRIX.md` says for every verb whether it works. It is generated from the library's
//! tables; run this test with `PEERDMA_BLESS=1` to rewrite it.

#[path = "../src/abi/symbols/mod.rs"]
#[expect(dead_code, reason = "the tables are used by the build script too")]
mod symbols;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use symbols::{Answer, INLINE, PRIVATE, RDMACM, Refusal, Symbol, VERBS};

const HEAD: &str = "\
# Verbs

Generated from `crates/peerdma/src/abi/symbols`; `cargo xtask matrix` writes it anew.

`libpeerdma.so` has every symbol of rdma-core 65's `libibverbs.so.1` and `librdmacm.so.1`, in its version node. An answer is one of three:

* *works*;
* *always no*: it looks at its arguments as a driver would, and then refuses whatever they are;
* *absent*: a stub that looks at nothing and answers EOPNOTSUPP by the convention of the call, or does nothing where the call cannot fail.

What a call that works cannot do is in docs/DIFFERENCES.md. Symbols that rdma-core has in both `IBVERBS_1.0` and
`IBVERBS_1.1` exist in 1.1 only: the older ones are an ABI of 2006.
";

#[test]
fn the_matrix_matches_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/VERBS_MATRIX.md");
    let matrix = matrix();
    if env::var_os("PEERDMA_BLESS").is_some() {
        fs::write(&path, matrix).expect("docs/ is writable");
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, matrix,
        "run `cargo xtask matrix` (PEERDMA_BLESS=1 cargo test --test matrix)"
    );
}

fn matrix() -> String {
    let mut text = String::from(HEAD);
    let verbs = VERBS.iter().map(|symbol| &symbol.answer).chain(INLINE.iter().map(|i| &i.answer));
    line(&mut text, "");
    sum(&mut text, "public verbs", verbs);

    line(&mut text, "\n## Verbs with a symbol\n\n| verb | version | answer |\n|---|---|---|");
    symbols_of(&mut text, VERBS);
    let inline = "\n## Verbs without a symbol\n\n`<infiniband/verbs.h>` calls these through a pointer. Where there is none \
                  the header answers EOPNOTSUPP itself.\n\n| verb | pointer | answer |\n|---|---|---|";
    line(&mut text, inline);
    for verb in INLINE {
        row(&mut text, verb.name, &format!("`{}`", verb.through), &verb.answer);
    }
    line(&mut text, "\n## Connection manager and rsockets\n");
    sum(&mut text, "calls", RDMACM.iter().map(|symbol| &symbol.answer));
    line(&mut text, "\n| call | version | answer |\n|---|---|---|");
    symbols_of(&mut text, RDMACM);
    let private = "\n## Private symbols\n\nWhat vendor libraries bind when they are loaded, in the version node of each \
                   generation of rdma-core.\n\n| symbol | versions | answer |\n|---|---|---|";
    line(&mut text, private);
    symbols_of(&mut text, PRIVATE);
    text
}

fn sum<'a>(text: &mut String, what: &str, answers: impl Iterator<Item = &'a Answer>) {
    let (mut total, mut works, mut never) = (0, 0, 0);
    for answer in answers {
        total += 1;
        works += usize::from(matches!(answer, Answer::In(_)));
        never += usize::from(matches!(answer, Answer::Never(..)));
    }
    let absent = total - works - never;
    let sum =
        format!("Of {total} {what} {works} work, {never} always say no, and {absent} are absent.");
    line(text, &sum);
}

fn symbols_of(text: &mut String, table: &[Symbol]) {
    for symbol in table {
        row(text, symbol.name, &symbol.nodes.join(", "), &symbol.answer);
    }
}

fn row(text: &mut String, name: &str, place: &str, answer: &Answer) {
    let answer = match answer {
        Answer::In(_) => "works".to_owned(),
        Answer::Never(_, says, why) => format!("always no ({says}): {why}"),
        Answer::Byte => "false".to_owned(),
        Answer::Refuse(Refusal::Silent, why) => format!("absent (does nothing): {why}"),
        Answer::Refuse(refusal, why) => {
            format!("absent (EOPNOTSUPP, {}): {why}", convention(*refusal))
        }
    };
    line(text, &format!("| `{name}` | {place} | {answer} |"));
}

fn convention(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Errno => "returned",
        Refusal::MinusOne => "-1 and errno",
        Refusal::Null => "NULL and errno",
        Refusal::Silent => "nothing",
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes all");
}
