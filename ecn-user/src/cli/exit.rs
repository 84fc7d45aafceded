//! Exit codes, and error messages of one line.

use std::io::{self, Write as _};

use nix::errno::Errno;

use crate::config::{ConfigError, KeywordError};
use crate::units::UnitError;
use crate::{agent, datapath, net, rig};

use super::key::KeyError;
use super::table::SelectError;

pub(crate) use ecn_sim_cli::{DONE, Error as Failure, FAILED, LACKING, USAGE};

/// The exit code for an error: that of the first cause that has one.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of).unwrap_or(FAILED)
}

fn code_of(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Some(failure.code);
    }
    if error.is::<ConfigError>()
        || error.is::<UnitError>()
        || error.is::<KeywordError>()
        || error.is::<SelectError>()
        || error.is::<KeyError>()
    {
        return Some(USAGE);
    }
    if let Some(error) = error.downcast_ref::<datapath::Error>() {
        return code_of_datapath(error);
    }
    // Transparent errors hide what they hold from the chain of causes.
    if let Some(error) = error.downcast_ref::<agent::Error>() {
        return code_of_agent(error);
    }
    if let Some(error) = error.downcast_ref::<rig::topology::Error>() {
        return code_of_rig(error);
    }
    if let Some(error) = error.downcast_ref::<rig::run::Error>() {
        return match error {
            rig::run::Error::Rig(error) => code_of_rig(error),
            rig::run::Error::Agent(error) => code_of_agent(error),
            rig::run::Error::Datapath(error) => code_of_datapath(error),
            rig::run::Error::Traffic(rig::traffic::Error::Net(error)) => code_of_net(error),
            rig::run::Error::Traffic(rig::traffic::Error::CongestionControl { .. }) => {
                Some(LACKING)
            }
            _ => None,
        };
    }
    error.downcast_ref::<net::Error>().and_then(code_of_net)
}

fn code_of_agent(error: &agent::Error) -> Option<u8> {
    match error {
        agent::Error::Configuration(_) => Some(USAGE),
        // Conditions of the machine, not of the configuration.
        agent::Error::Running { .. } | agent::Error::TimeNamespace | agent::Error::NoIfb { .. } => {
            Some(LACKING)
        }
        agent::Error::Datapath(error) => code_of_datapath(error),
        // The configuration names something that this machine does not have.
        agent::Error::Net(
            net::Error::NoNamespace { .. }
            | net::Error::NoLink { .. }
            | net::Error::NamespaceName { .. }
            | net::Error::LinkName { .. },
        ) => Some(USAGE),
        agent::Error::Net(error) => code_of_net(error),
        agent::Error::State { error, .. } if denied(error) => Some(LACKING),
        _ => None,
    }
}

fn code_of_rig(error: &rig::topology::Error) -> Option<u8> {
    match error {
        rig::topology::Error::Option { .. } => Some(USAGE),
        rig::topology::Error::AlreadyUp { .. } => Some(LACKING),
        rig::topology::Error::Net(error) => code_of_net(error),
        _ => None,
    }
}

fn code_of_datapath(error: &datapath::Error) -> Option<u8> {
    use datapath::Error as E;
    match error {
        E::NotBpffs(_) => Some(USAGE),
        E::NoObject
        | E::NoBtf
        | E::Btf(_)
        | E::NoMember(_)
        | E::NoTracingLock
        | E::NoTcx
        | E::NotRunning(_) => Some(LACKING),
        E::Net(error) => code_of_net(error),
        E::File { error, .. } if denied(error) => Some(LACKING),
        _ => None,
    }
}

fn denied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Missing permissions and features count as [`LACKING`].
fn code_of_net(error: &net::Error) -> Option<u8> {
    match error.errno() {
        Some(Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP) => Some(LACKING),
        _ => None,
    }
}

/// The error and its causes in one line, without repetition: many messages include their cause.
pub(super) fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// Whether the reader of standard output has closed it (`| head`), which is not reported as an error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Reports the error, if any, and returns the exit code.
pub(super) fn finish(result: anyhow::Result<()>) -> u8 {
    match result {
        Ok(()) => DONE,
        Err(error) if is_broken_pipe(&error) => DONE,
        Err(error) => {
            for line in message(&error).lines() {
                note(line);
            }
            code(&error)
        }
    }
}

/// Writes to standard output.
///
/// # Errors
///
/// It is closed, or the file system is full.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a JSON document and a line break to standard output.
///
/// # Errors
///
/// As [`print`].
pub(super) fn print_json(document: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string(document)?))
}

/// Prints a line to standard error, apart from JSON output.
pub(super) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "ecn: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn codes_come_from_the_cause() {
        let bad_rate = "5 apples"
            .parse::<crate::units::Rate>()
            .expect_err("no rate");
        let not_running = datapath::Error::NotRunning("/sys/fs/bpf/x".into());
        let rights = net::Error::File {
            what: "set",
            path: "/x".to_owned(),
            errno: Errno::EPERM,
        };
        for (error, expected) in [
            (anyhow::anyhow!("x"), FAILED),
            (bad_rate.into(), USAGE),
            (not_running.into(), LACKING),
            (rights.into(), LACKING),
            (Failure::usage("x").into(), USAGE),
        ] {
            let error = Err::<(), _>(error)
                .context("while testing")
                .expect_err("an error");
            assert_eq!(code(&error), expected, "{error:#}");
        }
    }

    #[test]
    fn no_cause_is_repeated() {
        let cause = datapath::Error::NotRunning("/sys/fs/bpf/x".into());
        let error = anyhow::Error::new(cause).context("cannot list");
        let text = message(&error);
        assert_eq!(text.matches("no datapath").count(), 1, "{text}");
        assert!(text.starts_with("cannot list: "), "{text}");
    }
}
