//! Who is connected to whom, and the way that each flow takes.

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
    /// Name of the direction from the first to the second.
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
    /// What it is counted as.
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
    /// Output queues only: what it sends.
    pub traffic: Traffic,
    /// Output queues only: its hosts have the agent. Else its packets cannot be marked, and nothing limits it.
    pub controlled: bool,
    /// Output queues only: it is many flows, one after the other. They are TCP, cubic unless `traffic` says so.
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

/// A description that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Two nodes or links have the same name.
    #[error("the name `{0}` is given twice")]
    Twice(String),
    /// A link or flow names a node that is not there.
    #[error("{what}: unknown node `{name}`: {hint}")]
    Unknown {
        /// The link or flow.
        what: String,
        /// What it names.
        name: String,
        /// The nearest names.
        hint: String,
    },
    /// A flow begins or ends at a switch, or at itself.
    #[error("flow from `{from}` to `{to}`: it has to go from a host to another host")]
    NotHosts {
        /// Where it begins.
        from: String,
        /// Where it ends.
        to: String,
    },
    /// A link from a node to itself.
    #[error("the link `{0}` ends where it begins")]
    Loop(String),
    /// No way for a flow.
    #[error("the topology is not connected: no way from `{from}` to `{to}`")]
    NotConnected {
        /// Where the flow begins.
        from: String,
        /// Where it ends.
        to: String,
    },
    /// More ports than marking can number.
    #[error("switch `{name}` has {ports} ports; at most 255 are possible")]
    TooManyPorts {
        /// The switch.
        name: String,
        /// Its ports.
        ports: usize,
    },
    /// There is nothing to simulate.
    #[error("no flow: add one in [[flows]]")]
    NoFlow,
    /// Traffic that only output queues know.
    #[error("flow `{0}`: `traffic`, `control` and `arrivals` do not apply to switch = input")]
    OnlyOutput(String),
    /// New flows at no rate, or without packets.
    #[error(
        "flow `{0}`: `arrivals` and `packets` are from 1 to 1000000, and `traffic` is cubic or reno then"
    )]
    Arrivals(String),
    /// A packet that an ACK does not fit in, or that takes too long.
    #[error("packets of {bytes} bytes on a link of {rate}: {reason}")]
    Packet {
        /// Size of the packet.
        bytes: u32,
        /// Rate of the link.
        rate: Rate,
        /// What is wrong.
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
    /// Index of the switch that sends on it, and its port's slot there; none for a host.
    pub sender: Option<(u32, u8)>,
    /// Index of the switch that it leads to, and its port's slot there; none for a host.
    pub receiver: Option<(u32, u8)>,
    delay: Time,
}

/// A step of a flow's way.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// The channel.
    pub channel: u32,
    /// How long a packet of the flow is on it.
    pub transmission: Time,
    /// From the start of the transmission until the next switch can forward it.
    pub to_forward: Time,
    /// Size of the flow's packets, bytes.
    pub packet_bytes: u32,
    /// How a packet gets here through the switch that sends on the channel; none from a host.
    pub through: Option<Crossing>,
}

/// A packet's way through a switch.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    /// Index of the switch.
    pub switch: u32,
    /// Port slot at which it comes in.
    pub input: u8,
    /// Port slot at which it goes out.
    pub output: u8,
}

/// A flow's way and times.
#[derive(Clone, Debug)]
pub struct Way {
    /// Its hops are these of [`Network::hops`].
    pub hops: std::ops::Range<u32>,
    /// From the start of the transmission on the last hop until the ACK is back.
    pub to_ack: Time,
    /// Start and stop.
    pub active: std::ops::Range<Time>,
    /// Transmission time at the source.
    pub packet_time: Time,
    /// Size of its packets, bytes.
    pub packet_bytes: u32,
    /// Index of its class in [`Network::classes`].
    pub class: u32,
    /// Index of its sending host in [`Network::hosts`].
    pub host: u32,
    /// As of [`FlowSpec`].
    pub traffic: Traffic,
    /// As of [`FlowSpec`].
    pub controlled: bool,
    /// As of [`FlowSpec`].
    pub arrivals: Option<Arrivals>,
}

/// A network ready to run.
#[derive(Clone, Debug)]
pub struct Network {
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// Slots in use per switch: its ports and one.
    pub slots: Vec<u32>,
    /// All directions of all links.
    pub channels: Vec<Channel>,
    /// By switch and port slot: the channel on which it sends.
    pub sending: Vec<Vec<u32>>,
    /// By switch and port slot: the channel on which it receives.
    pub receiving: Vec<Vec<u32>>,
    /// The ways of all flows, one after the other.
    pub hops: Vec<Hop>,
    /// The flows.
    pub flows: Vec<Way>,
    /// Names of the classes, in the order of their first flow.
    pub classes: Vec<String>,
    /// What a switch takes to forward a packet, and a host to answer one.
    forwarding: Time,
    ack_delay: Time,
}

/// Picoseconds that `bytes` take.
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

    /// The number of the node that `what` names.
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

/// What links are made into.
struct Wires {
    channels: Vec<Channel>,
    /// Slots of each switch.
    ports: Vec<u32>,
    /// By node, the nodes that its channels lead to, and which these are.
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

/// Whether switches of this kind can have what a flow sends.
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
    /// Finds the ways (shortest in hops, of several the one whose links were named first) and works
    /// out all times.
    ///
    /// # Errors
    ///
    /// What is described is no network, or a flow has no way through it.
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
            let way = shortest(&leaving, switches.len(), from, to).ok_or_else(|| {
                NetworkError::NotConnected {
                    from: flow.from.clone(),
                    to: flow.to.clone(),
                }
            })?;
            let host = (from - switches.len()) as u32;
            network.add_flow(flow, host, &way, model)?;
        }
        Ok(network)
    }

    fn add_flow(
        &mut self,
        flow: &FlowSpec,
        host: u32,
        way: &[u32],
        model: &Model,
    ) -> Result<(), NetworkError> {
        const LONGEST: Time = 10_000_000_000_000;
        let handed_over = model.switch == SwitchKind::Output;
        let first = self.hops.len() as u32;
        let forwarding = self.forwarding;
        for (step, &channel) in way.iter().enumerate() {
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
            // A faster output may not run dry: it waits for the difference.
            let needed = match (model.forwarding, way.get(step + 1)) {
                // A device hands a packet over whole, at once; HTB keeps its distance.
                _ if handed_over => 0,
                (Forwarding::StoreAndForward, _) => on_wire,
                (Forwarding::CutThrough, Some(&next)) => {
                    on_wire.saturating_sub(transmission(flow.packet_bytes, of(next).rate))
                }
                (Forwarding::CutThrough, None) => 0,
            };
            let before = step.checked_sub(1).and_then(|step| of(way[step]).receiver);
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
        // An ACK, too, is cut through: its own length counts once, on the slowest link.
        let slowest = way
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
        self.flows.push(Way {
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

    /// How long a message takes back over these hops, to their source: as an ACK over all of them.
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

    /// The last channel of a flow's way.
    pub fn last_channel(&self, flow: usize) -> usize {
        self.hops[self.flows[flow].hops.end as usize - 1].channel as usize
    }
}

/// The channel at each port slot of each switch; slot 0 has none.
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

/// Breadth first; hosts forward nothing.
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
    let mut way = Vec::new();
    let mut at = to;
    while at != from {
        let (before, channel) = came[at]?;
        way.push(channel);
        at = before;
    }
    way.reverse();
    Some(way)
}
