//! `cargo xtask test`: runs all checks, even if one fails, then prints a summary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::cargo_tool;
use crate::kernels::Rerun;
use crate::machine::{Lacks, Permission, cargo, is_root, root};
use crate::run::KERNEL_TYPES;
use crate::setup::Bpf;
use crate::{build_ebpf, command, deny, docs, kernels, setup, step, toolchain, words};

/// Arguments of `test`.
#[derive(clap::Args)]
pub struct Args {
    /// Run only the real-kernel tests, on these kernels of Debian (such as 6.1,7.3), emulated by qemu
    #[arg(long, value_delimiter = ',', value_parser = kernels::series, value_name = "SERIES")]
    kernels: Vec<String>,
    /// With --kernels: run only tests whose names contain one of these
    #[arg(requires = "kernels", value_name = "NAME")]
    names: Vec<String>,
}

/// Result of a check.
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// The checks so far.
#[derive(Default)]
struct Checks(Vec<(&'static str, Duration, Outcome)>);

impl Checks {
    /// Runs a check; it is skipped if the machine lacks something, and fails with any other error.
    fn check(&mut self, name: &'static str, body: impl FnOnce() -> Result<()>) {
        step::print(&format!("== {name}"));
        let start = Instant::now();
        let outcome = match body() {
            Ok(()) => Outcome::Passed,
            Err(error) if error.is::<Lacks>() => Outcome::Skipped(format!("{error:#}")),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        let (word, reason) = outcome.shown();
        step::print(&format!("== {name}: {word}{reason}"));
        self.0.push((name, start.elapsed(), outcome));
    }

    fn count(&self, matches: impl Fn(&Outcome) -> bool) -> usize {
        self.0
            .iter()
            .filter(|(_, _, outcome)| matches(outcome))
            .count()
    }

    /// Prints the table and the counts. Fails also if all checks were skipped.
    fn summary(&self) -> ExitCode {
        println!();
        for (name, duration, outcome) in &self.0 {
            let (word, reason) = outcome.shown();
            println!(
                "{word:<8} {:>6.1} s  {name}{reason}",
                duration.as_secs_f64()
            );
        }
        let passed = self.count(|outcome| matches!(outcome, Outcome::Passed));
        let failed = self.count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = self.count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed == 0 && passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

impl Outcome {
    fn shown(&self) -> (&'static str, String) {
        match self {
            Self::Passed => ("passed", String::new()),
            Self::Failed(reason) => ("FAILED", format!(": {reason}")),
            Self::Skipped(reason) => ("skipped", format!(": {}", first_line(reason))),
        }
    }
}

/// Prints the emulated tests that passed only in a rerun.
fn list_reruns(again: &[Rerun]) {
    if !again.is_empty() {
        println!("{} passed only when run again:", again.len());
    }
    for Rerun { name, output } in again {
        println!("    {name}: {output}");
    }
}

/// A test that skipped itself, as it reports in the file `ECN_SKIPPED`: a line `REASON NAME: why`.
struct SkippedTest {
    /// The first word of the line.
    reason: String,
    text: String,
}

impl SkippedTest {
    /// The reason that does not indicate an incomplete machine: its kernel lacks a feature. `--kernels` tests others.
    const EXCUSED: &str = "kernel";

    fn parse(line: &str) -> Self {
        let (reason, text) = line.split_once(' ').unwrap_or(("", line));
        Self {
            reason: reason.to_owned(),
            text: text.to_owned(),
        }
    }

    fn is_excused(&self) -> bool {
        self.reason == Self::EXCUSED
    }
}

/// Creates an empty file for skipped tests.
fn skipped_file(name: &str) -> Result<PathBuf> {
    let file = root().join("target").join(name);
    fs::write(&file, "").with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

fn skipped_tests(file: &Path) -> Result<Vec<SkippedTest>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(text.lines().map(SkippedTest::parse).collect())
}

fn list_skipped(which: &str, tests: &[SkippedTest]) {
    if !tests.is_empty() {
        println!("of the {which}, {} were skipped:", tests.len());
    }
    for test in tests {
        println!("    {}", test.text);
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Runs the verb.
pub fn test(args: &Args, permission: Permission) -> Result<ExitCode> {
    if !args.kernels.is_empty() {
        build_ebpf::build(&setup::bpf(permission)?, false)?;
        list_reruns(&kernels::test(&args.kernels, &args.names, permission)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut checks = Checks::default();
    let (bpf, tools) = static_checks(&mut checks, permission);
    checks.check("licences", deny::check);
    checks.check("advisories", deny::advisories);

    let mut built: Option<Bpf> = None;
    checks.check("BPF build", || {
        let found = bpf?;
        build_ebpf::build(&found, false)?;
        built = Some(found);
        Ok(())
    });
    let unbuilt = || Lacks("the BPF programs were not built".into());
    checks.check("BPF lints", || {
        lint_bpf(built.as_ref().ok_or_else(unbuilt)?)
    });
    let (mut host_skipped, mut kernel_skipped) = (Vec::new(), Vec::new());
    checks.check("host tests", || host_tests(&mut host_skipped));
    checks.check("real-kernel tests", || {
        if let Err(error) = &tools {
            step::print(&format!("{error:#}"));
        }
        kernel_tests(&mut kernel_skipped)
    });
    let mut again = Vec::new();
    checks.check("other kernels", || {
        built.as_ref().ok_or_else(unbuilt)?;
        again = kernels::every_run(permission)?;
        Ok(())
    });
    checks.check("documentation", docs::build);
    let code = checks.summary();
    list_reruns(&again);
    list_skipped("host tests", &host_skipped);
    list_skipped("real-kernel tests", &kernel_skipped);
    let complete = is_root() && built.is_some() && Path::new(KERNEL_TYPES).exists();
    if complete && !kernel_skipped.iter().all(SkippedTest::is_excused) {
        println!("tests were skipped although the machine has what they need: this is a failure");
        return Ok(ExitCode::FAILURE);
    }
    Ok(code)
}

/// Runs static checks while missing tools are installed: those that build BPF programs, and those that tests call.
fn static_checks(checks: &mut Checks, permission: Permission) -> (Result<Bpf>, Result<()>) {
    thread::scope(|scope| {
        let setup = scope.spawn(|| {
            let found = (setup::bpf(permission), setup::tools(permission));
            // Errors are reported by the checks that need the tool.
            for tool in cargo_tool::ALL {
                let _ = tool.ensure();
            }
            found
        });
        checks.check("format", || {
            component("fmt", "rustfmt", permission)?;
            step::run("format", cargo().args(["fmt", "--check"]))?;
            let manifest = ["fmt", "--manifest-path", "ecn-ebpf/Cargo.toml", "--check"];
            step::run("format of the kernel programs", cargo().args(manifest))
        });
        checks.check("words", words::check);
        checks.check("lints", || {
            component("clippy", "clippy", permission)?;
            let mut clippy = command::cargo_with_profile("clippy");
            clippy.args(["--all-targets", "--", "-D", "warnings"]);
            step::run("lints", &mut clippy)
        });
        setup
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Tests that need no kernel programs. Cargo runs those in the documentation, which nextest does not support.
fn host_tests(skipped: &mut Vec<SkippedTest>) -> Result<()> {
    let python = setup::python();
    if let Err(error) = &python {
        step::print(&format!("{error:#}"));
    }
    let file = skipped_file("skipped-host-tests")?;
    let mut run = command::host_tests()?;
    run.env("ECN_SKIPPED", &file);
    if let Ok(python) = &python {
        run.env("ECN_PYTHON", python);
    }
    let tests = step::run("host tests", &mut run);
    *skipped = skipped_tests(&file)?;
    let mut examples = command::cargo_with_profile("test");
    examples.arg("--doc");
    tests.and(step::run("examples of the documentation", &mut examples))
}

/// Tests on this machine's kernel. Without privileges, programs or tools, they skip themselves.
fn kernel_tests(skipped: &mut Vec<SkippedTest>) -> Result<()> {
    command::build()?;
    let file = skipped_file("skipped-tests")?;
    let mut run = command::tests(&[])?;
    let tests = step::run("real-kernel tests", run.env("ECN_SKIPPED", &file));
    *skipped = skipped_tests(&file)?;
    tests
}

/// Lints ecn-ebpf with the clippy of the toolchain that builds it.
fn lint_bpf(bpf: &Bpf) -> Result<()> {
    if !bpf.toolchain.cargo.with_file_name("cargo-clippy").is_file() {
        return Err(Lacks(format!("{} comes without clippy", bpf.toolchain.name)).into());
    }
    let mut clippy = build_ebpf::cargo(bpf, "clippy");
    clippy.args(["--", "-D", "warnings"]);
    step::run("lints of the kernel's programs", &mut clippy)
}

/// Adds a component to the toolchain in use, if it is missing and may be installed.
fn component(verb: &str, component: &str, permission: Permission) -> Result<()> {
    let is_here = || {
        let mut command: Command = cargo();
        step::asked(command.args([verb, "--version"])).is_some()
    };
    if is_here() {
        return Ok(());
    }
    if let Some(mut command) = toolchain::rustup_component(component)
        && permission != Permission::No
        && step::logged("the toolchain lacks it", component, &mut command).is_ok()
        && is_here()
    {
        return Ok(());
    }
    Err(Lacks(format!(
        "{component} is not installed: rustup component add {component}"
    ))
    .into())
}
