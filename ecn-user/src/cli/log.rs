//! The log, on standard error.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tracing_appender::non_blocking::{self, ErrorCounter, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::exit::Failure;

/// Maximum number of lines waiting to be written; further ones are lost.
const WAITING_LINES: usize = 4096;
/// How long the process waits at its end for lines to be written.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Lines that could not be written.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How many of the [`lost`] lines have been reported.
static REPORTED: AtomicU64 = AtomicU64::new(0);
/// Lines lost because they came faster than they could be written.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines of this process's log that were lost since its start: nobody read them, the disk was full, or they came too
/// fast.
pub fn lost() -> u64 {
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    REFUSED.load(Ordering::Relaxed) + dropped as u64
}

/// Standard error. A line that cannot be written is counted as lost, which is not an error. After the next line that
/// can be written, the number of lost lines is reported.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut out = io::stderr().lock();
        if out.write_all(line).is_err() {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            return Ok(line.len());
        }
        let lost = lost();
        let fresh = lost - REPORTED.load(Ordering::Relaxed);
        if fresh != 0 && writeln!(out, "ecn: {fresh} lines of this log were lost").is_ok() {
            REPORTED.store(lost, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A log that is written by its own thread; when dropped, it writes the waiting lines.
pub struct Background(Option<WorkerGuard>);

impl Drop for Background {
    fn drop(&mut self) {
        let guard = self.0.take();
        let (done, is_done) = mpsc::channel();
        // If the log's thread is stuck, the guard prints to standard output, which may block as well.
        thread::spawn(move || {
            drop(guard);
            let _ = done.send(());
        });
        let _ = is_done.recv_timeout(PATIENCE);
    }
}

/// Starts the log of a command.
///
/// # Errors
///
/// `ECN_LOG` is not a level.
pub fn start(verbose: u8) -> anyhow::Result<Option<Background>> {
    start_with(verbose, || Stderr)?;
    Ok(None)
}

/// Starts the log of a long-running command: one level more verbose, and written by its own thread, so that a stuck
/// reader delays nothing else. Panics are logged there too: writing them directly could block while a lock is held.
///
/// # Errors
///
/// As [`start`].
pub fn start_for_long(verbose: u8) -> anyhow::Result<Option<Background>> {
    let (writer, guard) = non_blocking::NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("ecn-log")
        .finish(Stderr);
    let _ = DROPPED.set(writer.error_counter());
    start_with(verbose.saturating_add(1), writer)?;
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Some(Background(Some(guard))))
}

/// Starts the log at the level of ECN_LOG, else that of `-v`.
fn start_with<W>(verbose: u8, writer: W) -> anyhow::Result<()>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let level = match std::env::var("ECN_LOG") {
        Ok(text) if !text.is_empty() => text.parse().map_err(|_| {
            Failure::usage(format!(
                "unknown level ECN_LOG={text}: expected off, error, warn, info, debug or trace"
            ))
        })?,
        _ => level,
    };
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false)
        .try_init();
    Ok(())
}
