//! The agent.

pub mod enforce;
pub mod state;

/// What can go wrong in the agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another one runs.
    #[error("another ecn agent or rig is running (process {pid}): stop it first, or run `ecn clean` if it is gone")]
    Running {
        /// Its process.
        pid: String,
    },
    /// Lock or state file.
    #[error("cannot use {path}: {error}")]
    State {
        /// File.
        path: std::path::PathBuf,
        /// Why.
        error: std::io::Error,
    },
}
