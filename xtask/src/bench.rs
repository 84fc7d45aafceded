//! `cargo xtask bench`: the benchmarks, and a table of medians and ratios.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::machine::{Lacks, Permission, cargo, is_root, root};
use crate::{build_ebpf, command, kernels, setup, step};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure: the simulator; the programs in this kernel (root); control on a bridge (root); whether rig and
    /// bridges match their simulation (root); whether the agent's memory, files, entries or log grow (root)
    #[arg(value_enum, default_value = "simulator")]
    what: What,
    /// Options of `bench bridge` (see `cargo xtask bench bridge --help`), or seconds of `bench soak`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    Simulator,
    Datapath,
    Bridge,
    Twin,
    Soak,
}

/// A benchmark. Its group is the unit of its throughput; its name is `MODEL-VARIANT`, where the variant is an event
/// queue or a number of threads.
struct Bench {
    unit: String,
    model: String,
    variant: String,
    /// Median time of a run, ns.
    median_ns: f64,
    /// Units in a run.
    count: f64,
}

impl Bench {
    /// Millions per second.
    fn rate(&self) -> f64 {
        self.count / self.median_ns * 1e3
    }
}

/// Runs the verb.
pub fn bench(args: Args, permission: Permission) -> Result<ExitCode> {
    match args.what {
        What::Simulator => simulator(),
        What::Datapath => datapath(permission),
        What::Bridge => bridge(&args.words, permission),
        What::Twin => twin(&args.words, permission),
        What::Soak => soak(&args.words, permission),
    }
}

/// Congestion control on a bridge. Options are passed to the benchmark, except `--kernel 6.12`: that kernel, emulated.
fn bridge(words: &[String], permission: Permission) -> Result<ExitCode> {
    let only_says = ["--help", "-h", "--list"]
        .iter()
        .any(|word| words.iter().any(|w| w == word));
    let (series, words) = kernel(words)?;
    if !only_says {
        if series.is_none() && !is_root() {
            return Err(Lacks("namespaces and BPF programs need root".into()).into());
        }
        build_ebpf::build(&setup::bpf(permission)?, false)?;
        let mut command = cargo();
        command.args(["build", "--release", "-p", "ecn-user"]);
        step::run("the ecn command", &mut command)?;
        if let Some(series) = series {
            kernels::bench(&series, &words, permission)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut command = cargo();
    command
        .args(["bench", "-q", "-p", "ecn-tests", "--bench", "bridge", "--"])
        .args(words)
        .env("ECN_BENCH_OUT", root().join("target/bench"));
    step::print(&step::shown(&command));
    // stdout is inherited: the table is the result of this verb.
    let status = command.status()?;
    Ok(match status.code() {
        Some(0) => ExitCode::SUCCESS,
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::FAILURE,
    })
}

/// Compares rig and bridges with their simulation: medians of several runs, for a quiet machine. Prints tables.
fn twin(words: &[String], permission: Permission) -> Result<ExitCode> {
    if !words.is_empty() {
        bail!("`cargo xtask bench twin` takes no arguments");
    }
    let mut twin = kernel_tests("twin::", permission)?;
    step::run("the comparison", twin.arg("--run-ignored=only"))?;
    Ok(ExitCode::SUCCESS)
}

/// Soak test: the agent under load for ten minutes, or the given number of seconds. Prints a table of its resources.
fn soak(words: &[String], permission: Permission) -> Result<ExitCode> {
    let seconds = words.first().map_or("600", String::as_str);
    if words.len() > 1 || seconds.parse::<u32>().is_err() {
        bail!("`cargo xtask bench soak` takes only a number of seconds");
    }
    let mut soak = kernel_tests("soak::", permission)?;
    step::run("the soak", soak.env("ECN_SOAK_SECONDS", seconds))?;
    Ok(ExitCode::SUCCESS)
}

/// The real-kernel tests with names that contain this, once, with their output.
fn kernel_tests(name: &str, permission: Permission) -> Result<Command> {
    if !is_root() {
        return Err(Lacks("the agent needs root".into()).into());
    }
    build_ebpf::build(&setup::bpf(permission)?, false)?;
    command::build()?;
    let mut tests = command::tests(&["kernel"])?;
    tests.args([name, "--no-capture", "--retries=0"]);
    Ok(tests)
}

/// The kernel given by `--kernel`, and the other arguments.
fn kernel(words: &[String]) -> Result<(Option<String>, Vec<String>)> {
    let mut others = Vec::new();
    let mut series = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--kernel") {
            Some("") => words.next().map(String::as_str).unwrap_or_default(),
            Some(rest) if rest.starts_with('=') => &rest[1..],
            _ => {
                others.push(word.clone());
                continue;
            }
        };
        series = Some(kernels::series(value).map_err(anyhow::Error::msg)?);
    }
    Ok((series, others))
}

/// The BPF programs, in new namespaces: prints tables, and writes JSON and SVG to `target/bench`.
fn datapath(permission: Permission) -> Result<ExitCode> {
    if !is_root() {
        return Err(Lacks("BPF programs need root".into()).into());
    }
    build_ebpf::build(&setup::bpf(permission)?, false)?;
    let mut command = cargo();
    command
        .args(["bench", "-p", "ecn-tests", "--bench", "datapath"])
        .env("ECN_BENCH_OUT", root().join("target/bench"));
    step::run("the datapath's benchmarks", &mut command)?;
    Ok(ExitCode::SUCCESS)
}

fn simulator() -> Result<ExitCode> {
    let results = root().join("target/criterion");
    // Removes results of benchmarks that no longer exist.
    if results.exists() {
        fs::remove_dir_all(&results).with_context(|| format!("removing {}", results.display()))?;
    }
    let mut command = cargo();
    command
        .args(["bench", "-p", "ecn-sim", "--bench", "hops"])
        .env("CRITERION_HOME", &results);
    step::run("the simulator's benchmarks", &mut command)?;
    let benches = read(&results)?;
    if benches.is_empty() {
        bail!("no results in {}", results.display());
    }
    println!(
        "medians: HP's Fig. 1 over 100 ms with each event queue, data centres with each number of threads\n"
    );
    println!(
        "{:<9} {:<18} {:<9} {:>8} {:>12} {:>8}",
        "unit", "model", "variant", "ms", "million/s", "ratio"
    );
    for bench in &benches {
        // Relative to the standard library's heap, or to one thread, measured in the same run.
        let reference = benches.iter().find(|other| {
            (&other.unit, &other.model) == (&bench.unit, &bench.model)
                && ["heap", "1"].contains(&other.variant.as_str())
        });
        let ratio = reference.map_or(1.0, |other| other.median_ns / bench.median_ns);
        println!(
            "{:<9} {:<18} {:<9} {:>8.2} {:>12.1} {ratio:>8.2}",
            bench.unit,
            bench.model,
            bench.variant,
            bench.median_ns / 1e6,
            bench.rate(),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Criterion's results: `GROUP/NAME/new/*.json`, by name.
fn read(results: &Path) -> Result<Vec<Bench>> {
    let mut benches = Vec::new();
    for group in folders(results)? {
        for bench in folders(&results.join(&group))? {
            let file = |name: &str| {
                let path = results.join(&group).join(&bench).join("new").join(name);
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
            };
            let median = number(&file("estimates.json")?, &["median", "point_estimate"]);
            let count = number(&file("benchmark.json")?, &["throughput", "Elements"]);
            let ((model, variant), median_ns, count) = bench
                .rsplit_once('-')
                .zip(median)
                .zip(count)
                .map(|((names, median), count)| (names, median, count))
                .with_context(|| format!("{group}/{bench}: criterion's files have changed"))?;
            benches.push(Bench {
                unit: group.clone(),
                model: model.to_owned(),
                variant: variant.to_owned(),
                median_ns,
                count,
            });
        }
    }
    Ok(benches)
}

/// Names of the folders with results in a folder, sorted.
fn folders(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && name != "report" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The number at a path of nested keys: a minimal JSON parser, which suffices here.
fn number(json: &str, keys: &[&str]) -> Option<f64> {
    let mut rest = json;
    for key in keys {
        let quoted = format!("\"{key}\":");
        rest = &rest[rest.find(&quoted)? + quoted.len()..];
    }
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c)))?;
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{kernel, number};

    #[test]
    fn the_kernel_is_taken_out_of_the_words() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for line in [
            "--row udp-2 --kernel 6.12 -j",
            "--row udp-2 --kernel=6.12 -j",
        ] {
            let (series, others) = kernel(&words(line)).expect("a series");
            assert_eq!(series.as_deref(), Some("6.12"));
            assert_eq!(others, words("--row udp-2 -j"));
        }
        assert!(kernel(&words("--kernel")).is_err());
        assert!(kernel(&words("--kernel new")).is_err());
        assert_eq!(kernel(&words("--list")).expect("no kernel").0, None);
    }

    #[test]
    fn a_number_is_found_by_its_keys() {
        let json =
            r#"{"mean":{"point_estimate":1.5},"median":{"lower":0,"point_estimate": 2.5e6}}"#;
        assert_eq!(number(json, &["median", "point_estimate"]), Some(2.5e6));
        assert_eq!(number(json, &["mean", "point_estimate"]), Some(1.5));
        assert_eq!(number(json, &["slope", "point_estimate"]), None);
    }
}
