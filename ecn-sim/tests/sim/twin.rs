//! The testbed model compared with measurements of bridges on Linux 6.18 at the rig's defaults. With `round=off`,
//! input and input-output were measured with the prototype before the rig; for the default setting, local and remote
//! are calculated from root and remote/local. The test `twin` on the kernel measures all of them.

use ecn_sim::report::{HpWindow, WindowReport, run};
use ecn_sim::scenario::Scenario;

fn window(settings: &[&str], seed: u64) -> (HpWindow, u64) {
    let mut scenario = Scenario::rig();
    for setting in settings {
        scenario.set_text(setting).expect("a setting");
    }
    let report = run(&scenario, seed, &[], 0, None)
        .expect("a run")
        .report(&scenario, seed);
    match report.windows.into_iter().next() {
        Some(WindowReport::Hp(window)) => (window, report.dropped_packets),
        other => panic!("{other:?}"),
    }
}

/// Setting, then root, inter-switch, local, remote and victim as measured.
const MEASURED: &[(&[&str], [f64; 5])] = &[
    (&[], [0.979, 0.975, 0.513, 0.466, 0.508]),
    (&["round=packets"], [0.985, 0.88, 0.60, 0.385, 0.495]),
    (&["round=off"], [0.953, 0.66, 0.52, 0.44, 0.22]),
    (
        &["marking=input", "round=packets"],
        [0.984, 0.88, 0.585, 0.398, 0.482],
    ),
    (
        &["marking=input", "round=off"],
        [0.945, 0.65, 0.52, 0.43, 0.22],
    ),
    (
        &["marking=naive", "round=packets"],
        [0.963, 0.327, 0.66, 0.303, 0.024],
    ),
    (
        &["marking=naive", "round=off"],
        [0.863, 0.303, 0.588, 0.276, 0.027],
    ),
];

#[test]
fn shares_are_those_of_the_rig() {
    for (settings, measured) in MEASURED {
        for seed in 1..=3 {
            let (w, _) = window(settings, seed);
            let twin = [w.root, w.inter_switch, w.local, w.remote, w.victim];
            for (twin_share, share) in twin.iter().zip(measured) {
                assert!(
                    (twin_share - share).abs() < 0.06,
                    "{settings:?}, seed {seed}: {twin:.3?}, the rig gave {measured:.3?}"
                );
            }
        }
    }
}

#[test]
fn the_root_queue_is_short_under_control_and_full_without() {
    let (controlled, _) = window(&[], 1);
    let mean = controlled.root_queue_mean_packets.expect("a queue");
    assert!((1.5..3.0).contains(&mean), "{mean}");
    let (free, dropped) = window(&["marking=none", "response=none"], 1);
    assert!(free.root_queue_mean_packets > Some(99.0) && dropped > 1_000_000);
    assert_eq!(free.root_queue_max_packets, Some(100));
    assert!(free.root > 0.99 && free.inter_switch > 0.99 && free.victim < 0.2);
}
