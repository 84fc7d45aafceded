//! Priorities of a port, and set-up of runs from scenarios.

use super::*;
use crate::engine::MS;
use crate::fabric::packet::LINK_BYTES;
use crate::fabric::switch::Threshold;

/// Two leaves with two hosts each.
fn scenario(settings: &[&str]) -> Scenario {
    let mut scenario = Scenario::find("leaf-spine").unwrap();
    for setting in ["hosts=4", "leaves=2", "spines=1", "senders=3"]
        .iter()
        .chain(settings)
    {
        scenario.set_text(setting).unwrap();
    }
    scenario
}

/// A run of this scenario that has not started: ports of hosts, then those of the first leaf to its hosts, 4 and 5, and
/// to the spine.
fn with_run(settings: &[&str], then: impl FnOnce(Run)) {
    let scenario = scenario(settings);
    let topology = scenario.topology().unwrap();
    then(Run::new(&scenario, &topology, Part::ALL, 1).unwrap());
}

/// Headroom allows for one frame of the port itself before its pause: waiting ACKs must not precede it.
#[test]
fn a_pause_goes_before_control() {
    with_run(&[], |mut run| {
        for _ in 0..3 {
            let ack = Packet::of_link(Kind::Ack, 0, 0);
            let id = run.packets.insert(ack).unwrap();
            run.ports[4].control.push(&mut run.packets, id);
        }
        run.ports[4].pause_wanted = 1;
        run.serve(4);
        assert_eq!((run.ports[4].pause_sent, run.counts.pause_frames), (1, 1));
        assert_eq!(run.ports[4].busy_until, run.wire_time(LINK_BYTES));
        assert!(!run.ports[4].control.is_empty());
        // Resuming is announced, but not counted as a pause.
        run.ports[4].pause_wanted = 0;
        run.serve(4);
        assert_eq!((run.ports[4].pause_sent, run.counts.pause_frames), (0, 1));
    });
}

/// TCD: a port that was paused recently also marks packets that need not wait.
#[test]
fn packets_that_need_not_wait_are_judged() {
    with_run(&["scheme=dcqcn+tcd"], |mut run| {
        let pass = |run: &mut Run| {
            let id = run.packets.insert(Packet {
                destination: 1,
                bytes: run.full as u16,
                ..Packet::of_link(Kind::Data, 0, 0)
            });
            run.ports[5].busy_until = 0;
            run.forward(id.unwrap(), 4, Lane::DATA);
            run.counts.undetermined_packets
        };
        assert_eq!(pass(&mut run), 0);
        run.set_on(5, 0, false);
        run.set_on(5, 0, true);
        assert_eq!(pass(&mut run), 1);
        assert_eq!(run.counts.marked_packets, 0);
    });
}

/// A switch's memory is the sum over its ports, without headroom; a lane's buffer is its share of the port's.
#[test]
fn memory_is_per_port_and_class() {
    for settings in [&["flow_control=none"][..], &["headroom=200kB"]] {
        with_run(settings, |run| {
            let own = 1_000_000 - if run.lossless { 200_000 } else { 0 };
            let pools: Vec<_> = run.memories.iter().map(|memory| memory.pool).collect();
            // Two leaves with two hosts each, and a spine.
            assert_eq!(pools, [3 * own, 3 * own, 2 * own]);
        });
    }
    // An input of a crossbar has its own memory, divided equally among its classes.
    let settings = ["switch=crossbar", "headroom=200kB", "priorities=4"];
    with_run(&settings, |run| {
        assert_eq!(run.limits.threshold, Threshold::Static(200_000));
    });
    for (lanes, blocks) in [(1, 15_625), (2, 7_812), (4, 3_906)] {
        let priorities = format!("priorities={lanes}");
        with_run(&["flow_control=cbfc", &priorities], |mut run| {
            let credits = run.credits.as_mut().unwrap();
            assert!((0..lanes).all(|lane| credits.advertise(4 * lanes + lane) == blocks));
        });
    }
}

/// A queue is congested from the length at which DCQCN's switches would mark, or from an eighth of a class's share of a
/// port's memory.
#[test]
fn a_long_queue_is_one_that_would_be_marked() {
    for (settings, bytes) in [
        (&["buffer=1MB"][..], 125_000),
        (&["priorities=4"], 31_250),
        (&["scheme=dcqcn", "dcqcn.kmin=20kB"], 20_000),
    ] {
        with_run(settings, |run| assert_eq!(run.root_bytes, bytes));
    }
}

/// HP's sources have the window of the longest path's round trip, others none; a marker's threshold is a share of a
/// lane's memory.
#[test]
fn a_scheme_knows_its_network() {
    for (settings, window) in [
        // 100 Gb/s over four links in both directions: 8 us of delay, and 1,062 and 66 bytes on each, are 104,512
        // bytes.
        (&["scheme=lipd/input-output"][..], 105),
        (&["scheme=lipd/input-output", "window=5kB"], 5),
        (&["scheme=dcqcn"], u32::MAX),
    ] {
        with_run(settings, |run| assert_eq!(run.window, window));
    }
    for (settings, buffer) in [
        (["flow_control=cbfc", "priorities=1"], 1_000_000),
        (["flow_control=cbfc", "priorities=4"], 250_000),
        (["flow_control=pfc", "priorities=4"], 1_000_000),
        // The part of two ports' memory that tail drop permits.
        (["flow_control=none", "alpha=1/8"], 222_222),
        (["flow_control=none", "thresholds=static"], 100_000),
    ] {
        assert_eq!(scenario(&settings).network(4, 2).buffer, buffer);
    }
}

/// Behind a packet for the same output, a packet crosses the congestion there; one for another output is held up by it.
#[test]
fn a_crossbar_tells_who_is_held_up() {
    with_run(&["switch=crossbar"], |mut run| {
        run.root_bytes = 1_000;
        run.ports[5].busy_until = MS;
        let mut join = |out| {
            let packet = Packet {
                bytes: run.full as u16,
                ..Packet::of_link(Kind::Data, 0, 0)
            };
            let id = run.packets.insert(packet).unwrap();
            run.enqueue_at_input(id, 4, out);
            run.packets[id].flags
        };
        assert_eq!([join(5), join(5), join(6)], [0, CROSSES, HELD]);
    });
}
