//! The command line: one file per verb.
//!
//! `-j` prints one JSON document and nothing else to the standard output; logs and messages go to
//! the standard error. Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 the machine
//! lacks something.

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
    /// Log more to the standard error; -vv still more. ECN_LOG=debug sets it too
    #[arg(long, short = 'v', action = ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the agent in the foreground
    Run(run::RunArgs),
    /// Let the running agent read its configuration again
    Reload(reload::ReloadArgs),
    /// HP's Fig. 1 as network namespaces and bridges
    #[command(subcommand)]
    Rig(rig::Rig),
    /// Look at the ports of bridges that mark
    #[command(subcommand)]
    Port(port::Port),
    /// Show flows, and pin their rates
    #[command(subcommand)]
    Flow(flow::Flow),
    /// Watch ports and flows: rates per second, busiest first
    Top(top::TopArgs),
    /// Print what happens as JSON lines: triggers, changes of rates, warnings, what comes and goes
    Monitor(monitor::MonitorArgs),
    /// Print the JSON Schema of what a command prints with -j
    Schema(schema::SchemaArgs),
    /// Say what this machine has and lacks
    Doctor(doctor::DoctorArgs),
    /// Remove what a killed agent or rig left behind
    Clean(clean::CleanArgs),
    /// Simulate lossless networks with the same marking and response
    #[command(subcommand)]
    Sim(ecn_sim::cli::Sim),
    /// Find the increase function for a decrease function, with HP's design method
    Design(ecn_sim::cli::design::DesignArgs),
    /// Send and receive the rig's traffic, as its parent says on the standard input
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
        Command::Sim(sim) => Ok(ecn_sim::cli::run(sim)?),
        Command::Design(args) => Ok(ecn_sim::cli::design::run(args)?),
        Command::Traffic => Ok(traffic::main_traffic()?),
    }
}

/// The words of a filter, whether each came by itself or several in quotes.
fn words(filter: &[String]) -> impl Iterator<Item = &str> {
    filter.iter().flat_map(|words| words.split_whitespace())
}

/// Fails, with the exit code for what a machine lacks, unless this is root.
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
