//! Properties of any tree, by `docs/semantics.md` 4.2.

use std::collections::BTreeSet;

use pci::{Acs, Bdf, Cpu, Function, FunctionKind, Ids, MapType, PciTree, RootBus};
use proptest::prelude::*;

/// Grows a tree: each step adds a function below some earlier bridge, or on one of three root
/// buses.
fn tree(steps: Vec<(usize, bool, bool, u8)>, cpu: Cpu) -> PciTree {
    const IDS: [u16; 3] = [0x2020, 0x3c00, 0xffff];
    let mut functions: Vec<Function> = vec![];
    for (n, (above, is_bridge, redirects, root)) in steps.into_iter().enumerate() {
        let bridges: Vec<_> =
            functions.iter().filter(|f| f.kind == FunctionKind::Bridge).cloned().collect();
        let upstream = bridges.get(above % (bridges.len() + 2));
        let root = upstream.map_or(RootBus { domain: 0, bus: root % 3 }, |above| above.root);
        functions.push(Function {
            bdf: Bdf::new(0, n as u8 + 3, 0, 0),
            kind: if is_bridge { FunctionKind::Bridge } else { FunctionKind::Endpoint },
            upstream: upstream.map(|above| above.bdf),
            root,
            ids: Ids { vendor: 0x8086, device: IDS[usize::from(root.bus)] },
            acs: if redirects { Acs::RR } else { Acs::SV },
            bars: vec![],
        });
    }
    PciTree::new(cpu, functions).expect("grown from the root")
}

fn trees() -> impl Strategy<Value = PciTree> {
    let step = (0_usize..20, any::<bool>(), prop::bool::weighted(0.2), any::<u8>());
    let cpu = prop_oneof![
        3 => Just(Cpu::Other),
        1 => Just(Cpu::Amd { family: 0x17 }),
    ];
    (prop::collection::vec(step, 2..24), cpu).prop_map(|(steps, cpu)| tree(steps, cpu))
}

proptest! {
    #[test]
    fn both_directions_have_the_same_path(tree in trees(), a: prop::sample::Index, b: prop::sample::Index) {
        let all: Vec<_> = tree.functions().map(|f| f.bdf).collect();
        let (a, b) = (*a.get(&all), *b.get(&all));
        let (there, back) = (tree.path(a, b), tree.path(b, a));
        prop_assert_eq!(there.distance, back.distance);
        prop_assert_eq!(there.map_type, back.map_type);
    }

    #[test]
    fn the_distance_is_that_of_the_nearest_common_ancestor(
        tree in trees(),
        a: prop::sample::Index,
        b: prop::sample::Index,
    ) {
        let all: Vec<_> = tree.functions().map(|f| f.bdf).collect();
        let (a, b) = (*a.get(&all), *b.get(&all));
        let chain = |bdf| tree.chain(bdf).map(|f| f.bdf).collect::<Vec<_>>();
        let (up, down) = (chain(a), chain(b));
        let ancestors: BTreeSet<_> = down.iter().collect();
        let path = tree.path(a, b);
        match up.iter().find(|bdf| ancestors.contains(bdf)) {
            None => {
                prop_assert_eq!(path.distance as usize, up.len() + down.len());
                prop_assert_ne!(path.map_type, MapType::BusAddr);
            }
            Some(meet) => {
                let steps = |chain: &[Bdf]| chain.iter().position(|bdf| bdf == meet).unwrap();
                prop_assert_eq!(path.distance as usize, steps(&up) + steps(&down));
                let between = up[..=steps(&up)].iter().chain(&down[..steps(&down)]);
                let clear = between.clone().all(|bdf| !tree.function(*bdf).unwrap().acs.redirects());
                prop_assert_eq!(path.map_type == MapType::BusAddr, clear);
                if !clear && !path.is_possible() {
                    let words = path.to_string();
                    for bdf in between.filter(|bdf| tree.function(**bdf).unwrap().acs.redirects()) {
                        prop_assert!(words.contains(&bdf.to_string()), "{words}");
                    }
                }
            }
        }
    }

    #[test]
    fn zen_reaches_everything(tree in trees(), a: prop::sample::Index, b: prop::sample::Index) {
        let all: Vec<_> = tree.functions().map(|f| f.bdf).collect();
        if tree.cpu().supports_p2pdma() {
            prop_assert!(tree.path(*a.get(&all), *b.get(&all)).is_possible());
        }
    }
}
