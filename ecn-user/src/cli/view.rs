//! Reads the pinned maps, with the names that the agent publishes for the numbers in them, into the rows of
//! `ecn port show` and `ecn flow show`.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ecn_core::{
    abi,
    backward::{self, Feedback, Kind},
    bcn, flow, marking, reaction,
};
use nix::unistd::{AccessFlags, access};

use crate::agent::enforce::now_ns;
use crate::agent::health::{Subject, Warning};
use crate::agent::state::{BridgeState, EndpointState, Lock, PortState, State};
use crate::config::{Agent, Enforcement, Function, Marking};
use crate::datapath::{self, Maps, pin_dir};

use super::exit::Failure;
use super::key::{FlowName, protocol_name};
use super::table::{FlowRow, Messages, PortRow};

/// A running datapath, as seen from outside.
pub struct View {
    /// Its maps.
    pub maps: Maps,
    /// Names for the numbers in them.
    pub state: State,
}

/// The directory of the pins: the given one, that of the agent, or the default.
pub fn pin_or_default(pin: Option<&Path>, state: Option<&State>) -> PathBuf {
    match (pin, state) {
        (Some(pin), _) => pin.to_owned(),
        (None, Some(state)) => state.pin.clone(),
        (None, None) => Agent::default().pin,
    }
}

/// A port, with its counters and those of its messages.
pub type PortCounters<'a> = (
    &'a BridgeState,
    &'a PortState,
    marking::Port,
    backward::Point,
);

impl View {
    /// Opens the maps below `pin`, or where the running agent has them.
    ///
    /// # Errors
    ///
    /// No datapath is running, it is of another version, or this user may not read it.
    pub fn open(pin: Option<&Path>) -> anyhow::Result<Self> {
        let state = State::read();
        let pin = pin_or_default(pin, state.as_ref());
        readable(&pin)?;
        let maps = Maps::open(&pin)?;
        // The names of another agent's devices would be wrong.
        let state = state.filter(|state| state.pin == pin).unwrap_or_default();
        Ok(Self { maps, state })
    }

    /// Why rates do not change: the agent was stopped or killed without removing its pins, or is silent.
    pub fn stale(&self) -> Option<String> {
        let control = self.maps.control().ok()?;
        if self.state.keep && Lock::holder().is_none() {
            let limits = if now_ns() < control.valid_until_ns {
                "lapse shortly"
            } else {
                "have lapsed"
            };
            return Some(format!(
                "no agent is running: ports still mark as last configured, and rate limits {limits}; \
                 `ecn run --keep` takes over, `ecn clean` removes everything"
            ));
        }
        let ago_ns = now_ns().checked_sub(control.valid_until_ns)?;
        (control.valid_until_ns != 0).then(|| {
            format!(
                "the agent is silent, and rate limits lapsed {} s ago; \
                 if it was killed, `ecn clean` removes what it left",
                ago_ns / 1_000_000_000 + 1
            )
        })
    }

    /// All ports, without the host itself.
    ///
    /// # Errors
    ///
    /// A map cannot be read.
    pub fn ports(&self) -> anyhow::Result<Vec<PortRow>> {
        let row = |(bridge, port, p, point): PortCounters<'_>| PortRow {
            bridge: bridge.name.clone(),
            port: port.name.clone(),
            ifindex: port.ifindex,
            marking: marking_of(&self.maps, bridge),
            waiting_packets: p.cnt1.into(),
            to_mark_packets: p.cnt2.into(),
            occupancy_packets: p.occupancy.into(),
            marked_packets: p.marked,
            unmarkable_packets: p.unmarkable,
            input_triggers: p.input_triggers,
            output_triggers: p.output_triggers,
            dropped_packets: p.dropped,
            dropped_unmarkable_packets: p.dropped_unmarkable,
            attached: port.attached,
            warnings: self.warnings_at(bridge, &port.name),
            netns: bridge.netns.clone(),
            arrived_packets: p.arrived,
            messages: messages(
                &self.maps.backward(bridge.number).unwrap_or_default(),
                port.slot,
                &point,
            ),
        };
        Ok(self.port_counters()?.into_iter().map(row).collect())
    }

    /// The counters of all ports, without the host itself.
    ///
    /// # Errors
    ///
    /// A map cannot be read.
    pub fn port_counters(&self) -> datapath::Result<Vec<PortCounters<'_>>> {
        let mut ports = Vec::new();
        for bridge in &self.state.bridges {
            let counters = self.maps.bridge_at(bridge.number, now_ns())?;
            let without_host = |port: &&PortState| port.slot != u32::from(marking::HOST);
            let of_bridge = bridge.ports.iter().filter(without_host);
            for port in of_bridge {
                let point = self.maps.point(bridge.number, port.slot)?;
                ports.push((bridge, port, counters.port(port.slot), point));
            }
        }
        Ok(ports)
    }

    /// Current warnings; none if no agent is running, since nothing is known then.
    pub fn warnings(&self) -> &[Warning] {
        if self.stale().is_some() {
            return &[];
        }
        &self.state.warnings
    }

    fn warnings_at(&self, bridge: &BridgeState, port: &str) -> Vec<Warning> {
        let subject = Subject::port(&bridge.name, &bridge.netns, port);
        let of_port = |warning: &&Warning| warning.subject == subject;
        self.warnings().iter().filter(of_port).cloned().collect()
    }

    /// All flows sent from local endpoints, with their keys.
    ///
    /// # Errors
    ///
    /// A map cannot be read.
    pub fn flows(&self) -> anyhow::Result<Vec<(flow::Key, FlowRow)>> {
        let pins = self.maps.pins()?.into_iter().collect();
        Ok(self.flow_rows(self.maps.flows()?, &pins))
    }

    /// Rows of some flows; `pins`: pinned rates.
    pub fn flow_rows(
        &self,
        flows: Vec<(flow::Key, flow::Flow)>,
        pins: &HashMap<flow::Key, u64>,
    ) -> Vec<(flow::Key, FlowRow)> {
        let mut policies = HashMap::new();
        let now_ns = now_ns();
        let row = |(key, flow): (flow::Key, flow::Flow)| {
            let endpoint = self.endpoint(key.endpoint);
            let (response, link_bytes_per_s) = *policies
                .entry(key.endpoint)
                .or_insert_with(|| policy_of(&self.maps, key.endpoint, endpoint));
            let row = flow_row(
                &key,
                &flow,
                endpoint,
                response,
                pins.get(&key).copied(),
                link_bytes_per_s,
                now_ns,
            );
            (key, row)
        };
        flows.into_iter().map(row).collect()
    }

    /// The endpoint with this number.
    pub fn endpoint(&self, number: u16) -> Option<&EndpointState> {
        self.state
            .endpoints
            .iter()
            .find(|endpoint| endpoint.number == u32::from(number))
    }
}

/// Fails if there is no datapath, if this user may not read it, or if it is of another version.
fn readable(pin: &Path) -> anyhow::Result<()> {
    let maps = pin_dir(pin).join("maps");
    let denied = || {
        let message = format!("no permission to read {}: run as root", maps.display());
        Err(Failure::lacking(message).into())
    };
    match fs::metadata(&maps) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return denied(),
        Err(_) => {
            let other = fs::read_dir(pin).ok().and_then(|entries| {
                let names = entries.flatten().map(|entry| entry.file_name());
                names
                    .filter_map(|name| name.into_string().ok())
                    .find(|name| name.starts_with('v'))
            });
            return match other {
                Some(other) => Err(Failure::lacking(format!(
                    "the datapath at {} is of another version ({other}, this is v{}): use the \
                     `ecn` of that version, or stop it",
                    pin.display(),
                    abi::ABI
                ))
                .into()),
                None => Err(datapath::Error::NotRunning(maps).into()),
            };
        }
    }
    match access(
        &maps.join(abi::name::CONTROL),
        AccessFlags::R_OK | AccessFlags::W_OK,
    ) {
        Err(nix::errno::Errno::EACCES | nix::errno::Errno::EPERM) => denied(),
        _ => Ok(()),
    }
}

/// The marking in force: that of the map, or that of the state file if the map cannot be read.
fn marking_of(maps: &Maps, bridge: &BridgeState) -> Marking {
    let policy = maps.marking(bridge.number).ok();
    policy
        .and_then(|policy| Marking::from_number(policy.marking))
        .unwrap_or(bridge.marking)
}

/// Likewise the response in force at an endpoint, and the rate of its link (0: unknown).
fn policy_of(maps: &Maps, number: u16, endpoint: Option<&EndpointState>) -> (Function, u64) {
    let policy = maps.endpoint(number.into()).ok();
    let response = policy
        .and_then(|policy| Function::from_number(policy.response.function))
        .or(endpoint.map(|endpoint| endpoint.response))
        .unwrap_or(Function::None);
    (response, policy.map_or(0, |policy| policy.link_bytes_per_s))
}

/// The messages of the port in a slot.
fn messages(policy: &backward::Policy, slot: u32, point: &backward::Point) -> Messages {
    if policy.feedback == Feedback::Echo as u32 {
        return Messages::default();
    }
    let sampling = &policy.sampling;
    let is = |kind: Kind| sampling.kind == kind as u32;
    let packets = |bytes: u32| {
        let rounded = bytes.saturating_add(sampling.packet_bytes / 2);
        u64::from(rounded / sampling.packet_bytes.max(1))
    };
    let feedback = if is(Kind::Bcn) {
        bcn::Feedback::from_word(point.feedback).value(sampling.weight)
    } else {
        point.feedback.into()
    };
    let samples = !is(Kind::Marks);
    // `until` is 0 until the first packet, which is sampled, and never again.
    let sampled = samples && point.until != 0;
    Messages {
        sent_messages: Some(point.sent),
        held_messages: Some(point.held),
        congestion_point: samples.then(|| point_text(reaction::point(policy.point(slot as u8)))),
        equilibrium_packets: samples.then(|| packets(sampling.equilibrium_bytes)),
        sampled_packets: sampled.then(|| packets(point.sampled.sampled_bytes)),
        sampled_feedback: sampled.then_some(feedback),
    }
}

/// A congestion point as shown for ports and flows.
fn point_text(point: u32) -> String {
    format!("{point:08x}")
}

/// The rate that a flow may send at, bytes per second.
pub fn allowed_rate(flow: &flow::Flow, pinned: Option<u64>, link_bytes_per_s: u64) -> u64 {
    pinned.unwrap_or(match flow.rate_bytes_per_s {
        0 => link_bytes_per_s,
        rate => rate,
    })
}

fn flow_row(
    key: &flow::Key,
    flow: &flow::Flow,
    endpoint: Option<&EndpointState>,
    response: Function,
    pinned: Option<u64>,
    link_bytes_per_s: u64,
    now_ns: u64,
) -> FlowRow {
    let name = FlowName::from(key);
    let own_control = flow.flags & flow::NEGOTIATED != 0;
    let enforcement = match endpoint.map_or(Enforcement::Htb, |endpoint| endpoint.enforcement) {
        _ if own_control => Enforcement::None,
        // At full rate: nothing limits it.
        _ if pinned.is_none() && !flow.is_limited(link_bytes_per_s) => Enforcement::None,
        // No socket of this machine, or one that was connected before the agent started.
        Enforcement::Pacing if flow.socket_bytes_per_s == 0 => Enforcement::None,
        enforcement => enforcement,
    };
    let reaction = &flow.reaction;
    // Marks may have moved the rate since: the bridge's marking has changed, or another bridge marks.
    let is_in_force = reaction.rate() == Some(flow.rate_bytes_per_s);
    let notifies = |of: &Marking| {
        let kind = of.notifications();
        is_in_force && kind.is_some_and(|kind| kind as u32 == reaction.kind)
    };
    let limiter = Marking::ALL.into_iter().find(notifies);
    FlowRow {
        src: name.src,
        dst: name.dst,
        protocol: protocol_name(name.protocol),
        src_port: name.src_port,
        dst_port: name.dst_port,
        device: endpoint.map_or_else(String::new, |endpoint| endpoint.device.clone()),
        netns: endpoint.map_or_else(String::new, |endpoint| endpoint.netns.clone()),
        response,
        rate_bytes_per_s: allowed_rate(flow, pinned, link_bytes_per_s),
        ipd_packet_times: match pinned.filter(|rate| *rate > 0) {
            Some(rate) => link_bytes_per_s as f64 / rate as f64,
            None => flow.response.ipd as f64 / ecn_core::fixed::ONE as f64,
        },
        marked_packets: flow.marked_packets,
        acked_packets: flow.acked_packets,
        enforcement: enforcement.name().to_owned(),
        hook: endpoint
            .map_or("", |endpoint| endpoint.hook.name())
            .to_owned(),
        pinned: pinned.is_some(),
        idle_ms: now_ns.saturating_sub(flow.last_sent_ns) / 1_000_000,
        sent_bytes: flow.sent_bytes,
        limiter,
        congestion_point: limiter.map(|_| point_text(reaction.point)),
        target_rate_bytes_per_s: limiter
            .filter(|of| *of == Marking::Qcn)
            .map(|_| reaction.limiter.target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(enforcement: Enforcement) -> EndpointState {
        EndpointState {
            number: 1,
            device: "eth0".to_owned(),
            netns: "a1".to_owned(),
            ifindex: 2,
            shaper: None,
            response: Function::Lipd,
            enforcement,
            why: String::new(),
            hook: crate::config::Hook::Tc,
            installed_qdisc: true,
            gso_max_segs: None,
        }
    }

    fn row(flow: flow::Flow, enforcement: Enforcement, pinned: Option<u64>) -> FlowRow {
        let name: FlowName = "10.0.0.1:1>10.0.1.1:2/udp".parse().expect("a flow");
        let endpoint = endpoint(enforcement);
        flow_row(
            &name.key(1),
            &flow,
            Some(&endpoint),
            Function::Lipd,
            pinned,
            12_500_000,
            5_000_000_000,
        )
    }

    fn flow() -> flow::Flow {
        let mut flow = flow::Flow {
            class: 0x10,
            rate_bytes_per_s: 625,
            ..flow::Flow::new()
        };
        flow.response.ipd = 20 * ecn_core::fixed::ONE + ecn_core::fixed::ONE / 2;
        flow.last_sent_ns = 4_997_000_000;
        flow
    }

    #[test]
    fn rows_are_those_of_the_maps() {
        let row = row(flow(), Enforcement::Htb, None);
        assert_eq!(
            (row.rate_bytes_per_s, row.pinned, row.idle_ms),
            (625, false, 3)
        );
        assert_eq!(
            (row.ipd_packet_times, row.enforcement.as_str()),
            (20.5, "htb")
        );
        assert_eq!((row.device.as_str(), row.netns.as_str()), ("eth0", "a1"));
    }

    #[test]
    fn a_limiter_names_its_congestion_point() {
        let limited = |kind: Kind, rate| {
            let mut flow = flow();
            flow.reaction.limiter.rate = rate;
            flow.reaction.limiter.target = 1_250;
            (flow.reaction.kind, flow.reaction.point) = (kind as u32, 0xab);
            let row = row(flow, Enforcement::Htb, None);
            let target = row.target_rate_bytes_per_s;
            (row.limiter, row.congestion_point, target)
        };
        let point = || Some("000000ab".to_owned());
        let (bcn, qcn) = (Some(Marking::Bcn), Some(Marking::Qcn));
        assert_eq!(limited(Kind::Bcn, 625), (bcn, point(), None));
        assert_eq!(limited(Kind::Qcn, 625), (qcn, point(), Some(1_250)));
        // It is back at its link's rate.
        assert_eq!(limited(Kind::Bcn, 0), (None, None, None));
        assert_eq!(limited(Kind::Marks, 625), (None, None, None));
        // Marks have moved the rate since.
        assert_eq!(limited(Kind::Bcn, 600), (None, None, None));
    }

    #[test]
    fn ports_show_sent_messages() {
        let policy = |kind: Kind| backward::Policy {
            bridge: 0x0200_0000_0001_0000,
            sampling: backward::Sampling {
                kind: kind as u32,
                equilibrium_bytes: 24_000,
                weight: 2,
                packet_bytes: 1_514,
                interval: 10,
                ..backward::Sampling::default()
            },
            ..backward::Policy::new(Feedback::Backward, 10)
        };
        let echoes = backward::Policy::new(Feedback::Echo, 10);
        let point = backward::Point {
            sent: 5,
            held: 2,
            ..backward::Point::default()
        };
        assert_eq!(messages(&echoes, 3, &point), Messages::default());
        let marks = Messages {
            sent_messages: Some(5),
            held_messages: Some(2),
            ..Messages::default()
        };
        assert_eq!(messages(&policy(Kind::Marks), 3, &point), marks);
        let (bcn, qcn) = (policy(Kind::Bcn), policy(Kind::Qcn));
        let unsampled = Messages {
            congestion_point: Some(point_text(reaction::point(bcn.point(3)))),
            equilibrium_packets: Some(16),
            ..marks
        };
        assert_eq!(messages(&bcn, 3, &point), unsampled);
        for (policy, feedback) in [
            // 24,000 - 20 packets less 2 x 20 packets, each in units of 64 bytes.
            (bcn, -6_272 - 2 * 30_272),
            // Of 120,000.
            (qcn, 35),
        ] {
            let mut point = point;
            point.sample(&policy.sampling, 1, 1_514, 20);
            let sampled = Messages {
                sampled_packets: Some(20),
                sampled_feedback: Some(feedback),
                ..unsampled.clone()
            };
            assert_eq!(messages(&policy, 3, &point), sampled);
        }
    }

    #[test]
    fn a_rate_set_by_hand_is_shown_instead() {
        let row = row(flow(), Enforcement::Htb, Some(2_500_000));
        assert_eq!((row.rate_bytes_per_s, row.pinned), (2_500_000, true));
    }

    #[test]
    fn unenforced_rates_are_reported() {
        let unlimited = flow::Flow {
            rate_bytes_per_s: 12_500_000,
            ..flow()
        };
        let never_marked = flow::Flow::new();
        let own_control = flow::Flow {
            flags: flow::NEGOTIATED,
            ..flow()
        };
        for (flow, enforcement) in [
            (unlimited, Enforcement::Htb),
            (never_marked, Enforcement::Htb),
            (own_control, Enforcement::Htb),
            (flow(), Enforcement::None),
        ] {
            assert_eq!(row(flow, enforcement, None).enforcement, "none");
        }
        assert_eq!(
            row(never_marked, Enforcement::Htb, None).rate_bytes_per_s,
            12_500_000
        );
        assert_eq!(
            row(never_marked, Enforcement::Htb, Some(1)).enforcement,
            "htb"
        );
    }

    #[test]
    fn pins_are_found_where_the_agent_has_them() {
        let state = State {
            pin: "/a".into(),
            ..State::default()
        };
        for (pin, state, expected) in [
            (Some("/b"), Some(&state), "/b"),
            (None, Some(&state), "/a"),
            (None, None, "/sys/fs/bpf/ecn"),
        ] {
            assert_eq!(
                pin_or_default(pin.map(Path::new), state),
                Path::new(expected)
            );
        }
    }
}
