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

/// Runs the verb. Returns only if something fails: the rig takes this process over.
///
/// Where the machine lacks something that the rig needs, the simulator runs its scenario instead.
pub fn run(args: &Args, permission: Permission) -> Result<ExitCode> {
    let mut program = match rig(args, permission) {
        Err(error) if error.is::<Lacks>() => {
            let reason = format!("{error:#}");
            step::say(&format!("using the simulator: {reason}"));
            simulator(args)?
        }
        rig => rig?,
    };
    Err(program.exec()).with_context(|| format!("could not start {}", step::shown(&program)))
}

/// The command that runs the rig on this machine's kernel, built.
fn rig(args: &Args, permission: Permission) -> Result<Command> {
    if !args.args.iter().any(|arg| arg == "--help" || arg == "-h") {
        check_machine()?;
    }
    thread::scope(|scope| {
        // Only a first build takes long enough to be worth two at a time.
        if setup::bpf_found().is_none() || !build_ebpf::object().exists() {
            scope.spawn(build_dependencies);
        }
        let bpf = setup::bpf(permission)?;
        build_ebpf::build(&bpf, false)
    })?;
    // Tests name the one that they test: alone it would get other features, and be compiled for itself.
    let ecn = match std::env::var_os("ECN_BIN") {
        Some(ecn) => PathBuf::from(ecn),
        None => built("the ecn command", "ecn-user", "ecn")?,
    };
    let mut rig = Command::new(ecn);
    rig.args(["rig", "run"]).args(&args.args);
    step::say(&format!(
        "HP's Fig. 1 as namespaces and bridges: {}",
        step::shown(&rig)
    ));
    Ok(rig)
}

/// The command that runs the rig's scenario in the simulator, built.
fn simulator(args: &Args) -> Result<Command> {
    let mut simulator = Command::new(built("the simulator", "ecn-sim", "ecn-sim")?);
    simulator.arg("rig").args(&args.args);
    step::say(&format!(
        "HP's Fig. 1 in the simulator: {}",
        step::shown(&simulator)
    ));
    Ok(simulator)
}

/// Builds a package; the path of one of its programs.
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

/// Builds what ecn-user depends on, while the BPF object that it embeds is not there yet: its build
/// script refuses, and cargo keeps going with everything else.
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
