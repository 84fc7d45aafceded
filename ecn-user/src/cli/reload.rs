//! `ecn reload`: makes the running agent reload its configuration.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use clap::Args;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::exit::{Failure, print, print_json};
use super::require_root;
use crate::agent::state::{Lock, State};

/// `ecn reload`.
#[derive(Args, Debug)]
pub(super) struct ReloadArgs {
    /// Print the outcome as JSON
    #[arg(long, short = 'j')]
    json: bool,
}

/// Maximum time for a reload, in which the agent may have to set up a thousand endpoints.
const PATIENCE: Duration = Duration::from_secs(60);

/// The configuration that the agent has loaded.
#[derive(JsonSchema, Serialize)]
pub(super) struct Outcome {
    /// Path of the file.
    config: String,
    /// Process ID of the agent.
    pid: i32,
}

/// Asks the agent to reload, and waits for its answer.
///
/// # Errors
///
/// No agent is running, or it refuses the new configuration; then the previous one stays in force.
pub(super) fn run(args: &ReloadArgs) -> anyhow::Result<()> {
    require_root("reloading")?;
    let nobody = || Failure::lacking("no agent is running: start `ecn run` first".to_owned());
    let pid = Lock::holder().ok_or_else(nobody)?;
    let number = pid.parse::<i32>().map_err(|_| {
        Failure::failed("the agent runs in another PID namespace: send it SIGHUP there".to_owned())
    })?;
    let before = State::read().ok_or_else(nobody)?;
    let Some(config) = before.config else {
        return Err(Failure::lacking(format!(
            "process {pid} is a rig, which has no configuration to reload"
        ))
        .into());
    };
    kill(Pid::from_raw(number), Signal::SIGHUP)?;
    let until = Instant::now() + PATIENCE;
    let after = loop {
        sleep(Duration::from_millis(20));
        match State::read() {
            Some(state) if state.reloads != before.reloads => break state,
            _ if Lock::holder().is_none() => return Err(nobody().into()),
            _ if Instant::now() >= until => {
                let patience = PATIENCE.as_secs();
                let message =
                    format!("process {pid} has not answered within {patience} s: see its log");
                return Err(Failure::failed(message).into());
            }
            _ => {}
        }
    };
    if let Some(error) = after.reload_error {
        return Err(Failure::usage(format!("nothing changed: {error}")).into());
    }
    let config = config.display().to_string();
    if args.json {
        return print_json(&Outcome {
            config,
            pid: number,
        });
    }
    print(&format!("{config} is in force\n"))
}
