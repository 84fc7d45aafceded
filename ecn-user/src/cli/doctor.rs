//! `ecn doctor`.

use clap::Args;

/// `ecn doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {}

/// Runs the verb.
pub fn run(_args: &DoctorArgs) -> anyhow::Result<()> {
    Ok(())
}
