//! `cargo xtask bench bridge`: control on an ordinary bridge, compared with none and with other means.
//!
//! One bridge in its own namespace; ten hosts that send, one that receives behind the port under test, one that pings
//! it, one that sends it voice. Every packet is a frame of its own, as on a wire. The port is an HTB class with a pfifo
//! of 100 packets; a host sends no more than its NIC carries, which is the endpoints' `link_rate`, and 1 Gbit/s at most.

mod agent;
mod load;
mod meters;
mod report;
mod rows;
mod run;
mod web;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use ecn_user::units::Rate;
use nix::sys::resource::{Resource, setrlimit};

use run::{Control, Outcome};

/// Control on an ordinary bridge: goodput, queue, delays and drops at a port.
#[derive(Parser, Debug)]
#[command(name = "bench bridge")]
pub struct Args {
    /// Rows to run (`--list` names them); by default all
    #[arg(long = "row", value_name = "ROW", value_delimiter = ',')]
    rows: Vec<String>,
    /// What controls
    #[arg(
        long,
        value_name = "CONTROL",
        value_delimiter = ',',
        default_value = "ecn"
    )]
    control: Vec<Control>,
    /// Length of a run; the first 2 s are not measured
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(4..=600))]
    seconds: u64,
    /// Rate of the port
    #[arg(long, default_value = "100mbit")]
    rate: Rate,
    /// Rate of the hosts' NICs, and the endpoints' link_rate; by default the port's
    #[arg(long)]
    link_rate: Option<Rate>,
    /// How endpoints enforce rates
    #[arg(long, default_value = "auto")]
    enforcement: String,
    /// A line of the agent's configuration: KEY=VALUE of [response], or SECTION.KEY=VALUE
    #[arg(long = "response-config", value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// SO_SNDBUF of the UDP senders, bytes; by default the system's
    #[arg(long)]
    sndbuf: Option<usize>,
    /// Runs of each row; medians are shown
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// The ecn command; by default that of the same tree
    #[arg(long, value_name = "FILE")]
    ecn: Option<PathBuf>,
    /// One JSON document on stdout
    #[arg(short, long)]
    json: bool,
    /// Only name the rows
    #[arg(long)]
    list: bool,
    /// What the agent logged, on stderr
    #[arg(long)]
    log: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// The `ecn` command: as given, else `release/ecn` of the target folder of this program.
    fn ecn(&self) -> PathBuf {
        let beside = || {
            Some(
                std::env::current_exe()
                    .ok()?
                    .parent()?
                    .parent()?
                    .join("ecn"),
            )
        };
        self.ecn
            .clone()
            .or_else(|| std::env::var_os("ECN_BIN").map(PathBuf::from))
            .or_else(beside)
            .unwrap_or_else(|| "ecn".into())
    }
}

fn main() -> ExitCode {
    // `cargo test --benches` passes no arguments.
    if std::env::args().len() == 1 {
        return ExitCode::SUCCESS;
    }
    let mut args = Args::parse();
    // Thousands of connections at both ends.
    let files = 1 << 18;
    if let Err(e) = setrlimit(Resource::RLIMIT_NOFILE, files, files) {
        eprintln!("bench bridge: no more open files than the limit of the shell: {e}");
    }
    if args.list {
        for (name, what) in rows::all() {
            println!("{name:<18} {what}");
        }
        return ExitCode::SUCCESS;
    }
    if args.control.is_empty() {
        args.control = match args.rows.as_slice() {
            [] => vec![Control::None, Control::Ecn, Control::Htb],
            _ => vec![Control::Ecn],
        };
    }
    let mut names = args.rows.clone();
    if names.is_empty() {
        names = rows::all().into_iter().map(|(name, _)| name).collect();
    }
    let mut todo = Vec::new();
    for name in &names {
        let Some(row) = rows::row(name, args.seconds) else {
            eprintln!("unknown row {name}; --list names them");
            return ExitCode::from(2);
        };
        todo.push(row);
    }
    if args.control.iter().any(|control| control.is_ours()) && !args.ecn().is_file() {
        let ecn = args.ecn();
        eprintln!(
            "no ecn command at {}: build it (cargo build --release -p ecn-user) or name it with --ecn",
            ecn.display()
        );
        return ExitCode::from(3);
    }
    let Some(_turn) = ecn_tests::begin("bench bridge") else {
        return ExitCode::from(3);
    };
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut failed = false;
    if !args.json {
        println!("{}", run::HEAD);
    }
    for row in &todo {
        for &control in &args.control {
            let mut runs = Vec::new();
            for n in 1..=args.runs {
                eprintln!("{} {control:?}, run {n} of {}", row.name, args.runs);
                match run::run(row, control, &args) {
                    Ok(outcome) => runs.push(outcome),
                    Err(why) => {
                        eprintln!("{} {control:?}: {why}", row.name);
                        failed = true;
                    }
                }
            }
            if let Some(outcome) = Outcome::median(runs) {
                if !args.json {
                    println!("{}", outcome.line());
                    for missed in report::misses(&outcome) {
                        println!("{:<18} {missed}", "");
                    }
                }
                outcomes.push(outcome);
            }
        }
    }
    if args.json {
        println!("{:#}", report::document(&outcomes));
    } else if outcomes.len() > 1 {
        println!("\n{}", report::table(&outcomes));
    }
    // Single rows are for inspection.
    if args.rows.is_empty() {
        match report::write(&outcomes) {
            Ok(out) => eprintln!("in {}: bridge.json, bridge.svg", out.display()),
            Err(error) => {
                eprintln!("cannot write the results: {error}");
                failed = true;
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// One run of a row, as in the JSON output: for the tests, which include this as a module.
#[cfg(test)]
pub fn outcome(
    row: &str,
    control: &str,
    ecn: &std::path::Path,
    seconds: u64,
) -> Result<serde_json::Value, String> {
    let seconds = seconds.to_string();
    let words = [
        "bench",
        "--control",
        control,
        "--seconds",
        &seconds,
        "--ecn",
    ];
    let words = words.map(std::ffi::OsStr::new).into_iter();
    let args = Args::try_parse_from(words.chain([ecn.as_os_str()]));
    let args = args.map_err(|error| error.to_string())?;
    let row = rows::row(row, args.seconds).ok_or_else(|| format!("no row {row}"))?;
    let control = args.control.first().copied();
    let control = control.ok_or_else(|| "no control".to_owned())?;
    Ok(run::run(&row, control, &args)?.json())
}
