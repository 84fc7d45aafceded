//! Combinations of each network with each option. A cell has an effect on the results, or is refused with a message that
//! names the option and the reason; nothing is ignored silently.

use std::fs;

use serde_json::Value;

use super::{Folder, Ran, scenarios, sim};

/// Effect of an option on a network.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// The results differ.
    Change,
    /// The results are the same: the option only affects how they are computed.
    Keep,
    /// Exit code 2, with this in the message.
    Refused(&'static str),
}
use Does::{Change, Keep, Refused};

/// Results of a run, without its settings and times.
fn results(run: Ran) -> Value {
    let mut report = run.json();
    for key in ["parameters", "wall_s", "setup_s"] {
        report.as_object_mut().unwrap().remove(key);
    }
    report
}

impl Does {
    /// Compares a run that has the option with one that does not.
    #[track_caller]
    fn check(self, alone: Ran, run: Ran) {
        let words = run.words.clone();
        match self {
            Refused(reason) => run.refused(reason),
            Change => assert_ne!(results(run), results(alone), "{words}"),
            Keep => assert_eq!(results(run), results(alone), "{words}"),
        }
    }
}

/// Runs a network with an option, and compares it with the network alone.
#[track_caller]
fn check(base: &str, option: &str, does: Does) {
    let run = sim(&format!("{base} {option} -j"));
    does.check(sim(&format!("{base} -j")), run);
}

/// Networks whose links' shares are counted, each small.
const HP: &str = "run hp --set duration=6ms --set victim=off";
const RIG: &str = "run rig --set warm_up=100ms --set duration=400ms";
const SHARES: [&str; 3] = [
    HP,
    RIG,
    "run bridge --set warm_up=100ms --set duration=400ms",
];

/// Data centres.
const LEAF_SPINE: &str = "run leaf-spine --set hosts=16 --set senders=8 --set flow_size=500kB";
const FABRICS: [&str; 6] = [
    "run fat-tree --set hosts=16 --set senders=8 --set flow_size=500kB",
    LEAF_SPINE,
    "run dumbbell --set hosts=16 --set senders=8 --set flow_size=500kB",
    "run parking-lot --set duration=200us",
    "run chain",
    "run fig1 --set limit=3ms --set victim=off",
];

#[test]
fn options_of_data_centres_change_them_and_are_refused_elsewhere() {
    let applies = Refused("applies to data centres, such as `fig1`");
    for base in SHARES {
        for option in [
            "--set scheme=dcqcn",
            "--set flow_control=pfc",
            "--set workload=incast",
            "--set priorities=2",
            "--set limit=1ms",
        ] {
            check(base, option, applies);
        }
        let reason = "--threads 2: does not apply to";
        check(base, "--threads 2", Refused(reason));
    }
    let scheme = "use scheme=RESPONSE/MARKING here";
    for base in FABRICS {
        check(base, "--threads 2", Keep);
        check(base, "--set link_rate=40gbit", Change);
        check(base, "--set link_delay=3us", Change);
        check(base, "--set marking=naive", Refused(scheme));
        check(base, "--set response=lipd", Refused(scheme));
        let reason = "applies to `hp`, `rig` and `bridge`";
        check(base, "--set timer_delay=1us", Refused(reason));
    }
}

#[test]
fn options_of_shares_change_them() {
    for base in SHARES {
        for option in [
            "--set marking=naive",
            "--set link_rate=40mbit",
            "--set buffer=7",
            "--set initial_rate=1/4",
            "--window 200us..5ms",
            "--seed 2",
        ] {
            check(base, option, Change);
        }
        // Keys of schemes and networks that are not chosen.
        for (others, key, value) in [
            ("--set marking=none", "threshold", "3"),
            ("--set response=none", "rmin", "1/8"),
            ("--set response=lipd", "m", "3"),
        ] {
            let ran = sim(&format!("{base} {others} --set {key}={value}"));
            ran.refused("does not apply to");
            ran.refused(key);
        }
    }
    let reason = "queue = 5: does not apply to switch = input";
    check(HP, "--set queue=5", Refused(reason));
    let reason = "window = 3: does not apply to switch = output";
    check(RIG, "--set window=3", Refused(reason));
    for key in [
        "threshold_counts=present",
        "output_trigger=crossing",
        "threshold=4",
    ] {
        let option = format!("--set marking=input --set {key}");
        let reason = "does not apply to hp, marking=input";
        check(HP, &option, Refused(reason));
    }
}

/// Each scheme, in each kind of switch and with each flow control.
#[test]
fn every_scheme_has_an_effect_everywhere() {
    for kind in [
        "--set switch=shared-memory --set flow_control=pfc",
        "--set switch=shared-memory --set flow_control=cbfc",
        "--set switch=shared-memory --set flow_control=none",
        "--set switch=crossbar --set flow_control=pfc",
        "--set switch=crossbar --set flow_control=cbfc",
        "--set switch=input-queued --set flow_control=cbfc",
    ] {
        let base = format!("{LEAF_SPINE} {kind}");
        for scheme in ecn_sim::fabric::cc::Name::NAMES.iter().skip(1) {
            check(&base, &format!("--set scheme={scheme}"), Change);
        }
    }
    for (switch, control, needed) in [
        (
            "crossbar",
            "none",
            "must be pfc or cbfc with switch=crossbar",
        ),
        (
            "input-queued",
            "pfc",
            "must be cbfc with switch=input-queued",
        ),
        (
            "input-queued",
            "none",
            "must be cbfc with switch=input-queued",
        ),
    ] {
        let option = format!("--set switch={switch} --set flow_control={control}");
        check(LEAF_SPINE, &option, Refused(needed));
    }
}

/// A network from a file: its links with a rate and a delay, and flows.
fn custom(rate: &str, flow: &str, more: &str) -> String {
    format!(
        "topology = \"custom\"\nlimit = \"300us\"\nswitches = [\"s[1-2]\"]\nhosts = [\"a[1-4]\", \"z\", \"y\"]\n\
         links = [\n{{ between = [\"a[1-4]\", \"s1\"] }},\n{{ between = [\"s1\", \"s2\"]{rate} }},\n\
         {{ between = [\"z\", \"s2\"] }},\n{{ between = [\"y\", \"s2\"] }},\n]\n\
         flows = [{{ class = \"all\", from = \"a[1-4]\", to = \"z\"{flow} }}]\n{more}"
    )
}

/// The same as a network whose links' shares are counted.
fn shares(rate: &str, flow: &str, model: &str) -> String {
    format!(
        "duration = \"300ms\"\nswitches = [\"s[1-2]\"]\nhosts = [\"a[1-4]\", \"z\", \"y\"]\n\
         links = [\n{{ between = [\"a[1-4]\", \"s1\"], rate = \"100mbit\" }},\n\
         {{ between = [\"s1\", \"s2\"]{rate} }},\n\
         {{ between = [\"z\", \"s2\"], rate = \"100mbit\" }},\n{{ between = [\"y\", \"s2\"], rate = \"100mbit\" }},\n]\n\
         flows = [{{ class = \"all\", from = \"a[1-4]\", to = \"z\"{flow} }}]\n{model}"
    )
}

/// Compares two networks from files, which have the same name: reports contain it.
#[track_caller]
fn check_file(base: &str, other: &str, options: &str, does: Does) {
    let folder = Folder::new();
    let run = |text: &str| {
        folder.write("network.toml", text);
        folder.sim(&format!("run network.toml {options} -j"))
    };
    let alone = run(base);
    assert_eq!(alone.code, 0, "{base}: {}", alone.error);
    does.check(alone, run(other));
}

const FAILURE: &str = "[[failures]]\nlink = [\"a1\", \"s1\"]\nfrom = \"50us\"\nto = \"90us\"\n";

#[test]
fn links_and_flows_of_data_centres_are_as_their_file_says() {
    let base = custom("", "", "");
    let no_path = "no path is left from 50us on";
    for (kind, with_failure) in [
        ("", no_path),
        ("--set flow_control=none", no_path),
        ("--set switch=crossbar", "must be shared-memory"),
        (
            "--set switch=input-queued --set flow_control=cbfc",
            "must be shared-memory",
        ),
    ] {
        for other in [
            custom(", rate = \"10gbit\"", "", ""),
            custom(", delay = \"9us\"", "", ""),
            custom("", ", start = \"20us\"", ""),
            custom("", ", stop = \"90us\"", ""),
            custom("", ", stagger = \"7us\"", ""),
            custom("", ", size = \"40kB\"", ""),
            custom("", ", rate = \"1gbit\"", ""),
            custom("", "", "scheme = \"timely\"\n"),
            base.replace("class = \"all\"", "class = \"other\""),
        ] {
            check_file(&base, &other, kind, Change);
        }
        let failing = custom("", "", FAILURE);
        check_file(&base, &failing, kind, Refused(with_failure));
    }
    let classed = custom("", ", priority = 1", "");
    check_file(&base, &classed, "--set priorities=2", Change);
    let model = custom("", "", "[model]\nmarking = \"naive\"\n");
    for (other, reason) in [
        (classed, "priority must be below priorities=1"),
        (
            custom("", ", start = \"1ms\"", ""),
            "must start before the end, limit=300us",
        ),
        (
            custom("", ", stop = \"0s\"", ""),
            "must stop after its start",
        ),
        (
            custom("", ", packet_bytes = 100", ""),
            "unknown key `packet_bytes`",
        ),
        (
            base.replace("to = \"z\"", "to = \"zz\""),
            "unknown host `zz`",
        ),
        (model, "in files with `topology`, keys are at the top"),
    ] {
        check_file(&base, &other, "", Refused(reason));
    }
    let folder = Folder::new();
    folder.write("network.toml", &base);
    folder
        .sim("run network.toml --set workload=permutation")
        .refused("must be flows: the file has [[flows]]");
}

#[test]
fn links_and_flows_of_shares_are_as_their_file_says() {
    let rate = ", rate = \"100mbit\"";
    for model in ["", "[model]\npreset = \"rig\"\n"] {
        let base = shares(rate, "", model);
        for other in [
            shares(", rate = \"50mbit\"", "", model),
            shares(&format!("{rate}, delay = \"1ms\""), "", model),
            shares(rate, ", start = \"100ms\"", model),
            shares(rate, ", stop = \"200ms\"", model),
            shares(rate, ", stagger = \"30ms\"", model),
            shares(rate, ", packet_bytes = 1000", model),
        ] {
            check_file(&base, &other, "", Change);
        }
        let head = if model.is_empty() { "[model]\n" } else { model };
        let scheme = format!("{head}scheme = \"dcqcn\"\n");
        for (other, reason) in [
            (shares(rate, ", size = \"1MB\"", model), "`size`"),
            (shares(rate, ", priority = 1", model), "`priority`"),
            (shares(rate, "", FAILURE), "a data centre needs `topology"),
            (shares(rate, "", &scheme), "applies to data centres"),
        ] {
            check_file(&base, &other, "", Refused(reason));
        }
    }
    let folder = Folder::new();
    folder.write("network.toml", &shares(rate, ", control = false", ""));
    let reason = "do not apply to switch = input";
    folder.sim("run network.toml").refused(reason);
}

/// Every command accepts every network.
#[test]
fn networks_are_drawn_swept_compared_and_written() {
    for base in SHARES.iter().chain(&FABRICS) {
        let folder = Folder::new();
        let words = base.strip_prefix("run ").unwrap();
        let name = words.split(' ').next().unwrap();
        folder.sim(&format!("{base} --out run")).done();
        folder.sim(&format!("draw {name} --out a.svg")).done();
        let compare =
            format!("compare {words} --schemes none,lipd/input-output --seeds 2 --out compare");
        let printed = folder.sim(&compare).done();
        assert!(printed.contains("lipd/input-output"), "{printed}");
        for file in [
            "run/run.json",
            "run/series.csv",
            "a.svg",
            "compare/compare.csv",
            "compare/runs.csv",
        ] {
            assert!(folder.path(file).is_file(), "{base}: {file}");
        }
        let settings = words.split(" --set ").skip(1);
        let set: String = settings
            .map(|setting| setting.replace('=', " = \"") + "\"\n")
            .collect();
        let axis = match name {
            "bridge" => "initial_rate = [\"1/2\", \"1/4\"]",
            _ => "link_delay = [\"1us\", \"2us\"]",
        };
        let sweep = format!("scenario = \"{name}\"\nseeds = [1, 2]\n[set]\n{set}[sweep]\n{axis}\n");
        folder.write("sweep.toml", &sweep);
        let printed = folder.sim("sweep sweep.toml --out sweep").done();
        assert!(printed.starts_with("4 runs"), "{printed}");
    }
}

/// The files of the crate can be run, drawn or swept.
#[test]
fn scenario_files_are_sound() {
    for file in fs::read_dir(scenarios()).unwrap() {
        let path = file.unwrap().path();
        if fs::read_to_string(&path).unwrap().contains("[sweep]") {
            ecn_sim::sweep::Sweep::load(&path).expect("a sweep");
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy();
        sim(&format!("draw SCENARIOS/{name} --out network.svg")).done();
    }
}
