use std::cmp::Ordering;

use super::sort::{FLOW_KEYS, PORT_KEYS, natural};
use super::*;
use crate::agent::health::{Kind, Subject};

/// Section 7 of the design, word for word.
const PORT_CONTRACT: &str = r#"[{"bridge": "brb", "port": "root", "ifindex": 7, "marking": "input-output", "waiting_packets": 0, "to_mark_packets": 0,
  "occupancy_packets": 0, "marked_packets": 0, "unmarkable_packets": 0, "input_triggers": 0, "output_triggers": 0, "dropped_packets": 0, "dropped_unmarkable_packets": 0}]"#;
const FLOW_CONTRACT: &str = r#"[{"src": "10.0.0.1", "dst": "10.0.1.1", "protocol": "udp", "src_port": 1, "dst_port": 2, "device": "eth0", "netns": "a1",
  "response": "lipd", "rate_bytes_per_s": 0, "ipd_packet_times": 20.0, "marked_packets": 0, "acked_packets": 0,
  "enforcement": "htb", "pinned": false, "idle_ms": 0}]"#;

fn squeezed(json: &str) -> String {
    json.split_whitespace().collect()
}

fn ports() -> Vec<PortRow> {
    serde_json::from_str(PORT_CONTRACT).unwrap()
}

fn flows() -> Vec<FlowRow> {
    serde_json::from_str(FLOW_CONTRACT).unwrap()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

#[test]
fn json_is_that_of_the_contract() {
    // Fields added after the contract was written are at the end.
    let text = serde_json::to_string(&ports()).unwrap();
    let contract = squeezed(PORT_CONTRACT);
    assert_eq!(
        text,
        contract.replace(
            "}]",
            r#","attached":null,"warnings":[],"netns":"","arrived_packets":0,"sent_messages":null,"held_messages":null,"congestion_point":null,"equilibrium_packets":null,"sampled_packets":null,"sampled_feedback":null}]"#
        ),
        "ports"
    );
    let text = serde_json::to_string(&flows()).unwrap();
    let contract = squeezed(FLOW_CONTRACT);
    assert_eq!(
        text,
        contract.replace(
            "}]",
            r#","sent_bytes":0,"limiter":null,"congestion_point":null,"target_rate_bytes_per_s":null}]"#
        ),
        "flows"
    );
}

#[test]
fn every_json_key_sorts() {
    fn keys(json: &str) -> Vec<String> {
        let rows: Vec<serde_json::Map<String, serde_json::Value>> =
            serde_json::from_str(json).unwrap();
        rows[0].keys().cloned().collect()
    }
    // Fields added later can be sorted by, too.
    assert_eq!(keys(PORT_CONTRACT).len() + 8, PORT_KEYS.len());
    for key in keys(PORT_CONTRACT) {
        sort_ports(&mut ports(), Some(&key)).unwrap();
    }
    assert_eq!(keys(FLOW_CONTRACT).len() + 4, FLOW_KEYS.len());
    for key in keys(FLOW_CONTRACT) {
        sort_flows(&mut flows(), Some(&key)).unwrap();
    }
}

#[test]
fn ports_sort_by_name_and_by_count() {
    let port = |port: &str, marked_packets| PortRow {
        port: port.to_owned(),
        marked_packets,
        ..ports().remove(0)
    };
    let mut rows = vec![port("a10", 5), port("a2", 5), port("b1", 9)];
    let names = |rows: &[PortRow]| {
        rows.iter()
            .map(|row| row.port.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    sort_ports(&mut rows, None).unwrap();
    assert_eq!(names(&rows), "a2 a10 b1");
    sort_ports(&mut rows, Some("marked")).unwrap();
    assert_eq!(names(&rows), "b1 a2 a10");
}

#[test]
fn unlimited_flows_sort_as_the_fastest() {
    let flow = |src_port, rate_bytes_per_s| FlowRow {
        src_port,
        rate_bytes_per_s,
        ..flows().remove(0)
    };
    let mut rows = vec![flow(1, 5), flow(2, 0), flow(3, 9)];
    sort_flows(&mut rows, Some("rate")).unwrap();
    assert_eq!(
        rows.iter().map(|row| row.src_port).collect::<Vec<_>>(),
        [2, 3, 1]
    );
}

#[test]
fn unknown_sort_keys_are_refused_with_the_valid_ones() {
    assert_eq!(
        sort_ports(&mut ports(), Some("marked_packet"))
            .unwrap_err()
            .to_string(),
        "cannot sort by `marked_packet`: did you mean `marked_packets`?"
    );
    assert_eq!(
        sort_flows(&mut flows(), Some("color"))
            .unwrap_err()
            .to_string(),
        "cannot sort by `color`: expected one of src, dst, protocol, src_port, dst_port, device, \
         netns, response, rate_bytes_per_s, ipd_packet_times, marked_packets, acked_packets, \
         enforcement, pinned, idle_ms, sent_bytes, limiter, congestion_point, target_rate_bytes_per_s"
    );
}

#[test]
fn names_compare_as_people_count() {
    for (a, b) in [
        ("a2", "a10"),
        ("a", "a1"),
        ("a1b2", "a1b10"),
        ("a1", "b0"),
        ("a01", "a1"),
    ] {
        assert_eq!(natural(a, b), Ordering::Less, "{a} {b}");
        assert_eq!(natural(b, a), Ordering::Greater, "{a} {b}");
    }
    assert_eq!(natural("eth0", "eth0"), Ordering::Equal);
}

#[test]
fn flows_are_filtered() {
    let row = &flows()[0];
    for (filter, expected) in [
        ("", true),
        ("dev eth0", true),
        ("dev eth1", false),
        ("src 10.0.0.1", true),
        ("src 10.0.0.2", false),
        ("src 10.0.0.0/24 dst 10.0.1.1:2", true),
        ("dst 10.0.1.1:3", false),
        ("src 10.0.0.128/25", false),
        ("src 0.0.0.0/0", true),
        ("src ::/0", false),
        ("netns a1 protocol UDP", true),
        ("proto udp", true),
        ("proto 17", true),
        ("proto 6", false),
        ("netns a2", false),
        ("protocol tcp", false),
    ] {
        let filter = FlowFilter::parse(words(filter)).unwrap();
        assert_eq!(filter.matches(row), expected, "{filter:?}");
    }
    let v6 = FlowRow {
        src: "fd00::7".parse().unwrap(),
        ..row.clone()
    };
    for (filter, expected) in [
        ("src fd00::/64", true),
        ("src ::/0", true),
        ("src [fd00::7]:1", true),
        ("src fd01::/64", false),
        ("src 0.0.0.0/0", false),
    ] {
        assert_eq!(
            FlowFilter::parse(words(filter)).unwrap().matches(&v6),
            expected
        );
    }
}

#[test]
fn ports_are_filtered() {
    let row = &ports()[0];
    for (filter, expected) in [
        ("", true),
        ("dev root", true),
        ("dev x", false),
        ("bridge brb dev root", true),
    ] {
        assert_eq!(
            PortFilter::parse(words(filter)).unwrap().matches(row),
            expected
        );
    }
}

#[test]
fn bad_filters_are_refused() {
    for (filter, expected) in [
        (
            "device eth0",
            "cannot select by `device`: expected one of dev, src, dst, netns, protocol",
        ),
        (
            "protocl udp",
            "cannot select by `protocl`: did you mean `protocol`?",
        ),
        ("dev", "a value is missing after `dev`"),
        (
            "proto foo",
            "unknown protocol `foo`: expected a name such as udp, or a number from 0 to 255",
        ),
        ("proto udp protocol tcp", "`protocol` is given twice"),
        ("dev a dev b", "`dev` is given twice"),
        (
            "src 10.0.0.0/33",
            "`10.0.0.0/33` is not an address: accepted are 10.0.0.1, 10.0.0.0/24, \
             10.0.0.1:5000 and the same for IPv6, such as [fd00::1]:5000",
        ),
    ] {
        assert_eq!(
            FlowFilter::parse(words(filter)).unwrap_err().to_string(),
            expected
        );
    }
}

#[test]
fn rates_in_tables_are_short_and_in_tc_syntax() {
    assert_eq!(rate_text(0), "-");
    assert_eq!(rate_text(12_500_000), "100mbit");
    assert_eq!(rate_text(195_312), "1.56mbit");
}

#[test]
fn the_port_table_fits_80_columns() {
    let row = PortRow {
        waiting_packets: 128,
        to_mark_packets: 100,
        occupancy_packets: 1000,
        marked_packets: 1_234_567,
        unmarkable_packets: 1_234_567,
        input_triggers: 1_234_567,
        output_triggers: 1_234_567,
        dropped_packets: 588_123,
        dropped_unmarkable_packets: 1_234_567,
        attached: Some(AttachedBy::Tcx),
        ..ports().remove(0)
    };
    let text = ports_table(&[row]);
    let expected = "\
bridge  port  mark-   wait    to    in  marks    not   trig   trig  drops  share
              ing           mark   buf           ECT     in    out         drops
brb     root  in-out   128   100  1000  1.23M  1.23M  1.23M  1.23M   588k  1.23M
";
    assert_eq!(text, expected);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert_eq!(ports_table(&[]), "no ports\n");
}

/// Ports that mark by messages have two columns, those that sample their queues six, and others no row.
#[test]
fn messages_have_a_table_of_their_own() {
    let port = |port: &str, marking, messages| PortRow {
        port: port.to_owned(),
        marking,
        messages,
        ..ports().remove(0)
    };
    let marks = Messages {
        sent_messages: Some(1_234_567),
        held_messages: Some(588_123),
        ..Messages::default()
    };
    let samples = Messages {
        congestion_point: Some("0f2ab1c0".to_owned()),
        equilibrium_packets: Some(8),
        sampled_packets: Some(5000),
        sampled_feedback: Some(-7_555_648),
        ..marks.clone()
    };
    let silent = Messages {
        sampled_packets: None,
        sampled_feedback: None,
        ..samples.clone()
    };
    let other = port("x", Marking::Input, Messages::default());
    let marks = port("root", Marking::InputOutput, marks);
    let expected = "
bridge  port  messages  held
brb     root     1.23M  588k
";
    let text = ports_table(&[other, marks.clone()]);
    assert!(text.ends_with(expected), "{text}");
    let (samples, silent) = (
        port("a", Marking::Bcn, samples),
        port("b", Marking::Qcn, silent),
    );
    let expected = "
bridge  port  messages  held     point  Qeq  sampled      Fb
brb     a        1.23M  588k  0f2ab1c0    8     5000  -7.56M
brb     b        1.23M  588k  0f2ab1c0    8        -       -
brb     root     1.23M  588k         -    -        -       -
";
    let text = ports_table(&[samples, silent, marks]);
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn warnings_fit_80_columns() {
    let warning = Warning {
        kind: Kind::UnansweredMarks,
        subject: Subject::port("br0", "sw", "to-c"),
        message: "3749 packets per second are marked, and for 10 s arrivals have not fallen: 67 % is dropped."
            .to_owned(),
    };
    let expected = "\
warning: port to-c of br0 in sw: 3749 packets per second are marked, and for 10
  s arrivals have not fallen: 67 % is dropped. (unanswered-marks)
";
    assert_eq!(warnings_text(&[warning]), expected);
    assert_eq!(warnings_text(&[]), "");
}

#[test]
fn the_flow_table_shows_what_there_is() {
    let mut rows = flows();
    rows.push(FlowRow {
        src: "fd00::7".parse().unwrap(),
        dst: "fd00::8".parse().unwrap(),
        netns: String::new(),
        rate_bytes_per_s: 12_345_678,
        pinned: true,
        idle_ms: 12_345,
        ..rows[0].clone()
    });
    let expected = "\
flow                         device  netns  resp        rate   ipd  marked  acked  by   idle
10.0.0.1:1>10.0.1.1:2/udp    eth0    a1     lipd           -  20.0       0      0  htb   0ms
[fd00::7]:1>[fd00::8]:2/udp  eth0    -      pinned  98.8mbit  20.0       0      0  htb   12s
";
    assert_eq!(flows_table(&rows), expected);
    assert_eq!(flows_table(&[]), "no flows\n");
    rows[0] = FlowRow {
        rate_bytes_per_s: 1_250_000,
        limiter: Some(Marking::Qcn),
        congestion_point: Some("0f2ab1c0".to_owned()),
        target_rate_bytes_per_s: Some(2_500_000),
        ..rows[0].clone()
    };
    let expected = "\
flow                         device  netns  resp        rate   ipd  marked  acked  by   idle     point  target
10.0.0.1:1>10.0.1.1:2/udp    eth0    a1     qcn       10mbit  20.0       0      0  htb   0ms  0f2ab1c0  20mbit
[fd00::7]:1>[fd00::8]:2/udp  eth0    -      pinned  98.8mbit  20.0       0      0  htb   12s         -       -
";
    assert_eq!(flows_table(&rows), expected);
}
