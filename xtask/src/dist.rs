//! `cargo xtask dist`: builds what users install, in `target/dist`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::machine::{Lacks, Permission, cargo, is_root, root};
use crate::{build_ebpf, kernels, setup, step, toolchain};

/// Arguments of `dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Architectures
    #[arg(long, value_delimiter = ',', default_values = ARCHS, value_parser = ARCHS)]
    arch: Vec<String>,
    /// Then test them, as root: the package in minimal Debians under systemd, the commands in an empty root
    #[arg(long)]
    check: bool,
}

/// Debian releases in which the package is tested.
const SUITES: [&str; 3] = ["bullseye", "bookworm", "trixie"];
/// Tools that the tests need, and the Debian package of each.
const TOOLS: [(&str, &str); 2] = [
    ("debootstrap", "debootstrap"),
    ("qemu-aarch64-static", "qemu-user-static"),
];

const ARCHS: [&str; 2] = ["x86_64", "aarch64"];

/// Runs the verb.
pub fn dist(args: &Args, permission: Permission) -> Result<ExitCode> {
    build_ebpf::build(&setup::bpf(permission)?, false)?;
    let mut log = Command::new("git");
    log.args(["log", "-1", "--format=%ct"]).current_dir(root());
    // Without git (an unpacked archive), the epoch is 0.
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
    let epoch = epoch
        .or_else(|| step::asked(&mut log))
        .unwrap_or("0".into());
    let mut dist = cargo();
    dist.args(["run", "--quiet", "--release", "--package", "ecn-dist", "--"])
        .args(["--epoch", &epoch])
        .arg("--out")
        .arg(root().join("target/dist"));
    for arch in &args.arch {
        dist.arg(format!("{arch}={}", command(arch, permission)?.display()));
    }
    step::print(&format!("packages: {}", step::shown(&dist)));
    // stdout is inherited: the table is the result of this verb.
    let status = dist.status().context("could not start cargo")?;
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    if args.check {
        check(&args.arch, permission)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Tests the results, natively for this machine's architecture, emulated for others.
fn check(archs: &[String], permission: Permission) -> Result<()> {
    if !is_root() {
        return Err(Lacks("booting systemd and changing the root need root".into()).into());
    }
    setup::ensure("testing packages", &TOOLS, permission)?;
    let scripts = root().join("dist/check");
    for arch in archs {
        let mut empty = Command::new(scripts.join("empty"));
        empty.arg(built(arch));
        if arch != std::env::consts::ARCH {
            empty.arg(format!("qemu-{arch}-static"));
        }
        step::run("an empty root", &mut empty)?;
    }
    for suite in SUITES {
        let mut boot = Command::new(scripts.join("boot"));
        boot.arg(debian(suite)?).arg(root().join("target/dist"));
        step::run(&format!("the package in {suite}"), &mut boot)?;
    }
    Ok(())
}

/// A minimal Debian with systemd, cached in `target/debian`.
fn debian(suite: &str) -> Result<PathBuf> {
    let folder = root().join("target/debian").join(suite);
    let ready = folder.join("ready");
    if !ready.exists() {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let mut debootstrap = Command::new("debootstrap");
        debootstrap
            .args(["--variant=minbase", "--include=dbus,iproute2,systemd-sysv"])
            .arg(suite)
            .arg(&folder)
            .arg(format!("{}/debian", kernels::mirror()));
        step::logged("a minimal Debian", suite, &mut debootstrap)?;
        fs::write(&ready, "").with_context(|| format!("writing {}", ready.display()))?;
    }
    Ok(folder)
}

/// Builds the command for an architecture, statically linked: it starts on any kernel, in any root.
fn command(arch: &str, permission: Permission) -> Result<PathBuf> {
    let target = format!("{arch}-unknown-linux-musl");
    library(&target, permission)?;
    let mut build = cargo();
    build
        .args(["build", "--release", "--locked", "--package", "ecn-user"])
        .args(["--target-dir", "target", "--target", &target])
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // Removes build paths from the binary.
        .env("CARGO_ENCODED_RUSTFLAGS", without_paths())
        .env_remove("RUSTFLAGS");
    if arch != std::env::consts::ARCH {
        // Rust's own linker: everything is Rust and musl, which comes with the library.
        let name = target.to_uppercase().replace('-', "_");
        build.env(format!("CARGO_TARGET_{name}_LINKER"), "rust-lld");
    }
    step::run("the static command", &mut build)?;
    Ok(built(arch))
}

fn built(arch: &str) -> PathBuf {
    root().join(format!("target/{arch}-unknown-linux-musl/release/ecn"))
}

fn without_paths() -> String {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let rust = toolchain::own().map(|toolchain| toolchain.sysroot.join("lib/rustlib/src/rust"));
    let named = [(Some(root()), "/ecn"), (cargo, "/cargo"), (rust, "/rustc")];
    let flags = named
        .into_iter()
        .filter_map(|(path, name)| Some(format!("--remap-path-prefix={}={name}", path?.display())));
    flags.collect::<Vec<_>>().join("\x1f")
}

/// The standard library for a target.
fn library(target: &str, permission: Permission) -> Result<()> {
    let toolchain = toolchain::own().context("no rustc")?;
    let folder = toolchain.sysroot.join("lib/rustlib").join(target);
    if folder.is_dir() {
        return Ok(());
    }
    let advice = format!("rustup target add {target}");
    let lacks = || Lacks(format!("no standard library for {target}: {advice}"));
    let mut add = toolchain::rustup_target(target).ok_or_else(lacks)?;
    if permission == Permission::No {
        return Err(lacks().into());
    }
    step::logged("for the static command", "rust-std", &mut add)
}
