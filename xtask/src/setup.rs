//! `cargo xtask setup`: what building and testing need on this machine.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::machine::{Lacks, Permission, is_root, program, root};
use crate::toolchain::Toolchain;
use crate::{cargo_tool, linker, step, toolchain};

/// Arguments of `setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Only list what is found and what is missing; exit code 3 if anything is missing
    #[arg(long)]
    check: bool,
}

/// The tools that build BPF objects.
pub struct Bpf {
    /// The compiler.
    pub toolchain: Toolchain,
    /// The linker.
    pub linker: PathBuf,
}

/// Runs the verb.
pub fn setup(args: Args, permission: Permission) -> Result<ExitCode> {
    if args.check {
        return Ok(check());
    }
    let bpf = bpf(permission)?;
    step::print(&format!(
        "BPF programs are built by {} and {}",
        bpf.toolchain.name,
        bpf.linker.display()
    ));
    tools(permission)?;
    emulator(permission)?;
    for tool in cargo_tool::ALL {
        tool.ensure()?;
    }
    // Without Python, two tests are skipped.
    if let Err(error) = python() {
        step::print(&format!("{error:#}"));
    }
    step::print("setup is complete");
    Ok(ExitCode::SUCCESS)
}

/// The tools that build BPF objects, if all are installed.
pub fn bpf_found() -> Option<Bpf> {
    let toolchain = toolchain::find()?;
    let linker = linker::find(toolchain.llvm_major)?;
    Some(Bpf { toolchain, linker })
}

/// The tools that build BPF objects, installed if necessary.
pub fn bpf(permission: Permission) -> Result<Bpf> {
    if permission == Permission::No {
        // Reports everything that is missing in one message, instead of one after the other.
        let commands = bpf_missing();
        if !commands.is_empty() {
            let commands = commands.join("\n    ");
            return Err(Lacks(format!(
                "tools for building BPF programs are missing; \
                 run these commands, or repeat with --yes:\n    {commands}"
            ))
            .into());
        }
    }
    let toolchain = toolchain::ensure(permission)?;
    let linker = linker::ensure(toolchain.llvm_major, permission)?;
    Ok(Bpf { toolchain, linker })
}

/// The commands to run before BPF programs can be built here.
fn bpf_missing() -> Vec<String> {
    let found = toolchain::find();
    let mut commands = if found.is_none() {
        toolchain::advice()
    } else {
        Vec::new()
    };
    // The source of core is added to the installed compiler, whose LLVM version is already known.
    if let Some(toolchain) = found.or_else(toolchain::own)
        && linker::needs_package(toolchain.llvm_major)
    {
        commands.push(linker::advice(toolchain.llvm_major));
    }
    commands
}

/// Tools that the real-kernel tests call, and the Debian package of each.
const TOOLS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("bridge", "iproute2"),
    ("ping", "iputils-ping"),
    ("iperf3", "iperf3"),
    ("bpftool", "bpftool"),
    ("python3", "python3"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("tmux", "tmux"),
];

/// The packages of missing tools, without duplicates.
fn packages_missing(tools: &[(&str, &'static str)]) -> Vec<&'static str> {
    let missing = tools.iter().filter(|(tool, _)| program(tool).is_none());
    let mut packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Installs the tools of the real-kernel tests, if necessary.
pub fn tools(permission: Permission) -> Result<()> {
    ensure("the real-kernel tests", &TOOLS, permission)?;
    prometheus(permission)
}

/// Where Prometheus is unpacked.
fn prometheus_folder() -> PathBuf {
    root().join("target/tools/prometheus")
}

fn find_prometheus() -> Option<PathBuf> {
    let unpacked = prometheus_folder().join("usr/bin/prometheus");
    program("prometheus").or_else(|| Some(unpacked).filter(|file| file.is_file()))
}

/// Unpacks Debian's Prometheus, if necessary. An installed one would start as a service.
fn prometheus(permission: Permission) -> Result<()> {
    if find_prometheus().is_some() {
        return Ok(());
    }
    let (Some(apt), Some(_)) = (Apt::find(), program("dpkg-deb")) else {
        return Err(Lacks("the test of metrics needs a prometheus in PATH".into()).into());
    };
    let folder = prometheus_folder();
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    apt.download(
        "needed by the test of metrics",
        "prometheus",
        &folder,
        permission,
    )?;
    let files = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    for file in files.flatten() {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(file.path()).arg(&folder);
        step::logged(
            "unpacking only: installed, it would start as a service",
            "prometheus",
            &mut unpack,
        )?;
        let _ = fs::remove_file(file.path());
    }
    Ok(())
}

/// Packages that the recipes of `docs/results.md` import.
const PYTHON_PACKAGES: [&str; 2] = ["pandas", "polars"];

/// Where they are installed.
fn python_folder() -> PathBuf {
    root().join("target/tools/python")
}

/// A Python that has them: the system's, or the one in that folder.
pub fn find_python() -> Option<PathBuf> {
    let own = python_folder().join("bin/python3");
    let import = format!("import {}", PYTHON_PACKAGES.join(", "));
    let all = program("python3").into_iter().chain([own]);
    let mut fit = all.filter(|path| {
        path.is_file() && step::asked(Command::new(path).args(["-c", &import])).is_some()
    });
    fit.next()
}

/// Such a Python, created if necessary with `venv` and `pip`, which do not change the system's.
pub fn python() -> Result<PathBuf> {
    if let Some(found) = find_python() {
        return Ok(found);
    }
    let lacks = |what: &str| Lacks(format!("the recipes of docs/results.md need {what}"));
    let python = program("python3").ok_or_else(|| lacks("python3"))?;
    let why = "for the recipes of docs/results.md";
    let mut make = Command::new(python);
    make.args(["-m", "venv"]).arg(python_folder());
    step::logged(why, "venv", &mut make)?;
    let mut install = Command::new(python_folder().join("bin/pip"));
    install.args(["install", "--quiet"]).args(PYTHON_PACKAGES);
    step::logged(why, "pip", &mut install)?;
    Ok(find_python().ok_or_else(|| lacks("pandas and polars"))?)
}

/// Tools that emulate other kernels, and the Debian package of each.
const EMULATOR: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("dpkg-deb", "dpkg"),
];

/// Installs the tools that emulate other kernels, if necessary.
pub fn emulator(permission: Permission) -> Result<()> {
    ensure("emulating other kernels", &EMULATOR, permission)
}

/// Installs the packages of missing tools.
pub fn ensure(purpose: &str, tools: &[(&str, &'static str)], permission: Permission) -> Result<()> {
    let packages = packages_missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    match Apt::find() {
        Some(apt) if permission != Permission::No => {
            apt.install(&format!("needed for {purpose}"), &packages, permission)
        }
        Some(_) => Err(Lacks(format!(
            "missing packages for {purpose}: sudo apt-get install -y {names}"
        ))
        .into()),
        None => Err(Lacks(format!(
            "missing packages for {purpose}: install {names} (Debian's names)"
        ))
        .into()),
    }
}

/// Lists what is found and what is missing.
fn check() -> ExitCode {
    let mut complete = true;
    let mut line = |what: &str, found: Option<String>, otherwise: &str| {
        complete &= found.is_some();
        let (mark, text) = match &found {
            Some(text) => ("found  ", text.as_str()),
            None => ("missing", otherwise),
        };
        println!("{mark}  {what:<34} {text}");
    };
    let toolchain = toolchain::find();
    let own = toolchain::own();
    line(
        "rustc with the source of core",
        toolchain.as_ref().map(|toolchain| toolchain.name.clone()),
        &toolchain::advice().join(", or "),
    );
    if let Some(toolchain) = toolchain.or(own) {
        let major = toolchain.llvm_major;
        let what = format!("bpf-linker, LLVM {major} or newer");
        let otherwise = if linker::needs_package(major) {
            linker::advice(major)
        } else {
            "will be compiled by the first build".to_owned()
        };
        line(
            &what,
            linker::find(major).map(|path| path.display().to_string()),
            &otherwise,
        );
    }
    for tool in cargo_tool::ALL {
        let found = tool.find().map(|path| path.display().to_string());
        line(tool.name, found, "will be compiled when needed");
    }
    for (tool, package) in TOOLS.into_iter().chain(EMULATOR) {
        let found = program(tool).map(|path| path.display().to_string());
        line(tool, found, &format!("package {package}"));
    }
    line(
        "prometheus",
        find_prometheus().map(|path| path.display().to_string()),
        "will be unpacked when needed (package prometheus)",
    );
    line(
        "python3 with pandas and polars",
        find_python().map(|path| path.display().to_string()),
        "will be installed when needed (packages python3, python3-venv)",
    );
    for component in ["rustfmt", "clippy"] {
        let name = if component == "clippy" {
            "cargo-clippy"
        } else {
            "rustfmt"
        };
        let found = program(name).map(|path| path.display().to_string());
        line(
            component,
            found,
            &format!("rustup component add {component}"),
        );
    }
    let types = "/sys/kernel/btf/vmlinux";
    let found = std::path::Path::new(types)
        .exists()
        .then(|| types.to_owned());
    line(
        "the kernel's types (BTF)",
        found,
        "a kernel with CONFIG_DEBUG_INFO_BTF=y",
    );
    let user = is_root().then(|| "root".to_owned());
    line(
        "rights to load BPF programs",
        user,
        "run and the real-kernel tests need root",
    );
    if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    }
}
