//! The command line: one file per verb.
//!
//! `-j` prints one JSON document to standard output and nothing else; logs and messages go to standard error. Exit
//! codes: 0 done, 1 failed, 2 bad usage or configuration, 3 the machine lacks something.

mod clean;
pub mod counters;
mod doctor;
mod exit;
mod flow;
pub mod key;
pub mod log;
mod monitor;
mod port;
mod reload;
mod rig;
mod run;
pub mod schema;
pub mod table;
mod top;
pub mod view;
mod watch;

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

use crate::rig::traffic;

pub(crate) use exit::Failure;

/// Congestion control for Linux bridges: hop-by-hop ECN marking, echo and rate control per flow.
#[derive(Parser, Debug)]
#[command(name = "ecn", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 bad usage or configuration, \
                        3 the machine lacks something."
)]
pub struct Cli {
    /// Log more to standard error, -vv still more; ECN_LOG (off, error, warn, info, debug, trace) overrides it
    #[arg(long, short = 'v', action = ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the agent in the foreground
    Run(run::RunArgs),
    /// Make the running agent reload its configuration
    Reload(reload::ReloadArgs),
    /// Build HP's testbed (Fig. 1) from network namespaces and bridges
    #[command(subcommand)]
    Rig(rig::Rig),
    /// Show the ports at which bridges mark
    #[command(subcommand)]
    Port(port::Port),
    /// Show flows, and pin their rates
    #[command(subcommand)]
    Flow(flow::Flow),
    /// Watch ports and flows: rates per second, busiest first
    Top(top::TopArgs),
    /// Print events as JSON lines: triggers, rate changes, warnings, ports and endpoints attached or detached
    Monitor(monitor::MonitorArgs),
    /// Print the JSON Schema of a command's -j output
    Schema(schema::SchemaArgs),
    /// Check what this machine supports and what is missing
    Doctor(doctor::DoctorArgs),
    /// Remove what a killed agent or rig left behind
    Clean(clean::CleanArgs),
    /// Simulate lossless networks with the same marking and response
    #[command(subcommand)]
    Sim(ecn_sim_cli::Sim),
    /// Find the increase function for a decrease function, with HP's design method
    Design(ecn_sim_cli::design::DesignArgs),
    /// Send and receive the rig's traffic, as the parent process requests on standard input
    #[command(hide = true)]
    Traffic,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let words = watch::join_seconds(std::env::args_os());
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    ExitCode::from(exit::finish(run(&cli)))
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let _log = if matches!(cli.command, Command::Run(_)) {
        log::start_for_long(cli.verbose)?
    } else {
        log::start(cli.verbose)?
    };
    match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Reload(args) => reload::run(args),
        Command::Rig(rig) => rig::run(rig),
        Command::Port(port) => port::run(port),
        Command::Flow(flow) => flow::run(flow),
        Command::Top(args) => top::run(args),
        Command::Monitor(args) => monitor::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Clean(args) => clean::run(args),
        Command::Sim(sim) => Ok(ecn_sim_cli::run(sim)?),
        Command::Design(args) => Ok(ecn_sim_cli::design::run(args)?),
        Command::Traffic => Ok(traffic::main_traffic()?),
    }
}

/// The words of a filter, of which one argument may contain several.
fn words(filter: &[String]) -> impl Iterator<Item = &str> {
    filter.iter().flat_map(|words| words.split_whitespace())
}

/// Fails with [`exit::LACKING`] unless run by root.
fn require_root(what: &str) -> anyhow::Result<()> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(Failure::lacking(format!("{what} needs root: run it with sudo")).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
