//! Topology of a network and the routes of its flows.

use std::collections::{HashMap, VecDeque};

use ecn_units::{DurationText, Rate};

use crate::engine::{NS, Time};
use crate::model::{Forwarding, Model, SwitchKind};
use crate::traffic::{Arrivals, Traffic};

/// Bytes of an ACK.
pub const ACK_BYTES: u32 = 20;

/// A link between two nodes, the same in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Name of the direction from the first to the second node.
    pub name: String,
    /// The nodes.
    pub between: [String; 2],
    /// Rate in each direction.
    pub rate: Rate,
    /// Propagation delay.
    pub delay: DurationText,
}

/// A flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSpec {
    /// Traffic class under which it is counted.
    pub class: String,
    /// Sending host.
    pub from: String,
    /// Receiving host.
    pub to: String,
    /// When it starts.
    pub start: DurationText,
    /// When it stops, if it does.
    pub stop: Option<DurationText>,
    /// Size of its packets, bytes.
    pub packet_bytes: u32,
    /// Output queues only: its traffic source and transport.
    pub traffic: Traffic,
    /// Output queues only: whether its hosts run the agent. If not, its packets cannot be marked and its rate is not
    /// limited.
    pub controlled: bool,
    /// Output queues only: makes it a sequence of flows, one per arrival. They are TCP, with cubic unless `traffic`
    /// names another algorithm.
    pub arrivals: Option<Arrivals>,
}

/// A network and its flows, as described.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// The links.
    pub links: Vec<LinkSpec>,
    /// The flows.
    pub flows: Vec<FlowSpec>,
}

/// An invalid description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Two nodes or links have the same name.
    #[error("the name `{0}` is given twice")]
    Twice(String),
    /// A link or flow names an unknown node.
    #[error("{what}: unknown node `{name}`: {hint}")]
    Unknown {
        /// The link or flow.
        what: String,
        /// The unknown name.
        name: String,
        /// Similar names.
        hint: String,
    },
    /// A flow from or to a switch, or from a host to itself.
    #[error("flow from `{from}` to `{to}`: it has to go from a host to another host")]
    NotHosts {
        /// Its sender.
        from: String,
        /// Its receiver.
        to: String,
    },
    /// A link from a node to itself.
    #[error("the link `{0}` ends where it begins")]
    Loop(String),
    /// No path for a flow.
    #[error("the topology is not connected: no path from `{from}` to `{to}`")]
    NotConnected {
        /// The flow's sender.
        from: String,
        /// The flow's receiver.
        to: String,
    },
    /// More ports than marking can number.
    #[error("switch `{name}` has {ports} ports; at most 255 are possible")]
    TooManyPorts {
        /// The switch.
        name: String,
        /// Its number of ports.
        ports: usize,
    },
    /// No flow to simulate.
    #[error("no flow: add one in [[flows]]")]
    NoFlow,
    /// Traffic that requires output queues.
    #[error("flow `{0}`: `traffic`, `control` and `arrivals` do not apply to switch = input")]
    OnlyOutput(String),
    /// Arriving flows with a rate or number of packets out of range, or with traffic other than TCP.
    #[error(
        "flow `{0}`: `arrivals` and `packets` are from 1 to 1000000, and `traffic` is cubic or reno then"
    )]
    Arrivals(String),
    /// A packet too small for its ACK, or with too long a transmission time.
    #[error("packets of {bytes} bytes on a link of {rate}: {reason}")]
    Packet {
        /// Size of the packet.
        bytes: u32,
        /// Rate of the link.
        rate: Rate,
        /// The problem.
        reason: &'static str,
    },
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Channel {
    /// `NAME`, or `NAME backwards` for the direction from the second node to the first.
    pub name: String,
    /// Its rate.
    pub rate: Rate,
    /// Index of the switch that sends on it, and its port's slot there; `None` for a host.
    pub sender: Option<(u32, u8)>,
    /// Index of the switch at its end, and its port's slot there; `None` for a host.
    pub receiver: Option<(u32, u8)>,
    delay: Time,
}

/// One hop of a flow's path.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// The channel.
    pub channel: u32,
    /// Transmission time of the flow's packets.
    pub transmission: Time,
    /// From the start of the transmission until the next switch can forward the packet.
    pub to_forward: Time,
    /// Size of the flow's packets, bytes.
    pub packet_bytes: u32,
    /// The path through the switch that sends on the channel; `None` if that is a host.
    pub through: Option<Crossing>,
}

/// A packet's path through a switch.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    /// Index of the switch.
    pub switch: u32,
    /// Slot of the input port.
    pub input: u8,
    /// Slot of the output port.
    pub output: u8,
}

/// A flow's path and times.
#[derive(Clone, Debug)]
pub struct FlowPath {
    /// Range of its hops in [`Network::hops`].
    pub hops: std::ops::Range<u32>,
    /// From the start of the transmission on the last hop until the ACK reaches the source.
    pub to_ack: Time,
    /// Start and stop times.
    pub active: std::ops::Range<Time>,
    /// Transmission time at the source.
    pub packet_time: Time,
    /// Size of its packets, bytes.
    pub packet_bytes: u32,
    /// Index of its class in [`Network::classes`].
    pub class: u32,
    /// Index of its sending host in [`Network::hosts`].
    pub host: u32,
    /// [`FlowSpec::traffic`].
    pub traffic: Traffic,
    /// [`FlowSpec::controlled`].
    pub controlled: bool,
    /// [`FlowSpec::arrivals`].
    pub arrivals: Option<Arrivals>,
}

/// A network ready to run.
#[derive(Clone, Debug)]
pub struct Network {
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// Slots in use per switch: its number of ports plus one.
    pub slots: Vec<u32>,
    /// All directions of all links.
    pub channels: Vec<Channel>,
    /// By switch and port slot: the channel on which it sends.
    pub sending: Vec<Vec<u32>>,
    /// By switch and port slot: the channel on which it receives.
    pub receiving: Vec<Vec<u32>>,
    /// The paths of all flows, one after the other.
    pub hops: Vec<Hop>,
    /// The flows.
    pub flows: Vec<FlowPath>,
    /// Names of the classes, in the order of their first flow.
    pub classes: Vec<String>,
    /// Delay of a switch to forward a packet, and of a host to answer one.
    forwarding: Time,
    ack_delay: Time,
}

/// Transmission time of `bytes`, ps.
fn transmission(bytes: u32, rate: Rate) -> Time {
    let ps = u128::from(bytes) * 1_000_000_000_000;
    Time::try_from(ps.div_ceil(u128::from(rate.bytes_per_s()))).unwrap_or(Time::MAX)
}

/// Switches, then hosts, by name.
struct Nodes<'a> {
    numbers: HashMap<&'a str, usize>,
    description: &'a Description,
}

impl<'a> Nodes<'a> {
    fn new(description: &'a Description) -> Result<Self, NetworkError> {
        let names = description.switches.iter().chain(&description.hosts);
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (index, name) in names.enumerate() {
            if numbers.insert(name, index).is_some() {
                return Err(NetworkError::Twice(name.clone()));
            }
        }
        Ok(Self {
            numbers,
            description,
        })
    }

    /// The number of the node called `name`, which `what` (for the error) refers to.
    fn find(&self, what: &dyn Fn() -> String, name: &str) -> Result<usize, NetworkError> {
        self.numbers.get(name).copied().ok_or_else(|| {
            let Description {
                switches, hosts, ..
            } = self.description;
            let known: Vec<&str> = switches.iter().chain(hosts).map(String::as_str).collect();
            NetworkError::Unknown {
                what: what(),
                name: name.to_owned(),
                hint: ecn_units::suggestion(name, &known),
            }
        })
    }

    fn switch(&self, node: usize) -> Option<u32> {
        (node < self.description.switches.len()).then_some(node as u32)
    }
}

/// Channels and ports while the network is built from links.
struct Wires {
    channels: Vec<Channel>,
    /// Slots in use, by switch.
    ports: Vec<u32>,
    /// By node: its outgoing channels, each with the node at its end.
    leaving: Vec<Vec<(usize, u32)>>,
}

impl Wires {
    fn new(description: &Description, nodes: &Nodes<'_>) -> Result<Self, NetworkError> {
        let Description {
            switches,
            hosts,
            links,
            ..
        } = description;
        let mut ports = vec![1u32; switches.len()];
        let mut channels: Vec<Channel> = Vec::new();
        let mut leaving: Vec<Vec<(usize, u32)>> = vec![Vec::new(); switches.len() + hosts.len()];
        let mut names = std::collections::HashSet::new();
        for link in links {
            if !names.insert(&link.name) {
                return Err(NetworkError::Twice(link.name.clone()));
            }
            let what = || format!("link `{}`", link.name);
            let ends = [
                nodes.find(&what, &link.between[0])?,
                nodes.find(&what, &link.between[1])?,
            ];
            if ends[0] == ends[1] {
                return Err(NetworkError::Loop(link.name.clone()));
            }
            let mut port = |node: usize| {
                nodes.switch(node).map(|switch| {
                    let slot = ports[switch as usize];
                    ports[switch as usize] += 1;
                    (switch, slot as u8)
                })
            };
            let at = [port(ends[0]), port(ends[1])];
            for (from, to, name) in [
                (0, 1, link.name.clone()),
                (1, 0, format!("{} backwards", link.name)),
            ] {
                leaving[ends[from]].push((ends[to], channels.len() as u32));
                channels.push(Channel {
                    name,
                    rate: link.rate,
                    sender: at[from],
                    receiver: at[to],
                    delay: link.delay.as_nanos() * NS,
                });
            }
        }
        for (switch, &ports) in ports.iter().enumerate() {
            if ports > 256 {
                return Err(NetworkError::TooManyPorts {
                    name: switches[switch].clone(),
                    ports: ports as usize - 1,
                });
            }
        }
        Ok(Self {
            channels,
            ports,
            leaving,
        })
    }
}

/// Checks that switches of this kind support a flow's traffic.
fn check_traffic(flow: &FlowSpec, model: &Model) -> Result<(), NetworkError> {
    let plain = flow.traffic == Traffic::Greedy && flow.controlled;
    if model.switch == SwitchKind::Input && !(plain && flow.arrivals.is_none()) {
        return Err(NetworkError::OnlyOutput(flow.class.clone()));
    }
    let range = 1..=1_000_000;
    if let Some(Arrivals { per_s, packets }) = flow.arrivals
        && !(range.contains(&per_s)
            && range.contains(&packets)
            && !matches!(flow.traffic, Traffic::Constant(_)))
    {
        return Err(NetworkError::Arrivals(flow.class.clone()));
    }
    Ok(())
}

impl Network {
    /// Finds the flows' paths (fewest hops; of several, the one whose links were listed first) and computes all times.
    ///
    /// # Errors
    ///
    /// The description is invalid, or a flow has no path.
    pub fn new(description: &Description, model: &Model) -> Result<Self, NetworkError> {
        let nodes = Nodes::new(description)?;
        let Wires {
            channels,
            ports,
            leaving,
        } = Wires::new(description, &nodes)?;
        let Description {
            switches,
            hosts,
            flows,
            ..
        } = description;
        if flows.is_empty() {
            return Err(NetworkError::NoFlow);
        }
        let mut network = Self {
            switches: switches.clone(),
            hosts: hosts.clone(),
            sending: by_port(&ports, &channels, |channel| channel.sender),
            receiving: by_port(&ports, &channels, |channel| channel.receiver),
            slots: ports,
            channels,
            hops: Vec::new(),
            flows: Vec::new(),
            classes: Vec::new(),
            forwarding: model.forwarding_delay.as_nanos() * NS,
            ack_delay: model.ack_delay.as_nanos() * NS,
        };
        for flow in flows {
            check_traffic(flow, model)?;
            let what = || format!("flow `{}`", flow.class);
            let (from, to) = (nodes.find(&what, &flow.from)?, nodes.find(&what, &flow.to)?);
            if nodes.switch(from).is_some() || nodes.switch(to).is_some() || from == to {
                return Err(NetworkError::NotHosts {
                    from: flow.from.clone(),
                    to: flow.to.clone(),
                });
            }
            let path = shortest(&leaving, switches.len(), from, to).ok_or_else(|| {
                NetworkError::NotConnected {
                    from: flow.from.clone(),
                    to: flow.to.clone(),
                }
            })?;
            let host = (from - switches.len()) as u32;
            network.add_flow(flow, host, &path, model)?;
        }
        Ok(network)
    }

    fn add_flow(
        &mut self,
        flow: &FlowSpec,
        host: u32,
        path: &[u32],
        model: &Model,
    ) -> Result<(), NetworkError> {
        const LONGEST: Time = 10_000_000_000_000;
        let handed_over = model.switch == SwitchKind::Output;
        let first = self.hops.len() as u32;
        let forwarding = self.forwarding;
        for (step, &channel) in path.iter().enumerate() {
            let of = |channel: u32| &self.channels[channel as usize];
            let here = of(channel);
            let on_wire = transmission(flow.packet_bytes, here.rate);
            let reason = if flow.packet_bytes < ACK_BYTES {
                Some("no packet is smaller than an ACK, 20 bytes")
            } else if on_wire > LONGEST {
                Some("one takes longer than 10 s")
            } else {
                None
            };
            if let Some(reason) = reason {
                return Err(NetworkError::Packet {
                    bytes: flow.packet_bytes,
                    rate: here.rate,
                    reason,
                });
            }
            // A faster output must not run dry: it starts later by the difference in transmission times.
            let needed = match (model.forwarding, path.get(step + 1)) {
                // Devices hand over whole packets at once; HTB spaces them.
                _ if handed_over => 0,
                (Forwarding::StoreAndForward, _) => on_wire,
                (Forwarding::CutThrough, Some(&next)) => {
                    on_wire.saturating_sub(transmission(flow.packet_bytes, of(next).rate))
                }
                (Forwarding::CutThrough, None) => 0,
            };
            let before = step.checked_sub(1).and_then(|step| of(path[step]).receiver);
            let through = here.sender.zip(before);
            let hop = Hop {
                channel,
                transmission: on_wire,
                to_forward: here.delay + forwarding + needed,
                packet_bytes: flow.packet_bytes,
                through: through.map(|((switch, output), (_, input))| Crossing {
                    switch,
                    input,
                    output,
                }),
            };
            self.hops.push(hop);
        }
        let mut back = self.back(first..self.hops.len() as u32);
        // ACKs cut through, too: their transmission time counts once, on the slowest link.
        let slowest = path
            .iter()
            .map(|&channel| self.channels[channel as usize].rate)
            .min();
        let last = self.hops[self.hops.len() - 1];
        let mut arrival = self.channels[last.channel as usize].delay;
        if !handed_over {
            back += slowest.map_or(0, |rate| transmission(ACK_BYTES, rate));
            arrival += last.transmission;
        }
        let class = match self.classes.iter().position(|class| *class == flow.class) {
            Some(class) => class,
            None => {
                self.classes.push(flow.class.clone());
                self.classes.len() - 1
            }
        };
        let start = flow.start.as_nanos().saturating_mul(NS);
        let stop = flow
            .stop
            .map_or(Time::MAX, |stop| stop.as_nanos().saturating_mul(NS));
        self.flows.push(FlowPath {
            hops: first..self.hops.len() as u32,
            to_ack: arrival + back,
            active: start..stop,
            packet_time: self.hops[first as usize].transmission,
            packet_bytes: flow.packet_bytes,
            class: class as u32,
            host,
            traffic: flow.traffic,
            controlled: flow.controlled,
            arrivals: flow.arrivals,
        });
        Ok(())
    }

    /// Time that a message takes back over these hops to their source, computed as for an ACK over the whole path.
    pub fn back(&self, hops: std::ops::Range<u32>) -> Time {
        let hops = &self.hops[hops.start as usize..hops.end as usize];
        let delays = hops
            .iter()
            .map(|hop| self.channels[hop.channel as usize].delay);
        let forwarding = self.forwarding * (hops.len() as Time).saturating_sub(1);
        delays.sum::<Time>() + forwarding + self.ack_delay
    }

    /// The channel with this name.
    pub fn channel(&self, name: &str) -> Option<usize> {
        self.channels
            .iter()
            .position(|channel| channel.name == name)
    }

    /// The last channel of a flow's path.
    pub fn last_channel(&self, flow: usize) -> usize {
        self.hops[self.flows[flow].hops.end as usize - 1].channel as usize
    }
}

/// The channel at each port slot of each switch; slot 0 is unused.
fn by_port(
    slots: &[u32],
    channels: &[Channel],
    port: impl Fn(&Channel) -> Option<(u32, u8)>,
) -> Vec<Vec<u32>> {
    let mut table: Vec<Vec<u32>> = slots.iter().map(|&slots| vec![0; slots as usize]).collect();
    for (index, channel) in channels.iter().enumerate() {
        if let Some((switch, slot)) = port(channel) {
            table[switch as usize][slot as usize] = index as u32;
        }
    }
    table
}

/// Breadth-first search; hosts do not forward.
fn shortest(
    leaving: &[Vec<(usize, u32)>],
    switches: usize,
    from: usize,
    to: usize,
) -> Option<Vec<u32>> {
    let mut came: Vec<Option<(usize, u32)>> = vec![None; leaving.len()];
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        if node != from && node >= switches {
            continue;
        }
        for &(next, channel) in &leaving[node] {
            if next != from && came[next].is_none() {
                came[next] = Some((node, channel));
                queue.push_back(next);
            }
        }
    }
    let mut path = Vec::new();
    let mut at = to;
    while at != from {
        let (before, channel) = came[at]?;
        path.push(channel);
        at = before;
    }
    path.reverse();
    Some(path)
}
