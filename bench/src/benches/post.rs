//! Posting to a library by crate `verbs` against the library's own call.

use crate::Outcome;
use crate::child::{Role, peerdma};
use crate::report::{Report, Row, Target};
use crate::sample::Sample;

const NAME: &str = "post";
/// Rounds of one measurement, of each kind.
const ROUNDS: &str = "3000";

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let library = peerdma()?.with_file_name("libpeerdma.so");
    let provider = format!("PEERDMA_PROVIDER={}", library.display());
    let (mut role, _) = Role::start(&["env".to_owned(), provider], "post", &[ROUNDS.to_owned()])?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        let words = role.ask("post")?;
        ours.push(words.get::<f64>(0)?);
        theirs.push(words.get::<f64>(1)?);
    }
    let more = Sample::from(ours.iter().zip(&theirs).map(|(a, b)| a - b).collect::<Vec<f64>>());
    report.row(Row {
        bench: NAME,
        what: "a WRITE of 8 bytes, posted".to_owned(),
        ours: ours.into(),
        beside: "libpeerdma.so's post_send".to_owned(),
        theirs: theirs.into(),
        unit: "ns",
        target: Target::None,
    });
    report.note(NAME, format!("{:.1} ns more for each; the target is less than 10", more.median()));
    Ok(())
}
