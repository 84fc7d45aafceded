use super::axis::{Axis, spread};
use super::canvas::{LOOKS, PLAIN, fit, text_width, thin};
use super::*;
use proptest::prelude::*;

fn figure(points: Vec<(f64, f64)>) -> LineFigure {
    let line = |look| Line {
        label: format!("line {look}"),
        points: points.clone(),
        look,
        ..Line::default()
    };
    LineFigure {
        title: "a < b & c".to_owned(),
        x_label: "time in s".to_owned(),
        y_label: "packets".to_owned(),
        y_at_least: 1.0,
        panels: vec![Panel {
            title: "panel".to_owned(),
            note: "note".to_owned(),
            lines: (0..LOOKS.len()).map(line).collect(),
        }],
        ..LineFigure::default()
    }
}

#[test]
fn a_figure_is_800_pixels_wide_and_titled() {
    let svg = figure(vec![(0.0, 0.2), (1.0, 0.8)]).to_svg();
    for attribute in [
        r#" width="800""#,
        r#" height="312""#,
        r#" viewBox="0 0 800 312""#,
    ] {
        assert!(svg.starts_with("<svg ") && svg.contains(attribute), "{svg}");
    }
    assert!(svg.contains("<title>a &lt; b &amp; c</title>"), "{svg}");
    assert!(svg.ends_with("</svg>\n"), "{svg}");
}

#[test]
fn looks_differ_without_colour() {
    for (index, look) in LOOKS.iter().enumerate() {
        for other in &LOOKS[..index] {
            assert_ne!(look.marker, other.marker);
            assert_ne!(look.color, other.color);
            assert!(look.dash != other.dash || look.width != other.width);
        }
    }
}

#[test]
fn points_that_are_no_numbers_leave_a_gap() {
    let whole = figure(vec![(0.0, 0.5), (1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]);
    let gap = figure(vec![(0.0, 0.5), (1.0, f64::NAN), (2.0, 0.5), (3.0, 0.5)]);
    let (whole, gap) = (whole.to_svg(), gap.to_svg());
    assert!(!gap.contains("NaN"), "{gap}");
    let solid = |svg: &str| svg.matches(r#"stroke-width="2.6""#).count();
    assert_eq!(solid(&gap), solid(&whole) + 1);
}

#[test]
fn axes_end_on_round_numbers() {
    for (max, end, step) in [
        (1.0, 1.0, 0.2),
        (1.02, 1.0, 0.2),
        (1.1, 1.2, 0.2),
        (106.0, 120.0, 20.0),
        (9.0, 10.0, 2.0),
        (39.0, 40.0, 10.0),
        (0.0, 1.0, 0.2),
        (f64::NAN, 1.0, 0.2),
    ] {
        let axis = Axis::new(0.0, max, 5.0, true);
        assert!(
            (axis.end - end).abs() < 1e-9 && (axis.step - step).abs() < 1e-9,
            "{max} {axis:?}"
        );
    }
    let labels: Vec<_> = Axis::new(0.0, 4000.0, 5.0, true)
        .ticks()
        .map(|tick| tick.1)
        .collect();
    assert_eq!(labels, ["0", "1,000", "2,000", "3,000", "4,000"]);
    let labels: Vec<_> = Axis::new(0.0, 10.0, 10.0, false)
        .ticks()
        .map(|tick| tick.1)
        .collect();
    assert_eq!(labels.len(), 11);
}

#[test]
fn thinning_keeps_extremes() {
    let points: Vec<_> = (0..1000)
        .map(|index| {
            (
                f64::from(index) / 100.0,
                if index == 555 { 9.0 } else { 1.0 },
            )
        })
        .collect();
    let thinned = thin(&points);
    assert!(thinned.len() <= 40, "{}", thinned.len());
    assert!(thinned.contains(&(5.55, 9.0)));
    assert_eq!(
        (thinned.first(), thinned.last()),
        (points.first(), points.last())
    );
}

#[test]
fn long_texts_are_cut_to_fit() {
    assert_eq!(fit("root", PLAIN, 100.0), "root");
    let short = fit("a-very-long-name-of-a-phase", PLAIN, 100.0);
    assert!(
        short.ends_with('…') && text_width(&short, PLAIN) <= 100.0,
        "{short}"
    );
}

proptest! {
    #[test]
    fn labels_keep_their_distance_and_order(
        positions in proptest::collection::vec(0.0..200.0_f64, 0..8)
    ) {
        let placed = spread(&positions, 18.0, 0.0, 200.0);
        let mut both: Vec<_> = positions.iter().zip(&placed).collect();
        both.sort_by(|a, b| a.0.total_cmp(b.0).then(a.1.total_cmp(b.1)));
        for pair in both.windows(2) {
            prop_assert!(pair[1].1 - pair[0].1 >= 18.0 - 1e-6, "{:?}", placed);
        }
        for place in &placed {
            prop_assert!((-1e-6..=200.0 + 1e-6).contains(place), "{:?}", placed);
        }
    }

    #[test]
    fn labels_far_apart_stay_where_they_are(first in 0.0..80.0_f64) {
        prop_assert_eq!(spread(&[first + 100.0, first], 18.0, 0.0, 200.0), [first + 100.0, first]);
    }
}
