//! Shows something once or periodically.

use std::io::{self, IsTerminal as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::exit::{Failure, print, print_json};

/// How to show it.
#[derive(Args, Debug, Clone, Default)]
pub(super) struct Show {
    /// Show it again every SECONDS, 0.05 to 86400; 1 if omitted
    #[arg(long, short = 'w', value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = seconds)]
    pub watch: Option<Duration>,
    /// Print one JSON document and nothing else; with --watch one per line
    #[arg(long, short = 'j')]
    pub json: bool,
}

/// Parses a period, for clap.
///
/// # Errors
///
/// Not a number, or outside the valid range.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if (0.05..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be between 0.05 and 86400 seconds".to_owned())
    }
}

/// Whether standard output is a terminal on which text can be overwritten.
pub(super) fn can_redraw() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    io::stdout().is_terminal() && !matches!(term.as_str(), "" | "dumb")
}

/// The words of the command line with `--watch 2` joined to `--watch=2`: a word after `--watch` that is not a number
/// belongs to the filter.
pub(super) fn join_seconds(
    words: impl IntoIterator<Item = std::ffi::OsString>,
) -> Vec<std::ffi::OsString> {
    let mut joined: Vec<std::ffi::OsString> = Vec::new();
    for word in words {
        let is_number = word
            .to_str()
            .is_some_and(|word| word.parse::<f64>().is_ok());
        match joined.last_mut() {
            Some(last) if is_number && (last == "--watch" || last == "-w") => {
                last.push("=");
                last.push(word);
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// Shows what `look` finds: as JSON, or as the text that `draw` makes of it.
///
/// # Errors
///
/// Those of `look`, and of writing.
pub(super) fn show<T: Serialize>(
    how: &Show,
    mut look: impl FnMut() -> anyhow::Result<T>,
    draw: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    let Some(period) = how.watch else {
        let found = look()?;
        return if how.json {
            print_json(&found)
        } else {
            print(&draw(&found))
        };
    };
    let redraw = !how.json && can_redraw();
    let mut next = Instant::now();
    for round in 0_u64.. {
        let found = look()?;
        match (how.json, redraw) {
            (true, _) => print_json(&found)?,
            // Moves to the top left, prints the text, and clears the rest of each line and everything below.
            (_, true) => {
                let text = draw(&found).replace('\n', "\x1b[K\n");
                let clear = if round == 0 { "\x1b[2J" } else { "" };
                print(&format!("{clear}\x1b[H{text}\x1b[J"))?;
            }
            (_, false) => {
                let gap = if round == 0 { "" } else { "\n" };
                print(&format!("{gap}{}", draw(&found)))?;
            }
        }
        next += period;
        match next.checked_duration_since(Instant::now()) {
            Some(wait) => sleep(wait),
            None => next = Instant::now(),
        }
    }
    Err(Failure::failed("watched too long").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_join_watch() {
        for (words, expected) in [
            ("port show --watch 2 dev a", "port show --watch=2 dev a"),
            ("port show --watch dev a", "port show --watch dev a"),
            ("port show -w 0.5", "port show -w=0.5"),
            ("flow set x --rate 5", "flow set x --rate 5"),
            ("port show --watch", "port show --watch"),
        ] {
            let joined = join_seconds(words.split(' ').map(Into::into));
            let joined: Vec<_> = joined.iter().filter_map(|word| word.to_str()).collect();
            assert_eq!(joined.join(" "), expected);
        }
    }

    #[test]
    fn periods_have_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "x", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
