//! The flow table at different sizes: time of a look-up that finds its flow, and memory.

use std::{fs, os::fd::AsRawFd as _, path::Path};

use aya::maps::MapData;
use ecn_core::abi::{self, Device, name};
use ecn_tests::{frames::Ip, lab::Lab, running::pin};
use ecn_user::datapath::{Sizes, TestPacket, pin_dir};
use serde_json::{Value, json};

use super::{median, micro::Loaded, tenth};

/// Flows in the table.
const SIZES: [u32; 3] = [1_000, 64_000, 1_000_000];
/// Flows looked up.
const SAMPLES: u32 = 4_000;
/// Runs with the same flow, alternating with an empty program.
const TURNS: usize = 11;
const REPEAT: u32 = 20_000;

/// One size.
pub struct Size {
    pub flows: u32,
    pub same_ns: f64,
    pub random_ns: f64,
    pub mebibytes: f64,
}

impl Size {
    pub fn json(&self) -> Value {
        json!({"flows": self.flows, "same_flow_over_empty_ns": tenth(self.same_ns),
            "random_flow_over_empty_ns": tenth(self.random_ns), "memory_mebibytes": tenth(self.mebibytes)})
    }
}

/// All of them.
pub fn sizes() -> Vec<Size> {
    let lab = Lab::new(0);
    let ifindex = lab.nl.add_bridge("endpoint").expect("a device").index;
    let size = |flows| {
        lab.switch
            .run(|| measure(lab.switch.inum(), ifindex, flows))
    };
    SIZES.into_iter().map(size).collect()
}

/// Writes the addresses of a flow into a frame: the program reads no checksum.
fn address(frame: &mut [u8], flow: u32) {
    frame[28..30].copy_from_slice(&((flow >> 16) as u16).to_be_bytes());
    frame[34..36].copy_from_slice(&(flow as u16).to_be_bytes());
}

fn measure(netns: u32, ifindex: u32, flows: u32) -> Size {
    let sizes = Sizes { bridges: 1, flows };
    let mut loaded = Loaded::new(netns, sizes);
    loaded.device(ifindex, Device::default());
    let mut frame = Ip::of([10, 77, 0, 1], [10, 78, 0, 2]).udp(1, 2, &[7; 64]);
    let mut one = |loaded: &mut Loaded, program: &str, flow, repeat| {
        address(&mut frame, flow);
        let packet = TestPacket {
            frame: &frame,
            ifindex,
            ..TestPacket::default()
        };
        loaded.run(program, &packet, repeat)
    };
    // Only flows with a class are looked up.
    let classes = flows.min(abi::CLASSES - abi::FIRST_CLASS - 1);
    for flow in 0..flows {
        if flow < classes {
            loaded.maps.offer_class(abi::FIRST_CLASS + flow);
        }
        one(&mut loaded, name::ENDPOINT_OUT, flow, 1);
    }
    let full = loaded.maps.count(abi::Count::FlowsFull).expect("a counter");
    assert_eq!(full, 0, "{flows} flows do not fit");
    let (mut random, mut random_empty) = (Vec::new(), Vec::new());
    let mut flow = 1u32;
    for _ in 0..SAMPLES {
        // A step that is coprime to any of the sizes.
        flow = (flow + 48_271) % classes;
        random_empty.push(one(&mut loaded, name::EMPTY, flow, 1));
        random.push(one(&mut loaded, name::ENDPOINT_OUT, flow, 1));
    }
    let (mut same, mut same_empty) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        same_empty.push(one(&mut loaded, name::EMPTY, 1, REPEAT));
        same.push(one(&mut loaded, name::ENDPOINT_OUT, 1, REPEAT));
    }
    Size {
        flows,
        same_ns: median(same) - median(same_empty),
        random_ns: median(random) - median(random_empty),
        mebibytes: memory(&pin_dir(&pin()).join("maps").join(name::FLOW)) / f64::from(1 << 20),
    }
}

/// Memory of a pinned map as the kernel reports it, bytes.
fn memory(pin: &Path) -> f64 {
    let map = MapData::from_pin(pin).expect("the map");
    let number = std::os::fd::AsFd::as_fd(map.fd()).as_raw_fd();
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let bytes = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    bytes
        .and_then(|bytes| bytes.trim().parse().ok())
        .unwrap_or(0.0)
}
