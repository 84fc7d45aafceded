//! Axes with round numbers.

use crate::number::thousands;

/// An axis with round steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) step: f64,
}

impl Axis {
    /// An axis from `start` to at least `max`, in about `steps` steps of 1, 2 or 5 times a power of ten. With `whole`,
    /// it ends on a step and may end slightly below `max`: a link measured at 1.01 of its rate needs no axis up to 1.2.
    pub(super) fn new(start: f64, max: f64, steps: f64, whole: bool) -> Self {
        let length = if max.is_finite() && max > start {
            max - start
        } else {
            1.0
        };
        let rough = length / steps;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough * 0.8)
            .unwrap_or(10.0 * power);
        let length = if whole {
            (length / step - 0.15).ceil().max(1.0) * step
        } else {
            length
        };
        let end = start + length;
        Self { start, end, step }
    }

    pub(super) fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        let first = (self.start / self.step - 1e-6).ceil() as u32;
        let last = (self.end / self.step + 1e-6).floor() as u32;
        (first..=last).map(move |index| {
            let value = f64::from(index) * self.step;
            (value, thousands(format!("{value:.decimals$}")))
        })
    }
}

/// Ticks for a logarithmic axis up to `most`: 1, 2, 5, 10 and so on, or powers of ten if these are too many.
pub fn decades(least: f64, most: f64, label: fn(f64) -> String) -> Vec<(f64, String)> {
    let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 3 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let powers = (first..=last).map(|power| 10_f64.powi(power));
    let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
    let within = values.filter(|value| (least..=most * 1.000_001).contains(value));
    within.map(|value| (value.log10(), label(value))).collect()
}

/// Moves labels apart to distances of at least `gap`, by as little as possible, within `low..=high`.
pub(super) fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    // Groups of touching labels: (number of labels, sum of (wanted - offset inside the group)).
    let mut groups: Vec<(usize, f64)> = Vec::new();
    let start = |(count, sum): (usize, f64)| {
        let length = (count - 1) as f64 * gap;
        (sum / count as f64).min(high - length).max(low)
    };
    for index in &order {
        groups.push((1, wanted[*index]));
        while let [.., before, last] = groups[..] {
            if start(before) + before.0 as f64 * gap <= start(last) + 1e-9 {
                break;
            }
            let moved = last.1 - (before.0 * last.0) as f64 * gap;
            groups.truncate(groups.len() - 2);
            groups.push((before.0 + last.0, before.1 + moved));
        }
    }
    let mut placed = vec![0.0; wanted.len()];
    let mut next = order.into_iter();
    for group in groups {
        for offset in 0..group.0 {
            if let Some(index) = next.next() {
                placed[index] = start(group) + offset as f64 * gap;
            }
        }
    }
    placed
}
