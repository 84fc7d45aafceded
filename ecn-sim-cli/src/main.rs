//! The simulator by itself, for machines where `ecn` cannot be built.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ecn_sim_cli::rig::{self, args::RigArgs};
use ecn_sim_cli::{Sim, run};

/// Packet-level simulator of lossless networks, with the marking and response of ecn.
#[derive(Parser)]
#[command(name = "ecn-sim", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 bad usage or configuration.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    #[command(flatten)]
    Sim(Sim),
    /// The rig of `ecn rig run`, simulated
    Rig(Box<RigArgs>),
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Sim(sim) => run(&sim),
        Verb::Rig(args) => rig::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ecn-sim: {error}");
            ExitCode::from(error.code)
        }
    }
}
