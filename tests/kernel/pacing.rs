//! TCP's own pacing: without a qdisc, and without the agent in the loop.

use std::time::Duration;

use ecn_core::{abi::Count, flow::Flow, packet::protocol};
use ecn_tests::{
    Skip, eventually, kernel_test,
    lab::Lab,
    name_of, note,
    running::{self, Running},
    s, skipped,
    traffic::{Stream, Tcp},
};
use ecn_user::{
    agent::Options,
    config::{Enforcement, Marking},
    datapath,
};

const MBIT: u64 = 125_000;
const LINK: u64 = 1_000 * MBIT;

fn start(lab: &Lab) -> Running {
    let config = running::config(lab, Marking::None);
    let mut config = running::with_endpoints(config, lab, &[0, 1], LINK);
    for endpoint in &mut config.endpoints {
        endpoint.enforcement = Enforcement::Pacing;
    }
    Running::start(config, Options::default())
}

/// Skips the test if sockets cannot be paced.
macro_rules! needs_sockets {
    () => {
        if let Err(missing) = datapath::cgroup(None) {
            skipped(name_of(|| {}), Skip::Kernel, missing);
            return;
        }
    };
}

#[test]
fn a_tcp_socket_gets_its_rate_and_is_released() {
    kernel_test!();
    needs_sockets!();
    let lab = Lab::new(2);
    let mut running = start(&lab);
    let stream = Tcp::start(&lab, 5001);
    let any = |running: &Running, is: fn(&Flow) -> bool| {
        let flows = running.maps.flows().expect("flows");
        flows.iter().any(|(_, flow)| is(flow))
    };
    let is_known = || any(&running, |flow| flow.socket != 0);
    assert!(eventually(s(5), is_known), "no socket is known");
    // Unlimited sockets are not changed.
    assert!(!any(&running, |flow| flow.socket_bytes_per_s != 0));
    let (key, _) = running.flow(|key| key.endpoint == 1 && key.protocol == protocol::TCP);
    for mbit in [20, 5, 10] {
        let target = (mbit * MBIT) as f64;
        running.maps.set_pin(&key, mbit * MBIT).expect("pin");
        std::thread::sleep(Duration::from_millis(600));
        let is_held = || any(&running, |flow| flow.socket_bytes_per_s != 0);
        assert!(eventually(s(5), is_held), "no socket is paced");
        // Payload of 1448 bytes in frames of 1514. On a busy machine timers are late.
        let part = stream.rate(s(2)) * 1514.0 / 1448.0 / target;
        note(&format!("a paced socket at {mbit} mbit: {part:.3}"));
        // The measurement may include data that the receiver had not read before.
        assert!((0.4..1.05).contains(&part), "{mbit}: {part}");
    }
    drop(running);
    let free = || stream.rate(Duration::from_millis(500)) > (100 * MBIT) as f64;
    assert!(eventually(s(5), free), "still held after the agent's end");
}

/// UDP cannot be paced here: it passes, shows no class, and is counted.
#[test]
fn flows_without_a_tcp_socket_are_reported_as_unlimited() {
    kernel_test!();
    needs_sockets!();
    let lab = Lab::new(2);
    let running = start(&lab);
    let stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 1000);
    let counted = || running.count(Count::Unpaced) > 100;
    assert!(eventually(s(5), counted), "{}", running.counts());
    let (_, flow) = running.flow(|key| key.endpoint == 1 && key.protocol == protocol::UDP);
    assert_eq!((flow.class, flow.socket_bytes_per_s), (0, 0));
    assert!(stream.rate(Duration::from_millis(300)) > 0.0);
}
