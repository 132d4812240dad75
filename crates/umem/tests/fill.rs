//! Memory that is filled with a pattern.

use umem::{HostBuf, Umem};

#[test]
fn a_pattern_repeats_without_gaps_and_stops_at_the_given_length() {
    const LEN: usize = 100_000;
    let buf = HostBuf::anonymous(LEN).expect("memory exists");
    let umem = Umem::host(&buf);
    let patterns: [&[u8]; 5] = [&[7], &[1, 2], &[5, 5, 5, 5], &[1, 2, 3], &[9; 40_000]];
    for pattern in patterns {
        umem.fill(0, 0xee, LEN as u64).expect("inside");
        let (at, len) = (11, 70_001);
        umem.fill_with(at, pattern, len).expect("inside");
        let mut seen = vec![0; LEN];
        umem.read(0, &mut seen).expect("inside");
        let (at, len) = (at as usize, len as usize);
        let wanted: Vec<_> = pattern.iter().copied().cycle().take(len).collect();
        assert!(seen[at..at + len] == wanted);
        assert!(seen[..at].iter().chain(&seen[at + len..]).all(|byte| *byte == 0xee));
    }
    assert!(umem.fill_with(1, &[1, 2], LEN as u64).is_err());
    umem.fill_with(0, &[], LEN as u64).expect("nothing is done");
}
