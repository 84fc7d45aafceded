//! `ecn top`: the busiest ports and flows, again and again.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::exit;
use super::table::{FlowRow, PortRow, flows_table, ports_table};
use super::view::View;
use super::watch::{self, Show, seconds};

/// `ecn top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Look again every so many seconds
    #[arg(long, short = 's', value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Most ports, and most flows, to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 12)]
    rows: usize,
    /// Directory of the pinned maps; by default that of the running agent
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    /// Print one JSON document per look and nothing else
    #[arg(long, short = 'j')]
    json: bool,
}

/// One look. Rates are since the look before; 0 at the first.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Top {
    ports_in_all: usize,
    flows_in_all: usize,
    /// Packets that the bridges marked.
    marked_packets_per_s: u64,
    /// Packets that their queues dropped, and those dropped before them that could not be marked.
    dropped_packets_per_s: u64,
    /// Packets that receivers echoed.
    acked_packets_per_s: u64,
    /// Those that marked and dropped most since the look before, then by their queues.
    ports: Vec<PortRow>,
    /// Those that got most through since the look before.
    flows: Vec<FlowRow>,
}

/// Counts at the look before.
#[derive(Default)]
struct Before {
    at: Option<Instant>,
    ports: HashMap<(String, u32), (u64, u64)>,
    flows: HashMap<(String, String), u64>,
}

impl Before {
    /// What changed since the look before, which this one then is.
    fn top(&mut self, ports: Vec<PortRow>, flows: Vec<FlowRow>, rows: usize, now: Instant) -> Top {
        // Without a look before, nothing is known to have changed.
        let elapsed = self.at.map(|at| (now - at).as_secs_f64());
        let per_s = |count: u64| match elapsed {
            Some(elapsed) if elapsed > 0.0 => (count as f64 / elapsed).round() as u64,
            _ => 0,
        };
        let mut top = Top {
            ports_in_all: ports.len(),
            flows_in_all: flows.len(),
            ..Top::default()
        };
        let mut busy_ports = Vec::new();
        let (mut marked, mut dropped, mut acked) = (0, 0, 0);
        for port in ports {
            let dropped_there = port.dropped_packets + port.dropped_unmarkable_packets;
            let now = (port.marked_packets, dropped_there);
            let key = (port.bridge.clone(), port.ifindex);
            let then = self.ports.insert(key, now).unwrap_or(now);
            let (m, d) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
            marked += m;
            dropped += d;
            busy_ports.push((m + d, port));
        }
        let mut busy_flows = Vec::new();
        for flow in flows {
            let now = flow.acked_packets;
            let key = (
                flow.netns.clone(),
                format!("{} {}", flow.device, flow.name()),
            );
            let a = now.saturating_sub(self.flows.insert(key, now).unwrap_or(now));
            acked += a;
            busy_flows.push((a, flow));
        }
        busy_ports.sort_by_key(|(busy, port)| std::cmp::Reverse((*busy, port.waiting_packets)));
        busy_flows.sort_by_key(|(busy, _)| std::cmp::Reverse(*busy));
        self.at = Some(now);
        top.marked_packets_per_s = per_s(marked);
        top.dropped_packets_per_s = per_s(dropped);
        top.acked_packets_per_s = per_s(acked);
        top.ports = busy_ports
            .into_iter()
            .take(rows)
            .map(|(_, row)| row)
            .collect();
        top.flows = busy_flows
            .into_iter()
            .take(rows)
            .map(|(_, row)| row)
            .collect();
        top
    }
}

fn draw(top: &Top) -> String {
    let mut text = format!(
        "{} ports, {} flows; packets per second: {} delivered, {} marked, {} dropped\n\n",
        top.ports_in_all,
        top.flows_in_all,
        top.acked_packets_per_s,
        top.marked_packets_per_s,
        top.dropped_packets_per_s
    );
    let _ = write!(
        text,
        "{}\n{}",
        ports_table(&top.ports),
        flows_table(&top.flows)
    );
    text
}

/// Runs the verb, until it is stopped.
///
/// # Errors
///
/// No datapath.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let how = Show {
        watch: Some(args.seconds),
        json: args.json,
    };
    let mut before = Before::default();
    let mut warned = false;
    let look = || -> anyhow::Result<Top> {
        let view = View::open(args.pin.as_deref())?;
        if let Some(warning) = view.stale().filter(|_| !warned) {
            exit::note(&warning);
            warned = true;
        }
        let flows = view.flows()?.into_iter().map(|(_, row)| row).collect();
        Ok(before.top(view.ports()?, flows, args.rows, Instant::now()))
    };
    watch::show(&how, look, draw)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn port(name: &str, ifindex: u32, marked: u64, dropped: u64) -> PortRow {
        serde_json::from_value(serde_json::json!({
            "bridge": "br0", "port": name, "ifindex": ifindex, "marking": "input-output",
            "waiting_packets": 0, "to_mark_packets": 0, "occupancy_packets": 0,
            "marked_packets": marked, "unmarkable_packets": 0, "input_triggers": 0,
            "output_triggers": 0, "dropped_packets": dropped
        }))
        .unwrap()
    }

    fn flow(src_port: u16, acked: u64) -> FlowRow {
        serde_json::from_value(serde_json::json!({
            "src": "10.0.0.1", "dst": "10.0.1.1", "protocol": "udp", "src_port": src_port, "dst_port": 2,
            "device": "eth0", "netns": "", "response": "lipd", "rate_bytes_per_s": 0,
            "ipd_packet_times": 1.0, "marked_packets": 0, "acked_packets": acked,
            "enforcement": "htb", "pinned": false, "idle_ms": 0
        }))
        .unwrap()
    }

    #[test]
    fn the_busiest_since_the_last_look_come_first() {
        let (mut before, start) = (Before::default(), Instant::now());
        let first = before.top(
            vec![port("a", 1, 1_000, 0), port("b", 2, 0, 0)],
            vec![flow(1, 9_000), flow(2, 10), flow(3, 0)],
            2,
            start,
        );
        assert_eq!(first.acked_packets_per_s + first.marked_packets_per_s, 0);
        let later = before.top(
            vec![port("a", 1, 1_010, 0), port("b", 2, 60, 40)],
            vec![flow(1, 9_000), flow(2, 410), flow(3, 200)],
            2,
            start + Duration::from_secs(2),
        );
        assert_eq!((later.ports_in_all, later.flows_in_all), (2, 3));
        assert_eq!(later.marked_packets_per_s, 35);
        assert_eq!(later.dropped_packets_per_s, 20);
        assert_eq!(later.acked_packets_per_s, 300);
        assert_eq!(later.ports[0].port, "b");
        let shown: Vec<u16> = later.flows.iter().map(|flow| flow.src_port).collect();
        assert_eq!(shown, [2, 3]);
        let text = draw(&later);
        assert!(text.starts_with("2 ports, 3 flows; packets per second: 300 delivered, 35 marked"));
        assert!(text.contains("10.0.0.1:2>10.0.1.1:2/udp") && !text.contains("10.0.0.1:1>"));
    }

    /// Counters that begin anew, as with a new agent, are no negative rates.
    #[test]
    fn counters_may_begin_anew() {
        let (mut before, start) = (Before::default(), Instant::now());
        before.top(vec![port("a", 1, 500, 5)], vec![flow(1, 50)], 9, start);
        let later = start + Duration::from_secs(1);
        let top = before.top(vec![port("a", 1, 3, 0)], vec![flow(1, 2)], 9, later);
        assert_eq!((top.marked_packets_per_s, top.acked_packets_per_s), (0, 0));
    }
}
