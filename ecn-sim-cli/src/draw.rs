//! `ecn sim draw`: a figure of a scenario's network.

use std::path::{Path, PathBuf};

use clap::Args;
use ecn_report::output::Output;
use ecn_sim::experiment::Experiment;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Error, json, print, set_all};

/// Arguments of `draw`.
#[derive(Args, Debug)]
pub struct DrawArgs {
    /// A built-in scenario (see `list`) or a TOML file
    scenario: String,
    /// Set a key (see `list`), such as hosts=16; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// SVG file for the figure
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

/// What was drawn, as in `ecn sim draw -j`.
#[derive(JsonSchema, Serialize)]
pub(super) struct Drawn {
    /// The SVG file.
    file: PathBuf,
}

pub(super) fn run(args: &DrawArgs) -> Result<(), Error> {
    let mut experiment = Experiment::find(&args.scenario)?;
    set_all(&mut experiment, &args.set)?;
    let figure = experiment.figure()?;
    let out = args.out.display().to_string();
    let name = args.out.file_name().and_then(|name| name.to_str());
    let extension = args.out.extension();
    let is_svg = extension.is_some_and(|kind| kind.eq_ignore_ascii_case("svg"));
    let Some(name) = name.filter(|_| is_svg) else {
        return Err(Error::usage(format!("--out {out}: must be a *.svg file")));
    };
    let parent = args.out.parent();
    let folder = parent.filter(|folder| !folder.as_os_str().is_empty());
    let output = Output::new(folder.unwrap_or(Path::new(".")))?;
    output.write(name, figure.to_svg())?;
    if args.json {
        let file = args.out.clone();
        return print(&json(&Drawn { file })?);
    }
    print(&out)
}
