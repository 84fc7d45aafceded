//! What the agent serves over HTTP: metrics for Prometheus, and whether it is alive.
//!
//! A scrape reads the maps at that moment. It holds the agent's lock only while it copies
//! [`State`](super::state::State). Health takes no lock of the agent at all, since it has to answer when the agent is
//! stuck.

mod exposition;
mod server;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use ecn_core::{
    abi, backward,
    flow::{Flow, Key},
    marking,
};

use super::{
    Error, Inner, Result, SharedInner,
    enforce::{Shared, lock, now_ns},
    health::Kind,
    state::WaitingFor,
};
use crate::{
    cli::{
        counters::Counters,
        log,
        table::FlowRow,
        view::{View, allowed_rate},
    },
    datapath::{self, Maps},
};
use server::{Health, Limits, Shown};

/// Label names and values of a time series.
type Labels = Vec<(&'static str, String)>;
/// Values that differ in their labels.
type Series<T> = Vec<(Labels, T)>;

/// Totals of the flows of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Endpoint {
    link_bytes_per_s: u64,
    flows: u64,
    limited: u64,
    /// Total of the limited flows.
    limited_bytes_per_s: u64,
    pinned: u64,
}

/// How full a table is.
#[derive(Clone, Copy, Debug)]
struct Table {
    entries: u64,
    most: u64,
}

/// Values of the agent as a whole.
#[derive(Clone, Copy, Debug)]
struct Agent {
    heartbeat_age: Duration,
    loop_age: Duration,
    rate_changes: u64,
    refused_changes: u64,
    reloads: u64,
    last_reload_successful: bool,
    log_lines_lost: u64,
    reading: Duration,
}

/// All values at one time.
#[derive(Debug)]
struct Sample {
    ports: Series<marking::Port>,
    messages: Series<backward::Point>,
    endpoints: Series<Endpoint>,
    flows: Series<FlowRow>,
    tables: Series<Table>,
    events: Series<u64>,
    warnings: Series<u64>,
    waiting: Series<u64>,
    agent: Agent,
}

fn netns(netns: &str) -> (&'static str, String) {
    ("netns", netns.to_owned())
}

fn counted(key: &'static str, of: &str, n: u64) -> (Labels, u64) {
    (vec![(key, of.to_owned())], n)
}

/// The flows of all endpoints, by endpoint number.
fn endpoints(
    flows: &[(Key, Flow)],
    pins: &HashMap<Key, u64>,
    link: impl Fn(u16) -> u64,
) -> BTreeMap<u16, Endpoint> {
    let mut endpoints = BTreeMap::<u16, Endpoint>::new();
    for (key, flow) in flows {
        let of = endpoints
            .entry(key.endpoint)
            .or_insert_with(|| Endpoint::at(link(key.endpoint)));
        let pinned = pins.get(key).copied();
        let rate = allowed_rate(flow, pinned, of.link_bytes_per_s);
        of.flows += 1;
        of.pinned += u64::from(pinned.is_some());
        if rate < of.link_bytes_per_s {
            of.limited += 1;
            of.limited_bytes_per_s = of.limited_bytes_per_s.saturating_add(rate);
        }
    }
    endpoints
}

/// The `n` fastest limited flows, and then other flows; of equal ones, those that sent last.
fn fastest(
    mut flows: Vec<(Key, Flow)>,
    pins: &HashMap<Key, u64>,
    endpoints: &BTreeMap<u16, Endpoint>,
    n: usize,
) -> Vec<(Key, Flow)> {
    let rank = |(key, flow): &(Key, Flow)| {
        let link = endpoints
            .get(&key.endpoint)
            .map_or(0, |of| of.link_bytes_per_s);
        let rate = allowed_rate(flow, pins.get(key).copied(), link);
        // Without a limit, the allowed rate is that of the link, even if the flow sends nothing.
        Reverse((rate < link, rate, flow.last_sent_ns))
    };
    if n < flows.len() {
        flows.select_nth_unstable_by_key(n, rank);
        flows.truncate(n);
    }
    flows
}

fn flow_labels(row: &FlowRow) -> Labels {
    vec![
        ("device", row.device.clone()),
        netns(&row.netns),
        ("src", row.src.to_string()),
        ("src_port", row.src_port.to_string()),
        ("dst", row.dst.to_string()),
        ("dst_port", row.dst_port.to_string()),
        ("protocol", row.protocol.clone()),
    ]
}

impl Endpoint {
    fn at(link_bytes_per_s: u64) -> Self {
        Self {
            link_bytes_per_s,
            ..Self::default()
        }
    }
}

impl Sample {
    fn read(view: &View, shared: &Shared, top_flows: usize) -> datapath::Result<Self> {
        let began = Instant::now();
        let (maps, state) = (&view.maps, &view.state);
        let ports = view.port_counters()?.into_iter();
        let ports = ports.map(|(bridge, port, counters, point)| {
            let labels = vec![
                ("bridge", bridge.name.clone()),
                netns(&bridge.netns),
                ("port", port.name.clone()),
            ];
            ((labels.clone(), counters), (labels, point))
        });
        let (ports, messages) = ports.unzip();

        let flows = maps.flows()?;
        let pins: HashMap<_, _> = maps.pins()?.into_iter().collect();
        let link = |number: u16| {
            let policy = maps.endpoint(number.into());
            policy.map_or(0, |policy| policy.link_bytes_per_s)
        };
        let totals = endpoints(&flows, &pins, link);
        let endpoints = state.endpoints.iter().map(|endpoint| {
            let labels = vec![("device", endpoint.device.clone()), netns(&endpoint.netns)];
            let number = endpoint.number as u16;
            let total = totals.get(&number).copied();
            (labels, total.unwrap_or_else(|| Endpoint::at(link(number))))
        });
        let endpoints = endpoints.collect();

        let table = |of: &str, entries: usize, most: usize| {
            let table = Table {
                entries: entries as u64,
                most: most as u64,
            };
            (vec![("table", of.to_owned())], table)
        };
        let with_class = |(_, flow): &&(Key, Flow)| flow.class >= abi::FIRST_CLASS;
        let classes = flows.iter().filter(with_class).count();
        let tables = vec![
            table("flow", flows.len(), maps.flow_max()),
            table("receiver", maps.receivers()?.len(), maps.flow_max()),
            table("class", classes, (abi::CLASSES - abi::FIRST_CLASS) as usize),
        ];
        let flows = fastest(flows, &pins, &totals, top_flows);
        let flows = view.flow_rows(flows, &pins).into_iter();
        let flows = flows.map(|(_, row)| (flow_labels(&row), row)).collect();

        let counters = Counters::read(maps)?;
        let events = counters.all().map(|(key, n)| counted("event", key, n));
        let warnings = Kind::ALL.map(|kind| {
            let of_kind = state.warnings.iter().filter(|warning| warning.kind == kind);
            counted("kind", kind.name(), of_kind.count() as u64)
        });
        let waiting = [
            (WaitingFor::Bridge, "bridge"),
            (WaitingFor::Endpoint, "endpoint"),
        ];
        let waiting = waiting.map(|(kind, name)| {
            let of_kind = state.waiting.iter().filter(|waiting| waiting.kind == kind);
            counted("kind", name, of_kind.count() as u64)
        });
        Ok(Self {
            ports,
            messages,
            endpoints,
            flows,
            tables,
            events: events.collect(),
            warnings: warnings.into(),
            waiting: waiting.into(),
            agent: Agent {
                heartbeat_age: heartbeat_age(&maps.control()?, shared, now_ns()),
                loop_age: shared.loop_age(),
                rate_changes: shared.changes.load(Ordering::Relaxed),
                refused_changes: shared.refused.load(Ordering::Relaxed),
                reloads: state.reloads.into(),
                last_reload_successful: state.reload_error.is_none(),
                log_lines_lost: log::lost(),
                reading: began.elapsed(),
            },
        })
    }
}

/// Time since the last heartbeat.
fn heartbeat_age(control: &abi::Control, shared: &Shared, now_ns: u64) -> Duration {
    let beat_ns = control
        .valid_until_ns
        .saturating_sub(shared.heartbeat().as_nanos() as u64);
    Duration::from_nanos(now_ns.saturating_sub(beat_ns))
}

/// Where scrapes get their values.
struct Source {
    inner: SharedInner,
    shared: Arc<Shared>,
    view: Mutex<View>,
    /// For health only: scrapes may be using the others.
    maps: Mutex<Maps>,
}

impl Shown for Source {
    fn metrics(&self) -> std::result::Result<String, String> {
        let (state, top_flows) = {
            let inner = lock(&self.inner);
            let inner = inner.as_ref().ok_or("the agent is stopping")?;
            (inner.state(), inner.config.metrics.top_flows)
        };
        let mut view = lock(&self.view);
        view.state = state;
        let sample = Sample::read(&view, &self.shared, top_flows as usize);
        drop(view);
        let sample = sample.map_err(|error| error.to_string())?;
        exposition::text(sample).map_err(|error| error.to_string())
    }

    fn health(&self) -> Health {
        let now_ns = now_ns();
        let control = lock(&self.maps).control();
        match control {
            Err(error) => Health::failed(error.to_string()),
            Ok(_) if self.shared.is_stuck() => Health::failed(format!(
                "the agent has made no progress for {} s: rate limits lapse",
                self.shared.age().as_secs()
            )),
            Ok(control) if control.valid_until_ns < now_ns => Health::failed(format!(
                "the last heartbeat was {} ms ago: limits have lapsed",
                heartbeat_age(&control, &self.shared, now_ns).as_millis()
            )),
            Ok(_) => Health::ok(),
        }
    }
}

/// Binds the address, before anything else is done.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| Error::Listen { address, error })
}

/// Serves requests until it is aborted.
pub(super) fn serve(
    listener: TcpListener,
    inner: &SharedInner,
    of: &Inner,
) -> Result<impl Future<Output = ()> + Send + 'static> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| Error::Io {
        what: "listen for requests of metrics",
        error,
    })?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("metrics at http://{address}/metrics");
    }
    let source = Source {
        inner: Arc::clone(inner),
        shared: Arc::clone(&of.shared),
        view: Mutex::new(View {
            maps: of.datapath.maps()?,
            state: of.state(),
        }),
        maps: Mutex::new(of.datapath.maps()?),
    };
    Ok(server::serve(listener, Arc::new(source), Limits::default()))
}
