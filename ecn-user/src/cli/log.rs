//! The log, on the standard error.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{self, ErrorCounter, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::exit::Failure;

/// Lines that could not be written and that nobody was told of.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Lines that could not be written since the start.
static LOST_EVER: AtomicU64 = AtomicU64::new(0);
/// Lines that came faster than they could be written.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines of this process's log that were lost since its start.
pub fn lost() -> u64 {
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    LOST_EVER.load(Ordering::Relaxed) + dropped as u64
}

/// The standard error. A line that it does not take, because nobody reads it or the disk is full, is lost and counted:
/// no reason to stop. The next one that it takes is followed by how many were lost.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut out = io::stderr().lock();
        if out.write_all(line).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
            LOST_EVER.fetch_add(1, Ordering::Relaxed);
        } else if LOST.load(Ordering::Relaxed) != 0 {
            let lost = LOST.swap(0, Ordering::Relaxed);
            if writeln!(out, "ecn: {lost} lines of this log were lost").is_err() {
                LOST.fetch_add(lost, Ordering::Relaxed);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log of a command.
///
/// # Errors
///
/// `ECN_LOG` has no level.
pub fn start(verbose: u8) -> anyhow::Result<Option<WorkerGuard>> {
    start_with(verbose, || Stderr)?;
    Ok(None)
}

/// Starts the log of what runs for long: one level more, and written by a thread of its own, so that who does not read
/// it holds nobody up. What is left is written when the guard is dropped.
///
/// # Errors
///
/// As [`start`].
pub fn start_for_long(verbose: u8) -> anyhow::Result<Option<WorkerGuard>> {
    let (writer, guard) = non_blocking::NonBlockingBuilder::default()
        .lossy(true)
        .thread_name("ecn-log")
        .finish(Stderr);
    let _ = DROPPED.set(writer.error_counter());
    start_with(verbose.saturating_add(1), writer)?;
    Ok(Some(guard))
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
