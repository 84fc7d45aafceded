//! The verdict: the results in words.

use ecn_core::marking::Marking;
use ecn_report::number::thousands;

use super::{Phase, Report};

impl Phase {
    fn drop_share(&self) -> f64 {
        if self.sent_packets == 0 {
            return 0.0;
        }
        self.dropped_packets as f64 / self.sent_packets as f64
    }
}

impl Report {
    /// The results in a few sentences of at most 80 columns.
    ///
    /// Phases are compared with the phase without control, if there is one.
    pub fn verdict(&self) -> String {
        let paragraphs = self.paragraphs().into_iter();
        paragraphs.map(|paragraph| wrap(&paragraph, 80)).collect()
    }

    pub(super) fn paragraphs(&self) -> Vec<String> {
        if self.phases.is_empty() {
            return vec!["Nothing was measured.".to_owned()];
        }
        let mut paragraphs = Vec::new();
        let idle = |phase: &&Phase| phase.root < 0.005 && phase.inter_switch < 0.005;
        for phase in self.phases.iter().filter(idle) {
            paragraphs.push(format!(
                "Phase {}: next to no traffic arrived. Its numbers say nothing about control.",
                phase.name
            ));
        }
        let mut others: Vec<_> = self.phases.iter().filter(|phase| !idle(phase)).collect();
        let baseline = others.iter().position(|phase| !phase.is_controlled());
        let baseline = baseline.map(|index| others.remove(index));
        if let Some(baseline) = baseline {
            paragraphs.push(self.describe(baseline, None));
        }
        match (baseline, &others[..]) {
            (_, []) => {}
            (None, [phase]) => paragraphs.push(format!(
                "{} There is no phase without control to compare it with.",
                self.describe(phase, None)
            )),
            (Some(baseline), [phase]) => {
                paragraphs.push(self.describe(phase, Some(baseline)));
                paragraphs.push(self.conclusion(baseline, phase));
            }
            (baseline, phases) => paragraphs.extend(self.compare(baseline, phases)),
        }
        paragraphs
    }

    /// Share of the inter-switch link that remains for the victim if each flow to the root link gets the same share of
    /// that.
    fn fair_room(&self) -> f64 {
        let remote = f64::from(self.parameters.remote_flows);
        let flows = f64::from(self.parameters.local_flows) + remote;
        if flows > 0.0 {
            1.0 - remote / flows
        } else {
            1.0
        }
    }

    fn describe(&self, phase: &Phase, before: Option<&Phase>) -> String {
        let mut text = if phase.is_controlled() {
            format!("Controlled ({})", phase.setting())
        } else if phase.marking == Marking::None {
            "Uncontrolled".to_owned()
        } else {
            format!("Marked ({}) but not controlled", phase.marking)
        };
        if self.parameters.victim {
            let share = percent(phase.victim);
            text += &format!(", the victim got {share} of the link rate");
            if let Some(before) = before {
                text += &format!(", {}", times(before.victim, phase.victim));
            } else if !phase.is_controlled() {
                let room = self.fair_room();
                let (before, after) = if phase.victim < 0.8 * room {
                    let spread = "the congestion of the root port has spread to it";
                    (". Nobody shares its output port", spread)
                } else {
                    ("", "hardly any congestion spread to it")
                };
                text += &format!(
                    "{before}, and with fair shares the inter-switch link has room for {}: {after}",
                    percent(room)
                );
            }
            text += ".";
        } else {
            text += &format!(", the root link was used to {}.", percent(phase.root));
        }

        let queue = phase.root_queue_mean_packets;
        text += &match (phase.dropped_packets, phase.sent_packets) {
            (0, _) => " No packet was dropped".to_owned(),
            (1, sent) => format!(" 1 of {} packets was dropped", thousands(sent)),
            (dropped, sent) => {
                let (dropped, sent) = (thousands(dropped), thousands(sent));
                format!(" {dropped} of {sent} packets were dropped")
            }
        };
        text += &format!("; {} waited at the root port on average", packets(queue));
        if let Some(before) = before {
            text += &format!(", {} before", packets(before.root_queue_mean_packets));
        }
        text += ".";

        let ratio_before = before.and_then(|phase| phase.remote_local_ratio);
        let ratio_before = ratio_before.map_or(String::new(), |ratio| {
            format!(" ({} before)", percent(ratio))
        });
        let has_both = self.parameters.local_flows > 0 && self.parameters.remote_flows > 0;
        let ratio = phase.remote_local_ratio.filter(|_| has_both);
        if self.parameters.victim {
            text += &format!(" The root link was used to {}", percent(phase.root));
            if let Some(before) = before {
                text += &format!(" ({} before)", percent(before.root));
            }
            text += if ratio.is_some() { "; remote" } else { "." };
        } else if ratio.is_some() {
            text += " Remote";
        }
        if let Some(ratio) = ratio {
            let ratio = percent(ratio);
            text += &format!(" flows got {ratio} of what local flows got{ratio_before}.");
        }
        text
    }

    /// Changes between two phases that exceed measurement noise.
    fn changes(&self, before: &Phase, after: &Phase) -> Changes {
        let mut changes = Changes::default();
        let by_percent =
            |name: &str, a: f64, b: f64| format!("{name} {} instead of {}", percent(b), percent(a));
        if self.parameters.victim {
            let (a, b) = (before.victim, after.victim);
            changes.victim = change(a, b, 0.02, 0.1);
            changes.add(changes.victim, || by_percent("victim", a, b));
        }
        let (a, b) = (before.drop_share(), after.drop_share());
        changes.add(change(b, a, 0.001, 0.1), || {
            let (a, b) = (before.dropped_packets, after.dropped_packets);
            format!("{} drops instead of {}", thousands(b), thousands(a))
        });
        let [a, b] = [before, after].map(|phase| phase.root_queue_mean_packets);
        changes.add(change(b, a, 1.0, 0.1), || {
            format!("root queue {} instead of {}", packets(b), packets(a))
        });
        if let (Some(a), Some(b)) = (before.remote_local_ratio, after.remote_local_ratio)
            && (a > 0.0 || b > 0.0)
        {
            changes.add(change(evenness(a), evenness(b), 0.05, 0.1), || {
                format!("remote/local {b:.2} instead of {a:.2}")
            });
        }
        let (a, b) = (before.root, after.root);
        changes.add(change(a, b, 0.02, 0.0), || by_percent("root link", a, b));
        changes
    }

    fn conclusion(&self, before: &Phase, after: &Phase) -> String {
        let Changes {
            victim,
            better,
            worse,
        } = self.changes(before, after);
        // If the victim already had its share, it cannot show whether control helps.
        let had_its_share = before.victim >= 0.8 * self.fair_room();
        let victim = match victim {
            Change::Same if had_its_share => None,
            change => Some(change).filter(|_| self.parameters.victim),
        };
        let mut text = match victim {
            Some(Change::Better) if worse.is_empty() => "Control helped.",
            Some(Change::Better) => "Control helped, at a price.",
            Some(Change::Worse) => "Control did harm: the victim got less than without it.",
            _ if better.is_empty() && worse.is_empty() => "Control changed next to nothing.",
            Some(Change::Same) if better.is_empty() => "Control did not help.",
            Some(Change::Same) => {
                "Control did not help the victim, though something else improved."
            }
            None if worse.is_empty() => "Control helped.",
            None if better.is_empty() => "Control did harm.",
            None if better.len() > worse.len() => "Control helped, at a price.",
            None => "Control helped in one way and did harm in another.",
        }
        .to_owned();
        if !better.is_empty() {
            text += &format!(" Better: {}.", better.join(", "));
        }
        if !worse.is_empty() {
            text += &format!(" Worse: {}.", worse.join(", "));
        }
        text
    }

    fn compare(&self, baseline: Option<&Phase>, phases: &[&Phase]) -> Vec<String> {
        let mut paragraphs = Vec::new();
        let name = |phase: &Phase| match phase.is_controlled() {
            true => format!("{} with {}", phase.marking, phase.response),
            false => phase.setting(),
        };
        let top = |get: fn(&Phase) -> f64| {
            let phases = phases.iter().copied();
            phases.max_by(|a, b| get(a).total_cmp(&get(b)))
        };
        if let (Some(baseline), true) = (baseline, self.parameters.victim) {
            let helped = |phase: &&&Phase| self.changes(baseline, phase).victim == Change::Better;
            let not_helped = phases.iter().filter(|phase| !helped(phase));
            let not: Vec<_> = not_helped
                .map(|phase| format!("{} ({})", name(phase), percent(phase.victim)))
                .collect();
            let count = phases.len();
            let (who, exceptions) = match count - not.len() {
                0 => (format!("None of the {count}"), String::new()),
                n if n == count => (format!("All {n}"), String::new()),
                n => (
                    format!("{n} of {count}"),
                    format!(" Not so: {}.", not.join(", ")),
                ),
            };
            paragraphs.push(format!(
                "{who} other settings gave the victim more.{exceptions}"
            ));
        }
        let mut best = Vec::new();
        if self.parameters.victim
            && let Some(phase) = top(|phase| phase.victim)
        {
            let (name, share) = (name(phase), percent(phase.victim));
            best.push(format!("Most for the victim: {name} ({share})."));
        }
        if let Some(phase) = top(|phase| phase.root) {
            let (name, share) = (name(phase), percent(phase.root));
            best.push(format!("Busiest root link: {name} ({share})."));
        }
        if let Some(phase) = top(|phase| phase.remote_local_ratio.map_or(0.0, evenness))
            && let Some(ratio) = phase.remote_local_ratio.filter(|ratio| *ratio > 0.0)
        {
            let name = name(phase);
            best.push(format!(
                "Most even shares: {name} (remote/local {ratio:.2})."
            ));
        }
        let most_drops = phases.iter().map(|phase| phase.dropped_packets).max();
        if most_drops == Some(0) {
            best.push("None of them dropped a packet.".to_owned());
        } else if let (Some(phase), Some(most)) = (top(|phase| -phase.drop_share()), most_drops) {
            best.push(format!(
                "Fewest drops: {} ({}; the most were {}).",
                name(phase),
                thousands(phase.dropped_packets),
                thousands(most)
            ));
        }
        paragraphs.push(best.join(" "));
        paragraphs
    }
}

/// Evenness of a ratio: 1 for equal shares; twice and half as much give the same value.
fn evenness(ratio: f64) -> f64 {
    if ratio > 1.0 { 1.0 / ratio } else { ratio }
}

/// Change of a number, relative to the desired direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Change {
    Better,
    #[default]
    Same,
    Worse,
}

/// The change to `after`, if it exceeds both `least` and the fraction `part` of the larger value.
fn change(before: f64, after: f64, least: f64, part: f64) -> Change {
    let tolerance = least.max(part * before.max(after));
    match after - before {
        difference if difference > tolerance => Change::Better,
        difference if difference < -tolerance => Change::Worse,
        _ => Change::Same,
    }
}

/// Improvements and failures, in words.
#[derive(Debug, Default)]
struct Changes {
    victim: Change,
    better: Vec<String>,
    worse: Vec<String>,
}

impl Changes {
    fn add(&mut self, change: Change, words: impl FnOnce() -> String) {
        match change {
            Change::Better => self.better.push(words()),
            Change::Worse => self.worse.push(words()),
            Change::Same => {}
        }
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = usize::from(percent > 0.0 && percent < 0.95);
    format!("{percent:.decimals$} %")
}

/// The factor by which a number has changed, as a clause.
fn times(before: f64, after: f64) -> String {
    match after / before {
        _ if before < 0.001 && after < 0.001 => "as before".to_owned(),
        _ if before < 0.001 => "after next to nothing".to_owned(),
        ratio if ratio >= 1.1 => format!("{ratio:.1} times as much"),
        ratio if ratio > 0.9 => "about as much as without".to_owned(),
        _ => format!("down from {}", percent(before)),
    }
}

/// A number of packets, possibly fractional.
fn packets(number: f64) -> String {
    let decimals = usize::from(number < 9.95);
    let text = format!("{number:.decimals$}");
    match text.as_str() {
        "0.0" => "no packet".to_owned(),
        "1.0" => "1 packet".to_owned(),
        _ => format!("{} packets", text.trim_end_matches(".0")),
    }
}

/// Wraps a text; numbers stay on one line with their per cent sign.
fn wrap(text: &str, width: usize) -> String {
    let text = text.replace(" %", "\u{a0}%");
    let options = textwrap::Options::new(width).wrap_algorithm(textwrap::WrapAlgorithm::FirstFit);
    textwrap::fill(&text, options).replace('\u{a0}', " ") + "\n"
}
