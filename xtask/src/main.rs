//! `cargo xtask`: builds, sets up, runs and checks the project. One module per verb.
//!
//! What a verb needs and does not find, it installs, if it may ([`machine::Permission`]); each such
//! step is announced as `why: command` before it is run. All of that goes to stderr: stdout is left to
//! the program that a verb runs. Exit codes: 0 done, 1 failed, 2 bad usage, 3 the machine lacks
//! something that the message names.

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

    /// Install what is missing without being root, through sudo (also: ECN_YES=1)
    #[arg(long, short, global = true)]
    yes: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// HP's Fig. 1 on this machine's kernel, before and after congestion control
    Run(run::Args),
    /// Every check: format, lints, host tests, BPF build, real-kernel tests here and on other kernels, documentation
    Test(test::Args),
    /// The benchmarks of the simulator or of the datapath: medians and ratios
    Bench(bench::Args),
    /// The programs for the kernel: target/bpf/ecn.bpf.o
    BuildEbpf(build_ebpf::Args),
    /// What people install: static commands, deb, rpm, image, checksums, in target/dist
    Dist(dist::Args),
    /// The book and the documentation of the API, in target/book and target/doc: links checked, commands run
    Docs(docs::Args),
    /// Install what building and testing need on this machine
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
            step::say(&format!("{error:#}"));
            if error.is::<machine::Lacks>() {
                ExitCode::from(3)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
