//! Running other programs: announced, timed, and not on stdout.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::machine;

/// Prints one line to stderr.
pub fn print(line: &str) {
    eprintln!("xtask: {line}");
}

/// A command as it would be typed, with the variables that were set for it.
pub fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        // Encoded flags are separated by 0x1f.
        let value = value?.to_string_lossy().replace('\x1f', " ");
        let name = name
            .to_string_lossy()
            .replace("CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS");
        Some(format!("{name}={}", quoted(&value)))
    });
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .map(|word| quoted(&word));
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{word}'")
    }
}

/// Runs a command whose output is shown; its stdout goes to stderr.
pub fn run(why: &str, command: &mut Command) -> Result<()> {
    let shown = shown(command);
    print(&format!("{why}: {shown}"));
    let status = command
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .status()
        .with_context(|| format!("could not start {shown}"))?;
    if !status.success() {
        bail!("{status} from {shown}");
    }
    Ok(())
}

/// Runs a command whose output matters only if it fails: it is written to `target/log/NAME.log`, and its end is added
/// to the error. Prints the duration.
pub fn logged(why: &str, name: &str, command: &mut Command) -> Result<()> {
    let shown = shown(command);
    print(&format!("{why}: {shown}"));
    let start = Instant::now();
    let folder = machine::root().join("target/log");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("{name}.log"));
    let log = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("log file")?)
        .stderr(log)
        .status()
        .with_context(|| format!("could not start {shown}"))?;
    if !status.success() {
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(20)..].join("\n    ");
        bail!("{status} from {shown}, which ended with:\n    {end}");
    }
    print(&format!(
        "{name}: done in {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// The trimmed stdout of a command, if it succeeds.
pub fn asked(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("cargo");
        command
            .args(["build", "two words"])
            .env("CARGO_ENCODED_RUSTFLAGS", "-C\x1ftarget-cpu=v3");
        command.env_remove("RUSTFLAGS");
        assert_eq!(
            shown(&command),
            "RUSTFLAGS='-C target-cpu=v3' cargo build 'two words'"
        );
    }
}
