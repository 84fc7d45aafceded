//! Debian's cloud kernels, downloaded and unpacked, not installed: `target/kernels/SERIES`.
//!
//! apt downloads them, with separate package lists, from the mirror that this machine uses, and verifies Debian's
//! signatures. A kernel's folder gets its name once it is complete.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::machine::{Lacks, program, root};
use crate::step;

/// Keys with which Debian signs.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Debian's mirror, if this machine's own lists name none.
const DEBIAN: &str = "http://deb.debian.org";
/// The suites of each known series.
const SUITES: [(&str, &[&str]); 3] = [
    ("5.10", &["bullseye-security"]),
    ("6.1", &["bookworm-security", "bookworm"]),
    ("6.12", &["trixie-security", "trixie"]),
];
/// The suites in which any other series is searched for.
const UNKNOWN: [&str; 2] = ["trixie-backports", "sid"];

/// A kernel on disk.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The series requested: `6.1`.
    pub series: String,
    /// Its full version, as `uname -r` prints it.
    pub version: String,
    folder: PathBuf,
}

impl Kernel {
    /// A kernel that was unpacked earlier.
    fn found(series: &str, folder: PathBuf) -> Option<Self> {
        let version = fs::read_to_string(folder.join("version")).ok()?;
        let kernel = Self {
            series: series.to_owned(),
            version: version.trim().to_owned(),
            folder,
        };
        let whole = kernel.image().is_file() && kernel.modules().join("kernel").is_dir();
        whole.then_some(kernel)
    }

    /// The image that qemu boots.
    pub fn image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The folder of its modules.
    pub fn modules(&self) -> PathBuf {
        self.folder.join("modules")
    }
}

/// Where kernels are cached; `ECN_KERNELS` names a folder that several checkouts share.
fn kept() -> PathBuf {
    std::env::var_os("ECN_KERNELS").map_or_else(|| root().join("target/kernels"), PathBuf::from)
}

/// What to fetch if Debian no longer has a series: suites with newer kernels have one each, for some weeks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// Nothing: the series is unavailable.
    Lacks,
    /// The newest kernel, if it is later.
    Newest,
}

/// A kernel of each series, or why it is not available. Cached kernels are used as they are; for others, the newest is
/// fetched.
pub fn kernels(series: &[String], unavailable: Unavailable) -> Result<Vec<Result<Kernel>>> {
    let kept = kept();
    fs::create_dir_all(&kept).with_context(|| format!("making {}", kept.display()))?;
    let lock = File::create(kept.join("lock")).context("the lock of the kernels")?;
    lock.lock().context("locking the kernels")?;
    let kernel = |series: &String| {
        if let Some(kernel) = Kernel::found(series, kept.join(series)) {
            return Ok(kernel);
        }
        // One by one: if a mirror lacks a suite, only the kernels of that suite are missing.
        let lists = Lists::get(&kept, series)
            .map_err(|error| Lacks(format!("it could not be fetched: {error:#}")))?;
        lists.fetch(&kept, series, unavailable)
    };
    Ok(series.iter().map(kernel).collect())
}

/// Package lists of the suites that have kernels.
struct Lists {
    config: PathBuf,
    names: Vec<String>,
}

impl Lists {
    /// Updates them.
    fn get(kept: &Path, series: &str) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            bail!("kernels are fetched and emulated only for x86-64");
        }
        if program("apt-get").is_none() || program("dpkg-deb").is_none() {
            bail!("fetching kernels from Debian needs apt-get and dpkg-deb");
        }
        if !Path::new(KEYS).is_file() {
            bail!("no {KEYS}: install debian-archive-keyring");
        }
        let apt = kept.join("apt");
        for folder in ["lists/partial", "cache/archives/partial", "parts"] {
            let folder = apt.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let config = apt.join("apt.conf");
        let at = apt.display();
        let write = |name: &str, text: &str| {
            fs::write(apt.join(name), text).with_context(|| format!("writing {name} in {at}"))
        };
        write("status", "")?;
        write("sources.list", &sources(&mirror(), series))?;
        write(
            "apt.conf",
            &format!(
                "Dir::State \"{at}\"; Dir::State::Lists \"{at}/lists\"; Dir::State::status \"{at}/status\";\n\
                 Dir::Cache \"{at}/cache\"; Dir::Etc::sourcelist \"{at}/sources.list\";\n\
                 Dir::Etc::sourceparts \"{at}/parts\"; Dir::Etc::preferencesparts \"{at}/parts\";\n\
                 APT::Sandbox::User \"root\"; APT::Architectures {{ \"amd64\"; }};\n\
                 Acquire::Languages \"none\"; Acquire::Retries \"3\";\n\
                 Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n"
            ),
        )?;
        let lists = Self {
            config,
            names: Vec::new(),
        };
        let mut update = lists.apt("apt-get");
        // Fails, instead of printing a warning, if a list cannot be fetched.
        update.args(["update", "-q", "-o", "APT::Update::Error-Mode=any"]);
        step::logged("package lists of kernels", "kernel-lists", &mut update)?;
        let names = step::asked(lists.apt("apt-cache").args(["pkgnames", "linux-"]));
        let names = names.unwrap_or_default();
        Ok(Self {
            names: names.lines().map(str::to_owned).collect(),
            ..lists
        })
    }

    fn apt(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command.env("APT_CONFIG", &self.config);
        command
    }

    /// Versions of the cloud kernels.
    fn versions(&self) -> impl Iterator<Item = &str> {
        // Up to 6.18 one package, linux-image; since then linux-binary, with modules and common files in other
        // packages.
        let images = ["linux-image-", "linux-binary-unsigned-", "linux-binary-"];
        self.names.iter().filter_map(move |name| {
            let version = images.iter().find_map(|image| name.strip_prefix(image))?;
            version.ends_with("-cloud-amd64").then_some(version)
        })
    }

    /// The packages of the newest kernel of a series, and its version.
    fn packages(&self, series: &str) -> Option<(String, Vec<String>)> {
        let of_series = |version: &&str| {
            let rest = version.strip_prefix(series);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let newest = self.versions().filter(of_series);
        let newest = newest.max_by(|a, b| by_number(a, b))?.to_owned();
        let has = |kind: &str| {
            let name = format!("{kind}{newest}");
            self.names.contains(&name).then_some(name)
        };
        let mut packages: Vec<_> = ["linux-image-", "linux-modules-", "linux-base-"]
            .into_iter()
            .filter_map(has)
            .collect();
        packages.extend(has("linux-binary-").or_else(|| has("linux-binary-unsigned-")));
        Some((newest, packages))
    }

    /// The newest series, if it is later than this one.
    fn later(&self, series: &str) -> Option<String> {
        let newest = self.versions().max_by(|a, b| by_number(a, b))?;
        let mut numbers = newest.split('.');
        let newest = format!("{}.{}", numbers.next()?, numbers.next()?);
        by_number(&newest, series).is_gt().then_some(newest)
    }

    /// Downloads and unpacks the newest kernel of a series.
    fn fetch(&self, kept: &Path, series: &str, unavailable: Unavailable) -> Result<Kernel> {
        let mut found = self.packages(series);
        if found.is_none()
            && unavailable == Unavailable::Newest
            && let Some(later) = self.later(series)
        {
            step::print(&format!(
                "Debian no longer has kernel {series}; using {later}"
            ));
            found = self.packages(&later);
        }
        let Some((version, packages)) = found else {
            return Err(Lacks(format!("Debian has no kernel {series}")).into());
        };
        let part = kept.join(format!("{series}.part"));
        let _ = fs::remove_dir_all(&part);
        let packed = part.join("packed");
        fs::create_dir_all(&packed).with_context(|| format!("making {}", packed.display()))?;
        let mut download = self.apt("apt-get");
        download
            .args(["download", "-q"])
            .args(packages)
            .current_dir(&packed);
        step::logged(
            &format!("kernel {version}"),
            "kernel-download",
            &mut download,
        )
        .map_err(|error| Lacks(format!("it could not be fetched: {error:#}")))?;
        let root = part.join("root");
        for package in fs::read_dir(&packed).context("the downloads")? {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(package?.path()).arg(&root);
            step::logged("unpacking", "kernel-unpack", &mut unpack)?;
        }
        // In the folder of modules, its name may be vmlinuz.unsigned.
        let image = ["boot", "usr/lib/modules", "lib/modules"]
            .into_iter()
            .flat_map(|path| [root.join(path), root.join(path).join(&version)])
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flat_map(|entries| entries.flatten())
            .find(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz"))
            .map(|entry| entry.path());
        let image = image.with_context(|| format!("no image in the packages of {version}"))?;
        fs::rename(image, part.join("vmlinuz")).context("the image")?;
        let modules = ["usr/lib/modules", "lib/modules"]
            .map(|path| root.join(path).join(&version))
            .into_iter()
            .find(|path| path.join("kernel").is_dir());
        let modules =
            modules.with_context(|| format!("no modules in the packages of {version}"))?;
        fs::rename(modules, part.join("modules")).context("the modules")?;
        for done in [packed, root] {
            fs::remove_dir_all(&done).with_context(|| format!("removing {}", done.display()))?;
        }
        fs::write(part.join("version"), &version).context("the version")?;
        let folder = kept.join(series);
        let _ = fs::remove_dir_all(&folder);
        fs::rename(&part, &folder).with_context(|| format!("making {}", folder.display()))?;
        Kernel::found(series, folder).with_context(|| format!("kernel {version} is incomplete"))
    }
}

/// The Debian mirror in this machine's own package sources.
pub fn mirror() -> String {
    let mut targets = Command::new("apt-get");
    targets.args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]);
    let targets = step::asked(&mut targets).unwrap_or_default();
    let mirror = targets
        .lines()
        .find_map(|uri| uri.trim_end_matches('/').strip_suffix("/debian"));
    mirror.unwrap_or(DEBIAN).to_owned()
}

/// Package sources for apt: the suites of a series.
fn sources(mirror: &str, series: &str) -> String {
    let suites = SUITES
        .iter()
        .find(|(of, _)| *of == series)
        .map_or(&UNKNOWN[..], |(_, suites)| suites);
    let source = |suite: &&str| {
        let archive = if suite.ends_with("-security") {
            "debian-security"
        } else {
            "debian"
        };
        format!("deb [signed-by={KEYS}] {mirror}/{archive} {suite} main\n")
    };
    suites.iter().map(source).collect()
}

/// Compares versions numerically, component by component.
fn by_number(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| {
        text.split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .collect::<Vec<u64>>()
    };
    numbers(a).cmp(&numbers(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(names: &[&str]) -> Lists {
        Lists {
            config: PathBuf::new(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn the_newest_of_a_series_with_all_its_packages() {
        let lists = lists(&[
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.12.117+deb13-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
            "linux-binary-unsigned-7.3.4+deb13-cloud-amd64",
            "linux-modules-7.3.4+deb13-cloud-amd64",
            "linux-base-7.3.4+deb13-cloud-amd64",
        ]);
        let (version, packages) = lists.packages("6.1").expect("6.1");
        assert_eq!(version, "6.1.0-56-cloud-amd64");
        assert_eq!(packages, ["linux-image-6.1.0-56-cloud-amd64"]);
        let (_, packages) = lists.packages("7.3").expect("7.3");
        assert_eq!(
            packages,
            [
                "linux-modules-7.3.4+deb13-cloud-amd64",
                "linux-base-7.3.4+deb13-cloud-amd64",
                "linux-binary-7.3.4+deb13-cloud-amd64",
            ]
        );
        assert!(lists.packages("7").is_some());
        assert!(lists.packages("7.2").is_none());
        assert_eq!(lists.later("7.2").as_deref(), Some("7.3"));
        assert_eq!(lists.later("7.3"), None);
        assert!(lists.packages("5.10").is_none());
    }

    #[test]
    fn only_the_suites_that_are_needed_are_read() {
        let text = sources("http://m", "5.10");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.ends_with(" http://m/debian-security bullseye-security main\n"));
        let text = sources("http://m", "7.3");
        assert!(text.contains(" http://m/debian sid main\n"), "{text}");
        assert!(!text.contains("bookworm"), "{text}");
    }
}
