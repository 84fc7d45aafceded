//! How programs find a packet's device: they first look in `ECN_NEAR`, where devices share entries.

use ecn_core::{
    abi::{self, Device, DeviceKey, name},
    marking::{MarkAt, Marking, Policy},
    shares::ShareBy,
};
use ecn_tests::{frames::Ip, kernel_test, lab::Lab, running::pin};
use ecn_user::datapath::{Datapath, Sizes, TestPacket};

#[test]
fn devices_that_share_an_entry() {
    kernel_test!();
    let lab = Lab::new(0);
    let link = lab.nl.add_bridge("port").expect("a device");
    lab.switch.run(|| share(link.index));
}

fn share(ifindex: u32) {
    let key = |netns| DeviceKey { netns, ifindex };
    let keys: Vec<DeviceKey> = (1..)
        .map(key)
        .filter(|other| other.near() == key(1).near())
        .take(3)
        .collect();
    let sizes = Sizes {
        bridges: 1,
        flows: 16,
    };
    let datapath = Datapath::open(&pin(), sizes).expect("load");
    let mut maps = datapath.maps().expect("maps");
    let control = abi::Control {
        abi: abi::ABI,
        flags: 0,
        ..abi::Control::default()
    };
    maps.set_control(control).expect("control");
    let policy = Policy {
        marking: Marking::None as u32,
        mark_at: MarkAt::Arrival as u32,
        buffer: 1,
        threshold: 1,
        ports: 8,
        shares: ShareBy::Off as u32,
        drop_threshold: 0,
        _pad: 0,
    };
    maps.set_marking(0, policy).expect("a policy");
    let mut copies: Vec<_> = keys
        .iter()
        .map(|key| datapath.copy(key.netns, 0).expect("a copy"))
        .collect();
    let frame = Ip::of([10, 77, 0, 1], [10, 77, 0, 2]).udp(1, 2, &[0; 100]);
    let packet = TestPacket {
        frame: &frame,
        ifindex,
        ..TestPacket::default()
    };
    // Which devices exist, by their slots; consecutive steps differ in one device.
    let steps = [
        [0, 0, 0],
        [1, 0, 0],
        [1, 2, 0],
        [1, 2, 3],
        [4, 2, 3],
        [4, 5, 3],
        [0, 5, 3],
        [6, 5, 3],
        [6, 5, 0],
        [0, 5, 0],
        [0, 0, 0],
    ];
    let mut expected = [0u64; 8];
    let mut before = steps[0];
    for slots in steps {
        for ((&key, slot), before) in keys.iter().zip(slots).zip(before) {
            if slot == before {
                continue;
            }
            let device = Device {
                role: abi::ROLE_PORT,
                port: slot,
                ..Device::default()
            };
            match slot {
                0 => maps.remove_device(key),
                _ => maps.set_device(key, device).expect("a device"),
            }
        }
        before = slots;
        for (copy, slot) in copies.iter_mut().zip(slots) {
            copy.test_run(name::PORT_OUT, &packet, 1).expect("run");
            expected[slot as usize] += 1;
        }
        let bridge = maps.bridge(0).expect("counters");
        for (slot, expected) in (1..).zip(&expected[1..]) {
            assert_eq!(bridge.port(slot).arrived, *expected, "{slot} at {slots:?}");
        }
        assert_eq!(bridge.port(0).arrived, 0, "{slots:?}");
    }
}
