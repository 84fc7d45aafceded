use super::*;

fn scenario(settings: &[&str]) -> Scenario {
    let mut scenario = Scenario::find("dumbbell").unwrap();
    for setting in ["hosts=8", "senders=4", "flow_size=30kB"]
        .iter()
        .chain(settings)
    {
        scenario.set_text(setting).unwrap();
    }
    scenario
}

fn schemes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn compared(settings: &[&str], seeds: u64, threads: usize) -> Comparison {
    let plan = Plan::new(&scenario(settings), &schemes(&["none", "dcqcn"]), seeds).unwrap();
    let progress = AtomicU64::new(0);
    let mut comparison = plan.run(threads, &progress).unwrap();
    assert_eq!(progress.into_inner(), plan.runs() as u64);
    for run in comparison.schemes.iter_mut().flat_map(|one| &mut one.runs) {
        (run.wall_s, run.setup_s) = (0.0, 0.0);
    }
    comparison
}

/// However many threads there are, and as the runs by themselves say.
#[test]
fn outcomes_are_those_of_the_runs() {
    let found = compared(&["dcqcn.kmin=5kB", "dcqcn.kmax=20kB"], 3, 4);
    assert_eq!(
        found,
        compared(&["dcqcn.kmin=5kB", "dcqcn.kmax=20kB"], 3, 1)
    );
    for one in &found.schemes {
        let seeds: Vec<u64> = one.runs.iter().map(|run| run.seed).collect();
        assert_eq!(seeds, [1, 2, 3]);
        assert_eq!((one.flows_started, one.flows_finished), (12, 12));
        let marked: u64 = one.runs.iter().map(|run| run.marked_packets).sum();
        assert_eq!(one.marked_packets, marked);
        assert_eq!(marked > 0, one.scheme == "dcqcn");
        let alone = fabric::run(
            &{
                let mut alone = scenario(&[&format!("scheme={}", one.scheme)]);
                if one.scheme == "dcqcn" {
                    alone.set_text("dcqcn.kmin=5kB").unwrap();
                    alone.set_text("dcqcn.kmax=20kB").unwrap();
                }
                alone
            },
            2,
            &Options::default(),
        );
        assert_eq!(alone.unwrap().0.fct_slowdown, one.runs[1].fct_slowdown);
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
    assert!(!found.parameters.contains_key("dcqcn.kmin"));
}

#[test]
fn what_means_nothing_anywhere_is_refused() {
    let error = Plan::new(&scenario(&["dcqcn.kmin=5kB"]), &schemes(&["none"]), 1).unwrap_err();
    assert!(error.to_string().starts_with("dcqcn.kmin = 5kB"), "{error}");
    let refused = |names: &[&str], seeds| {
        Plan::new(&scenario(&[]), &schemes(names), seeds)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&["none", "none"], 1).contains("twice"));
    assert!(refused(&[], 1).contains("at least one"));
    assert!(refused(&["none"], 0).contains("at least one"));
    assert!(refused(&["dqcn"], 1).contains("`dcqcn`"));
}

/// More schemes than can be told apart have panels of their own; one size has no figure by size; what was
/// sampled has one.
#[test]
fn figures_are_for_what_there_is() {
    let mut found = compared(&[], 1, 1);
    let files_of = [
        "slowdown-cdf.svg",
        "series-0.svg",
        "series-1.svg",
        "series-2.svg",
    ];
    let files = |found: &Comparison| -> Vec<String> {
        found
            .figures()
            .unwrap()
            .into_iter()
            .map(|figure| figure.file)
            .collect()
    };
    assert_eq!(files(&found), files_of);
    found.schemes.iter_mut().for_each(|one| one.series.clear());
    assert_eq!(files(&found), files_of[..1]);
    found.schemes[1].series.push(Series {
        name: "queue of P3".to_owned(),
        unit: "bytes".to_owned(),
        points: vec![(0.0, 1.0), (1.0, 5.0)],
    });
    assert_eq!(files(&found), ["slowdown-cdf.svg", "series-0.svg"]);
    let html = found.html(&found.figures().unwrap());
    assert!(
        html.contains("queue of P3, over time") && !html.contains("<?xml"),
        "{html}"
    );
    assert!(
        html.contains("<td>dcqcn</td>") && !html.contains("<script"),
        "{html}"
    );
    let title = |svg: &str| svg.matches("Slowdown of flows").count();
    assert_eq!(title(&found.figures().unwrap()[0].svg), 1);
    let many = found.schemes[0].clone();
    found.schemes.extend(std::iter::repeat_n(many, 6));
    assert_eq!(title(&found.figures().unwrap()[0].svg), 2);
    for one in &mut found.schemes {
        (one.fct_slowdown, one.fct_slowdown_cdf, one.series) = Default::default();
    }
    assert_eq!(files(&found), Vec::<String>::new());
    let poisson = ["workload=poisson", "cdf=hadoop", "duration=100us"];
    let settings = ["senders=20", "flow_size=1MB"];
    let settings = [&settings[..], &poisson].concat();
    let mut found = compared(&settings, 1, 1);
    let tables = |found: &Comparison| found.html(&[]).matches("class=\"sizes\"").count();
    assert_eq!(tables(&found), 1);
    let all = [&files_of[..1], &["slowdown-by-size.svg"], &files_of[1..]].concat();
    assert_eq!(files(&found), all);
    found.schemes[0].fct_slowdown.by_size.pop();
    assert_eq!(tables(&found), 2);
}
