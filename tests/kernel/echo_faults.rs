//! Lost, duplicate and forged echoes.

use std::net::SocketAddr;

use ecn_core::{
    abi::Count,
    echo::{self, Echo},
    flow::Flow,
    packet::protocol,
};
use ecn_tests::{
    eventually,
    frames::{Ip, echo_of},
    kernel_test,
    lab::Lab,
    running::{self, Running},
    s,
    traffic::{raw, udp},
    wire::Wire,
};
use ecn_user::{agent::Options, config::Marking};

const LINK: u64 = 12_500_000;

fn start(lab: &Lab) -> Running {
    let config = running::config(lab, Marking::None);
    Running::start(
        running::with_endpoints(config, lab, &[0, 1], LINK),
        Options::default(),
    )
}

fn send(lab: &Lab, packets: u64) {
    let sending = udp(&lab.hosts[0], false, 7001);
    let target = SocketAddr::new(lab.hosts[1].v4.into(), 7002);
    for _ in 0..packets {
        sending.send_to(&[5; 200], target).expect("send");
    }
}

fn flow(running: &Running) -> Flow {
    running
        .flow(|key| key.endpoint == 1 && key.protocol == protocol::UDP)
        .1
}

fn wait_for(running: &Running, acked: u64) {
    let holds = || flow(running).acked_packets == acked;
    assert!(
        eventually(s(5), holds),
        "{:?} {}",
        flow(running),
        running.counts()
    );
}

#[test]
fn lost_echoes_lose_no_count() {
    const N: u64 = 2_000;
    kernel_test!();
    let lab = Lab::new(2);
    // The queue of the way back drops most echoes. From the start: the agent notices a later one some time after.
    lab.limit(0, 20_000, 5);
    let running = start(&lab);
    let _receiving = udp(&lab.hosts[1], false, 7002);
    lab.no_flood(0);
    send(&lab, N);
    let echoed = || running.count(Count::EchoSent) == N;
    assert!(eventually(s(5), echoed), "{}", running.counts());
    assert!(
        eventually(s(5), || running.waiting().is_empty()),
        "{:?}",
        running.waiting()
    );
    let dropped = running.port(&lab.hosts[0].port).dropped;
    assert!(dropped > N / 2, "only {dropped} echoes were dropped");
    // At most as many as were sent; all, unless the last echo was dropped.
    assert!(flow(&running).acked_packets <= N);
    // The next echo that arrives carries all counts.
    lab.limit(0, LINK, 1000);
    send(&lab, 1);
    wait_for(&running, N + 1);
    assert_eq!(running.count(Count::EchoLost), dropped);
    assert_eq!(running.count(Count::EchoAccepted), N + 1 - dropped);
    for what in [
        Count::EchoDuplicate,
        Count::EchoImpossible,
        Count::EchoUnknown,
    ] {
        assert_eq!(running.count(what), 0, "{what:?}");
    }
}

/// Runs some traffic and returns its last echo, as it was on the wire to the sender.
fn last_echo(lab: &Lab, running: &Running, packets: u64) -> Echo {
    let wire = Wire::open(&lab.hosts[0].ns, lab.hosts[0].ifindex);
    let before = running
        .maps
        .flows()
        .expect("flows")
        .first()
        .map_or(0, |f| f.1.acked_packets);
    send(lab, packets);
    wait_for(running, before + packets);
    let frames = wire.all(std::time::Duration::from_millis(200));
    let echoes: Vec<_> = frames.iter().filter_map(|frame| echo_of(frame)).collect();
    assert_eq!(echoes.len() as u64, packets, "echoes on the wire");
    let last = echoes[echoes.len() - 1];
    assert_eq!(u64::from(last.packets), before + packets);
    last
}

/// Echoes that must be refused after `last`: description, counter, echo.
fn lies(last: Echo) -> [(&'static str, Count, Echo); 7] {
    let next = last.sequence + 1;
    [
        ("the last one again", Count::EchoDuplicate, last),
        (
            "an earlier one",
            Count::EchoDuplicate,
            Echo {
                sequence: last.sequence - 7,
                ..last
            },
        ),
        (
            "more packets than were sent",
            Count::EchoImpossible,
            Echo {
                packets: last.packets + 1,
                sequence: next,
                ..last
            },
        ),
        (
            "fewer packets than before",
            Count::EchoImpossible,
            Echo {
                packets: last.packets - 1,
                sequence: next,
                ..last
            },
        ),
        (
            "marks on packets that did not come",
            Count::EchoImpossible,
            Echo {
                ce: 1,
                sequence: next,
                ..last
            },
        ),
        (
            "another source port",
            Count::EchoUnknown,
            Echo {
                src_port: 1,
                sequence: next,
                ..last
            },
        ),
        (
            "another protocol",
            Count::EchoUnknown,
            Echo {
                protocol: protocol::TCP,
                sequence: next,
                ..last
            },
        ),
    ]
}

#[test]
fn duplicate_and_forged_echoes_change_nothing() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    let application = raw(from, echo::PROTOCOL);
    let last = last_echo(&lab, &running, 100);
    let before = flow(&running);
    let attacker = Wire::open(&to.ns, to.ifindex);
    let back = Ip::between(to, from, false);
    for (what, count, lie) in lies(last) {
        let counted = running.count(count);
        attacker.send(&back.echo(&lie));
        let refused = || running.count(count) == counted + 1;
        assert!(eventually(s(2), refused), "{what}: {}", running.counts());
    }
    // Another version, and one that is too short: another user of protocol 253, which passes.
    let mut other = last.to_bytes();
    other[0] = 2;
    attacker.send(&back.with(echo::PROTOCOL, &other));
    attacker.send(&back.with(echo::PROTOCOL, &other[..12]));
    // A truncated echo whose frame is padded with what looks like the rest; a fragment.
    let mut filled = back.with(echo::PROTOCOL, &last.to_bytes()[..12]);
    filled.extend(&last.to_bytes()[12..]);
    attacker.send(&filled);
    let fragment = back.clone().fragment(0, true);
    attacker.send(&fragment.with(echo::PROTOCOL, &[&last.to_bytes()[..], &[0; 4]].concat()));
    let refused = || running.count(Count::EchoMalformed) == 4;
    assert!(eventually(s(2), refused), "{}", running.counts());
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1000];
    for len in [20 + echo::LEN, 20 + 12, 20 + 12] {
        assert_eq!(
            application.recv(&mut buffer).expect("another's packet"),
            len
        );
    }
    assert!(
        application.recv(&mut buffer).is_err(),
        "an application saw an echo of ours"
    );
    let after = flow(&running);
    let after = Flow {
        echo: echo::Sender {
            refused: before.echo.refused,
            refused_since: before.echo.refused_since,
            ..after.echo
        },
        ..after
    };
    assert_eq!(after, before);
    // The flow continues.
    last_echo(&lab, &running, 100);
    assert_eq!(flow(&running).echo.refused, 0);
}

/// Forged marks must not be accepted for packets that were counted elsewhere.
#[test]
fn a_flood_of_old_echoes_cannot_invent_packets() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    let last = last_echo(&lab, &running, 100);
    let attacker = Wire::open(&to.ns, to.ifindex).send_slowly();
    let old = Echo {
        packets: 50,
        sequence: 50,
        ..last
    };
    for _ in 0..500 {
        attacker.send(&Ip::between(to, from, false).echo(&old));
    }
    let taken = || {
        running.count(Count::EchoDuplicate)
            + running.count(Count::EchoImpossible)
            + running.count(Count::EchoAccepted)
            == 600
    };
    assert!(eventually(s(5), taken), "{}", running.counts());
    let attacked = flow(&running);
    assert_eq!(
        (
            attacked.acked_packets,
            attacked.marked_packets,
            attacked.decreases
        ),
        (100, 0, 0)
    );
    // The receiver's true echoes are accepted again soon.
    send(&lab, 100);
    eventually(s(5), || flow(&running).acked_packets >= 150);
    let after = flow(&running);
    assert!(after.acked_packets <= after.sent_packets, "{after:?}");
    assert!(after.acked_packets >= 150, "{after:?} {}", running.counts());
    assert_eq!((after.marked_packets, after.decreases), (0, 0));
}
