//! `ecn sim merge`: merges the folders of a sweep's shards.

use std::path::PathBuf;

use clap::Args;
use ecn_report::table::Format;
use ecn_sim::sweep::Merged;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Error, json as to_json, print};

/// Arguments of `merge`.
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// Folders written by `sweep`
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Folder for the records (JSON lines), table (CSV, Parquet) and figure (SVG); or a *.jsonl file, with the others
    /// next to it; or a *.csv or *.parquet file for the table alone
    #[arg(long, value_name = "FILE|DIR")]
    out: PathBuf,
    /// Write the output even if runs are missing
    #[arg(long)]
    partial: bool,
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

/// What was merged, as in `ecn sim merge -j`.
#[derive(JsonSchema, Serialize)]
pub(super) struct Joined {
    /// Runs of the sweep.
    runs: usize,
    /// Runs that failed.
    failed: usize,
    /// Runs without a record, by their keys and seeds.
    missing: Vec<String>,
    /// Files written; null if runs are missing and `--partial` was not given.
    files: Option<Vec<PathBuf>>,
}

pub(super) fn run(args: &MergeArgs) -> Result<(), Error> {
    let merged = Merged::read(&args.folders)?;
    let missing = merged.missing_runs();
    let missing_text = merged.missing_text();
    let written = if missing.is_empty() || args.partial {
        Some(merged.write(&args.out)?)
    } else {
        None
    };
    if args.json {
        print(&to_json(&Joined {
            runs: merged.runs(),
            failed: merged.failed(),
            missing,
            files: written.clone(),
        })?)?;
    } else if let Some(files) = &written {
        let failed = match merged.failed() {
            0 => String::new(),
            failed => format!(" ({failed} of them failed)"),
        };
        let runs = merged.runs() - missing.len();
        let files: Vec<String> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let files = files.join(", ");
        let no_figure = if files.ends_with(".svg") || Format::of(&args.out).is_some() {
            ""
        } else {
            "\nno figure: it needs one swept key with numbers, or two of which one has numbers"
        };
        let missing = missing_text.iter().map(|text| format!("\n{text}"));
        let missing: String = missing.collect();
        print(&format!("{runs} runs{failed}: {files}{no_figure}{missing}"))?;
    }
    match missing_text {
        Some(text) if written.is_none() => Err(Error::failed(text)),
        _ => Ok(()),
    }
}
