//! `cargo xtask run`: from a checkout to the rig's table in one command.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result};

use crate::machine::{Lacks, Permission, cargo, is_root, root};
use crate::{build_ebpf, setup, step};

/// Arguments of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// Passed on to `ecn rig run`, for example: -- --seconds 5 -j
    #[arg(last = true)]
    args: Vec<OsString>,
}

/// The running kernel's types, needed to read its structures.
pub const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Runs the verb. On success, the rig replaces this process (exec), and this function does not return.
///
/// Where the machine lacks something that the rig needs, the simulator runs its scenario instead.
pub fn run(args: &Args, permission: Permission) -> Result<ExitCode> {
    let mut program = match rig(args, permission) {
        Err(error) if error.is::<Lacks>() => {
            let reason = format!("{error:#}");
            step::print(&format!("using the simulator: {reason}"));
            simulator(args)?
        }
        rig => rig?,
    };
    Err(program.exec()).with_context(|| format!("could not start {}", step::shown(&program)))
}

/// Builds the `ecn` command, and returns the command that runs the rig on this machine's kernel.
fn rig(args: &Args, permission: Permission) -> Result<Command> {
    if !args.args.iter().any(|arg| arg == "--help" || arg == "-h") {
        check_machine()?;
    }
    thread::scope(|scope| {
        // Only a first build takes long enough for two parallel builds to be worthwhile.
        if setup::bpf_found().is_none() || !build_ebpf::object().exists() {
            scope.spawn(build_dependencies);
        }
        let bpf = setup::bpf(permission)?;
        build_ebpf::build(&bpf, false)
    })?;
    // Tests set ECN_BIN to the command under test: a separate build would have other features, and recompile it.
    let ecn = match std::env::var_os("ECN_BIN") {
        Some(ecn) => PathBuf::from(ecn),
        None => built("the ecn command", "ecn-user", "ecn")?,
    };
    let mut rig = Command::new(ecn);
    rig.args(["rig", "run"]).args(&args.args);
    step::print(&format!(
        "HP's Fig. 1 as namespaces and bridges: {}",
        step::shown(&rig)
    ));
    Ok(rig)
}

/// Builds the simulator, and returns the command that runs the rig's scenario in it.
fn simulator(args: &Args) -> Result<Command> {
    let mut simulator = Command::new(built("the simulator", "ecn-sim-cli", "ecn-sim")?);
    simulator.arg("rig").args(&args.args);
    step::print(&format!(
        "HP's Fig. 1 in the simulator: {}",
        step::shown(&simulator)
    ));
    Ok(simulator)
}

/// Builds a package, and returns the path of one of its programs.
fn built(why: &str, package: &str, program: &str) -> Result<PathBuf> {
    let mut build = cargo();
    build
        .args(["build", "--release", "--package", package])
        .args(["--target-dir", "target"]);
    step::run(why, &mut build)?;
    Ok(root().join("target/release").join(program))
}

/// Checks that the rig has the rights and kernel types that it needs.
fn check_machine() -> Result<()> {
    if !is_root() {
        return Err(Lacks(
            "the rig creates network namespaces and loads BPF programs; run it as root: \
             sudo -E env PATH=\"$PATH\" cargo xtask run"
                .into(),
        )
        .into());
    }
    if !Path::new(KERNEL_TYPES).exists() {
        return Err(Lacks(format!(
            "the programs need {KERNEL_TYPES} to find the kernel's structures, and it does not exist: \
             run a kernel with CONFIG_DEBUG_INFO_BTF=y (and mount sysfs)"
        ))
        .into());
    }
    Ok(())
}

/// Builds the dependencies of ecn-user while the BPF object that it embeds does not exist yet: its build script fails,
/// and cargo continues with everything else.
fn build_dependencies() {
    let mut command = cargo();
    command
        .args([
            "build",
            "--release",
            "--package",
            "ecn-user",
            "--target-dir",
            "target",
        ])
        .args(["--keep-going"])
        .env("ECN_DEPENDENCIES_ONLY", "1");
    // Failure is expected: the build of ecn-user reports real errors.
    let _ = step::logged(
        "meanwhile, the dependencies of ecn",
        "dependencies",
        &mut command,
    );
}
