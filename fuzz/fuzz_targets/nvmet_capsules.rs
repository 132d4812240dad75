//! A host of the NVMe-oF target that sends arbitrary private data, Connects and capsules.
//!
//! Whatever it sends, a plan stays inside its namespace, a page has the length that its descriptor
//! names, and a controller takes commands only while it is enabled.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use nvmet::target::admin::{self, Outcome};
use nvmet::target::controller::{Controller, Controllers};
use nvmet::target::io::{self, IN_CAPSULE, MAX_DATA, Op};
use nvmet::target::reservations::{Action, Reservations};
use nvmet::target::reserve;
use nvmet::target::subsystem::{Geometry, Namespace, Subsystem};
use nvmet::wire::capsule::{COMMAND_LEN, opcode};
use nvmet::wire::cm::Request;
use nvmet::wire::discovery;
use nvmet::wire::fabrics::{ANY_CNTLID, CONNECT_DATA_LEN, Connect, ConnectData, Fabrics};
use nvmet::wire::{Command, DISCOVERY_NQN, Descriptor, Status};
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.fuzz";
const AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4420);

/// A subsystem of two namespaces, which nothing is read from or written to.
static SUBSYSTEM: LazyLock<Arc<Subsystem>> = LazyLock::new(|| {
    let sizes = [1 << 20, 3 << 9];
    let open = |bytes| Namespace::with_size("/dev/null", bytes).expect("it is there");
    Arc::new(Subsystem::new(NQN, sizes.map(open).into()))
});

/// A capsule: what follows its command, and on which queue it comes.
fn capsule(controllers: &Controllers, controller: &Controller, bytes: &[u8], is_admin: bool) {
    let Some(command) = Command::from_capsule(bytes) else { return };
    let there = (bytes.len() - COMMAND_LEN).min(IN_CAPSULE as usize) as u32;
    if let Ok(data) = command.data() {
        assert_eq!(Descriptor::from_bytes(&data.to_bytes()), Ok(data));
        if let Ok(at) = data.in_capsule(there) {
            assert!(u64::from(at) + u64::from(data.len()) <= there.into());
        }
    }
    if command.opcode == opcode::FABRICS {
        match Fabrics::parse(&command) {
            Ok(Fabrics::Connect(connect)) => {
                let data = bytes.get(COMMAND_LEN..COMMAND_LEN + CONNECT_DATA_LEN);
                if let Some(Ok(data)) = data.map(ConnectData::read_from_bytes)
                    && let Ok(new) = controllers.connect((connect.qid, 32), AT, &connect, &data)
                {
                    assert!(connect.sqsize > 0 && connect.sqsize < 32);
                    assert!([Some(NQN), Some(DISCOVERY_NQN)].contains(&data.subsysnqn()));
                    assert!(connect.qid == 0 || new.registers(|registers| registers.is_ready()));
                }
            }
            Ok(Fabrics::PropertyGet { offset, size }) => {
                let _ = controller.registers(|registers| registers.get(offset, size));
            }
            Ok(Fabrics::PropertySet { offset, size, value }) => {
                let _ = controller.registers(|registers| registers.set(offset, size, value));
            }
            Ok(_) | Err(_) => {}
        }
    } else if is_admin {
        match admin::execute(controller, &command) {
            Ok(Outcome::Data(page)) => {
                assert!(page.len() <= MAX_DATA as usize);
                assert_eq!(command.data().map(Descriptor::len), Ok(page.len() as u32));
            }
            Ok(_) => {}
            Err(status) => controller.failed(0, &command, status),
        }
    } else {
        let find = |nsid| Some(SUBSYSTEM.namespace(nsid)?.geometry);
        match io::plan(&command, there, find) {
            Ok(plan) => {
                let geometry = find(plan.nsid).expect("it has a plan");
                assert!(plan.offset + plan.len <= geometry.blocks << geometry.shift);
                if matches!(plan.op, Op::Read | Op::Write) {
                    assert_eq!(u64::from(plan.data.len()), plan.len);
                }
                list(&command, plan.op, &bytes[COMMAND_LEN..], geometry);
            }
            Err(status) => assert_ne!(status, Status::SUCCESS),
        }
    }
}

/// Ranges or keys that come with a command.
fn list(command: &Command, op: Op, bytes: &[u8], geometry: Geometry) {
    let Some(list) = bytes.get(..op.list_len()) else { return };
    match op {
        Op::Deallocate { .. } => {
            for (offset, len) in io::ranges(list, geometry).into_iter().flatten() {
                assert!(offset + len <= geometry.blocks << geometry.shift);
            }
        }
        Op::Reserve { .. } => {
            if let Ok(action) = reserve::action(command, list) {
                let mut reservations = Reservations::default();
                let host = [list[0] & 1; 16];
                let _ = reservations.act([0; 16], Action::Register { new: 1 });
                let _ = reservations.act(host, action);
                assert!(reservations.report().len() <= 3 * 64);
            }
        }
        _ => {}
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(shape) = Request::parse(bytes) {
        assert!(shape.depth >= 2 && shape.depth <= 128);
    }
    if let Some((count, entries)) = discovery::entries(bytes) {
        assert!(entries.len() as u64 <= count);
    }
    let controllers = Controllers::new(Arc::clone(&SUBSYSTEM));
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow: false, kato: 0 };
    let join = |name| {
        let data = ConnectData::new([1; 16], ANY_CNTLID, name, "nqn.host");
        controllers.connect((0, 32), AT, &connect, &data).expect("as it should be")
    };
    let both = [join(NQN), join(DISCOVERY_NQN)];
    // The first byte of each record says which queue of which controller, the next two how long the
    // capsule is.
    let mut rest = bytes;
    while let [head, low, high, more @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (one, after) = more.split_at(len);
        capsule(&controllers, &both[usize::from(head >> 1 & 1)], one, head & 1 == 0);
        rest = after;
    }
    for controller in &both {
        controllers.left(controller, 0);
        assert!(controller.is_ended() && !controllers.has(controller.cntlid()));
    }
    assert_eq!(Command::default().as_bytes().len(), COMMAND_LEN);
});
