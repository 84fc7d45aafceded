//! The log, on the standard error.

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

/// Lines that wait to be written at most; those beyond are lost.
const WAITING_LINES: usize = 4096;
/// How long the end of the process waits for lines to be written.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Lines that could not be written.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How many of [`lost`] have been reported.
static REPORTED: AtomicU64 = AtomicU64::new(0);
/// Lines that came faster than they could be written.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines of this process's log that were lost since its start: nobody read them, the disk was full, or they came too
/// fast.
pub fn lost() -> u64 {
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    REFUSED.load(Ordering::Relaxed) + dropped as u64
}

/// The standard error. A line that it does not take is lost and counted: no reason to stop. The next line that it takes
/// is followed by how many were lost.
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

/// A log that a thread of its own writes; when dropped, what waits is written.
pub struct Background(Option<WorkerGuard>);

impl Drop for Background {
    fn drop(&mut self) {
        let guard = self.0.take();
        let (done, is_done) = mpsc::channel();
        // The guard prints to the standard output when the log's thread is stuck, which may block as well.
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
/// `ECN_LOG` has no level.
pub fn start(verbose: u8) -> anyhow::Result<Option<Background>> {
    start_with(verbose, || Stderr)?;
    Ok(None)
}

/// Starts the log of what runs for long: one level more, and written by a thread of its own, so that a reader that does
/// not read holds nobody up. Panics go there too: writing them directly could block while a lock is held.
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

/// As much as `-v` or ECN_LOG asks for.
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
                "ECN_LOG={text} is not usable: off, error, warn, info, debug or trace"
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
