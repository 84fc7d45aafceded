use super::*;

fn scenario(settings: &[&str]) -> Scenario {
    let base = ["hosts=8", "senders=4", "flow_size=30kB"];
    of("dumbbell", &[&base, settings].concat())
}

/// A built-in fabric with these settings.
fn of(name: &str, settings: &[&str]) -> Scenario {
    let mut scenario = Scenario::find(name).unwrap();
    for setting in settings {
        scenario.set_text(setting).unwrap();
    }
    scenario
}

/// The plan of a comparison without windows; `names`: schemes, separated by spaces.
fn plan(base: &Scenario, names: &str, seeds: u64) -> Result<Plan<Scenario>, CompareError> {
    Plan::new(base, &schemes(names), seeds, &[])
}

fn schemes(names: &str) -> Vec<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

fn compared(settings: &[&str], seeds: u64, threads: usize) -> Comparison {
    let plan = plan(&scenario(settings), "none dcqcn", seeds).unwrap();
    let progress = AtomicU64::new(0);
    let mut comparison = plan.run(threads, &progress).unwrap();
    assert_eq!(progress.into_inner(), plan.runs() as u64);
    for run in comparison.schemes.iter_mut().flat_map(|one| &mut one.runs) {
        (run.wall_s, run.setup_s) = (0.0, 0.0);
    }
    comparison
}

/// Independent of the number of threads, and equal to the results of single runs.
#[test]
fn outcomes_are_those_of_the_runs() {
    let settings = ["dcqcn.kmin=5kB", "dcqcn.kmax=20kB"];
    let found = compared(&settings, 3, 4);
    assert_eq!(found, compared(&settings, 3, 1));
    for one in &found.schemes {
        let seeds: Vec<u64> = one.runs.iter().map(|run| run.seed).collect();
        assert_eq!(seeds, [1, 2, 3]);
        assert_eq!((one.flows_started, one.flows_finished), (12, 12));
        let ends = one.runs.iter().filter_map(|run| run.last_flow_end_ms);
        assert_eq!(one.ci95.last_flow_end_ms, Sample::of(ends).half_width());
        assert!(one.ci95.last_flow_end_ms.is_some_and(|half| half > 0.0));
        // The mean of the runs' percentiles is another estimate than the percentile of all flows.
        let medians = Sample::of(one.runs.iter().filter_map(|run| run.fct_slowdown.p50));
        let pooled = one.fct_slowdown.p50.unwrap();
        assert_ne!(medians.mean, pooled);
        assert_eq!(one.ci95.fct_slowdown_p50, medians.half_width_around(pooled));
        let marked: u64 = one.runs.iter().map(|run| run.marked_packets).sum();
        assert_eq!(one.marked_packets, marked);
        assert_eq!(marked > 0, one.scheme == "dcqcn");
        let mut alone = scenario(&[&format!("scheme={}", one.scheme)]);
        for setting in settings.iter().filter(|_| one.scheme == "dcqcn") {
            alone.set_text(setting).unwrap();
        }
        let (alone, _) = run(&alone, 2, &Options::default()).unwrap();
        assert_eq!(alone.fct_slowdown, one.runs[1].fct_slowdown);
        let cdf = &one.fct_slowdown_cdf;
        assert!(cdf.is_sorted() && cdf.last().unwrap().1 == 1.0 && cdf[0].0 >= 1.0);
        let at_half = cdf.iter().find(|point| point.1 == 0.5).unwrap();
        assert_eq!(Some(at_half.0), one.fct_slowdown.p50);
    }
    let [none, dcqcn] = &found.schemes[..] else {
        panic!("two schemes")
    };
    assert_eq!(none.parameters.get("dcqcn.kmin"), None);
    assert_eq!(dcqcn.parameters["dcqcn.kmin"], "5kB");
    assert_eq!(found.parameters["hosts"], "8");
    let figures = found.figures();
    assert_eq!(figures[0].file, "means.svg");
    let half = found.schemes[0].ci95.fct_slowdown_p50.unwrap();
    let html = found.html(&figures);
    assert!(html.contains(&format!(" ± {half:.2}</td>")), "{html}");
    assert!(!found.parameters.contains_key("dcqcn.kmin"));
}

#[test]
fn what_applies_to_no_scheme_is_refused() {
    for (names, needed) in [
        ("none none", "twice"),
        ("", "at least one"),
        ("dqcn", "`dcqcn`"),
        ("dcqcn:cnp_gpa=4us", "did you mean `cnp_gap`?"),
        ("none:cnp_gap=4us", "no parameters"),
        ("dcqcn:cnp_gap=4parsecs", "dcqcn.cnp_gap"),
        ("dcqcn:cnp_gap", "KEY=VALUE is needed"),
        ("dcqcn:", "KEY=VALUE is needed"),
        ("dcqcn:g=1/4:g=1/8", "`g` is given twice"),
        ("hp", "lipd/"),
        ("lipd/input:buffer=0", "hp.buffer = 0"),
    ] {
        let error = plan(&scenario(&[]), names, 1).unwrap_err().to_string();
        assert!(error.contains(needed), "{names}: {error}");
    }
    let error = plan(&scenario(&[]), "none", 0).unwrap_err().to_string();
    assert!(error.contains("at least one"), "{error}");
    let base = scenario(&["dcqcn.kmin=5kB"]);
    let error = plan(&base, "none", 1).unwrap_err().to_string();
    assert!(error.starts_with("dcqcn.kmin = 5kB"), "{error}");
}

/// A scheme is compared to itself with other parameters; those of TCD can also be given by their names.
#[test]
fn schemes_have_parameters_of_their_own() {
    let base = scenario(&["flow_size=1MB", "dcqcn.kmin=5kB", "dcqcn.kmax=50kB"]);
    let names = "dcqcn dcqcn:cnp_gap=4us:g=1/16 dcqcn+tcd:patience=9";
    let plan = plan(&base, names, 1).unwrap();
    let found = plan.run(2, &AtomicU64::new(0)).unwrap();
    assert_eq!(found.parameters["dcqcn.kmin"], "5kB");
    let [usual, other, tcd] = &found.schemes[..] else {
        panic!("three schemes")
    };
    assert_eq!(other.scheme, "dcqcn:cnp_gap=4us:g=1/16");
    assert_eq!(usual.parameters["dcqcn.cnp_gap"], "50us");
    assert_eq!(other.parameters["dcqcn.cnp_gap"], "4us");
    assert_eq!(other.parameters["dcqcn.g"], "1/16");
    assert_eq!(tcd.parameters["tcd.patience"], "9");
    assert_ne!(usual.marked_packets, other.marked_packets);
}

/// Too many schemes to distinguish in one panel get one each; flows of one size give no figure by size; samples and the
/// network have figures.
#[test]
fn figures_are_for_what_there_is() {
    let mut found = compared(&[], 1, 1);
    let files = |found: &Comparison| -> Vec<String> {
        let figures = found.figures().into_iter();
        figures.map(|figure| figure.file).collect()
    };
    let always = "slowdown-cdf.svg goodput.svg data-that-waits-in-switches.svg longest-queue.svg \
                  ports-that-may-not-send.svg network.svg";
    assert_eq!(files(&found).join(" "), always);
    let html = found.html(&found.figures());
    for part in ["Longest queue, over time", "<td>dcqcn</td>"] {
        assert!(html.contains(part), "{html}");
    }
    for absent in ["<?xml", "<script"] {
        assert!(!html.contains(absent), "{html}");
    }
    let title = |svg: &str| svg.matches("Slowdown of flows").count();
    assert_eq!(title(&found.figures()[0].svg), 1);
    let many = found.schemes[0].clone();
    found.schemes.extend(iter::repeat_n(many, 6));
    assert_eq!(title(&found.figures()[0].svg), 2);
    for one in &mut found.schemes {
        (one.fct_slowdown, one.fct_slowdown_cdf, one.series) = Default::default();
    }
    assert_eq!(files(&found), ["network.svg"]);
    let mut found = compared(
        &[
            "senders=20",
            "flow_size=1MB",
            "workload=poisson",
            "cdf=hadoop",
            "duration=100us",
        ],
        1,
        1,
    );
    let head = "<th scope=\"col\">payload</th>";
    let tables = |found: &Comparison| found.html(&[]).matches(head).count();
    assert_eq!(tables(&found), 1);
    assert_eq!(files(&found)[1], "slowdown-by-size.svg");
    found.schemes[0].fct_slowdown.by_size.pop();
    assert_eq!(tables(&found), 2);
}

/// All arriving data is included, with a bounded number of points.
#[test]
fn series_hold_what_was_sampled() {
    let found = compared(&["flow_size=3MB"], 1, 1);
    for one in &found.schemes {
        let [goodput, queued, longest, off] = &one.series[..] else {
            panic!("four series")
        };
        assert!((50..=STEPS).contains(&goodput.points.len()));
        assert!(goodput.points.is_sorted_by(|a, b| a.0 < b.0));
        // ms x Gb/s = Mb.
        let (mut since, mut megabytes) = (0.0, 0.0);
        for (time, gbit) in &goodput.points {
            megabytes += gbit * (time - since) / 8.0;
            since = *time;
        }
        assert!((megabytes - 12.0).abs() < 1e-9, "{megabytes}");
        assert_eq!(Some(since), one.runs[0].last_flow_end_ms);
        let most = |series: &Series| series.points.iter().map(|p| p.1).fold(0.0, f64::max);
        assert!(most(longest) > 10.0 && most(queued) >= most(longest) * 0.5);
        assert!(most(off) <= 8.0 && most(goodput) <= 100.0);
    }
}

/// Windows are compared, too; counts of the whole run are not taken for those of a window.
#[test]
fn windows_are_compared() {
    let windows = [(0, 8_000_000), (8_000_000, 40_000_000)];
    let plan = Plan::new(&scenario(&[]), &schemes("none dcqcn"), 1, &windows).unwrap();
    let found = plan.run(1, &AtomicU64::new(0)).unwrap();
    let (one, run) = (&found.schemes[1].windows[0], &found.schemes[1].runs[0]);
    assert_eq!((one.from_ms, one.to_ms), (0.0, 0.008));
    assert!(run.windows[1].to_ms < 0.04);
    let mean = |name: &str| one.measures[name].mean;
    let goodput = run.windows[0].goodput_bytes_per_s.unwrap() as f64;
    assert_eq!(mean("window_goodput_bytes_per_s"), Some(goodput));
    assert!(!one.measures.contains_key("marked_packets"));
    let rows = found.windows();
    assert_eq!(rows[0][0], "0..0.008 ms  flows");
    assert!(rows.iter().any(|row| row[0] == "0.008..0.04 ms  flows"));
    assert!(rows.iter().all(|row| row.len() == 3));
    assert!(found.html(&[]).contains("<h2>Windows</h2>"));
    assert!(!compared(&[], 1, 1).html(&[]).contains("<h2>Windows</h2>"));

    let hp = crate::scenario::Scenario::hp();
    let plan = Plan::new(&hp, &schemes("none lipd/naive"), 1, &[]).unwrap();
    let found = plan.run(1, &AtomicU64::new(0)).unwrap();
    let marked = |measures: &Measures| measures.contains_key("marked_packets_local");
    let one = &found.schemes[1];
    assert_eq!(one.windows.len(), 3);
    assert!(marked(&one.whole_run) && one.windows.iter().all(|of| !marked(&of.measures)));
    let label = "whole run  marked_packets_local";
    assert!(found.table().iter().any(|row| row[0] == label));
}

/// A scheme that takes much longer is cut off, and named in its panel and in the caption.
#[test]
fn a_slow_scheme_does_not_squeeze_the_others() {
    let mut found = compared(&["flow_size=3MB"], 1, 1);
    found.schemes[1].series = found.schemes[0].series.clone();
    let goodput = |found: &Comparison| found.figures().swap_remove(1);
    let before = goodput(&found);
    assert!(!before.svg.contains("ends at") && !before.caption.contains("ends at"));
    let last = found.schemes[1].series[0].points.last_mut().unwrap();
    last.0 *= 10.0;
    let note = format!("dcqcn ends at {:.1} ms", last.0);
    let after = goodput(&found);
    assert!(after.svg.contains(&note), "{note}");
    assert!(after.caption.ends_with(&note), "{}", after.caption);
    // The other scheme's line, which is drawn before its label, keeps its length.
    let of_none = |svg: &str| {
        let mut lines = svg.lines();
        let black = lines.find(|line| line.contains("points=") && line.contains("#000000"));
        black.map(str::to_owned)
    };
    assert!(of_none(&before.svg).is_some());
    assert_eq!(of_none(&after.svg), of_none(&before.svg));
}

/// Seeds vary the paths and phases of flows listed in a file; every run and all of its flows count.
#[test]
fn flows_of_a_file_are_rerun_with_each_seed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flows.csv");
    let mut text = "start_ns,from,to,bytes\n".to_owned();
    for flow in 0..384 {
        let (from, by) = (flow % 16, 1 + flow / 16 % 15);
        text += &format!("{},{from},{},20000\n", flow / 48 * 1_000, (from + by) % 16);
    }
    std::fs::write(&file, text).unwrap();
    let workload = format!("workload=file:{}", file.display());
    let base = of("fat-tree", &["hosts=16", &workload]);
    let plan = plan(&base, "none dcqcn", 3).unwrap();
    let found = plan.run(1, &AtomicU64::new(0)).unwrap();
    for one in &found.schemes {
        assert_eq!(one.flows_started, 3 * 384);
        let started: Vec<u64> = one.runs.iter().map(|run| run.flows_started).collect();
        assert_eq!(started, [384; 3]);
        let ends: BTreeSet<u64> = (one.runs.iter())
            .filter_map(|run| run.last_flow_end_ms.map(f64::to_bits))
            .collect();
        assert_eq!(ends.len(), 3, "{ends:?}");
    }
}

/// Nothing is random here, so three runs count as one.
#[test]
fn what_repeats_counts_once() {
    let settings = ["hosts=8", "workload=all-to-all", "flow_size=30kB"];
    let plan = plan(&of("dumbbell", &settings), "none", 3).unwrap();
    let found = plan.run(2, &AtomicU64::new(0)).unwrap();
    let one = &found.schemes[0];
    assert_eq!(one.runs.len(), 1);
    assert_eq!((one.flows_started, one.flows_finished), (56, 56));
    assert_eq!(one.ci95, Intervals::default());
    let files = found.figures();
    assert!(files.iter().all(|figure| figure.file != "means.svg"));
}
