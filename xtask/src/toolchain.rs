//! A compiler for BPF: any rustc with the source of `core`, which has to be built for the target.
//!
//! `-Z build-std` is a nightly option. RUSTC_BOOTSTRAP=1 enables it on stable, so that the compiler that builds
//! everything else can be used, and no nightly is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::apt::Apt;
use crate::machine::{Lacks, Permission, program};
use crate::step;

/// The oldest minor version with which the crates can be built (rust-version in Cargo.toml).
const OLDEST_MINOR: u32 = 95;

/// A cargo with its rustc.
#[derive(Clone)]
pub struct Toolchain {
    /// Its name in messages.
    pub name: String,
    /// Its cargo.
    pub cargo: PathBuf,
    /// Its rustc.
    pub rustc: PathBuf,
    /// The folder of its libraries.
    pub sysroot: PathBuf,
    /// Its version, `1.95.0`.
    pub release: String,
    /// Its LLVM version; bpf-linker's must not be older.
    pub llvm_major: u32,
}

impl Toolchain {
    /// Queries the rustc next to this cargo.
    fn at(name: &str, cargo: &Path) -> Option<Self> {
        let rustc = cargo.with_file_name("rustc");
        let text = step::asked(&mut outside_rustup(&rustc, &["-vV"]))?;
        let field = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .map(str::trim)
        };
        let release = field("release:")?.to_owned();
        let sysroot = step::asked(&mut outside_rustup(&rustc, &["--print", "sysroot"]))?.into();
        let llvm_major = field("LLVM version:")?.split('.').next()?.parse().ok()?;
        let name = format!("{name} {release}");
        Some(Self {
            name,
            cargo: cargo.to_owned(),
            rustc,
            sysroot,
            release,
            llvm_major,
        })
    }

    /// Whether the source of core is installed.
    pub fn has_source(&self) -> bool {
        self.sysroot
            .join("lib/rustlib/src/rust/library/core/src/lib.rs")
            .is_file()
    }

    /// Whether the crates can be built with it.
    pub fn is_new_enough(&self) -> bool {
        let minor = self
            .release
            .split('.')
            .nth(1)
            .and_then(|minor| minor.parse::<u32>().ok());
        minor.is_some_and(|minor| minor >= OLDEST_MINOR)
    }

    /// This toolchain's cargo, with its rustc instead of rustup's choice.
    pub fn cargo(&self) -> Command {
        let mut command = outside_rustup(&self.cargo, &[]);
        command.env("RUSTC", &self.rustc);
        command
    }
}

/// A program of a toolchain, called by its path, without the variables that rustup has set for another one.
fn outside_rustup(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("LD_LIBRARY_PATH");
    command
}

/// The toolchain that builds everything else: the one whose cargo runs this.
pub fn own() -> Option<Toolchain> {
    let cargo = std::env::var_os("CARGO")
        .map(PathBuf::from)
        .or_else(|| program("cargo"))?;
    Toolchain::at("rustc", &cargo)
}

/// The toolchains of this machine that could build BPF programs, best first: the one that builds
/// everything else, rustup's nightly, the system's.
fn candidates() -> impl Iterator<Item = Toolchain> {
    let nightly = || {
        program("rustup")?;
        let mut which = Command::new("rustup");
        // rustup installs a missing toolchain by default.
        which
            .args(["which", "--toolchain", "nightly", "cargo"])
            .env("RUSTUP_AUTO_INSTALL", "0");
        let cargo = step::asked(&mut which)?;
        Toolchain::at("rustup's nightly rustc", Path::new(&cargo))
    };
    let system = || {
        let cargo = Path::new("/usr/bin/cargo");
        cargo
            .is_file()
            .then(|| Toolchain::at("the system's rustc", cargo))?
    };
    std::iter::once_with(own)
        .chain(std::iter::once_with(nightly))
        .chain(std::iter::once_with(system))
        .flatten()
        .filter(Toolchain::is_new_enough)
}

/// The first toolchain that is complete.
pub fn find() -> Option<Toolchain> {
    candidates().find(Toolchain::has_source)
}

/// Commands of which any one installs a toolchain.
pub fn advice() -> Vec<String> {
    let mut commands = Vec::new();
    if let Some(command) = rustup_component("rust-src") {
        commands.push(step::shown(&command));
    }
    if commands.is_empty() {
        commands
            .push("install Rust by https://rustup.rs, then: rustup component add rust-src".into());
    }
    commands
}

/// `rustup component add` for the toolchain in use, if rustup manages it.
pub fn rustup_component(component: &str) -> Option<Command> {
    rustup_add("component", component)
}

/// `rustup target add`, like [`rustup_component`].
pub fn rustup_target(target: &str) -> Option<Command> {
    rustup_add("target", target)
}

fn rustup_add(kind: &str, name: &str) -> Option<Command> {
    let toolchain = std::env::var("RUSTUP_TOOLCHAIN").ok()?;
    program("rustup")?;
    let mut command = Command::new("rustup");
    command.args([kind, "add", "--toolchain", &toolchain, name]);
    Some(command)
}

/// Finds a complete toolchain, or completes one.
pub fn ensure(permission: Permission) -> Result<Toolchain> {
    if let Some(toolchain) = find() {
        return Ok(toolchain);
    }
    if permission == Permission::No {
        return Err(Lacks(format!("no source of core: {}", advice().join(", or "))).into());
    }
    let why = "core must be compiled for BPF, and its source is missing";
    if let Some(mut command) = rustup_component("rust-src") {
        match step::logged(why, "rust-src", &mut command) {
            Ok(()) => {}
            Err(error) => step::print(&format!("{error:#}")),
        }
        if let Some(toolchain) = find() {
            return Ok(toolchain);
        }
    }
    // Debian packages a recent rustc to build browsers, and its source.
    if let Some(apt) = Apt::find() {
        let packages = ["rustc-web", "cargo-web", "rust-web-src"];
        apt.install(
            "rustup could not install it, but a packaged rustc has it",
            &packages,
            permission,
        )?;
        if let Some(toolchain) = find() {
            return Ok(toolchain);
        }
    }
    Err(Lacks(format!(
        "still no rustc with the source of core: {}",
        advice().join(", or ")
    ))
    .into())
}
