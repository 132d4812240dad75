use super::*;
use crate::gpu::{Domain, GpuAct};
use crate::quantity::Span;

fn plan(text: &str) -> Plan {
    Plan::parse(text).expect(text)
}

fn weather(text: &str) -> Weather {
    Weather::new(&plan(text), "python3")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_buffer_moves_once_at_its_time() {
    let mut weather =
        weather("[[fault]]\ndo = 'move'\nto = 'gtt'\ngpu = 'nvidia0'\nbuffer = 2\nfrom = '5ms'");
    assert_eq!(weather.deadline(), Some(ms(5)));
    assert_eq!(weather.due(ms(4)), []);
    let struck = weather.due(ms(5));
    let buffers = Some(Span { first: 2, last: 2 });
    assert_eq!(struck.len(), 1);
    assert_eq!((struck[0].act, struck[0].buffers), (GpuAct::Move(Domain::Gtt), buffers));
    assert_eq!((struck[0].gpu.as_deref(), struck[0].rule), (Some("nvidia0"), 1));
    assert_eq!(weather.deadline(), None, "it happens once");
    weather.note(&struck[0], "1 buffer moved".to_owned());
    let said = weather.report().next().map(ToString::to_string).unwrap_or_default();
    assert_eq!(said, "move: fired once; first after 5.0ms: 1 buffer moved");
}

#[test]
fn a_period_ends_with_its_last_time_and_missed_times_act_once() {
    let text = "[[fault]]\ndo = 'evict'\nfrom = '10ms'\nevery = '10ms'\nuntil = '50ms'";
    let mut all = weather(text);
    let hit: Vec<_> = (0..100).filter(|at| !all.due(ms(*at)).is_empty()).collect();
    assert_eq!(hit, [10, 20, 30, 40, 50]);
    let mut late = weather(text);
    assert_eq!(late.due(ms(35)).len(), 1, "three times were due");
    assert_eq!(late.deadline(), Some(ms(40)));
    let mut few = weather(&format!("{text}\ntimes = 2"));
    assert_eq!((0..100).filter(|at| !few.due(ms(*at)).is_empty()).count(), 2);
}

#[test]
fn operations_are_counted_and_versions_of_a_function_count_as_one() {
    let mut weather = weather(
        "[[fault]]\ndo = 'reset'\noperation = ['cuMemcpyHtoD', 'cudaMemcpy']\nnth = '2-3'\ntimes = 1",
    );
    assert!(weather.has_operations());
    let mut hit = |name| !weather.operation(ms(1), name).is_empty();
    assert!(!hit("cuMemcpyHtoD_v2") && !hit("cuMemcpyHtoDAsync_v2") && !hit("cuMemAlloc_v2"));
    assert!(hit("cuMemcpyHtoD_v2_ptds"));
    assert!(!hit("cudaMemcpy"), "once");
    let said = weather.report().next().map(ToString::to_string).unwrap_or_default();
    assert!(said.starts_with("reset: fired once, of 3 operations that met"), "{said}");
    assert!(said.contains("cuMemcpyHtoD_v2_ptds"), "{said}");
}

#[test]
fn functions_of_each_runtime_trigger_faults() {
    for name in ["cudaMemcpy", "nvmlInit", "zeMemAllocDevice", "zesInit", "hsa_memory_copy"] {
        let mut weather = weather(&format!("[[fault]]\ndo = 'evict'\noperation = '{name}'"));
        assert_eq!(weather.operation(ms(1), name).len(), 1, "{name}");
        assert!(weather.operation(ms(1), "hsa_init").is_empty(), "{name}");
    }
}

#[test]
fn the_seed_decides_reproducibly() {
    let text = "seed = 5\n[[fault]]\ndo = 'evict'\noperation = 'cuMemAlloc'\nprobability = 0.3";
    let run = |text: &str| {
        let mut weather = weather(text);
        let hit = |_| !weather.operation(ms(0), "cuMemAlloc_v2").is_empty();
        (0..1000).map(hit).collect::<Vec<_>>()
    };
    let first = run(text);
    assert_eq!(first, run(text));
    assert_ne!(first, run(&text.replace('5', "6")));
    let count = first.iter().filter(|hit| **hit).count();
    assert!((200..400).contains(&count), "{count}");
    let text = "[[fault]]\ndo = 'evict'\nevery = '1ms'\nprobability = 0.3\nuntil = '999ms'";
    let run = || {
        let mut weather = weather(text);
        (0..1000).filter(|at| !weather.due(ms(*at)).is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
    assert!((200..400).contains(&run().len()), "{}", run().len());
}

#[test]
fn rules_that_packets_trigger_belong_to_a_nic_and_others_do_not() {
    use crate::{Injector, Who};
    let who = Who { nic: "peerdma0".to_owned(), program: "python3".to_owned() };
    for (conditions, is_nics) in [
        ("nth = 3", true),
        ("opcode = 'write'", true),
        ("probability = 0.5", true),
        ("from = '1s'", false),
        ("operation = 'cuMemAlloc'\nnth = 3", false),
        ("every = '1s'\nprobability = 0.5", false),
        ("program = 'other'", false),
    ] {
        let plan = plan(&format!("[[fault]]\ndo = 'evict'\n{conditions}"));
        assert_eq!(!Injector::new(&plan, &who).is_empty(), is_nics, "{conditions}");
        let is_ours = !Weather::new(&plan, "python3").is_empty();
        assert_eq!(is_ours, !is_nics && !conditions.starts_with("program"), "{conditions}");
    }
}

#[test]
fn a_strike_that_a_packet_triggered_is_reported_with_its_effect() {
    use crate::Strike;
    let mut weather = weather("");
    let rule = plan("[[fault]]\nname = 'storm'\ndo = 'evict'\nnth = 1").rules.remove(0);
    let strike = rule.gpu_strike(0).expect("of GPUs");
    assert_eq!(Strike::Gpu(strike.clone()), Strike::Gpu(strike.clone()));
    weather.struck(ms(1), &strike);
    weather.struck(ms(2), &strike);
    weather.note(&strike, "2 buffers evicted".to_owned());
    let said: Vec<_> = weather.report().map(ToString::to_string).collect();
    let [said] = said.as_slice() else { panic!("{said:?}") };
    assert!(said.starts_with("storm: evict fired 2 times; first after 1.0ms, last"), "{said}");
    assert!(said.ends_with(": 2 buffers evicted"), "{said}");
}

#[test]
fn every_mistake_in_a_rule_for_gpus_is_explained() {
    for (rule, said) in [
        ("do = 'move'", "fault 1 (move): does not say where"),
        ("do = 'move'\nto = 'disk'", "unknown variant `disk`"),
        ("do = 'evict'\nto = 'gtt'", "`to` is for move"),
        ("do = 'fill'", "does not say how much"),
        ("do = 'fill'\nshare = 1.5", "a share of VRAM"),
        ("do = 'evict'\nshare = 0.5", "`share` is for fill"),
        ("do = 'throttle'", "does not say how fast"),
        ("do = 'throttle'\nrate = '1K'", "the slowest rate"),
        ("do = 'throttle'\nrate = 'fast'", "\"fast\" is not a rate"),
        ("do = 'reset'\nbuffer = 1", "this is done to a GPU"),
        ("do = 'evict'\nbuffer = 0", "buffers are counted from 1"),
        ("do = 'drop'\ngpu = 'nvidia0'", "faults of GPUs"),
        ("do = 'drop'\noperation = 'cuMemAlloc'", "`operation` is for faults of GPUs"),
        ("do = 'drop'\nevery = '10ms'", "`every` is a number of packets"),
        ("do = 'revoke'\nmr = 1\ngpu = 'nvidia0'", "one of them"),
        (
            "do = 'evict'\noperation = 'malloc'",
            "\"malloc\" is not a function of CUDA, NVML, Level Zero or HSA",
        ),
        ("do = 'evict'\noperation = 'cuMemAlloc'\nopcode = 'send'", "not by both"),
        ("do = 'evict'\noperation = 'cuMemAlloc'\nqp = 1", "not by both"),
        ("do = 'evict'\nevery = '1s'\npsn = 1", "not by both"),
        ("do = 'evict'\nevery = '1s'\noperation = 'cuInit'", "not by both"),
        ("do = 'evict'\nevery = '0s'", "every 0"),
        ("do = 'evict'\nqp = 1", "a QP, but no packet of it"),
        ("do = 'evict'\nnic = 'peerdma0'", "a NIC, but no packet of it"),
        ("do = 'evict'\nuntil = '1s'", "it happens once"),
        ("do = 'evict'\nfrom = '1s'\nby = '1ms'", "`by` is counted from a packet"),
        ("do = 'evict'\noperation = 'cuInit'\nby = '1ms'", "`by` is counted from a packet"),
        ("do = 'evict'\nfor = '1s'", "`for` is for"),
    ] {
        let text = format!("[[fault]]\n{rule}");
        let error = Plan::parse(&text).expect_err(&text).to_string();
        assert!(error.contains(said), "{text}\n{error}");
    }
}
