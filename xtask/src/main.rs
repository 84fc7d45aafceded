//! `cargo xtask`: builds, sets up, runs and checks the project. One module per verb.
//!
//! A verb installs what it needs and does not find, if permitted ([`machine::Permission`]); each such
//! step is announced as `why: command` before it is run. These messages go to stderr; stdout is for
//! the program that a verb runs. Exit codes: 0 done, 1 failed, 2 bad usage, 3 the machine lacks
//! something, which the message names.

mod apt;
mod bench;
mod build_ebpf;
mod cargo_tool;
mod command;
mod deny;
mod dist;
mod docs;
mod kernels;
mod linker;
mod machine;
mod run;
mod setup;
mod step;
mod test;
mod toolchain;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, sets up, runs and checks ecn.
#[derive(Parser)]
#[command(name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,

    /// Install missing packages through sudo if not root (also: ECN_YES=1)
    #[arg(long, short, global = true)]
    yes: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Run HP's Fig. 1 on this machine's kernel, without and with congestion control
    Run(run::Args),
    /// Run all checks: format, lints, host tests, BPF build, real-kernel tests here and on other kernels, documentation
    Test(test::Args),
    /// Run benchmarks of the simulator, the datapath, or control on a bridge, or a soak test of the agent
    Bench(bench::Args),
    /// Build the BPF programs: target/bpf/ecn.bpf.o
    BuildEbpf(build_ebpf::Args),
    /// Build what users install, in target/dist: static commands, deb, rpm, image, checksums
    Dist(dist::Args),
    /// Build book and API documentation in target/book and target/doc, check links, run the commands of the book
    Docs(docs::Args),
    /// Install what building and testing require on this machine
    Setup(setup::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let permission = machine::Permission::find(cli.yes);
    let done = match cli.verb {
        Verb::Run(args) => run::run(&args, permission),
        Verb::Test(args) => test::test(&args, permission),
        Verb::Bench(args) => bench::bench(args, permission),
        Verb::BuildEbpf(args) => build_ebpf::build_ebpf(args, permission),
        Verb::Dist(args) => dist::dist(&args, permission),
        Verb::Docs(args) => docs::docs(&args, permission),
        Verb::Setup(args) => setup::setup(args, permission),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            step::print(&format!("{error:#}"));
            if error.is::<machine::Lacks>() {
                ExitCode::from(3)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
