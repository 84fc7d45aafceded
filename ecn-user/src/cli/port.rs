//! `ecn port`: the marking ports of bridges.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::agent::health::Warning;

use super::table::{PortFilter, PortRow, ports_table, sort_ports, warnings_text};
use super::view::View;
use super::watch::{self, Show};
use super::{exit, words};

/// What to do with ports.
#[derive(Subcommand, Debug)]
pub(super) enum Port {
    /// Show queues, marks, messages and drops of each port
    #[command(visible_aliases = ["list", "ls"])]
    Show(PortShow),
}

/// `ecn port show`.
#[derive(Args, Debug)]
pub(super) struct PortShow {
    /// Show only matching ports: dev NAME, bridge NAME
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Sort by a JSON key, with or without its unit, such as marked or waiting_packets
    #[arg(long, value_name = "KEY")]
    sort: Option<String>,
    /// Directory of the pinned maps; by default that of the running agent
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    #[command(flatten)]
    show: Show,
}

/// What is shown. As JSON, each port has its own warnings.
#[derive(Serialize)]
#[serde(transparent)]
struct Ports {
    rows: Vec<PortRow>,
    /// Includes those of endpoints, unless ports are filtered.
    #[serde(skip)]
    warnings: Vec<Warning>,
}

/// Runs the verb.
///
/// # Errors
///
/// Invalid filter or key; no port matches the filter; no datapath.
pub(super) fn run(port: &Port) -> anyhow::Result<()> {
    let Port::Show(args) = port;
    let filter = PortFilter::parse(words(&args.filter))?;
    sort_ports(&mut [], args.sort.as_deref())?;
    let mut warned = false;
    let look = || -> anyhow::Result<Ports> {
        let view = View::open(args.pin.as_deref())?;
        if let Some(warning) = view.stale().filter(|_| !warned) {
            exit::note(&warning);
            warned = true;
        }
        let mut rows = view.ports()?;
        rows.retain(|row| filter.matches(row));
        if rows.is_empty() && !args.filter.is_empty() && args.show.watch.is_none() {
            let filter = args.filter.join(" ");
            let message = format!("no port matches `{filter}`: `ecn port show` lists all");
            return Err(exit::Failure::failed(message).into());
        }
        sort_ports(&mut rows, args.sort.as_deref())?;
        let shown = |warning: &&Warning| {
            let of_row = |row: &PortRow| row.warnings.contains(warning);
            args.filter.is_empty() || rows.iter().any(of_row)
        };
        let warnings = view.warnings().iter().filter(shown).cloned().collect();
        Ok(Ports { rows, warnings })
    };
    watch::show(&args.show, look, |ports| {
        ports_table(&ports.rows) + &warnings_text(&ports.warnings)
    })
}
