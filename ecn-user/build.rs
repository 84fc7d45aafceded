//! Puts the programs for the kernel, `target/bpf/ecn.bpf.o`, where the crate embeds them from:
//! `OUT_DIR/ecn.bpf.o`. `cargo xtask build-ebpf` makes the object; without it the file is empty, so that
//! plain cargo commands need no BPF toolchain. `ECN_BPF_OBJECT` names another object.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn main() -> Result<(), Box<dyn Error>> {
    if env::var_os("ECN_DEPENDENCIES_ONLY").is_some() {
        return Err("stopped before ecn-user, as ECN_DEPENDENCIES_ONLY asks".into());
    }
    println!("cargo::rerun-if-env-changed=ECN_BPF_OBJECT");
    let out = PathBuf::from(variable("OUT_DIR")?).join("ecn.bpf.o");
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
    fs::write(&out, bytes).map_err(|error| format!("writing {}: {error}", out.display()))?;
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

fn variable(name: &str) -> Result<std::ffi::OsString, String> {
    env::var_os(name).ok_or_else(|| format!("{name} is not set: this is run by cargo"))
}
