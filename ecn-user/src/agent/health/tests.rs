use super::*;

const LINK: u64 = 12_500_000;
/// The port's rate.
const RATE: u64 = LINK / 10;
const LEVEL: u32 = 8;

/// A port whose traffic advances by a second at a time.
struct Port {
    counters: marking::Port,
    unmarkable: bool,
}

impl Port {
    fn new() -> Self {
        Self {
            counters: marking::Port {
                largest: 1,
                ..marking::Port::default()
            },
            unmarkable: false,
        }
    }

    /// A second with `arrived` packets, of which `above` exceeded the threshold and `dropped` were dropped; `waiting`
    /// at its end.
    fn second(&mut self, arrived: u64, above: u64, dropped: u64, waiting: u32) {
        let p = &mut self.counters;
        p.arrived += arrived;
        p.departed += arrived - dropped;
        p.output_triggers += above;
        if self.unmarkable {
            p.unmarkable += above;
        } else {
            p.marked += above;
        }
        p.dropped += dropped;
        p.cnt1 = waiting;
    }

    fn reading(&self) -> PortReading {
        PortReading {
            id: (0, 1),
            subject: Subject::port("br0", "", "p1"),
            counters: self.counters,
            by_output: true,
            level_packets: LEVEL,
            most_packets: None,
            drops_unmarkable: true,
            inputs: vec!["p0".to_owned()],
            queue: PortQueue {
                bytes_per_s: Some(RATE),
                full_packets: None,
            },
        }
    }
}

fn endpoint(limited: u64, at_floor: u64, floor_packets_per_s: u64) -> EndpointReading {
    EndpointReading {
        number: 1,
        subject: Subject::endpoint("eth0", "h0"),
        link_bytes_per_s: 4 * RATE,
        floor_bytes_per_s: LINK / 64,
        fractional: false,
        not_enforced: None,
        flows: FlowsSeen {
            limited,
            at_floor,
            floor_packets_per_s,
            ..FlowsSeen::default()
        },
    }
}

/// Reads once a second, and collects the changes.
#[derive(Default)]
struct Run {
    health: Health,
    seconds: u64,
    echo_protocol: u8,
}

impl Run {
    fn read(
        &mut self,
        ports: Vec<PortReading>,
        endpoints: Vec<EndpointReading>,
        shortages: Shortages,
    ) -> Vec<Warning> {
        self.seconds += 1;
        self.health.read(&Reading {
            now_ns: self.seconds * SECOND_NS,
            ports,
            endpoints,
            shortages,
            fullest: ["web", "db"].map(|device| Subject::endpoint(device, "")),
            echo_protocol: self.echo_protocol,
        })
    }

    /// Runs identical seconds. Returns after how many of them something was reported first, and what.
    fn seconds(
        &mut self,
        seconds: u64,
        port: &mut Port,
        mut second: impl FnMut(&mut Port),
        endpoints: &[EndpointReading],
    ) -> Option<(u64, Vec<Warning>)> {
        let mut first = None;
        for n in 1..=seconds {
            second(port);
            let found = self.read(
                vec![port.reading()],
                endpoints.to_vec(),
                Shortages::default(),
            );
            if !found.is_empty() {
                first.get_or_insert((n, found));
            }
        }
        first
    }
}

fn kinds(found: &[Warning]) -> Vec<Kind> {
    found.iter().map(|warning| warning.kind).collect()
}

/// A controlled queue exceeds its threshold a part of the time, and hardly drops.
#[test]
fn a_controlled_port_is_not_warned_of() {
    for (above, dropped, waiting) in [
        (0, 0, 0),
        (1000, 0, 5),
        (5000, 0, 12),
        // Four hundred flows: 64 drops a second, 22 packets in the queue.
        (8000, 64, 22),
    ] {
        let mut run = Run::default();
        let mut port = Port::new();
        let flows = [endpoint(10, 1, 0)];
        let reported = run.seconds(
            30,
            &mut port,
            |p| p.second(8500, above, dropped, waiting),
            &flows,
        );
        assert_eq!(reported, None, "{above} {dropped} {waiting}");
    }
}

#[test]
fn a_short_burst_is_not_warned_of() {
    let mut run = Run::default();
    let mut port = Port::new();
    let flows = [endpoint(2, 2, 100_000)];
    for _ in 0..5 {
        let full = |p: &mut Port| p.second(20_000, 20_000, 12_000, 100);
        assert_eq!(run.seconds(3, &mut port, full, &flows), None);
        let calm = |p: &mut Port| p.second(8000, 500, 0, 3);
        assert_eq!(run.seconds(2, &mut port, calm, &flows), None);
    }
    let idle = |_: &mut Port| ();
    assert_eq!(run.seconds(20, &mut port, idle, &[]), None);
}

#[test]
fn flows_at_their_lowest_rate_with_a_full_queue() {
    let mut run = Run::default();
    let mut port = Port::new();
    // The flows fill the port by themselves, so that marks are answered as far as possible.
    let flows = [endpoint(100, 90, 12_000)];
    let full = |p: &mut Port| p.second(20_000, 20_000, 12_000, 100);
    let (after, found) = run.seconds(20, &mut port, full, &flows).unwrap();
    assert!((5..=7).contains(&after), "{after}");
    assert_eq!(kinds(&found), [Kind::FlowsAtFloor]);
    assert_eq!(found[0].subject.to_string(), "port p1 of br0");
    assert!(
        found[0]
            .message
            .contains("90 flows are at their lowest rate (1.56mbit)")
    );
    assert!(found[0].message.contains("rmin"), "{}", found[0].message);
    let last = run.read(vec![port.reading()], flows.to_vec(), Shortages::default());
    // A second without traffic.
    assert_eq!(kinds(&last), []);
}

/// No bridge is here: where the flows are marked is unknown.
#[test]
fn flows_at_their_lowest_rate_for_a_bridge_elsewhere() {
    let mut run = Run::default();
    let reported = |run: &mut Run, seconds, flows: &EndpointReading| {
        (1..=seconds).find_map(|n| {
            let found = run.read(Vec::new(), vec![flows.clone()], Shortages::default());
            (!found.is_empty()).then_some((n, found))
        })
    };
    assert_eq!(reported(&mut run, 20, &endpoint(10, 2, 10)), None);
    let (after, found) = reported(&mut run, 20, &endpoint(10, 8, 10)).unwrap();
    assert!((10..=12).contains(&after), "{after}");
    assert_eq!(kinds(&found), [Kind::FlowsAtFloor]);
    assert_eq!(found[0].subject.to_string(), "endpoint eth0 in h0");
}

#[test]
fn unanswered_marks() {
    let drops = |p: &mut Port| p.second(20_000, 20_000, 12_000, 100);
    let long = |p: &mut Port| p.second(8000, 7900, 0, 500);
    for (second, seen) in [
        (drops as fn(&mut Port), "60 % is dropped"),
        (long as fn(&mut Port), "at least 500 packets wait"),
    ] {
        // Other flows at their lowest rate, which do answer, make no difference.
        for flows in [vec![], vec![endpoint(2, 2, 100)]] {
            let mut run = Run::default();
            let mut port = Port::new();
            let mut reported = None;
            for n in 1..=15 {
                second(&mut port);
                let found = run.read(vec![port.reading()], flows.clone(), Shortages::default());
                let of = found.into_iter().find(|w| w.kind == Kind::UnansweredMarks);
                reported = reported.or(of.map(|warning| (n, warning)));
            }
            let (after, warning) = reported.unwrap();
            assert!((10..=12).contains(&after), "{after}");
            assert!(warning.message.contains(seen), "{}", warning.message);
            assert!(warning.message.contains("enters at p0"));
        }
    }
}

#[test]
fn short_queue() {
    let mut run = Run::default();
    let mut port = Port::new();
    let drops = |p: &mut Port| p.second(12_000, 0, 3600, LEVEL - 1);
    let (after, found) = run.seconds(10, &mut port, drops, &[]).unwrap();
    assert!((5..=7).contains(&after), "{after}");
    assert_eq!(kinds(&found), [Kind::ShortQueue]);
    assert!(
        found[0]
            .message
            .starts_with("3600 packets per second are dropped"),
        "{}",
        found[0].message
    );
    // Bursts into a queue that is long enough.
    let mut run = Run::default();
    let bursts = |p: &mut Port| p.second(12_000, 6000, 1200, 0);
    assert_eq!(run.seconds(20, &mut Port::new(), bursts, &[]), None);
    // Into one that is known to be shorter; that marks go unanswered there is not reported, too.
    let mut run = Run::default();
    let mut port = Port::new();
    for n in 1..=20 {
        port.second(12_000, 8000, 3600, 0);
        let mut reading = port.reading();
        reading.queue.full_packets = Some(4 * LEVEL - u32::from(n > 2));
        let found = run.read(vec![reading], vec![], Shortages::default());
        assert_eq!(found.is_empty(), n < 7, "{n}: {found:?}");
        for warning in found {
            assert_eq!(warning.kind, Kind::ShortQueue);
            assert!(
                warning.message.contains("holds 31 of full size"),
                "{warning}"
            );
        }
    }
}

/// A virtual queue drops nothing; 4 times the threshold may be more than it holds.
#[test]
fn unanswered_marks_at_a_virtual_queue() {
    let mut run = Run::default();
    let mut port = Port::new();
    for n in 1..=12 {
        port.second(20_000, 20_000, 0, 62);
        let reading = PortReading {
            level_packets: 50,
            most_packets: Some(64),
            ..port.reading()
        };
        let found = run.read(vec![reading], vec![], Shortages::default());
        assert_eq!(found.is_empty(), n < 11, "{n}: {found:?}");
    }
}

/// If arrivals fall within ten seconds, marks are answered, though slowly.
#[test]
fn fewer_arrivals_are_an_answer() {
    let mut run = Run::default();
    let mut port = Port::new();
    let mut arrived = 60_000;
    let falling = |p: &mut Port| {
        p.second(arrived, arrived, arrived - 8000, 100);
        arrived = arrived * 19 / 20;
    };
    assert_eq!(run.seconds(25, &mut port, falling, &[]), None);
}

/// Sources without the agent are limited to their share; if there are no others, nothing answers.
#[test]
fn drops_of_what_cannot_be_marked() {
    let mixed = |p: &mut Port| {
        p.second(8500, 4000, 0, 16);
        p.counters.dropped_unmarkable += 5000;
    };
    let mut port = Port::new();
    assert_eq!(Run::default().seconds(30, &mut port, mixed, &[]), None);
    let mut port = Port::new();
    port.unmarkable = true;
    let (_, found) = Run::default().seconds(30, &mut port, mixed, &[]).unwrap();
    assert_eq!(kinds(&found), [Kind::UnansweredMarks]);
    let message = &found[0].message;
    assert!(
        message.contains("not ECN-capable") && message.contains("Run the agent at the sources.")
    );
}

/// A removed port, a slot that another port has taken, an agent that was stalled.
#[test]
fn counters_may_restart() {
    let mut run = Run::default();
    let mut port = Port::new();
    let drops = |p: &mut Port| p.second(20_000, 20_000, 12_000, 100);
    for _ in 0..3 {
        assert_eq!(run.seconds(9, &mut port, drops, &[]), None);
        port = Port::new();
    }
    for _ in 0..3 {
        assert_eq!(run.seconds(9, &mut port, drops, &[]), None);
        run.seconds += 5;
    }
}

#[test]
fn endpoints_that_do_not_enforce_rates() {
    let why = "device eth0 has a tbf root qdisc of its own";
    let displaced = EndpointReading {
        not_enforced: Some(why.to_owned()),
        ..endpoint(0, 0, 0)
    };
    let found = Run::default().read(vec![], vec![displaced.clone()], Shortages::default());
    assert_eq!(kinds(&found), [Kind::NotEnforced]);
    assert_eq!(
        found[0].to_string(),
        format!("endpoint eth0 in h0: {why} (not-enforced)")
    );

    // It is the cause of marks that nobody answers.
    let drops = |p: &mut Port| p.second(8000, 8000, 2000, LEVEL);
    let (mut run, mut port) = (Run::default(), Port::new());
    run.seconds(20, &mut port, drops, std::slice::from_ref(&displaced));
    drops(&mut port);
    let found = run.read(vec![port.reading()], vec![displaced], Shortages::default());
    assert_eq!(kinds(&found), [Kind::UnansweredMarks, Kind::NotEnforced]);
    let message = &found[0].message;
    assert!(
        message.contains("endpoint eth0 in h0 does not limit"),
        "{message}"
    );
    assert!(!message.contains("Run the agent"), "{message}");
}

#[test]
fn link_rates_far_above_the_ports() {
    let marks = |p: &mut Port| p.second(8000, 1000, 0, 4);
    let with = |times: u64, limited, fractional| {
        let endpoint = EndpointReading {
            link_bytes_per_s: times * RATE,
            fractional,
            ..endpoint(limited, 0, 0)
        };
        Run::default().seconds(20, &mut Port::new(), marks, &[endpoint])
    };
    assert_eq!(with(4, 5, false), None);
    assert_eq!(with(5, 0, false), None);
    for (fractional, advice) in [(false, "Set `link_rate`"), (true, "does no harm")] {
        let (after, found) = with(10, 5, fractional).unwrap();
        assert!((5..=7).contains(&after), "{after}");
        assert_eq!(kinds(&found), [Kind::LinkRate]);
        let message = &found[0].message;
        assert!(message.contains(advice), "{message}");
        assert!(message.contains("100mbit") && message.contains("(10mbit)"));
    }
    // Occasional marks do not show whose flows are marked.
    let mut second = 0;
    let seldom = |p: &mut Port| {
        second += 1;
        p.second(8000, if second % 3 == 0 { 5 } else { 0 }, 0, 0);
    };
    let fast = EndpointReading {
        link_bytes_per_s: 10 * RATE,
        ..endpoint(5, 0, 0)
    };
    let reported =
        Run::default().seconds(20, &mut Port::new(), seldom, std::slice::from_ref(&fast));
    assert_eq!(reported, None);
    // A faster port marks too: the flows may be those at that port.
    let mut run = Run::default();
    let mut port = Port::new();
    for _ in 0..20 {
        marks(&mut port);
        let other = PortReading {
            id: (0, 2),
            queue: PortQueue {
                bytes_per_s: Some(5 * RATE),
                full_packets: None,
            },
            ..port.reading()
        };
        let found = run.read(
            vec![port.reading(), other],
            vec![fast.clone()],
            Shortages::default(),
        );
        assert_eq!(kinds(&found), []);
    }
}

#[test]
fn tables_that_are_full_for_seconds() {
    let of = |n: u64, what: usize| {
        let mut counts = [0; 3];
        counts[what] = n;
        Shortages {
            flows: counts[0],
            receivers: counts[1],
            classes: counts[2],
            most_flows: 100,
        }
    };
    for (what, kind, subject) in [
        (0, Kind::FlowTableFull, "endpoint web"),
        (1, Kind::ReceiverTableFull, "endpoint db"),
        (2, Kind::ClassesFull, "agent"),
    ] {
        // What an agent finds at its start is old; a single burst is not enough.
        let mut run = Run::default();
        for n in [1000, 1000, 5000, 5000, 5000, 5000, 5000, 6000, 6000] {
            assert_eq!(kinds(&run.read(vec![], vec![], of(n, what))), []);
        }
        let mut found = Vec::new();
        for n in 1..=4 {
            found = run.read(vec![], vec![], of(6000 + n * 10, what));
        }
        assert_eq!(kinds(&found), [kind]);
        assert_eq!(found[0].subject.to_string(), subject);
    }
}

fn policy() -> abi::Endpoint {
    let mut policy = abi::Endpoint {
        flags: abi::CONTROL_FLOWS | abi::ECHO,
        link_bytes_per_s: LINK,
        ..abi::Endpoint::default()
    };
    policy.response.ipd_max = 64 * ONE;
    policy.response.packet_ns = 120_000;
    policy
}

const NOW: u64 = 100 * SECOND_NS;

fn sent(packets: u64) -> Flow {
    Flow {
        sent_packets: packets,
        sent_bytes: packets * 1000,
        created_ns: NOW - 10 * SECOND_NS,
        last_sent_ns: NOW - 1000,
        ..Flow::new()
    }
}

fn key(protocol: u8) -> Key {
    Key {
        dst: "10.0.0.9"
            .parse::<std::net::Ipv4Addr>()
            .unwrap()
            .to_ipv6_mapped()
            .octets(),
        dst_port: 7,
        endpoint: 1,
        protocol,
        ..Key::default()
    }
}

fn seen(key: &Key, flow: &Flow, policy: &abi::Endpoint) -> FlowsSeen {
    let mut seen = FlowsSeen::default();
    seen.add(key, flow, policy, NOW);
    seen
}

#[test]
fn receivers_that_do_not_echo() {
    let udp = key(protocol::UDP);
    let silent = |flow: &Flow| seen(&udp, flow, &policy()).silent.len();
    assert_eq!(silent(&sent(5000)), 1);
    // Too few packets, too young, or silent by now.
    assert_eq!(silent(&sent(900)), 0);
    let young = Flow {
        created_ns: NOW - 3 * SECOND_NS,
        ..sent(50_000)
    };
    assert_eq!(silent(&young), 0);
    let over = Flow {
        last_sent_ns: NOW - 3 * SECOND_NS,
        ..sent(50_000)
    };
    assert_eq!(silent(&over), 0);
    // It echoes, with losses on the way; then it has stopped.
    let mut acked = Flow {
        last_echo_ns: NOW - SECOND_NS / 10,
        ..sent(50_000)
    };
    acked.echo.synced = 1;
    acked.echo.packets = 40_000;
    assert_eq!(silent(&acked), 0);
    acked.last_echo_ns = NOW - 6 * SECOND_NS;
    assert_eq!(silent(&acked), 1);
    acked.echo.packets = 49_500;
    assert_eq!(silent(&acked), 0);
    // TCP's receiver reports marks in ACKs; a tunnel's packets are not made ECN-capable; nothing is controlled.
    assert!(
        seen(&key(protocol::TCP), &sent(5000), &policy())
            .silent
            .is_empty()
    );
    let tunnel = Key {
        dst_port: 4789,
        ..udp
    };
    assert!(seen(&tunnel, &sent(5000), &policy()).silent.is_empty());
    let off = abi::Endpoint {
        flags: 0,
        ..policy()
    };
    assert_eq!(seen(&udp, &sent(5000), &off), FlowsSeen::default());
    // Echoes may be seldom.
    let mut seldom = policy();
    seldom.echo.every_ns = 5 * SECOND_NS;
    assert!(seen(&udp, &sent(5000), &seldom).silent.is_empty());

    let endpoint = EndpointReading {
        flows: seen(&udp, &sent(5000), &policy()),
        ..endpoint(0, 0, 0)
    };
    let mut run = Run {
        echo_protocol: 253,
        ..Run::default()
    };
    let found = run.read(vec![], vec![endpoint], Shortages::default());
    assert_eq!(kinds(&found), [Kind::NoEcho]);
    assert_eq!(
        found[0].subject.to_string(),
        "receiver 10.0.0.9 of endpoint eth0 in h0"
    );
    assert!(found[0].message.contains("IP protocol 253"));
}

#[test]
fn limited_flows_and_those_at_the_lowest_rate() {
    let udp = key(protocol::UDP);
    let of = |ipd: u64, policy: &abi::Endpoint| {
        let mut flow = Flow {
            last_echo_ns: NOW - 1000,
            rate_bytes_per_s: LINK / ipd,
            ..sent(5000)
        };
        flow.echo.synced = 1;
        flow.response.ipd = ipd * ONE;
        let seen = seen(&udp, &flow, policy);
        (seen.limited, seen.at_floor, seen.floor_packets_per_s)
    };
    assert_eq!(of(1, &policy()), (0, 0, 0));
    assert_eq!(of(30, &policy()), (1, 0, 0));
    assert_eq!(of(64, &policy()), (1, 1, LINK / 64 / 1000));
    let mut fractional = policy();
    fractional.response.round = Round::Fractional as u32;
    assert_eq!(of(64, &fractional), (1, 0, 0));
    assert_eq!(of(65536, &fractional).1, 1);
}

#[test]
fn each_warning_is_logged_once_and_when_it_ends() {
    let warning = |kind| Warning {
        kind,
        subject: Subject::default(),
        message: "as it was first".to_owned(),
    };
    let mut journal = Journal::default();
    let mut at = |second: u64, found: &[Kind]| {
        let found = found.iter().map(|kind| warning(*kind)).collect();
        let (changed, changes) = journal.take(found, second * SECOND_NS);
        (changed, changes, journal.warnings().len())
    };
    let one = [Kind::NoEcho];
    assert_eq!(at(1, &[]), (false, vec![], 0));
    let appeared = vec![Change::Appeared(warning(Kind::NoEcho))];
    assert_eq!(at(2, &one), (true, appeared.clone(), 1));
    assert_eq!(at(3, &one), (false, vec![], 1));
    assert_eq!(at(5, &[]), (false, vec![], 1), "it may come back");
    assert_eq!(at(6, &one), (false, vec![], 1));
    let over = vec![Change::Over(warning(Kind::NoEcho))];
    assert_eq!(at(11, &[]), (true, over.clone(), 0));
    // Again within a minute: shown, and not logged.
    assert_eq!(at(20, &one), (true, vec![], 1));
    assert_eq!(at(30, &[]), (true, vec![], 0));
    assert_eq!(at(70, &one), (true, appeared, 1));
    assert_eq!(at(80, &[]), (true, over, 0));
}

/// Of many receivers that do not echo, a few are logged; all are shown.
#[test]
fn the_log_is_not_filled() {
    let of = |last: u8| Warning {
        kind: Kind::NoEcho,
        subject: Subject {
            receiver: Some(IpAddr::from([10, 0, 0, last])),
            ..Subject::default()
        },
        message: String::new(),
    };
    let mut journal = Journal::default();
    let mut logged = 0;
    for n in 0..30 {
        let (changed, changes) = journal.take(vec![of(n)], SECOND_NS);
        logged += changes.len();
        assert!(changed);
    }
    assert_eq!((logged, journal.warnings().len()), (LOGGED, 30));
    let (_, changes) = journal.take(vec![], 20 * SECOND_NS);
    assert_eq!(changes.len(), LOGGED);
}

#[test]
fn json_has_the_place_beside_the_kind() {
    let warning = Warning {
        kind: Kind::UnansweredMarks,
        subject: Subject::port("br0", "", "p1"),
        message: "why".to_owned(),
    };
    let text = serde_json::to_string(&warning).unwrap();
    assert_eq!(
        text,
        r#"{"kind":"unanswered-marks","bridge":"br0","port":"p1","message":"why"}"#
    );
    assert_eq!(serde_json::from_str::<Warning>(&text).unwrap(), warning);
    for kind in Kind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}
