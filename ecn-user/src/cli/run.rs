//! `ecn run`: the agent, in the foreground.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use ecn_core::abi;
use schemars::JsonSchema;
use serde::Serialize;

use crate::agent::{self, state::Waiting};
use crate::config::{Config, ConfigError};
use crate::sys::calls::share_heap;

use super::exit::{Failure, note, print, print_json};

/// Default path of the configuration.
pub(super) const CONFIG: &str = "/etc/ecn/ecn.toml";

/// Stack of each thread: copies of a bridge's counters ([`abi::Bridge`], 290 kB) overflow 2 MB in unoptimised builds.
const STACK_BYTES: usize = 16 << 20;

/// `ecn run`.
#[derive(Args, Debug)]
pub(super) struct RunArgs {
    /// Configuration file
    #[arg(long, short = 'c', value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Keep programs, maps and queueing disciplines at exit, and take over those that an earlier agent has kept;
    /// overrides `keep` in [agent]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    keep: Option<bool>,
    /// Only check the configuration file, and whether rates can be limited at the devices of this machine that it
    /// matches, and print these. Missing ones are not an error: the agent waits for them
    #[arg(long)]
    check: bool,
    /// With --check: check the file alone, without looking for devices
    #[arg(long, requires = "check")]
    offline: bool,
    /// With --check: print the matching devices as JSON
    #[arg(long, short = 'j', requires = "check")]
    json: bool,
}

/// A configuration without errors.
#[derive(JsonSchema, Serialize)]
pub(super) struct Checked {
    /// Path of the file.
    config: PathBuf,
    /// Omitted with --offline.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    meaning: Option<Meaning>,
}

/// The devices of this machine that a configuration matches.
#[derive(JsonSchema, Serialize)]
struct Meaning {
    /// Bridges that exist.
    bridges: Vec<Device>,
    /// Endpoints that exist, including those of hosts at bridges' ports (`peers`).
    endpoints: Vec<Device>,
    /// Configured devices and namespaces that do not exist yet.
    waiting: Vec<Waiting>,
}

#[derive(JsonSchema, Serialize)]
struct Device {
    name: String,
    /// Network namespace; empty for the agent's own.
    netns: String,
}

impl From<agent::Survey> for Meaning {
    fn from(survey: agent::Survey) -> Self {
        let device = |name, netns: Option<String>| Device {
            name,
            netns: netns.unwrap_or_default(),
        };
        let bridges = survey.bridges.into_iter();
        let endpoints = survey.endpoints.into_iter().chain(survey.peers);
        Self {
            bridges: bridges
                .map(|bridge| device(bridge.name, bridge.netns))
                .collect(),
            endpoints: endpoints.map(|of| device(of.device, of.netns)).collect(),
            waiting: survey.waiting,
        }
    }
}

/// Fails if patterns match more endpoints than are supported.
fn check_room(survey: &agent::Survey) -> Result<(), Failure> {
    const ROOM: usize = abi::ENDPOINTS as usize - 1;
    match survey.endpoints.len() {
        0..=ROOM => Ok(()),
        found => Err(Failure::usage(format!(
            "{found} devices match the [[endpoint]] sections, at most {ROOM} are supported: \
             name fewer, or use narrower patterns"
        ))),
    }
}

/// Prints a line for each bridge and endpoint, and for each that is missing.
fn check(config: &Config, args: &RunArgs) -> anyhow::Result<()> {
    let meaning = if args.offline {
        None
    } else {
        let survey = agent::survey(config)?;
        check_room(&survey)?;
        for endpoint in survey.endpoints.iter().chain(&survey.peers) {
            agent::check_endpoint(config, endpoint)?;
        }
        Some(Meaning::from(survey))
    };
    if args.json {
        return print_json(&Checked {
            config: args.config.clone(),
            meaning,
        });
    }
    let Some(meaning) = meaning else {
        return Ok(());
    };
    let line = |kind: &str, of: &Device| match of.netns.as_str() {
        "" => format!("{kind} {}\n", of.name),
        netns => format!("{kind} {} (namespace {netns})\n", of.name),
    };
    let mut text = String::new();
    text.extend(meaning.bridges.iter().map(|of| line("bridge", of)));
    text.extend(meaning.endpoints.iter().map(|of| line("endpoint", of)));
    text.extend(
        meaning
            .waiting
            .iter()
            .map(|of| format!("waiting for {of}\n")),
    );
    print(&text)
}

/// Runs the agent until it is stopped.
///
/// # Errors
///
/// The configuration is bad, or the agent fails.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let config = Config::load(&args.config).map_err(|error| with_hint(error, args))?;
    warn_of_secrets(&config, &args.config);
    if args.check {
        return check(&config, args);
    }
    let runtime = runtime()?;
    // Absolute, because `ecn reload` prints it in any directory.
    let path = std::path::absolute(&args.config)?;
    Ok(runtime.block_on(agent::run(config, path, args.keep))?)
}

/// Warns if everybody can read a file that contains a key.
fn warn_of_secrets(config: &Config, path: &Path) {
    const OTHERS: u32 = 0o007;
    let mode = std::fs::metadata(path).map(|file| file.permissions().mode());
    if config.echo.key.is_some() && mode.is_ok_and(|mode| mode & OTHERS != 0) {
        let path = path.display();
        note(&format!(
            "{path} contains the key of [echo] and everybody can read it: `chmod 0600 {path}`"
        ));
    }
}

/// The runtime of an agent.
pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    share_heap();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()
}

/// Adds a hint for new users if the default file is missing.
fn with_hint(error: ConfigError, args: &RunArgs) -> anyhow::Error {
    match &error {
        ConfigError::Read { source, .. }
            if source.kind() == std::io::ErrorKind::NotFound
                && args.config.as_os_str() == CONFIG =>
        {
            Failure::usage(format!(
                "there is no configuration at {CONFIG}: name one with --config FILE \
                 (an example with all keys: {CONFIG}.example, in the source ecn-user/ecn.example.toml)"
            ))
            .into()
        }
        _ => error.into(),
    }
}
