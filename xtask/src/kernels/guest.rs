//! A kernel in qemu, with only what the tests need: busybox, modules, a few programs with their libraries.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::cpio::Archive;
use super::fetch::Kernel;
use crate::machine::{Lacks, program};
use crate::step;

/// Modules that tests and benchmarks use, unless built in; their dependencies are inserted first.
const MODULES: [&str; 27] = [
    "veth",
    "dummy",
    "ifb",
    "bridge",
    "br_netfilter",
    "tun",
    "8021q",
    "vxlan",
    "ip_gre",
    "esp4",
    "sch_fq",
    "sch_netem",
    "sch_htb",
    "sch_prio",
    "sch_tbf",
    "sch_fq_codel",
    "sch_cake",
    "sch_red",
    "sch_ingress",
    "cls_bpf",
    "cls_u32",
    "cls_matchall",
    "act_bpf",
    "act_mirred",
    "act_gact",
    "tcp_dctcp",
    "tcp_bbr",
];

/// Programs of this machine that tests call; missing ones are omitted.
const PROGRAMS: [&str; 12] = [
    "ip", "tc", "bridge", "ss", "nstat", "ping", "iperf3", "bpftool", "ethtool", "tcpdump",
    "nsenter", "flock",
];

/// Processors of a guest.
const PROCESSORS: usize = 2;

/// Result of a guest.
pub struct Ended {
    /// Exit code of the command; `None` after a timeout, or if the guest died.
    pub exit: Option<i32>,
    /// The command's output.
    pub output: String,
    /// Duration, including the boot.
    pub took: Duration,
}

/// A guest: a kernel, and the archive for its root.
pub struct Guest {
    kernel: Kernel,
    root: Archive,
}

impl Guest {
    /// Builds the root file system.
    pub fn new(kernel: &Kernel) -> Result<Self> {
        let mut root = Archive::default();
        for folder in ["proc", "sys", "dev", "tmp", "run", "root", "etc", "test"] {
            root.folder(Path::new("/").join(folder));
        }
        root.link("/var", "run");
        root.file("/init", include_bytes!("init"));
        root.file("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n");
        let busybox = program("busybox").context("no busybox")?;
        root.program(&busybox, "/bin/busybox")?;
        // busybox's own sh prefers its applets to programs in PATH.
        root.program(Path::new("/bin/sh"), "/bin/sh")?;
        for name in PROGRAMS {
            if let Some(path) = program(name) {
                root.program(&path, Path::new("/usr/sbin").join(name))?;
            }
        }
        let applets = step::asked(Command::new(&busybox).arg("--list")).unwrap_or_default();
        for applet in applets.lines() {
            root.link(Path::new("/bin").join(applet), "busybox");
        }
        // Delay distributions for netem.
        for folder in ["/usr/lib/tc", "/usr/lib/x86_64-linux-gnu/tc"] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                root.copy(&entry.path(), entry.path())?;
            }
        }
        root.modules(kernel)?;
        Ok(Self {
            kernel: kernel.clone(),
            root,
        })
    }

    /// Adds a program to /test.
    pub fn add(&mut self, from: &Path, name: &str) -> Result<()> {
        self.root.program(from, Path::new("/test").join(name))
    }

    /// Boots, and runs a shell command in /test. Kernel messages are written to `log`; each line of the command's
    /// output is passed to `shown` as it is written.
    pub fn run(
        mut self,
        command: &str,
        limit: Duration,
        log: &Path,
        shown: impl FnMut(&str),
    ) -> Result<Ended> {
        self.root.file("/test/command", command.as_bytes());
        let archive = log.with_extension("cpio");
        fs::write(&archive, self.root.finish())
            .with_context(|| format!("writing {}", archive.display()))?;
        let ended = boot(&self.kernel, &archive, limit, log, shown);
        let _ = fs::remove_file(&archive);
        ended
    }
}

impl Archive {
    /// Adds a program, and its libraries under their original paths.
    fn program(&mut self, from: &Path, to: impl AsRef<Path>) -> Result<()> {
        self.copy(from, to)?;
        let libraries = step::asked(Command::new("ldd").arg(from)).unwrap_or_default();
        // `libc.so.6 => /lib/libc.so.6 (0x...)`, `/lib64/ld-linux.so.2 (0x...)`
        let paths = libraries.lines().filter_map(|line| {
            let path = line.split("=>").last()?.trim().split(" (").next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        });
        for path in paths {
            self.copy(&path, &path)?;
        }
        Ok(())
    }

    /// Adds the modules, and a file with the order in which they are inserted.
    fn modules(&mut self, kernel: &Kernel) -> Result<()> {
        let needs = needs(kernel)?;
        let mut order: Vec<&str> = Vec::new();
        for module in MODULES {
            // A module that is built in or does not exist has no file.
            let Some((file, first)) = needs.get(module) else {
                continue;
            };
            let new = first.iter().rev().chain([file]);
            for file in new {
                if !order.contains(&file.as_str()) {
                    order.push(file);
                }
            }
        }
        let mut names = String::new();
        for file in order {
            let path = kernel.modules().join(file);
            let name = module_name(file);
            let content = if file.ends_with(".xz") {
                let unpacked = Command::new("xz").arg("-dc").arg(&path).output();
                let unpacked = unpacked.context("unpacking by xz")?;
                if !unpacked.status.success() {
                    bail!("unpacking {} failed", path.display());
                }
                unpacked.stdout
            } else {
                fs::read(&path).with_context(|| format!("reading {}", path.display()))?
            };
            self.file(format!("/modules/{name}.ko"), &content);
            names.push_str(&format!("{name}.ko\n"));
        }
        self.file("/modules/order", names.as_bytes());
        Ok(())
    }
}

/// `kernel/net/sched/sch-fq.ko.xz` is `sch_fq`.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

/// By module: its file, and the files on which it depends, in reverse order of insertion.
fn needs(kernel: &Kernel) -> Result<BTreeMap<String, (String, Vec<String>)>> {
    let index = kernel.modules().join("modules.dep");
    if !index.is_file() {
        // depmod expects them at their installed path.
        let place = kernel.modules().with_file_name("lib").join("modules");
        fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        let _ = std::os::unix::fs::symlink("../../modules", place.join(&kernel.version));
        let base = kernel.modules().with_file_name("");
        let depmod = program("depmod").context("no depmod")?;
        let mut command = Command::new(depmod);
        command.arg("-b").arg(base).arg(&kernel.version);
        step::logged("dependencies of modules", "depmod", &mut command)?;
    }
    let text =
        fs::read_to_string(&index).with_context(|| format!("reading {}", index.display()))?;
    let line = |line: &str| {
        let (file, first) = line.split_once(':')?;
        let first = first.split_whitespace().map(str::to_owned).collect();
        Some((module_name(file), (file.to_owned(), first)))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn boot(
    kernel: &Kernel,
    archive: &Path,
    limit: Duration,
    log: &Path,
    mut shown: impl FnMut(&str),
) -> Result<Ended> {
    let output = log.with_extension("out");
    let text = |path: &Path| {
        let bytes = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    };
    let begun = Instant::now();
    // Rarely, emulation crashes while the kernel patches its own code: retried if the command has not started yet.
    for _ in 0..3 {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-machine", "pc"])
            // Not one thread per processor: then kernels crashed at times while they patched their code. Two guests
            // side by side take no longer.
            .args(["-accel", "tcg,thread=single", "-cpu", "max"])
            .args(["-smp", &PROCESSORS.to_string(), "-m", "1G"])
            .arg("-kernel")
            .arg(kernel.image())
            .arg("-initrd")
            .arg(archive)
            .args([
                "-append",
                "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr \
                 random.trust_cpu=on no_timer_check audit=0",
            ])
            .arg("-serial")
            .arg(format!("file:{}", log.display()))
            .arg("-serial")
            .arg(format!("file:{}", output.display()))
            .stdin(Stdio::null());
        let errors = log.with_extension("qemu");
        qemu.stderr(File::create(&errors).with_context(|| format!("making {}", errors.display()))?);
        let _ = fs::remove_file(&output);
        let mut qemu = qemu.spawn().context("starting qemu-system-x86_64")?;
        let mut lines = 0;
        let exit = loop {
            let exit = qemu.try_wait().context("waiting for qemu")?;
            let so_far = text(&output);
            let whole = so_far
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            for line in whole.skip(lines) {
                shown(line);
                lines += 1;
            }
            if exit.is_some() {
                break exit;
            }
            if begun.elapsed() > limit {
                qemu.kill().context("ending qemu")?;
                qemu.wait().context("waiting for qemu")?;
                break None;
            }
            thread::sleep(Duration::from_millis(100));
        };
        if exit.is_some_and(|exit| !exit.success()) {
            let errors = text(&errors);
            return Err(Lacks(format!("qemu cannot run here: {}", errors.trim())).into());
        }
        let messages = text(log);
        let output = text(&output);
        if exit.is_some() && !messages.contains("guest: command starts") {
            continue;
        }
        let code = output
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("guest: exit "));
        return Ok(Ended {
            exit: code.and_then(|code| code.trim().parse().ok()),
            output,
            took: begun.elapsed(),
        });
    }
    bail!(
        "kernel {} does not boot, see {}",
        kernel.version,
        log.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_one_name() {
        assert_eq!(module_name("kernel/net/sched/sch_fq.ko"), "sch_fq");
        assert_eq!(module_name("kernel/x/tcp-bbr.ko.xz"), "tcp_bbr");
    }
}
