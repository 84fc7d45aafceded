//! `report.json` and `report.md`.

use std::fmt::Write as _;

use ecn_report::output::Output;
use schemars::JsonSchema;
use serde::Serialize;

use crate::statement::{Measured, Statement, Verdict};
use crate::{Choice, Files, ReproduceError, Reproduction};

/// Results of a reproduction.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Report {
    /// Each setting was run with seeds 1 to this number.
    pub seeds: u64,
    /// Length of the runs of Fig. 4 and slide 15, ms; the last four fifths count.
    pub long_run_ms: u64,
    /// Length of the runs for `local_4`, `local_8`, `root_2` and `root_4` of the choices, ms.
    pub choice_run_ms: u64,
    /// The statements.
    pub statements: Vec<Statement>,
    /// What P11 to P14 depend on; empty if only parts were requested.
    pub choices: Vec<Choice>,
    /// Files of the figures.
    pub figures: Vec<Files>,
    /// Number of runs, over all seeds.
    pub runs: usize,
    /// Links crossed by packets in these runs.
    pub packet_hops: u64,
    /// Wall-clock time, seconds.
    pub wall_s: f64,
}

/// A number for display: three decimals, more if it is small, fewer if it is large or whole.
fn short(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value}"),
        ..1e-3 => format!("{value:.1e}"),
        ..1e3 => format!("{value:.3}"),
        _ => format!("{value:.1}"),
    }
}

impl Measured {
    /// `quantity 0.123 ± 0.004`.
    fn text(&self) -> String {
        let mean = self.mean.map_or_else(|| "-".to_owned(), short);
        match self.sd {
            Some(sd) if sd > 0.0 => format!("{} {mean} ± {}", self.quantity, short(sd)),
            _ => format!("{} {mean}", self.quantity),
        }
    }
}

impl Statement {
    /// All measured quantities in one line.
    fn measured_text(&self) -> String {
        let all: Vec<String> = self.measured.iter().map(Measured::text).collect();
        all.join("; ")
    }
}

impl Report {
    /// Ids of the hard statements that do not hold.
    pub fn failed(&self) -> Vec<&str> {
        self.statements
            .iter()
            .filter(|statement| statement.hard && statement.verdict != Verdict::Holds)
            .map(|statement| statement.id.as_str())
            .collect()
    }

    /// Number of statements by verdict, in one line.
    pub fn summary(&self) -> String {
        let count = |verdict: &Verdict| {
            let all = self.statements.iter();
            let count = all
                .filter(|statement| statement.verdict == *verdict)
                .count();
            (count > 0).then(|| format!("{verdict}: {count}"))
        };
        let counts: Vec<String> = Verdict::ALL.iter().filter_map(count).collect();
        format!(
            "{} of {} statements, {} runs in {:.1} s",
            counts.join(", "),
            self.statements.len(),
            self.runs,
            self.wall_s
        )
    }

    /// `report.md`.
    pub fn to_markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let mut text = String::from("# Published statements, reproduced\n\n");
        let _ = write!(
            text,
            "{}. Means and standard deviations over {} seeds",
            self.summary(),
            self.seeds
        );
        // Statements of HP's papers.
        if self
            .statements
            .iter()
            .any(|one| one.id.starts_with(['P', 'R']))
        {
            let _ = write!(
                text,
                "; runs of {} ms at the settings of Fig. 4 and slide 15. r/l is the rate of all remote flows over that \
                 of all local ones",
                self.long_run_ms
            );
        }
        text.push_str(".\n\n");
        text.push_str(
            "| | kind | published | band | measured | verdict |\n|---|---|---|---|---|---|\n",
        );
        for statement in &self.statements {
            let verdict = match statement.verdict {
                Verdict::Holds => Verdict::Holds.to_string(),
                other => format!("**{other}**"),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {verdict} |",
                statement.id,
                statement.kind,
                cell(&statement.published),
                cell(&statement.band),
                cell(&statement.measured_text()),
            );
        }
        text.push_str(
            "\nA statement that *does not hold here* does not fail the reproduction if its note names what decides it and no \
             further deviation is found.\n\nKinds: P published; P? published but contested, reported only; D derived; published S in the \
             slides; published B in public reading notes; S in the publication of the scheme (BCN: Barrass 2006, \
             TCD: Zhang et al. 2021); V in public material about it; from memory: reported only.\n",
        );
        for statement in self.statements.iter().filter(|s| !s.note.is_empty()) {
            let _ = writeln!(text, "\n**{}.** {}", statement.id, statement.note);
        }
        if !self.choices.is_empty() {
            self.choices_table(&mut text);
        }
        text.push_str("\n## Figures\n");
        for files in &self.figures {
            let _ = writeln!(
                text,
                "\n{} ([data]({})):\n\n![{}]({})",
                files.shows, files.csv, files.shows, files.svg
            );
        }
        text
    }

    fn choices_table(&self, text: &mut String) {
        let _ = write!(
            text,
            "\n## Effects of the modelling choices\n\n\
             r/l with 4 slots (Fig. 3); local share with 16 slots, and root use with 2 and 4 slots and threshold 6 \
             (P13: below 0.9), in runs of {} ms. One choice differs from the defaults in each row.\n\n\
             | choice | r/l input | r/l thr. 4 | r/l thr. 8 | P11 | P12: G | P12: T | local thr. 4 | local thr. 8 | P14 \
             | root, 2 slots | 4 slots |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
            self.choice_run_ms
        );
        let yes = |holds| if holds { "holds" } else { "no" };
        for choice in &self.choices {
            let _ = writeln!(
                text,
                "| `{}` | {:.2} | {:.2} | {:.2} | {} | {} | {} | {:.3} | {:.3} | {} | {:.3} | {:.3} |",
                choice.choice,
                choice.ratio_input,
                choice.ratio_4,
                choice.ratio_8,
                yes(choice.p11_holds),
                yes(choice.g_holds),
                yes(choice.t_holds),
                choice.local_4,
                choice.local_8,
                yes(choice.p14_holds),
                choice.root_2,
                choice.root_4,
            );
        }
    }
}

impl Reproduction {
    /// Writes figures and reports.
    ///
    /// # Errors
    ///
    /// A file cannot be written; those written before it are complete.
    pub fn write(&self, output: &Output) -> Result<(), ReproduceError> {
        for drawing in &self.drawings {
            let files = drawing.files();
            output.write(&files.csv, &drawing.csv)?;
            output.write(&files.svg, drawing.to_svg())?;
        }
        output.write("report.md", self.report.to_markdown())?;
        output.write(
            "report.json",
            serde_json::to_string_pretty(&self.report)? + "\n",
        )?;
        Ok(())
    }
}
