//! bpf-linker: links LLVM bitcode into a BPF object, with an LLVM that is not older than rustc's.
//!
//! If none that works is installed, it is compiled against the system's libLLVM and kept in `target/tools`. Its authors
//! recommend their prebuilt binary instead, because LLVM versions must match; here they are checked, and compilation
//! takes half a minute.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::Apt;
use crate::machine::{Lacks, Permission, cargo, root};
use crate::step;

/// The version to compile. An installed linker of another version is used if it works.
const VERSION: &str = "0.13.0";
/// Major versions of LLVM against which it can be compiled.
const LLVM_MAJORS: std::ops::RangeInclusive<u32> = 21..=23;

/// The linker for a rustc with this LLVM, if one is installed that works.
pub fn find(llvm_major: u32) -> Option<PathBuf> {
    let own = LLVM_MAJORS.map(|major| folder(major).join("bin/bpf-linker"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    std::env::split_paths(&path)
        .chain(cargo_home.or(home).map(|folder| folder.join("bin")))
        .map(|folder| folder.join("bpf-linker"))
        .chain(own)
        .find(|linker| works(linker, llvm_major))
}

fn works(linker: &Path, llvm_major: u32) -> bool {
    linker.is_file()
        // A linker whose libLLVM was removed cannot even print its version.
        && step::asked(Command::new(linker).arg("--version")).is_some()
        && linked_llvm(linker).is_none_or(|major| major >= llvm_major)
}

/// Major version in the name of the libLLVM that a program loads; `None` if LLVM is statically linked.
fn linked_llvm(program: &Path) -> Option<u32> {
    llvm_named(&fs::read(program).ok()?)
}

/// The number behind the first `libLLVM.so.` or `libLLVM-` in a program's bytes.
fn llvm_named(bytes: &[u8]) -> Option<u32> {
    let digits = |prefix: &[u8]| {
        let mut at = bytes.windows(prefix.len());
        let start = at.position(|window| window == prefix)? + prefix.len();
        let rest = bytes.get(start..)?;
        let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
    };
    digits(b"libLLVM.so.").or_else(|| digits(b"libLLVM-"))
}

/// Where the linker for an LLVM is kept.
fn folder(llvm_major: u32) -> PathBuf {
    root().join(format!("target/tools/llvm-{llvm_major}"))
}

/// A shared libLLVM of this major version.
fn library(major: u32) -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    let folders = [
        format!("/usr/lib/{arch}-linux-gnu"),
        format!("/usr/lib/llvm-{major}/lib"),
        format!("/usr/lib64/llvm{major}/lib"),
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
    ];
    folders.iter().find_map(|folder| {
        let start = format!("libLLVM.so.{major}");
        let mut names: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
        names.retain(|file| file.file_name().to_string_lossy().starts_with(&start));
        names
            .iter()
            .map(fs::DirEntry::path)
            .find(|path| path.is_file())
    })
}

/// LLVM versions that support a rustc's bitcode, oldest first.
fn fitting(llvm_major: u32) -> std::ops::RangeInclusive<u32> {
    llvm_major.max(*LLVM_MAJORS.start())..=*LLVM_MAJORS.end()
}

/// How to get a linker, if nothing may be installed or no package exists.
pub fn advice(llvm_major: u32) -> String {
    let known = |apt: &Apt| {
        let mut packages = fitting(llvm_major).map(|major| format!("libllvm{major}"));
        packages.find(|package| apt.candidate(package).is_some())
    };
    match Apt::find().and_then(|apt| known(&apt)) {
        Some(package) => format!("sudo apt-get install -y --no-install-recommends {package}"),
        None => format!(
            "install bpf-linker {VERSION} built with LLVM {llvm_major} or newer: \
             cargo binstall bpf-linker@{VERSION}"
        ),
    }
}

/// Whether a linker requires the installation of a package.
pub fn needs_package(llvm_major: u32) -> bool {
    find(llvm_major).is_none() && fitting(llvm_major).all(|major| library(major).is_none())
}

/// Finds a linker that works, or compiles one.
pub fn ensure(llvm_major: u32, permission: Permission) -> Result<PathBuf> {
    if let Some(linker) = find(llvm_major) {
        return Ok(linker);
    }
    if needs_package(llvm_major) {
        install_library(llvm_major, permission)?;
    }
    let (major, library) = fitting(llvm_major)
        .find_map(|major| Some((major, library(major)?)))
        .ok_or_else(|| Lacks(format!("no libLLVM for bpf-linker: {}", advice(llvm_major))))?;
    compile(major, &library)?;
    find(llvm_major).ok_or_else(|| {
        Lacks(format!(
            "the compiled bpf-linker does not start: {}",
            advice(llvm_major)
        ))
        .into()
    })
}

fn install_library(llvm_major: u32, permission: Permission) -> Result<()> {
    let lacks = || {
        Lacks(format!(
            "neither bpf-linker nor a libLLVM for it: {}",
            advice(llvm_major)
        ))
    };
    let apt = Apt::find()
        .filter(|_| permission != Permission::No)
        .ok_or_else(lacks)?;
    let known = || {
        let mut packages = fitting(llvm_major).map(|major| format!("libllvm{major}"));
        packages.find(|package| apt.candidate(package).is_some())
    };
    let package = match known() {
        Some(package) => package,
        None => {
            apt.update(permission)?;
            known().ok_or_else(lacks)?
        }
    };
    apt.install("LLVM, which bpf-linker needs", &[&package], permission)
}

/// Compiles bpf-linker. Its build looks only for `lib/libLLVM.so` in LLVM_PREFIX: a symbolic link to the library
/// suffices, without LLVM's development package of half a gigabyte.
fn compile(major: u32, library: &Path) -> Result<()> {
    let folder = folder(major);
    let lib = folder.join("lib");
    fs::create_dir_all(&lib).with_context(|| format!("making {}", lib.display()))?;
    let link = lib.join("libLLVM.so");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link).with_context(|| format!("removing {}", link.display()))?;
    }
    symlink(library, &link).with_context(|| format!("linking {}", link.display()))?;
    let mut command = cargo();
    command
        .args([
            "install",
            "bpf-linker",
            "--version",
            VERSION,
            "--locked",
            "--force",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{major}"),
        ])
        .arg("--root")
        .arg(&folder)
        .arg("--target-dir")
        .arg(folder.join("build"))
        .env("LLVM_PREFIX", &folder)
        // LLVM does most of the work, so the rest is compiled without optimization for a fast build.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    step::logged("the linker of BPF objects", "bpf-linker", &mut command)?;
    // Best effort: it only uses space.
    let _ = fs::remove_dir_all(folder.join("build"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_tells_the_llvm_that_it_loads() {
        assert_eq!(llvm_named(b"\0libc.so.6\0libLLVM.so.22.1\0"), Some(22));
        assert_eq!(llvm_named(b"\0libLLVM-19.so.1\0"), Some(19));
        assert_eq!(llvm_named(b"\0libc.so.6\0libLLVM\0"), None);
        assert_eq!(
            llvm_named(b"libLLVM.so.22"),
            None,
            "cut off: not known whether it is all"
        );
    }

    #[test]
    fn an_llvm_serves_a_compiler_that_is_not_newer() {
        assert_eq!(fitting(22).collect::<Vec<_>>(), [22, 23]);
        assert_eq!(fitting(20).collect::<Vec<_>>(), [21, 22, 23]);
        assert_eq!(fitting(24).count(), 0);
    }
}
