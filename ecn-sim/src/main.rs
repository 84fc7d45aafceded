//! The simulator by itself, for machines where `ecn` cannot be built.

use std::process::ExitCode;

use clap::Parser;
use ecn_sim::cli;

/// Packet-level simulator of lossless networks, with the marking and response of ecn.
#[derive(Parser)]
#[command(name = "ecn-sim", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 bad usage or configuration.")]
struct Cli {
    #[command(subcommand)]
    sim: cli::Sim,
}

fn main() -> ExitCode {
    match cli::run(&Cli::parse().sim) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ecn-sim: {error}");
            ExitCode::from(error.code)
        }
    }
}
