//! More flows than the tables hold.

use ecn_core::{abi::Count, packet::NOT_ECT};
use ecn_tests::{
    eventually,
    frames::Ip,
    kernel_test,
    lab::Lab,
    running::{self, Running},
    s,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{agent::Options, config::Marking, units::DurationText};

/// Flows that an endpoint may have, flows in total, packets of each.
const HELD: u64 = 100;
const FLOWS: u64 = 300;
const EACH: u64 = 10;

/// Flows beyond the tables pass unchanged and are counted, and the others stay controlled. Once those have been idle,
/// there is room again.
#[test]
fn flows_beyond_the_table() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut config = running::config(&lab, Marking::InputOutput);
    // One endpoint may use all free entries.
    config.flow.max = 2 * HELD as u32;
    config.flow.idle = DurationText::from_secs(2);
    let config = running::with_endpoints(config, &lab, &[0, 1], 12_500_000);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    let wire = Wire::open(&from.ns, from.ifindex).send_slowly();
    let packets = Ip::between(from, to, false).ecn(NOT_ECT);
    let send = |first: u64, flows: u64| {
        for _ in 0..EACH {
            for flow in first..first + flows {
                wire.send(&packets.udp(flow as u16, 7002, &[5; 100]));
            }
        }
    };
    let flows = || running.maps.flows().expect("flows");
    let sent = |first: u64| {
        let of = flows();
        let of = of.iter().filter(|(key, _)| {
            key.endpoint == 1 && u64::from(key.src_port) >= first && key.dst_port == 7002
        });
        of.map(|(_, flow)| flow.sent_packets).collect::<Vec<_>>()
    };

    send(10_000, FLOWS);
    let port = running.all_left(&to.port, FLOWS * EACH);
    assert_eq!((port.arrived, port.dropped), (FLOWS * EACH, 0));
    assert_eq!(sent(10_000), [EACH; HELD as usize]);
    assert_eq!(running.count(Count::FlowsFull), (FLOWS - HELD) * EACH);
    // Flows without an entry are not made ECN-capable: nothing would react to their marks.
    let receivers = running.maps.receivers().expect("receivers");
    assert_eq!(receivers.len() as u64, HELD);
    assert!(receivers.iter().all(|(_, r)| r.packets == EACH));
    assert_eq!(running.count(Count::ReceiversFull), 0);
    let acked = || {
        flows()
            .iter()
            .map(|(_, flow)| flow.acked_packets)
            .sum::<u64>()
    };
    assert!(eventually(s(5), || acked() == HELD * EACH), "{}", acked());

    assert!(
        eventually(s(20), || flows().is_empty()),
        "{}",
        flows().len()
    );
    send(20_000, HELD);
    let all = || sent(20_000) == [EACH; HELD as usize];
    assert!(eventually(s(5), all), "{:?}", sent(20_000));
    assert_eq!(running.count(Count::FlowsFull), (FLOWS - HELD) * EACH);
}
