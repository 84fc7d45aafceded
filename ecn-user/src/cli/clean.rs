//! `ecn clean`.

use clap::Args;

/// `ecn clean`.
#[derive(Args, Debug)]
pub struct CleanArgs {}

/// Runs the verb.
pub fn run(_args: &CleanArgs) -> anyhow::Result<()> {
    Ok(())
}
