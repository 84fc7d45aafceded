//! The agent, run in this process.

use std::{path::PathBuf, sync::OnceLock, time::Duration};

use ecn_core::{abi::Count, echo, flow, marking};
use ecn_user::{
    agent::{Agent, Options, state::Lock},
    config::{self, Config, Marking},
    datapath::{BridgeView, Datapath, Maps, Sizes, TraceEvents},
    units::Rate,
};
use tokio::runtime::Runtime;

use crate::{
    eventually,
    lab::{BRIDGE, DEVICE, Lab},
};

/// Pin path of the tests.
pub fn pin() -> PathBuf {
    PathBuf::from(format!("/sys/fs/bpf/ecn-t-{}", std::process::id()))
}

/// Rate of virtual queues at ports without a limit: higher than any test sends.
const UNLIMITED: u64 = 1_250_000_000;

/// Whether this kernel can count departures from ports' own queues.
pub fn watches_queues() -> bool {
    static WATCHES: OnceLock<bool> = OnceLock::new();
    let sizes = Sizes {
        bridges: 1,
        flows: 64,
    };
    // Not if a test has already pinned something.
    let folder = || PathBuf::from(format!("{}-probe", pin().display()));
    let open = || Datapath::open(&folder(), sizes).expect("load");
    *WATCHES.get_or_init(|| open().watches_queues())
}

/// A configuration with the lab's bridge. Where ports' own queues cannot be watched it has virtual queues, with the limits
/// set so far.
pub fn config(lab: &Lab, marking: Marking) -> Config {
    let mut bridge = config::Bridge::new(BRIDGE);
    bridge.netns = Some(lab.switch.name().to_owned());
    bridge.marking = marking;
    if !watches_queues() {
        virtual_queues(&mut bridge, lab);
    }
    let mut config = Config {
        bridges: vec![bridge],
        ..Config::default()
    };
    config.agent.pin = pin();
    config
}

/// Virtual queues, of the rates to which ports are limited.
pub fn virtual_queues(bridge: &mut config::Bridge, lab: &Lab) {
    bridge.queue = config::Queue::Virtual;
    bridge.queue_rate = Some(rate(UNLIMITED));
    let limits = lab.limits.borrow();
    let limits = limits.iter().map(|(port, of)| (port.clone(), rate(*of)));
    bridge.queue_rates = limits.collect();
}

/// Adds hosts as endpoints; the n-th becomes endpoint number n + 1.
pub fn with_endpoints(mut config: Config, lab: &Lab, hosts: &[usize], bytes_per_s: u64) -> Config {
    for &host in hosts {
        let mut endpoint = config::Endpoint::new(DEVICE);
        endpoint.netns = Some(lab.hosts[host].ns.name().to_owned());
        endpoint.link_rate = Some(rate(bytes_per_s));
        config.endpoints.push(endpoint);
    }
    config
}

/// A rate as configured.
pub fn rate(bytes_per_s: u64) -> Rate {
    format!("{}bit", bytes_per_s * 8).parse().expect("a rate")
}

/// A running agent; stopped when dropped. Drop it before the lab.
pub struct Running {
    // Dropped in this order.
    agent: Agent,
    _lock: Lock,
    runtime: Runtime,
    /// The shared maps.
    pub maps: Maps,
}

impl Running {
    /// Starts it.
    pub fn start(config: Config, options: Options) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let lock = Lock::take().expect("no other agent in this mount namespace");
        let agent = Agent::start(config, options, &lock).unwrap_or_else(|e| panic!("start: {e}"));
        let maps = agent.maps().expect("maps");
        drop(entered);
        Self {
            agent,
            _lock: lock,
            runtime,
            maps,
        }
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Slot of a port.
    pub fn slot(&self, port: &str) -> u32 {
        let state = self.agent.state();
        let found = state.bridges[0].ports.iter().find(|p| p.name == port);
        found
            .unwrap_or_else(|| panic!("no port {port} in {state:?}"))
            .slot
    }

    /// The bridge's counters.
    pub fn view(&self) -> BridgeView {
        self.maps.bridge(0).expect("counters")
    }

    /// Counters of a port.
    pub fn port(&self, port: &str) -> marking::Port {
        self.view().port(self.slot(port))
    }

    /// Waits until `n` packets have arrived at a port and all are counted as departed. Under load some runs of the
    /// tracepoint's program are missing, for an unknown reason; the agent repairs those counts. It also repairs the count of
    /// packets that are still between hook and queue, which are counted again when they depart.
    #[track_caller]
    pub fn all_left(&self, port: &str, n: u64) -> marking::Port {
        let left = || {
            let port = self.port(port);
            (port.departed..=port.departed + port.repaired).contains(&n)
        };
        let all = eventually(Duration::from_secs(3), left);
        let port = self.port(port);
        assert!(
            all && port.arrived == n && port.repaired * 10 <= n,
            "{port:?}"
        );
        port
    }

    /// Waiting packets by every counter; empty if nothing waits.
    pub fn waiting(&self) -> Vec<String> {
        let view = self.view();
        let mut found = Vec::new();
        for i in 0..32 {
            let p = view.port(i);
            // Not cnt2: under arrival marking the next arrival clips it.
            if p.cnt1 != 0 || p.occupancy != 0 {
                found.push(format!(
                    "slot {i}: cnt1 {} occupancy {}",
                    p.cnt1, p.occupancy
                ));
            }
            let waits = |o: &u32| view.waiting(i, *o) != 0;
            found.extend((0..32).filter(waits).map(|o| format!("waiting({i}, {o})")));
        }
        found
    }

    /// Events at ports so far.
    pub fn trace(&self) -> TraceEvents {
        TraceEvents::open(&pin()).expect("trace ring")
    }

    /// A counter.
    pub fn count(&self, what: Count) -> u64 {
        self.maps.count(what).expect("counter")
    }

    /// All counters, for assertion messages.
    pub fn counts(&self) -> String {
        let all = Count::ALL.map(|what| format!("{what:?} {}", self.count(what)));
        all.join(", ")
    }

    /// Acknowledged packets of the one flow that matches; 0 before the agent knows it.
    pub fn acked(&self, matches: impl Fn(&flow::Key) -> bool) -> u64 {
        let all = self.maps.flows().expect("flows");
        let found: Vec<_> = all.iter().filter(|(key, _)| matches(key)).collect();
        assert!(found.len() <= 1, "{found:?}");
        found.first().map_or(0, |(_, flow)| flow.acked_packets)
    }

    /// The one flow that matches.
    pub fn flow(&self, matches: impl Fn(&flow::Key) -> bool) -> (flow::Key, flow::Flow) {
        let all = self.maps.flows().expect("flows");
        let mut found: Vec<_> = all
            .iter()
            .filter(|(key, _)| matches(key))
            .copied()
            .collect();
        assert_eq!(found.len(), 1, "of {all:?}");
        found.remove(0)
    }

    /// The one received flow that matches.
    pub fn receiver(&self, matches: impl Fn(&flow::Key) -> bool) -> echo::Receiver {
        let all = self.maps.receivers().expect("receivers");
        let found: Vec<_> = all.iter().filter(|(key, _)| matches(key)).collect();
        assert_eq!(found.len(), 1, "of {all:?}");
        found[0].1
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}
