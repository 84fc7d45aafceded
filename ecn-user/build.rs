//! Puts the programs for the kernel, `target/bpf/ecn.bpf.o`, where the crate embeds them from:
//! `OUT_DIR/ecn.bpf.o`, and `endpoint.bpf.o`, a part of it. `cargo xtask build-ebpf` makes the object; without it both
//! are empty, so that plain cargo commands need no BPF toolchain. `ECN_BPF_OBJECT` names another object.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use object::{
    build::elf::{Builder, SectionData},
    elf::{SHT_STRTAB, STT_FUNC},
};

fn main() -> Result<(), Box<dyn Error>> {
    if env::var_os("ECN_DEPENDENCIES_ONLY").is_some() {
        return Err("stopped before ecn-user, as ECN_DEPENDENCIES_ONLY asks".into());
    }
    println!("cargo::rerun-if-env-changed=ECN_BPF_OBJECT");
    let out = PathBuf::from(variable("OUT_DIR")?);
    let bytes = match env::var_os("ECN_BPF_OBJECT") {
        Some(object) => {
            let object = PathBuf::from(object);
            println!("cargo::rerun-if-changed={}", object.display());
            fs::read(&object).map_err(|error| {
                format!(
                    "ECN_BPF_OBJECT={} cannot be read: {error}",
                    object.display()
                )
            })?
        }
        None => built(&Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../target/bpf"))?,
    };
    for (name, wanted) in [
        ("ecn.bpf.o", Part::Whole),
        ("endpoint.bpf.o", Part::OfEndpoint),
    ] {
        let out = out.join(name);
        fs::write(&out, part(&bytes, wanted)?)
            .map_err(|error| format!("writing {}: {error}", out.display()))?;
    }
    Ok(())
}

/// The object that xtask built; nothing if it did not.
fn built(folder: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let name = if env::var_os("CARGO_FEATURE_TRACE").is_some() {
        "ecn-trace.bpf.o"
    } else {
        "ecn.bpf.o"
    };
    let object = folder.join(name);
    if object.exists() {
        println!("cargo::rerun-if-changed={}", object.display());
        return fs::read(&object)
            .map_err(|error| format!("reading {}: {error}", object.display()).into());
    }
    // A file that is not there counts as changed, at every build. Its folder changes when the object
    // appears, and not before; where none can be made, every build comes through here.
    if !folder.exists() && fs::create_dir_all(folder).is_ok() {
        // Made before this script, as far as cargo can see: it would run it once more.
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let _ = fs::File::open(folder).and_then(|made| made.set_modified(an_hour_ago));
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    Ok(Vec::new())
}

/// The part of an object that is wanted: aya goes through all of it each time that it loads programs. Never debug
/// information, of which the kernel reads BTF alone.
fn part(object: &[u8], part: Part) -> Result<Vec<u8>, Box<dyn Error>> {
    // Relocations of BTF are resolved already.
    const DEBUG: [&[u8]; 3] = [b".debug_", b".rel.debug_", b".rel.BTF"];
    let mut written = Vec::new();
    if object.is_empty() {
        return Ok(written);
    }
    let mut elf = Builder::read(object)?;
    for section in &mut elf.sections {
        let is_debug = DEBUG.iter().any(|prefix| section.name.starts_with(prefix));
        section.delete = is_debug || part == Part::OfEndpoint && !one_of(&SECTIONS, &section.name);
    }
    for symbol in &mut elf.symbols {
        let is_program = symbol.st_type() == STT_FUNC;
        symbol.delete = is_program && part == Part::OfEndpoint && !one_of(&PROGRAMS, &symbol.name);
    }
    elf.delete_orphans();
    // LLVM keeps the names of sections beside those of symbols; what writes the object wants them apart.
    let names = elf.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    elf.write(&mut written)?;
    Ok(written)
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// All programs.
    Whole,
    /// [`PROGRAMS`] only, and what they need.
    OfEndpoint,
}

/// The programs that are loaded for each endpoint: they go on in others.
const PROGRAMS: [&str; 2] = ["ecn_ep_in", "ecn_ep_out"];
const SECTIONS: [&str; 8] = [
    ".BTF",
    ".maps",
    ".relclassifier",
    ".rodata",
    ".strtab",
    ".symtab",
    "classifier",
    "license",
];

fn one_of(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|wanted| wanted.as_bytes() == name)
}

fn variable(name: &str) -> Result<std::ffi::OsString, String> {
    env::var_os(name).ok_or_else(|| format!("{name} is not set: this is run by cargo"))
}
