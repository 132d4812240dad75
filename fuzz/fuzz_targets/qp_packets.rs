//! A peer that sends a connected queue pair whatever packets it likes, in any order and at any
//! time.
#![no_main]

use fabric_sim::{Options, Station, build};
use libfuzzer_sys::fuzz_target;
use wire::Headers;

const BASE: u64 = 0x10_0000;

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, mut rest)) = bytes.split_first() else { return };
    let options = match kind % 4 {
        0 => Options::rc(),
        1 => Options::uc(),
        2 => Options::ud(),
        _ => Options::rc().over_memory(1024),
    };
    let mut station = Station::new(&options);
    station.early = (kind >= 128).then(Default::default);
    for wr_id in 0..8 {
        station.post_recv(build::recv(wr_id, BASE, 700));
        if options.qp_type == iba::QpType::Rc {
            station.post(build::read(wr_id, BASE, 700, BASE));
            station.post(build::send(wr_id, BASE, 700));
        }
    }
    // Packets one after the other: a byte of time, a byte of payload length, then headers as on the
    // wire.
    while let Some(([wait, length], packet)) = rest.split_first_chunk() {
        let Ok((headers, end)) = Headers::parse_prefix(packet) else { return };
        let payload = vec![0x5a; usize::from(*length) * 4];
        let now = station.now.as_nanos() / 1000 + u64::from(*wait);
        station.send(now, headers, &payload);
        station.host.out.clear();
        rest = &packet[end..];
    }
});
