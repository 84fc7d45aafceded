//! `ecn rig`: HP's Fig. 1 as network namespaces and bridges.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::state::{Lock, State};
use crate::rig;
use crate::rig::args::{self, HostArgs, RigArgs};
use crate::rig::run::{Plan, Progress};
use crate::rig::topology::{self, Counters, DEFAULT_PREFIX, HOST_DEVICE, Host, Topology};
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim_cli::rig::args::CONGESTION_CONTROL;
use ecn_sim_cli::rig::report;

use super::exit::{Failure, print, print_json};
use super::require_root;
use super::run::runtime;
use super::table::rate_text;
use super::watch::{self, Show};

/// What to do with the rig.
#[derive(Subcommand, Debug)]
pub(super) enum Rig {
    /// Set up the rig, measure it without and with control, and remove it
    Run(Box<RigArgs>),
    /// Set up the rig and keep it
    Up(UpArgs),
    /// Remove the rig
    Down(DownArgs),
    /// Show the rig's hosts, rates and counters
    Show(ShowArgs),
}

/// `ecn rig up`.
#[derive(Args, Debug)]
pub(super) struct UpArgs {
    #[command(flatten)]
    hosts: HostArgs,
    /// Print the rig as JSON, as `ecn rig show` does
    #[arg(long, short = 'j')]
    json: bool,
}

/// `ecn rig down`.
#[derive(Args, Debug)]
pub(super) struct DownArgs {
    /// Print the removed namespaces as JSON
    #[arg(long, short = 'j')]
    json: bool,
}

/// `ecn rig show`.
#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    show: Show,
}

/// Runs the verb.
///
/// # Errors
///
/// Missing permissions; a rig exists already, or none does; the kernel refuses something.
pub(super) fn run(rig: &Rig) -> anyhow::Result<()> {
    match rig {
        Rig::Run(args) => measure(args),
        Rig::Up(args) => up(args),
        Rig::Down(args) => down(args),
        Rig::Show(args) => show(args),
    }
}

/// Runs the phases, shows their progress, and prints the results.
fn measure(args: &RigArgs) -> anyhow::Result<()> {
    args::check(args)?;
    if args.congestion_control != CONGESTION_CONTROL && !args.has_tcp() {
        let message = "--congestion-control only applies to --traffic tcp, mixed, iperf3-tcp and \
                       iperf3-mixed";
        return Err(Failure::usage(message).into());
    }
    require_root("the rig")?;
    // Checked before the measurement, which takes minutes.
    std::fs::create_dir_all(&args.out).map_err(|error| {
        Failure::usage(format!("cannot write to {}: {error}", args.out.display()))
    })?;
    let plan = Plan::from(args);
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = runtime()?;
    let _entered = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (mut signal, stop) = (signal(kind)?, Arc::clone(&stop));
        runtime.spawn(async move {
            signal.recv().await;
            stop.store(true, Ordering::Relaxed);
        });
    }
    let mut live = Live::new(&plan);
    let report = rig::run::run(&plan, &stop, |progress| live.show(&progress))?;
    let files = report.write(&args.out)?;
    for file in files {
        tracing::info!("wrote {}", file.display());
    }
    if args.json {
        return print(&report.to_json()?);
    }
    let out = args.out.display();
    print(&format!(
        "{}\n{}\nfigures and samples: {out}\n",
        report.table(),
        report.verdict()
    ))
}

/// Shows the running phase on standard error: bars on a terminal, else a line per second.
struct Live<'a> {
    plan: &'a Plan,
    is_terminal: bool,
    /// Lines of the last view, to be overwritten.
    lines: usize,
    last_s: i64,
}

impl<'a> Live<'a> {
    fn new(plan: &'a Plan) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self {
            plan,
            is_terminal,
            lines: 0,
            last_s: i64::MIN,
        }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        let victim = self.plan.topology.victim;
        let mut err = io::stderr().lock();
        // An error does not stop the measurement: perhaps standard error was closed.
        let _ = match progress {
            Progress::Begin { number: 1, .. } if !self.is_terminal => {
                writeln!(err, "{}", report::live_header())
            }
            Progress::Begin { .. } => {
                (self.lines, self.last_s) = (0, i64::MIN);
                Ok(())
            }
            Progress::Sample {
                phase,
                sample,
                done,
            } if self.is_terminal => {
                let seconds = self.plan.seconds as f64;
                let view = report::live_view(&phase.name, seconds, sample, done.first(), victim);
                let up = match self.lines {
                    0 => String::new(),
                    lines => format!("\x1b[{lines}A"),
                };
                self.lines = view.lines().count();
                write!(err, "{up}{}", view.replace('\n', "\x1b[K\n"))
            }
            Progress::Sample { phase, sample, .. } => match sample.t_s.floor() as i64 {
                second if second == self.last_s => Ok(()),
                second => {
                    self.last_s = second;
                    writeln!(err, "{}", report::live_row(&phase.name, sample, victim))
                }
            },
            Progress::End { .. } => Ok(()),
        };
    }
}

fn up(args: &UpArgs) -> anyhow::Result<()> {
    require_root("the rig")?;
    let mut rig = topology::Rig::up(&(&args.hosts).into())?;
    let shown = shown(&rig)?;
    rig.keep();
    if args.json {
        print_json(&shown)
    } else {
        print(&text(&shown))
    }
}

fn down(args: &DownArgs) -> anyhow::Result<()> {
    require_root("the rig")?;
    if let Some(pid) = Lock::holder().filter(|_| agent_is_in_rig()) {
        let message = format!("process {pid} is using the rig: stop it first");
        return Err(Failure::lacking(message).into());
    }
    let removed = topology::remove(DEFAULT_PREFIX)?;
    if args.json {
        return print_json(&removed);
    }
    match removed.len() {
        0 => print("no rig is up\n"),
        count => print(&format!(
            "removed {count} namespaces ({DEFAULT_PREFIX}-...)\n"
        )),
    }
}

/// Whether the agent uses a device in one of the rig's namespaces.
fn agent_is_in_rig() -> bool {
    let Some(state) = State::read() else {
        // It is about to start, or is a rig that has no agent yet.
        return true;
    };
    let bridges = state.bridges.iter().map(|bridge| &bridge.netns);
    let endpoints = state.endpoints.iter().map(|endpoint| &endpoint.netns);
    bridges
        .chain(endpoints)
        .any(|netns| netns.starts_with(DEFAULT_PREFIX))
}

/// The rig in `ecn rig show -j`.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    topology: Topology,
    switch_netns: String,
    hosts: Vec<ShownHost>,
    ports: Vec<ShownPort>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct ShownHost {
    #[serde(flatten)]
    host: Host,
    device: &'static str,
    /// Counters of a source's device.
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Counters>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct ShownPort {
    port: String,
    rate_bytes_per_s: u64,
    #[serde(flatten)]
    counters: Counters,
}

fn shown(rig: &topology::Rig) -> anyhow::Result<Shown> {
    let mut sources = rig.source_counters()?;
    let host = |host: &Host| ShownHost {
        host: host.clone(),
        device: HOST_DEVICE,
        counters: sources
            .iter()
            .position(|(name, _)| *name == host.name)
            .map(|at| sources.swap_remove(at).1),
    };
    let hosts = rig.hosts().iter().map(host).collect();
    let rate_bytes_per_s = rig.topology().link_rate_bytes_per_s;
    let ports = rig.port_counters()?;
    let port = |(port, counters)| ShownPort {
        port,
        rate_bytes_per_s,
        counters,
    };
    Ok(Shown {
        topology: rig.topology().clone(),
        switch_netns: rig.switch().name().to_owned(),
        hosts,
        ports: ports.into_iter().map(port).collect(),
    })
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    require_root("showing the rig")?;
    let look = || -> anyhow::Result<Shown> {
        let rig = topology::Rig::find(DEFAULT_PREFIX)?
            .ok_or_else(|| Failure::lacking("no rig is up: run `ecn rig up` first"))?;
        shown(&rig)
    };
    watch::show(&args.show, look, text)
}

fn text(shown: &Shown) -> String {
    let rate = rate_text(shown.topology.link_rate_bytes_per_s);
    let header = [
        "host", "role", "netns", "bridge", "port", "address", "packets", "drops", "queue",
    ];
    let mut hosts = plain_table(&header, &[0, 1, 2, 3, 4, 5]);
    for ShownHost { host, counters, .. } in &shown.hosts {
        let role = serde_json::to_value(host.role).unwrap_or_default();
        let [packets, drops, queue] = counters.as_ref().map_or_else(Default::default, |c| {
            [c.packets, c.dropped_packets, c.queue_packets.into()].map(|n| n.to_string())
        });
        hosts.add_row([
            host.name.clone(),
            role.as_str().unwrap_or_default().to_owned(),
            host.netns.clone(),
            host.bridge.to_owned(),
            host.port.clone(),
            host.ipv4.to_string(),
            packets,
            drops,
            queue,
        ]);
    }
    let mut ports = plain_table(
        &["port", "rate", "packets", "bytes", "drops", "queue"],
        &[0],
    );
    for ShownPort { port, counters, .. } in &shown.ports {
        ports.add_row([
            port.clone(),
            rate.clone(),
            counters.packets.to_string(),
            counters.bytes.to_string(),
            counters.dropped_packets.to_string(),
            counters.queue_packets.to_string(),
        ]);
    }
    format!(
        "switches bra and brb in {}, all links {rate}, packets of {} bytes\n\n{}\n{}",
        shown.switch_netns,
        shown.topology.frame_bytes(),
        table_text(&ports),
        table_text(&hosts)
    )
}
