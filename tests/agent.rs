//! `ecn run` as a separate process.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use ecn_user::{config::Config, datapath::Maps};
use nix::sys::signal::Signal;

use crate::{eventually, process::Process, running::pin, s};

/// A running agent with a test's files; stopped when dropped.
pub struct Agent {
    process: Process,
    /// Directory of its files.
    pub folder: PathBuf,
    /// Its configuration file.
    pub config: PathBuf,
}

impl Agent {
    /// Starts the agent and waits until it runs.
    #[track_caller]
    pub fn start(ecn: &Path, config: &Config) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "ecn-t-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("ecn.toml");
        fs::write(&file, toml::to_string(config).expect("a configuration")).expect("write it");
        let words = ["run", "--config", file.to_str().expect("a path")];
        let agent = Self {
            process: Process::start(ecn, &words, &folder.join("agent")),
            folder,
            config: file,
        };
        let runs = || Maps::open(&pin()).is_ok() && Path::new("/run/ecn/state.json").exists();
        assert!(eventually(s(20), runs), "no start: {}", agent.log());
        agent
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("agent.err")).unwrap_or_default()
    }

    /// Stops it with SIGTERM; it must exit with code 0.
    #[track_caller]
    pub fn stop(&mut self) {
        self.process.signal(Signal::SIGTERM);
        let code = self.process.ended(s(20));
        assert_eq!(code, Some(Some(0)), "{}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.ended(s(0)).is_none() {
            self.process.signal(Signal::SIGTERM);
            let _ = self.process.ended(s(20));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
