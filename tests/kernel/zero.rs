//! Counters return to zero, whatever happens to the queue.

use std::time::Duration;

use ecn_core::marking::Port;
use ecn_tests::{
    eventually, kernel_test,
    lab::Lab,
    note,
    running::{self, Running},
    s,
    traffic::Stream,
};
use ecn_user::{
    agent::Options,
    config::{Marking, Unmarkable},
};

/// Three hosts overload the port of host 3.
fn overload(lab: &Lab) -> Vec<Stream> {
    let (to, from) = (&lab.hosts[3], &lab.hosts[..3]);
    let flood = |(number, host)| Stream::flood(host, to, 7001 + number as u16, 300);
    from.iter().enumerate().map(flood).collect()
}

fn start(lab: &Lab) -> Running {
    start_at(lab, 6_250_000, 100)
}

/// The agent, at a port of host 3 with this rate and queue.
fn start_at(lab: &Lab, bytes_per_s: u64, packets: u32) -> Running {
    lab.no_flood(3);
    lab.limit(3, bytes_per_s, packets);
    let mut config = running::config(lab, Marking::InputOutput);
    // The queue must drop, not the hook before it.
    config.bridges[0].unmarkable = Unmarkable::Pass;
    Running::start(config, Options::default())
}

/// Nothing waits by any counter, a few seconds after the traffic.
#[track_caller]
fn all_zero(running: &Running) {
    let zero = eventually(s(3), || running.waiting().is_empty());
    assert!(zero, "{:?}", running.waiting());
}

fn overloaded(running: &Running, lab: &Lab) -> Port {
    let port = || running.port(&lab.hosts[3].port);
    assert!(
        eventually(s(10), || port().dropped > 10_000),
        "no overload: {:?}",
        port()
    );
    port()
}

#[test]
fn after_drops() {
    kernel_test!();
    let lab = Lab::new(4);
    let running = start(&lab);
    let before = lab.qdisc(3);
    let mut streams = overload(&lab);
    overloaded(&running, &lab);
    std::thread::sleep(s(3));
    // Under load, the waiting packets are those in the queue, except for packets between hook and queue.
    let most = (0..20).map(|_| running.port(&lab.hosts[3].port).cnt1).max();
    assert!(
        most.is_some_and(|most| most < 200),
        "{most:?} wait for a queue of 100"
    );
    for stream in &mut streams {
        stream.stop();
    }
    all_zero(&running);
    let (port, kernel) = (running.port(&lab.hosts[3].port), lab.qdisc(3));
    let seen = port.departed + port.dropped;
    note(&format!(
        "overload: arrived {}, of these not seen again {}; kernel sent {}, counted {}; \
         kernel dropped {}, counted {}; repaired {}",
        port.arrived,
        port.arrived as i64 - seen as i64,
        kernel.packets - before.packets,
        port.departed,
        kernel.drops,
        port.dropped,
        port.repaired
    ));
    assert!(seen <= port.arrived, "{port:?}");
    // A few in a million have been seen to be missed on an idle machine, two in a thousand on a busy one.
    assert!((port.arrived - seen) * 100 <= port.arrived, "{port:?}");
    assert!(
        u64::from(kernel.drops).abs_diff(port.dropped) * 100 <= port.dropped,
        "{port:?}"
    );
}

#[test]
fn after_the_queue_was_replaced() {
    kernel_test!();
    let lab = Lab::new(4);
    let running = start(&lab);
    let streams = overload(&lab);
    overloaded(&running, &lab);
    for _ in 0..5 {
        let queued = || lab.qdisc(3).qlen_packets > 0;
        assert!(eventually(s(5), queued), "nothing is queued");
        lab.limit(3, 6_250_000, 100);
        std::thread::sleep(Duration::from_millis(200));
    }
    // Without any queue, and with one again.
    lab.nl
        .delete_root_qdisc(lab.hosts[3].port_index)
        .expect("delete the root qdisc");
    std::thread::sleep(Duration::from_millis(200));
    lab.limit(3, 6_250_000, 100);
    let before = running.port(&lab.hosts[3].port).dropped;
    let counts = || running.port(&lab.hosts[3].port).dropped > before + 1000;
    assert!(
        eventually(s(5), counts),
        "the new queue's drops are not seen"
    );
    drop(streams);
    all_zero(&running);
}

#[test]
fn after_a_queue_that_nothing_left_was_purged() {
    kernel_test!();
    let lab = Lab::new(4);
    // One packet in four seconds: only the agent's sweep can notice. Packets that are queued before the agent attaches are
    // not counted.
    let running = start_at(&lab, 100, 50);
    let mut streams = overload(&lab);
    let full = || running.port(&lab.hosts[3].port).cnt1 >= 49;
    assert!(eventually(s(5), full), "{:?}", running.waiting());
    for stream in &mut streams {
        stream.stop();
    }
    assert!(!running.waiting().is_empty());
    lab.nl
        .delete_root_qdisc(lab.hosts[3].port_index)
        .expect("delete the root qdisc");
    all_zero(&running);
}

#[test]
fn after_a_port_was_deleted_under_load() {
    kernel_test!();
    let mut lab = Lab::new(4);
    let running = start(&lab);
    let streams = overload(&lab);
    overloaded(&running, &lab);
    let (name, old_index) = (lab.hosts[3].port.clone(), lab.hosts[3].port_index);
    let slot = running.slot(&name);
    lab.unplug(3);
    let removed = || {
        running.agent().state().bridges[0]
            .ports
            .iter()
            .all(|port| port.name != name)
    };
    assert!(eventually(s(3), removed), "{:?}", running.agent().state());
    assert_eq!(
        running.view().port(slot),
        Port::default(),
        "the slot of a removed port"
    );
    all_zero(&running);
    drop(streams);

    // A port of the same name is a new port.
    lab.plug_in(3);
    let back = || {
        running.agent().state().bridges[0]
            .ports
            .iter()
            .any(|port| port.name == name)
    };
    assert!(eventually(s(3), back), "{:?}", running.agent().state());
    assert_ne!(
        lab.hosts[3].port_index, old_index,
        "this kernel gives numbers again at once"
    );
    let fresh = running.port(&name);
    assert!(fresh.arrived < 20 && fresh.dropped == 0, "{fresh:?}");
    lab.limit(3, 6_250_000, 100);
    let streams = overload(&lab);
    overloaded(&running, &lab);
    drop(streams);
    all_zero(&running);
}

/// Input ports that are removed while their packets wait at outputs.
#[test]
fn after_an_input_was_deleted_under_load() {
    kernel_test!();
    let lab = Lab::new(4);
    let running = start(&lab);
    let streams = overload(&lab);
    overloaded(&running, &lab);
    let slot = running.slot(&lab.hosts[0].port);
    lab.unplug(0);
    let name = lab.hosts[0].port.clone();
    let removed = || {
        running.agent().state().bridges[0]
            .ports
            .iter()
            .all(|port| port.name != name)
    };
    assert!(eventually(s(3), removed));
    let forgotten = || running.view().port(slot) == Port::default();
    assert!(
        eventually(s(3), forgotten),
        "{:?}",
        running.view().port(slot)
    );
    drop(streams);
    all_zero(&running);
}

/// A device index that another device had: its counters must not be inherited.
fn number_used_again(name: &str) {
    let mut lab = Lab::new(4);
    let running = start(&lab);
    let mut streams = overload(&lab);
    overloaded(&running, &lab);
    let index = lab.hosts[3].port_index;
    lab.unplug(3);
    // At once: the agent may not even have noticed.
    if !lab.plug_in_as(3, name, index) {
        return note("skipped zero::number_used_again: no ip");
    }
    assert_eq!(lab.hosts[3].port_index, index);
    for stream in &mut streams {
        stream.stop();
    }
    let fresh = || {
        let state = running.agent().state();
        let port = state.bridges[0].ports.iter().find(|port| port.name == name);
        port.is_some_and(|port| running.view().port(port.slot).dropped == 0)
    };
    assert!(eventually(s(3), fresh), "{:?}", running.agent().state());
    all_zero(&running);
    let before = running.port(name).arrived;
    lab.limit(3, 6_250_000, 100);
    let streams = overload(&lab);
    let counts = || running.port(name).arrived > before + 1000;
    assert!(eventually(s(5), counts), "the new port is not counted");
    drop(streams);
    all_zero(&running);
}

#[test]
fn a_number_used_again_under_another_name() {
    kernel_test!();
    number_used_again("q3");
}

#[test]
fn a_number_used_again_under_its_name() {
    kernel_test!();
    number_used_again("p3");
}
