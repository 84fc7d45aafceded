//! A terminal for tests: tmux.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{eventually, process::Process, s};

/// A terminal that runs a shell; closed when dropped.
pub struct Terminal {
    _server: Process,
    folder: PathBuf,
}

/// Skips the test if tmux is not installed.
#[macro_export]
macro_rules! tmux_or_skip {
    () => {
        if !$crate::terminal::is_there() {
            $crate::skipped($crate::name_of(|| {}), $crate::Skip::Missing, "no tmux");
            return;
        }
    };
}

/// Whether tmux is installed.
pub fn is_there() -> bool {
    Command::new("tmux").arg("-V").output().is_ok()
}

impl Terminal {
    /// A terminal of this size.
    #[track_caller]
    pub fn new(columns: u16, lines: u16) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("ecn-t-{}-tmux{next}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (socket, config) = (folder.join("socket"), folder.join("config"));
        let settings = "set -g status off\nset -sg escape-time 0\nset -g default-terminal screen\n";
        fs::write(&config, settings).expect("settings");
        let at = |path: &PathBuf| path.to_str().expect("a path").to_owned();
        // Not a daemon: it must end with this process.
        let words = ["-D", "-S", &at(&socket), "-f", &at(&config)];
        let terminal = Self {
            _server: Process::start("tmux".as_ref(), &words, &folder.join("server")),
            folder,
        };
        assert!(eventually(s(10), || socket.exists()), "tmux does not start");
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let shell = "env PS1='$ ' LC_ALL=C.UTF-8 sh";
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &lines, shell]);
        terminal
    }

    #[track_caller]
    fn tmux(&self, words: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-u")
            .arg("-S")
            .arg(self.folder.join("socket"))
            .args(words)
            .output()
            .expect("tmux");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {words:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types text.
    pub fn text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
    }

    /// Presses a key by its tmux name, such as `Enter`.
    pub fn key(&self, name: &str) {
        self.tmux(&["send-keys", name]);
    }

    /// Types a line.
    pub fn line(&self, text: &str) {
        self.text(text);
        self.key("Enter");
    }

    /// The lines on the screen.
    pub fn lines(&self) -> Vec<String> {
        let screen = self.tmux(&["capture-pane", "-p"]);
        screen.lines().map(str::to_owned).collect()
    }

    /// The lines on the screen, with wrapped lines joined.
    pub fn joined_lines(&self) -> Vec<String> {
        let screen = self.tmux(&["capture-pane", "-p", "-J"]);
        screen
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    /// Process ID of the shell.
    pub fn process(&self) -> u32 {
        let pid = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        pid.trim().parse().expect("a process")
    }

    /// Whether a program uses the alternate screen.
    pub fn is_taken(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{alternate_on}"])
            .trim()
            == "1"
    }

    /// Whether the cursor is shown.
    pub fn has_cursor(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{cursor_flag}"])
            .trim()
            == "1"
    }

    /// Waits until the screen satisfies a condition, and returns it.
    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        let held = eventually(s(10), || {
            lines = self.lines();
            holds(&lines)
        });
        assert!(held, "not seen: {what}\n{}", lines.join("\n"));
        lines
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
