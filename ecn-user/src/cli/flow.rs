//! `ecn flow`: flows that are sent through controlled devices, and pinned rates.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use ecn_core::{abi, flow, response};

use crate::agent::health::floor_ipd;
use crate::agent::state::State;
use crate::config::MIN_RATE_BYTES_PER_S;
use crate::units::Rate;

use super::exit::{self, Failure};
use super::key::{FlowName, nearest};
use super::table::{FlowFilter, FlowRow, flows_table, rate_text, sort_flows};
use super::view::View;
use super::watch::{self, Show};
use super::words;

const NO_RESPONSE: u32 = response::Function::None as u32;

/// What to do with flows.
#[derive(Subcommand, Debug)]
pub(super) enum Flow {
    /// Show the rate, marks and response of each flow
    #[command(visible_aliases = ["list", "ls"])]
    Show(FlowShow),
    /// Pin a flow's rate, regardless of its marks
    Set(FlowSet),
    /// Unpin a flow's rate: its response controls it again
    Unset(FlowUnset),
}

/// `ecn flow show`.
#[derive(Args, Debug)]
pub(super) struct FlowShow {
    /// Show only matching flows: dev NAME, src ADDRESS, dst ADDRESS, netns NAME, proto NAME
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Sort by a JSON key, with or without its unit, such as rate or marked_packets
    #[arg(long, value_name = "KEY")]
    sort: Option<String>,
    /// Directory of the pinned maps; by default that of the running agent
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    #[command(flatten)]
    show: Show,
}

/// Which flow.
#[derive(Args, Debug)]
pub(super) struct Which {
    /// Flow as `ecn flow show` prints it, in quotes: '10.0.0.1:1234>10.0.1.1:5001/udp'
    #[arg(value_name = "FLOW")]
    flow: FlowName,
    /// Device through which the flow leaves, if several devices have such a flow
    #[arg(long, value_name = "DEVICE")]
    dev: Option<String>,
    /// Network namespace of that device
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
    /// Directory of the pinned maps; by default that of the running agent
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    /// Print the flow as JSON, as in `ecn flow show`
    #[arg(long, short = 'j')]
    json: bool,
}

/// `ecn flow set`.
#[derive(Args, Debug)]
pub(super) struct FlowSet {
    #[command(flatten)]
    which: Which,
    /// Rate, such as 20mbit: between the lowest rate of the device's response and its link rate
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Rate,
}

/// `ecn flow unset`.
#[derive(Args, Debug)]
pub(super) struct FlowUnset {
    #[command(flatten)]
    which: Which,
}

/// Runs the verb.
///
/// # Errors
///
/// Invalid filter or key, unknown flow, rate outside the device's range; no datapath.
pub(super) fn run(flow: &Flow) -> anyhow::Result<()> {
    match flow {
        Flow::Show(args) => show(args),
        Flow::Set(args) => set(args),
        Flow::Unset(args) => unset(args),
    }
}

fn show(args: &FlowShow) -> anyhow::Result<()> {
    let filter = FlowFilter::parse(words(&args.filter))?;
    sort_flows(&mut [], args.sort.as_deref())?;
    let mut warned = false;
    let look = || -> anyhow::Result<Vec<FlowRow>> {
        let view = View::open(args.pin.as_deref())?;
        if let Some(warning) = view.stale().filter(|_| !warned) {
            exit::note(&warning);
            warned = true;
        }
        let mut rows: Vec<_> = view.flows()?.into_iter().map(|(_, row)| row).collect();
        rows.retain(|row| filter.matches(row));
        sort_flows(&mut rows, args.sort.as_deref())?;
        Ok(rows)
    };
    watch::show(&args.show, look, |rows| flows_table(rows))
}

fn set(args: &FlowSet) -> anyhow::Result<()> {
    let mut view = View::open(args.which.pin.as_deref())?;
    let flows = view.flows()?;
    let is_it = |key: &&flow::Key| FlowName::from(*key) == args.which.flow;
    // Entries outlive their device, which may reappear. Without a state, nothing is known of devices.
    let no_state = view.state == State::default();
    let exists = |key: &&flow::Key| no_state || view.endpoint(key.endpoint).is_some();
    let mut all = flows.iter().map(|(key, _)| key);
    let known = all.clone().filter(exists);
    if all.any(|key| is_it(&key)) && !known.clone().any(|key| is_it(&key)) {
        let message = format!("the device of {} was removed", args.which.flow);
        return Err(Failure::failed(message).into());
    }
    let key = *pick(&view, &args.which, known)?;
    let policy = view.maps.endpoint(key.endpoint.into())?;
    check_rate(args.rate, &policy)?;
    view.maps
        .set_pin(&key, args.rate.bytes_per_s())
        .with_context(|| format!("cannot set {}", args.which.flow))?;
    if let Some(warning) = view.stale() {
        exit::note(&warning);
    }
    let flow = row(&view, &key)?;
    if let Some(flow) = flow.as_ref().filter(|flow| flow.enforcement == "none") {
        let why = match view.maps.flow(&key) {
            Some(flow) if flow.flags & flow::NEGOTIATED != 0 => {
                "TCP has negotiated ECN and controls itself"
            }
            Some(flow) if flow.socket == 0 => {
                "its device does not enforce rates, or no TCP socket of this machine sends it"
            }
            _ => "its device does not enforce rates",
        };
        exit::note(&format!(
            "the rate of this flow on {:?} is not enforced: {why}",
            flow.device
        ));
    }
    if args.which.json {
        return exit::print_json(&flow);
    }
    exit::print(&format!("{} {}\n", args.which.flow, args.rate))
}

/// A flow's rate lies between the lowest rate of its device's response and the link rate.
fn check_rate(rate: Rate, policy: &abi::Endpoint) -> Result<(), Failure> {
    let link = policy.link_bytes_per_s;
    let floor = match policy.response.function {
        NO_RESPONSE => 0,
        _ => response::rate(floor_ipd(policy), link),
    };
    let floor = floor.max(MIN_RATE_BYTES_PER_S);
    let bytes_per_s = rate.bytes_per_s();
    if link != 0 && bytes_per_s > link {
        let link = rate_text(link);
        return Err(Failure::usage(format!(
            "{rate} is above the link rate of this flow's device, {link}"
        )));
    }
    if bytes_per_s < floor {
        let floor = rate_text(floor);
        return Err(Failure::usage(format!(
            "{rate} is below the lowest rate of this flow's device, {floor}"
        )));
    }
    Ok(())
}

fn unset(args: &FlowUnset) -> anyhow::Result<()> {
    let mut view = View::open(args.which.pin.as_deref())?;
    let pins = view.maps.pins()?;
    let wanted = |key: &&flow::Key| FlowName::from(*key) == args.which.flow;
    if !pins.iter().map(|(key, _)| key).any(|key| wanted(&key)) {
        // Fails if there is no such flow at all.
        let flows = view.flows()?;
        pick(&view, &args.which, flows.iter().map(|(key, _)| key))?;
        let message = format!("the rate of {} is not pinned", args.which.flow);
        return Err(Failure::failed(message).into());
    }
    let key = *pick(&view, &args.which, pins.iter().map(|(key, _)| key))?;
    view.maps.remove_pin(&key);
    if args.which.json {
        return exit::print_json(&row(&view, &key)?);
    }
    exit::print(&format!(
        "{} is controlled by its response again\n",
        args.which.flow
    ))
}

fn row(view: &View, key: &flow::Key) -> anyhow::Result<Option<FlowRow>> {
    Ok(view
        .flows()?
        .into_iter()
        .find(|(found, _)| found == key)
        .map(|(_, row)| row))
}

/// The key of the flow among `known`, at the requested endpoint; fails unless there is exactly one.
fn pick<'a>(
    view: &View,
    which: &Which,
    known: impl Iterator<Item = &'a flow::Key> + Clone,
) -> anyhow::Result<&'a flow::Key> {
    let place = |key: &flow::Key| match view.endpoint(key.endpoint) {
        Some(endpoint) => (endpoint.device.clone(), endpoint.netns.clone()),
        None => (String::new(), String::new()),
    };
    let same = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|w| w == found);
    let everywhere: Vec<_> = known
        .clone()
        .filter(|key| FlowName::from(*key) == which.flow)
        .collect();
    let here: Vec<_> = everywhere
        .iter()
        .filter(|key| {
            let (device, netns) = place(key);
            same(&which.dev, &device) && same(&which.netns, &netns)
        })
        .collect();
    let places = |keys: &[&flow::Key]| {
        let mut texts: Vec<_> = keys
            .iter()
            .map(|key| match place(key) {
                (device, netns) if netns.is_empty() => format!("--dev {device}"),
                (device, netns) => format!("--dev {device} --netns {netns}"),
            })
            .collect();
        texts.sort();
        texts.join(", ")
    };
    match (here.as_slice(), everywhere.as_slice()) {
        ([key], _) => Ok(key),
        ([], []) => {
            let near = nearest(&which.flow, known.map(FlowName::from), 3);
            let hint = if near.is_empty() {
                "there are no flows at present; see `ecn flow show`".to_owned()
            } else {
                format!("nearest are {}; `ecn flow show` lists all", near.join(", "))
            };
            Err(Failure::failed(format!("no flow {}: {hint}", which.flow)).into())
        }
        ([], elsewhere) => {
            let places = places(elsewhere);
            Err(Failure::failed(format!(
                "no flow {} at that device: use {places}",
                which.flow
            ))
            .into())
        }
        (several, _) => {
            let several: Vec<_> = several.iter().map(|key| **key).collect();
            let places = places(&several);
            let message = format!("several devices have {}: use one of {places}", which.flow);
            Err(Failure::usage(message).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_out_of_range_are_refused() {
        let policy = |function, round| abi::Endpoint {
            link_bytes_per_s: 12_500_000,
            response: response::Policy::hp(function).with_round(round, 0),
            ..abi::Endpoint::default()
        };
        let (lipd, none) = (response::Function::Lipd, response::Function::None);
        let (packets, fractional) = (response::Round::Packets, response::Round::Fractional);
        for (function, round, lowest, too_low) in [
            // A 256th of the link rate.
            (lipd, packets, "390626bit", "390kbit"),
            (lipd, fractional, "8kbit", "7992bit"),
            (none, packets, "8kbit", "7992bit"),
        ] {
            let policy = policy(function, round);
            let check = |rate: &str| check_rate(rate.parse().expect("a rate"), &policy);
            for allowed in [lowest, "1mbit", "100mbit"] {
                assert!(check(allowed).is_ok(), "{function:?} {round:?} {allowed}");
            }
            for (refused, why) in [(too_low, "below the lowest"), ("101mbit", "above the link")] {
                let error = check(refused).expect_err(refused);
                assert_eq!(error.code, exit::USAGE);
                assert!(error.to_string().contains(why), "{error}");
            }
        }
    }
}
