//! How many rates can be changed per second.

use std::time::{Duration, Instant};

use ecn_tests::lab::{FRAME, Lab};
use ecn_user::net::htb::{ClassBatch, ClassSocket, EndpointHtb, FIRST_FLOW_MINOR};
use serde_json::{Value, json};

/// Changes sent together.
const BATCHES: [u16; 3] = [1, 16, 256];
/// Duration of each measurement.
const TIME: Duration = Duration::from_millis(1000);
/// 10 Gbit/s.
const LINK: u64 = 1_250_000_000;

/// One batch size.
pub struct Rate {
    pub batch: u16,
    pub per_s: f64,
}

impl Rate {
    pub fn json(&self) -> Value {
        json!({"enforcement": "htb", "batch": self.batch, "changes_per_s": self.per_s.round()})
    }
}

/// HTB classes by netlink.
pub fn htb() -> Vec<Rate> {
    let lab = Lab::new(1);
    let host = &lab.hosts[0];
    let device = EndpointHtb {
        ifindex: host.ifindex,
        link_bytes_per_s: LINK,
        frame_bytes: FRAME,
    };
    device.install(&host.nl).expect("HTB");
    for flow in 0..256 {
        let class = device.add_flow_class(&host.nl, FIRST_FLOW_MINOR + flow, LINK);
        class.expect("a class");
    }
    let mut socket = ClassSocket::open(&host.ns).expect("netlink");
    let mut measure = |batch: u16| {
        let mut changes = ClassBatch::new();
        let (start, mut done, mut next) = (Instant::now(), 0u64, 0u16);
        while start.elapsed() < TIME {
            for _ in 0..batch {
                next = (next + 1) % 256;
                // Never the current rate.
                let rate = LINK / 64 + done % 977 * 1000;
                device.set_flow_rate(&mut changes, FIRST_FLOW_MINOR + next, rate);
            }
            let accepted = changes.send(&mut socket).expect("send");
            assert_eq!(accepted, usize::from(batch), "{:?}", changes.failures());
            done += u64::from(batch);
        }
        Rate {
            batch,
            per_s: done as f64 / start.elapsed().as_secs_f64(),
        }
    };
    BATCHES.into_iter().map(&mut measure).collect()
}
