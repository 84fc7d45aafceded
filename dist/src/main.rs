//! Packages built `ecn` commands for distribution; `cargo xtask dist` builds them and runs this.
//!
//! The tar archive, the deb and the rpm contain the same files ([`payload`]). All dates are that of the commit, so that
//! the build of a commit is reproducible byte by byte.

mod archive;
mod deb;
mod oci;
mod payload;
mod rpm;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;

use archive::{Archive, sha256};
use payload::{Payload, Style};

/// Packages built commands.
#[derive(Parser)]
struct Args {
    /// Output folder
    #[arg(long)]
    out: PathBuf,
    /// Date of all files, seconds since 1970
    #[arg(long)]
    epoch: u32,
    /// A built command, for example x86_64=target/x86_64-unknown-linux-musl/release/ecn
    #[arg(required = true, value_parser = binary, value_name = "ARCH=FILE")]
    binaries: Vec<(Arch, PathBuf)>,
}

/// Target architecture of a package.
#[derive(Clone, Copy)]
struct Arch {
    /// Its name for rustc, rpm and the kernel.
    name: &'static str,
    /// Its name for Debian and OCI.
    debian: &'static str,
}

const ARCHS: [Arch; 2] = [
    Arch {
        name: "x86_64",
        debian: "amd64",
    },
    Arch {
        name: "aarch64",
        debian: "arm64",
    },
];

fn binary(text: &str) -> Result<(Arch, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("not ARCH=FILE")?;
    let arch = ARCHS.into_iter().find(|arch| arch.name == name);
    Ok((arch.ok_or("neither x86_64 nor aarch64")?, file.into()))
}

/// Metadata of all packages.
mod about {
    pub const NAME: &str = "ecn";
    pub const VERSION: &str = env!("CARGO_PKG_VERSION");
    pub const LICENCE: &str = env!("CARGO_PKG_LICENSE");
    pub const MAINTAINER: &str = "The ecn maintainers";
    pub const SUMMARY: &str = "Congestion control for Linux bridges";
    pub const DESCRIPTION: &str = "\
Bridges mark packets of the flows that fill their queues, receivers echo the
marks, and senders lower the rate of each marked flow. Marking, echo and
response are BPF programs; an agent moves the rates. Applications and
protocols stay as they are.";
}

/// The output folder.
struct Out {
    folder: PathBuf,
    made: Vec<(String, u64, String)>,
}

impl Out {
    fn write(&mut self, name: String, content: &[u8]) -> Result<()> {
        write(&self.folder.join(&name), content)?;
        self.made
            .push((name, content.len() as u64, sha256(content)));
        Ok(())
    }
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.out.exists() {
        fs::remove_dir_all(&args.out).context("removing what was made before")?;
    }
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let mut out = Out {
        folder: args.out,
        made: Vec::new(),
    };
    let (epoch, version) = (args.epoch, about::VERSION);
    let bom = sbom::bom()?;
    let mut images = Vec::new();
    for (arch, file) in args.binaries {
        let (name, debian) = (arch.name, arch.debian);
        let command = read(&file)?;
        let payload = |style| Payload::new(&command, &bom, style);

        let top = format!("ecn-{version}-{name}-linux");
        let mut archive = Archive::new(epoch);
        for file in payload(Style::Rpm)?.files {
            archive.file(&format!("{top}{}", file.path), file.mode, &file.content)?;
        }
        out.write(format!("{top}.tar.gz"), &archive.gzip()?)?;
        let deb = deb::package(arch, epoch, payload(Style::Deb)?)?;
        out.write(format!("ecn_{version}_{debian}.deb"), &deb)?;
        let rpm = rpm::package(arch, epoch, payload(Style::Rpm)?)?;
        out.write(format!("ecn-{version}-1.{name}.rpm"), &rpm)?;
        images.push((arch, command));
    }
    out.write(
        format!("ecn-{version}-oci.tar"),
        &oci::archive(epoch, &images)?,
    )?;
    let daemon_set = include_str!("../daemonset.yaml").replace("@VERSION@", version);
    out.write("ecn-daemonset.yaml".into(), daemon_set.as_bytes())?;
    out.write(format!("ecn-{version}.cdx.json"), &bom)?;

    let sums = out
        .made
        .iter()
        .map(|(name, _, sum)| format!("{sum}  {name}\n"));
    let sums: String = sums.collect();
    println!("{:<34} {:>10}  sha256", "file", "bytes");
    for (name, bytes, sum) in &out.made {
        println!("{name:<34} {bytes:>10}  {}", &sum[..16]);
    }
    write(&out.folder.join("SHA256SUMS"), sums.as_bytes())
}
