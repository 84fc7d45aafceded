//! The `ecn` command as an operator runs it: `ecn run` with a configuration file.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ecn_tests::lab::{BRIDGE, DEVICE, Lab};
use ecn_user::sys::calls as sys;
use serde_json::Value;

/// Time limit for attaching everything.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agent's configuration.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The command.
    pub ecn: PathBuf,
    /// Link rate of the endpoints, as configured.
    pub link_rate: String,
    /// `auto`, `htb`, `edt`, `pacing`.
    pub enforcement: String,
    /// `SECTION.KEY=VALUE`, or `KEY=VALUE` of `[response]`.
    pub keys: Vec<String>,
    /// Hosts that have an endpoint.
    pub endpoints: Vec<usize>,
}

impl Setup {
    /// Text of the configuration file.
    fn text(&self, lab: &Lab) -> String {
        let mut text = String::from("version = 1\n");
        let keys = |text: &mut String, section: &str| {
            for key in &self.keys {
                let (name, value) = key.split_once('=').unwrap_or((key, ""));
                let (of, name) = name.trim().split_once('.').unwrap_or(("response", name));
                let value = value.trim();
                // A TOML value, else a string.
                let plain = format!("x = {value}").parse::<toml::Table>().is_ok();
                let quote = if plain { "" } else { "\"" };
                if of == section {
                    writeln!(text, "{} = {quote}{value}{quote}", name.trim()).expect("a line");
                }
            }
        };
        for section in ["response", "echo", "flow", "agent", "bcn", "qcn"] {
            writeln!(text, "[{section}]").expect("a line");
            keys(&mut text, section);
        }
        let switch = lab.switch.name();
        writeln!(
            text,
            "[[bridge]]\nname = \"{BRIDGE}\"\nnetns = \"{switch}\""
        )
        .expect("a line");
        keys(&mut text, "bridge");
        for &host in &self.endpoints {
            let netns = lab.hosts[host].ns.name();
            writeln!(
                text,
                "[[endpoint]]\ndevice = \"{DEVICE}\"\nnetns = \"{netns}\"\nlink_rate = \"{}\"\nenforcement = \"{}\"",
                self.link_rate, self.enforcement
            )
            .expect("a line");
            keys(&mut text, "endpoint");
        }
        text
    }
}

/// A running agent; killed when dropped.
pub struct Agent {
    child: Child,
    ecn: PathBuf,
    log: PathBuf,
}

impl Agent {
    /// Starts it and waits until `ecn port show` lists its ports.
    ///
    /// # Errors
    ///
    /// With the agent's log.
    pub fn start(setup: &Setup, lab: &Lab, folder: &Path) -> Result<Self, String> {
        let (config, log) = (folder.join("ecn.toml"), folder.join("ecn.log"));
        let error = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
        fs::write(&config, setup.text(lab)).map_err(|e| error("write ecn.toml", e))?;
        let file = fs::File::create(&log).map_err(|e| error("make ecn.log", e))?;
        let other = file.try_clone().map_err(|e| error("make ecn.log", e))?;
        let mut command = Command::new(&setup.ecn);
        command
            .arg("run")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::from(file))
            .stderr(Stdio::from(other));
        sys::die_with_parent(&mut command);
        let child = command
            .spawn()
            .map_err(|e| error(&format!("start {}", setup.ecn.display()), e))?;
        let mut agent = Self {
            child,
            ecn: setup.ecn.clone(),
            log,
        };
        let start = Instant::now();
        while agent
            .ports()
            .is_none_or(|ports| ports.len() < lab.hosts.len())
        {
            let ended = agent.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err(format!("{} run: {}", agent.ecn.display(), agent.log()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // The last endpoints.
        std::thread::sleep(Duration::from_millis(300));
        Ok(agent)
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `ecn port show`.
    fn ports(&self) -> Option<Vec<Value>> {
        let output = Command::new(&self.ecn)
            .args(["port", "show", "-j"])
            .output()
            .ok()?;
        let ports: Value = serde_json::from_slice(&output.stdout).ok()?;
        ports.as_array().cloned()
    }

    /// Sum of a port's counters whose names begin with `counter`.
    pub fn port(&self, name: &str, counter: &[&str]) -> u64 {
        let ports = self.ports().unwrap_or_default();
        let port = ports.iter().find(|port| port["port"] == name);
        let values = counter.iter().filter_map(|key| port?[key].as_u64());
        values.sum()
    }

    /// Stops it as systemd would.
    pub fn stop(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if self.child.try_wait().ok().flatten().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
