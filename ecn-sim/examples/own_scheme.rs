//! A congestion control of one's own, in this file, beside two built-in ones on an incast.
//!
//! Like DCTCP (Alizadeh et al., SIGCOMM 2010): switches mark what finds more than K bytes waiting, and a sender keeps an
//! average of the fraction of its packets that were marked, alpha. Once per round trip it decreases by the part alpha / 2
//! if there was a mark, and increases by a step if there was none. DCTCP moves its window; here it is the rate, and the
//! window is a round trip's.
//!
//! `cargo run --release -p ecn-sim --example own_scheme` prints
//!
//! ```text
//! scheme  pauses  marked packets  last flow ends, ms
//! none      2205               0               3.407
//! dcqcn     2128           37939               3.407
//! dctcp      187           29609               3.783
//! ```
//!
//! All start at the link's rate; and whoever is left when others have ended takes up to a hundred round trips to use the
//! link again.

use ecn_sim::ModelError;
use ecn_sim::engine::Time;
use ecn_sim::fabric::cc::{
    Acknowledged, Cnm, Endpoints, Hooks, Mark, Network, QueueView, Scheme, Sender, Sending, Switch,
};
use ecn_sim::fabric::packet::Packet;
use ecn_sim::fabric::{self, Options, Report, Scenario};
use ecn_sim::scenario::ScenarioError;

/// Its parameters.
struct Dctcp {
    /// K, bytes.
    threshold: u32,
    /// Weight of a round trip's fraction in alpha.
    gain: f64,
    /// What a round trip without marks adds, and the lowest rate, as a share of the link's.
    step: f64,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self {
            threshold: 100_000,
            gain: 1.0 / 16.0,
            step: 1.0 / 100.0,
        }
    }
}

impl Scheme for Dctcp {
    type Sender = Source;
    type Switch = Marker;

    fn name(&self) -> &str {
        "dctcp"
    }

    fn sender(&self, network: &Network) -> Result<Source, ModelError> {
        if !(0.0..=1.0).contains(&self.gain) {
            return Err(ModelError::new(
                "gain",
                self.gain,
                "must be between 0 and 1",
            ));
        }
        let line = network.line.bytes_per_s() as f64;
        Ok(Source {
            line,
            gain: self.gain,
            step: self.step * line,
        })
    }

    fn switch(&self, _: &Network) -> Result<Marker, ModelError> {
        let threshold = self.threshold;
        Ok(Marker { threshold })
    }
}

/// All switches.
#[derive(Debug)]
struct Marker {
    threshold: u32,
}

impl Switch for Marker {
    /// A packet that need not wait finds no queue.
    fn hooks(&self) -> Hooks {
        Hooks::ENQUEUE_QUEUED
    }

    fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, _waits: bool) -> Option<Cnm> {
        if at.queued > self.threshold {
            packet.mark = Mark::Congestion;
        }
        None
    }
}

/// All hosts; rates in bytes per second.
#[derive(Debug)]
struct Source {
    line: f64,
    gain: f64,
    step: f64,
}

/// A flow at its sender.
#[derive(Clone, Copy, Debug)]
struct Flow {
    rate: f64,
    alpha: f64,
    /// ACKs since the round trip began, and those of marked packets.
    acked: u32,
    marked: u32,
    /// When the round trip ends.
    round_end: Time,
}

impl Sender for Source {
    type Flow = Flow;

    fn window(&self, network: &Network) -> Option<u64> {
        Some((self.line * network.idle_rtt as f64 / 1e12) as u64)
    }

    fn on_start(&mut self, _: Endpoints) -> Flow {
        Flow {
            rate: self.line,
            alpha: 1.0,
            acked: 0,
            marked: 0,
            round_end: 0,
        }
    }

    fn on_send(&mut self, flow: &mut Flow, packet: &Sending) -> Option<Time> {
        Some(packet.time_at(flow.rate as u64))
    }

    fn on_ack(&mut self, flow: &mut Flow, ack: &Acknowledged) -> Option<Time> {
        flow.acked += 1;
        flow.marked += u32::from(ack.mark == Mark::Congestion);
        if ack.now >= flow.round_end {
            let fraction = f64::from(flow.marked) / f64::from(flow.acked);
            flow.alpha += self.gain * (fraction - flow.alpha);
            flow.rate = if flow.marked > 0 {
                flow.rate * (1.0 - flow.alpha / 2.0)
            } else {
                flow.rate + self.step
            };
            flow.rate = flow.rate.clamp(self.step, self.line);
            (flow.acked, flow.marked) = (0, 0);
            flow.round_end = ack.now + ack.rtt;
        }
        None
    }
}

/// 20 hosts of 64 send 2 MB each to one.
fn incast(scheme: &str) -> Result<Scenario, ScenarioError> {
    let mut scenario = Scenario::of(fabric::Kind::FatTree);
    let own = format!("scheme={scheme}");
    for setting in ["hosts=64", "senders=20", "flow_size=2MB", &own] {
        scenario.set_text(setting)?;
    }
    Ok(scenario)
}

/// Reports of `none`, `dcqcn` and this one.
fn compare() -> anyhow::Result<[Report; 3]> {
    let options = Options::default();
    let built_in =
        |scheme| -> anyhow::Result<Report> { Ok(fabric::run(&incast(scheme)?, 1, &options)?.0) };
    let own = fabric::run_with(&Dctcp::default(), &incast("none")?, 1, &options)?.0;
    Ok([built_in("none")?, built_in("dcqcn")?, own])
}

fn main() -> anyhow::Result<()> {
    println!("scheme  pauses  marked packets  last flow ends, ms");
    for report in compare()? {
        let scheme = report.parameters["scheme"].as_str().unwrap_or_default();
        println!(
            "{scheme:<6}  {:>6}  {:>14}  {:>18.3}",
            report.pause_frames,
            report.marked_packets,
            report.last_flow_end_ms.unwrap_or(f64::NAN)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_controls_the_incast() -> anyhow::Result<()> {
        let [none, dcqcn, own] = compare()?;
        assert_eq!(own.parameters["scheme"].as_str(), Some("dctcp"));
        assert_eq!(own.flows_finished, 20);
        assert!(own.marked_packets > 0);
        assert!(own.pause_frames < none.pause_frames.min(dcqcn.pause_frames) / 10);
        // Without giving up the link.
        let [own, none] = [own, none].map(|one| one.last_flow_end_ms.expect("all finish"));
        assert!(own < 1.15 * none);
        main()
    }

    #[test]
    fn what_makes_no_sense_is_refused() -> anyhow::Result<()> {
        let options = Options::default();
        let refused = |scheme: &Dctcp, scenario: &Scenario| {
            let result = fabric::run_with(scheme, scenario, 1, &options);
            result.map_or_else(|error| error.to_string(), |_| "a run".to_owned())
        };
        let steep = Dctcp {
            gain: 2.0,
            ..Dctcp::default()
        };
        let error = refused(&steep, &incast("none")?);
        assert_eq!(error, "gain = 2: must be between 0 and 1");
        let error = refused(&Dctcp::default(), &incast("dcqcn")?);
        assert_eq!(error, "scheme = dcqcn: must be none to run with `dctcp`");
        Ok(())
    }
}
