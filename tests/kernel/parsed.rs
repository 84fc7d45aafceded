//! The marking program on mutated frames, by `BPF_PROG_TEST_RUN`: it parses them like the same cursor on the host, and
//! changes only the ECN field.

use std::cell::RefCell;

use ecn_core::{
    abi::{self, Count, Device, DeviceKey, name},
    echo,
    marking::{MarkAt, Marking, Policy},
    packet::{self, Ip as Headers, Pass, protocol},
    shares::ShareBy,
};
use ecn_tests::{
    emulated,
    frames::{Ip, tagged},
    kernel_test,
    lab::Lab,
    note,
    running::pin,
};
use ecn_user::datapath::{Datapath, Sizes, TestPacket};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};

/// Random frames; overridden by `PROPTEST_CASES`. When emulated a fifth, as each case reads all of a bridge's counters
/// twice.
const FRAMES: u32 = 3_000;

/// The frames to mutate: families, tags, extensions, fragments, control.
fn originals() -> Vec<Vec<u8>> {
    let v4 = Ip::of([10, 77, 0, 1], [10, 77, 0, 2]);
    let v6 = Ip::of(
        [0xfd77u16, 0, 0, 0, 0, 0, 0, 1],
        [0xfd77u16, 0, 0, 0, 0, 0, 0, 2],
    );
    let options = [protocol::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
    let whole = [protocol::UDP, 0, 0, 0, 0, 0, 0, 1];
    let chain = [&options[..], &whole, &[7; 60]].concat();
    let one = |frame: &[u8]| tagged(frame, packet::ETHERTYPE_VLAN, 5);
    let two = |frame: &[u8]| tagged(&one(frame), packet::ETHERTYPE_QINQ, 6);
    let plain = [
        v4.udp(1, 2, &[7; 60]),
        v6.udp(1, 2, &[7; 60]),
        v4.clone().fragment(3, true).with(protocol::UDP, &[7; 60]),
        v6.with(protocol::DESTINATION, &chain),
        v6.with(protocol::ICMPV6, &[128; 60]),
        v6.clone().ecn(packet::NOT_ECT).udp(1, 2, &[7; 60]),
    ];
    let tagged = [one(&plain[0]), two(&plain[0]), two(&plain[3])];
    [&plain[..], &tagged].concat()
}

fn changed() -> impl Strategy<Value = Vec<u8>> {
    let change = (12..70usize, any::<u8>());
    // A test run refuses IP frames that are shorter than their header: those need a device.
    let cut = prop_oneof![3 => Just(usize::MAX), 1 => 54..120usize];
    let original = proptest::sample::select(originals());
    (original, vec(change, 0..4), cut).prop_map(|(mut frame, changes, cut)| {
        for (at, value) in changes {
            frame[at] = value;
        }
        frame.truncate(cut);
        frame
    })
}

/// Sum of an IPv4 header as in its checksum: the same before and after.
fn sum(frame: &[u8], at: usize) -> u64 {
    let words = frame[at..at + 20].chunks(2);
    words
        .map(|w| u64::from(u16::from_be_bytes([w[0], w[1]])))
        .sum::<u64>()
        % 0xffff
}

fn marked(before: &[u8], after: &[u8], ip: &Headers) -> Result<(), TestCaseError> {
    let at = ip.l3 as usize;
    let mut expected = before.to_vec();
    expected[at + 1] = ip.with_ecn(packet::CE);
    if ip.version == 4 {
        expected[at + 10..at + 12].copy_from_slice(&after[at + 10..at + 12]);
        prop_assert_eq!(sum(after, at), sum(before, at));
    }
    prop_assert_eq!(after, &expected[..]);
    Ok(())
}

#[test]
fn changed_frames() {
    kernel_test!();
    let lab = Lab::new(0);
    let ifindex = lab.nl.add_bridge("port").expect("a device").index;
    let netns = lab.switch.inum();
    let frames = if emulated() { FRAMES / 5 } else { FRAMES };
    let cases = Config::default().cases.max(frames);
    // The device is in that namespace.
    let found = lab.switch.run(|| run_all(netns, ifindex, cases));
    note(&format!(
        "parsed: {cases} frames: marked, not ECN-capable, malformed, other: {found:?}"
    ));
    assert!(found.iter().all(|n| *n > 0), "{found:?}");
}

/// Numbers of marked, not ECN-capable, malformed and other frames.
fn run_all(netns: u32, ifindex: u32, cases: u32) -> [u64; 4] {
    let sizes = Sizes {
        bridges: 1,
        flows: 16,
    };
    let datapath = Datapath::open(&pin(), sizes).expect("load");
    let mut maps = datapath.maps().expect("maps");
    let control = abi::Control {
        abi: abi::ABI,
        flags: u32::from(echo::PROTOCOL) << abi::ECHO_PROTOCOL_AT,
        ..abi::Control::default()
    };
    maps.set_control(control).expect("control");
    let device = Device {
        role: abi::ROLE_PORT,
        port: 1,
        ..Device::default()
    };
    let key = DeviceKey { netns, ifindex };
    maps.set_device(key, device).expect("a device");
    // Nothing ever departs, so all but the first packet must be marked.
    let policy = Policy {
        marking: Marking::InputOutput as u32,
        mark_at: MarkAt::Arrival as u32,
        buffer: 65_535,
        threshold: 0,
        ports: 2,
        shares: ShareBy::Off as u32,
        drop_threshold: 0,
        _pad: 0,
    };
    maps.set_marking(0, policy).expect("a policy");
    let copy = RefCell::new(datapath.copy(netns, 0).expect("a copy"));
    let run = |frame: &[u8]| {
        let packet = TestPacket {
            frame,
            ifindex,
            ..TestPacket::default()
        };
        copy.borrow_mut().test_run(name::PORT_OUT, &packet, 1)
    };
    let found = RefCell::new([0u64; 4]);
    let each = |frame: Vec<u8>| {
        let unparsed = maps.count(Count::Unparsed).expect("a counter");
        let arrived = maps.bridge(0).expect("counters").port(1).arrived;
        let after = run(&frame).expect("run").frame;
        let unparsed = maps.count(Count::Unparsed).expect("a counter") - unparsed;
        let arrived = maps.bridge(0).expect("counters").port(1).arrived - arrived;
        let parsed = packet::parse(&frame[..]);
        // An echo gets a report of headroom, and is not marked.
        let is_marked = |ip: &Headers| ip.markable() && ip.protocol != echo::PROTOCOL;
        let kind = match parsed {
            Ok(ip) if is_marked(&ip) => 0,
            Ok(_) => 1,
            Err(Pass::Malformed) => 2,
            Err(_) => 3,
        };
        found.borrow_mut()[kind] += 1;
        prop_assert_eq!(arrived, u64::from(parsed.is_ok()));
        prop_assert_eq!(unparsed, u64::from(parsed == Err(Pass::Malformed)));
        match parsed {
            Ok(ip) if is_marked(&ip) => marked(&frame, &after, &ip),
            _ => {
                prop_assert_eq!(after, frame);
                Ok(())
            }
        }
    };
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    run(&originals()[0]).expect("the first one");
    if let Err(difference) = TestRunner::new(config).run(&changed(), each) {
        panic!("{difference}");
    }
    found.into_inner()
}
