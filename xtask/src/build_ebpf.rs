//! `cargo xtask build-ebpf`: compiles ecn-ebpf into `target/bpf/ecn.bpf.o`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::machine::{Permission, root};
use crate::setup::{self, Bpf};
use crate::step;

/// Arguments of `build-ebpf`.
#[derive(clap::Args)]
pub struct Args {
    /// Also build target/bpf/ecn-trace.bpf.o, which logs each mark and decrease
    #[arg(long)]
    trace: bool,
}

/// Version of the instruction set. v3 has 32-bit arithmetic and jumps (kernel 5.1); the programs use none of its
/// atomics (5.12).
const BPF_CPU: &str = "v3";
/// Arguments of the linker.
const LINKER_ARGS: [&str; 3] = [
    "--btf",
    // Expands short fills and copies in place, instead of calling a function that loops over bytes: before 6.8, calls
    // are refused under a spin lock, and before 6.4, the verifier prunes fewer states in programs with calls.
    "--disable-expand-memcpy-in-order",
    // Loops end with a jump: the verifier of 6.1 mistakes a loop body that is laid out before its head, and falls
    // through to it, for an infinite loop.
    "--llvm-args=--disable-block-placement",
];
/// The target of a BPF object that runs on this machine.
const TARGET: &str = if cfg!(target_endian = "big") {
    "bpfeb-unknown-none"
} else {
    "bpfel-unknown-none"
};

/// Runs the verb.
pub fn build_ebpf(args: Args, permission: Permission) -> Result<ExitCode> {
    let bpf = setup::bpf(permission)?;
    build(&bpf, false)?;
    if args.trace {
        build(&bpf, true)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The object that `ecn` embeds.
pub fn object() -> PathBuf {
    root().join("target/bpf/ecn.bpf.o")
}

/// Builds one object, which takes 0.1 s if it is up to date.
pub fn build(bpf: &Bpf, trace: bool) -> Result<PathBuf> {
    let mut command = cargo(bpf, "build");
    if trace {
        command.args(["--features", "trace"]);
    }
    let object = if trace {
        root().join("target/bpf/ecn-trace.bpf.o")
    } else {
        object()
    };
    let why = format!("BPF programs, by {}", bpf.toolchain.name);
    step::run(&why, &mut command)?;
    let built = root().join("target/ebpf").join(TARGET).join("release/ecn");
    replace(&built, &object)?;
    Ok(object)
}

/// A cargo command for ecn-ebpf and its target.
pub fn cargo(bpf: &Bpf, verb: &str) -> Command {
    let mut command = bpf.toolchain.cargo();
    let linker = format!("linker={}", bpf.linker.display());
    let cpu = format!("target-cpu={BPF_CPU}");
    let linker_args = LINKER_ARGS.map(|arg| format!("link-arg={arg}"));
    let mut flags = vec!["-C", &cpu, "-C", &linker];
    for arg in &linker_args {
        flags.extend(["-C", arg]);
    }
    let flags = flags.join("\x1f");
    command
        .args([
            verb,
            "--release",
            "-Z",
            "build-std=core",
            "--target",
            TARGET,
        ])
        .args(["--target-dir", "../target/ebpf"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        // BTF is generated from debug information, whatever the environment sets for the host's crates.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        .env_remove("RUSTFLAGS")
        .current_dir(root().join("ecn-ebpf"));
    command
}

/// Copies a file, unless the copy is identical: crates that embed it would be recompiled.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    let folder = to.parent().context("an object without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    // Atomically, because ecn-user may be compiled at the same time.
    let part = to.with_extension("part");
    fs::write(&part, new).with_context(|| format!("writing {}", part.display()))?;
    fs::rename(&part, to).with_context(|| format!("writing {}", to.display()))
}
