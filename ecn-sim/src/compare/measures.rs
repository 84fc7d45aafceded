//! Means of the results of several runs, with confidence intervals.

use ecn_report::statistics::Sample;
use ecn_report::table::{Cell, Row};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::records;

/// A quantity over all runs.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Measure {
    /// Mean; null if a run has no value.
    pub mean: Option<f64>,
    /// Half the width of its 95 % confidence interval; null with a single run.
    pub ci95: Option<f64>,
}

impl Measure {
    fn shown(self) -> String {
        let Some(mean) = self.mean else {
            return "-".to_owned();
        };
        let digits = if mean.abs() < 100.0 { 3 } else { 0 };
        match self.ci95 {
            None => format!("{mean:.digits$}"),
            Some(ci95) => format!("{mean:.digits$} \u{b1} {ci95:.digits$}"),
        }
    }
}

/// Measures by name of the column in the table of runs.
pub type Measures = BTreeMap<String, Measure>;

/// Results of a scheme in a window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct WindowMeasures {
    /// Start, ms.
    pub from_ms: f64,
    /// End, ms; a run may have ended before.
    pub to_ms: f64,
    /// By name of the column in the table of runs.
    pub measures: Measures,
}

impl WindowMeasures {
    /// With a label for [`table`].
    pub(super) fn section(&self) -> (String, Measures) {
        let label = format!("{}..{} ms", self.from_ms, self.to_ms);
        (label, self.measures.clone())
    }
}

/// A run's results, without its seed.
#[derive(PartialEq)]
pub(super) struct Results {
    whole_run: Row,
    windows: Vec<Row>,
}

impl Results {
    pub(super) fn of(run: &impl Serialize) -> Self {
        let run = serde_json::to_value(run).unwrap_or_default();
        let mut whole_run = records::whole_run(&run);
        let mut windows = records::rows(&run);
        for row in &mut windows {
            row.retain(|name, _| !whole_run.contains_key(name));
        }
        // Without windows there is one row all the same.
        windows.retain(|row| !row.is_empty());
        whole_run.remove("seed");
        Self { whole_run, windows }
    }
}

/// Means of all runs: over the whole run, and by window.
pub(super) fn means<R: Serialize>(runs: &[R]) -> (Measures, Vec<WindowMeasures>) {
    let runs: Vec<Results> = runs.iter().map(Results::of).collect();
    let whole: Vec<&Row> = runs.iter().map(|run| &run.whole_run).collect();
    let window = |number: usize| {
        let rows: Vec<&Row> = runs.iter().map(|run| &run.windows[number]).collect();
        let time = |name| rows[0].get(name).and_then(Cell::number).unwrap_or_default();
        WindowMeasures {
            from_ms: time("from_ms"),
            to_ms: time("to_ms"),
            measures: measures(&rows),
        }
    };
    let windows = (0..runs[0].windows.len()).map(window).collect();
    (measures(&whole), windows)
}

/// Means of the values in the runs' rows.
fn measures(runs: &[&Row]) -> Measures {
    let of = |name: &str| {
        let values = runs.iter().map(|row| row.get(name)?.number());
        values.collect::<Option<Vec<f64>>>()
    };
    let names = runs[0].iter().filter(|(name, cell)| {
        !matches!(cell, Cell::Text(_)) && !records::FIRST.contains(&name.as_str())
    });
    let measure = |(name, _): (&String, &Cell)| {
        let sample = of(name).map(Sample::of);
        let measure = Measure {
            mean: sample.map(|sample| sample.mean),
            ci95: sample.and_then(|sample| sample.half_width()),
        };
        (name.clone(), measure)
    };
    names.map(measure).collect()
}

/// A row per section and measure, a column per scheme. `schemes`: labelled sections of each scheme, the same for all.
pub(super) fn table(schemes: &[Vec<(String, Measures)>]) -> Vec<Vec<String>> {
    let sections = schemes[0].iter().enumerate();
    let rows = sections.flat_map(|(number, (label, first))| {
        let names = first.keys().filter(|name| is_of_interest(name));
        names.map(move |name| {
            let value = |sections: &Vec<(String, Measures)>| {
                let (_, measures) = &sections[number];
                measures
                    .get(name)
                    .map_or("-".to_owned(), |measure| measure.shown())
            };
            let label = format!("{label}  {name}");
            std::iter::once(label)
                .chain(schemes.iter().map(value))
                .collect()
        })
    });
    rows.collect()
}

/// Whether a measure is of interest: not how much work the simulator had.
fn is_of_interest(name: &str) -> bool {
    !["events", "packet_hops"].contains(&name)
}
