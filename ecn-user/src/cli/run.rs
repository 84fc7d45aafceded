//! `ecn run`: the agent, in the foreground.

use std::path::PathBuf;

use clap::Args;

use crate::agent;
use crate::config::{Config, ConfigError};

use super::exit::Failure;

/// Where the configuration is unless said otherwise.
pub const CONFIG: &str = "/etc/ecn/ecn.toml";

/// A bridge's counters are 287 kB and travel by value: unoptimised, several copies of them are on a
/// stack at a time, more than the usual 2 MB hold.
const STACK_BYTES: usize = 16 << 20;

/// `ecn run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The configuration
    #[arg(long, short = 'c', value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Only check the configuration
    #[arg(long)]
    check: bool,
}

/// Runs the agent until it is told to stop.
///
/// # Errors
///
/// The configuration is bad, or the agent fails.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let config = Config::load(&args.config).map_err(|error| with_hint(error, args))?;
    if args.check {
        return Ok(());
    }
    let runtime = runtime()?;
    let path = args.config.clone();
    Ok(runtime.block_on(agent::run(config, move || Config::load(&path)))?)
}

/// What an agent runs on.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()
}

/// A missing file at the default place is the first thing that new users meet.
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
