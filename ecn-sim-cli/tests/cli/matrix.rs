//! Combinations of each network with each option. A cell has an effect on the results, or is refused with a message that
//! names the option and the reason; nothing is ignored silently.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

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

fn sim(words: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
        .args(words)
        .output()
        .expect("ecn-sim runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap_or(-1);
    (code, text(&output.stdout), text(&output.stderr))
}

/// Results of a run, without its settings and times.
fn results(printed: &str) -> Value {
    let mut report: Value = serde_json::from_str(printed).expect("a report");
    for key in ["parameters", "wall_s", "setup_s"] {
        report.as_object_mut().expect("an object").remove(key);
    }
    report
}

/// Runs a network with an option, and compares it with the network alone.
fn check(base: &[&str], option: &[&str], does: Does) {
    let words = [base, option, &["-j"]].concat();
    let (code, printed, error) = sim(&words);
    match does {
        Refused(reason) => {
            assert!(
                code == 2 && error.contains(reason),
                "{words:?}: {code} {error}"
            );
        }
        Change | Keep => {
            assert!(code == 0, "{words:?}: {error}");
            let (_, alone, _) = sim(&[base, &["-j"]].concat());
            let same = results(&printed) == results(&alone);
            assert_eq!(same, matches!(does, Keep), "{words:?}");
        }
    }
}

/// Networks whose links' shares are counted, each small.
const SHARES: &[&[&str]] = &[
    &["run", "hp", "--set", "duration=6ms", "--set", "victim=off"],
    &[
        "run",
        "rig",
        "--set",
        "warm_up=100ms",
        "--set",
        "duration=400ms",
    ],
    &[
        "run",
        "bridge",
        "--set",
        "warm_up=100ms",
        "--set",
        "duration=400ms",
    ],
];

/// Data centres.
const FABRICS: &[&[&str]] = &[
    &[
        "run",
        "fat-tree",
        "--set",
        "hosts=16",
        "--set",
        "senders=8",
        "--set",
        "flow_size=500kB",
    ],
    &[
        "run",
        "leaf-spine",
        "--set",
        "hosts=16",
        "--set",
        "senders=8",
        "--set",
        "flow_size=500kB",
    ],
    &[
        "run",
        "dumbbell",
        "--set",
        "hosts=16",
        "--set",
        "senders=8",
        "--set",
        "flow_size=500kB",
    ],
    &["run", "parking-lot", "--set", "duration=200us"],
    &["run", "chain"],
    &["run", "fig1", "--set", "limit=3ms", "--set", "victim=off"],
];

#[test]
fn options_of_data_centres_change_them_and_are_refused_elsewhere() {
    let applies = Refused("applies to data centres, such as `fig1`");
    for base in SHARES {
        for key in [
            "scheme=dcqcn",
            "flow_control=pfc",
            "workload=incast",
            "priorities=2",
            "limit=1ms",
        ] {
            check(base, &["--set", key], applies);
        }
        check(
            base,
            &["--threads", "2"],
            Refused("--threads 2: does not apply to"),
        );
    }
    for base in FABRICS {
        check(base, &["--threads", "2"], Keep);
        check(base, &["--set", "link_rate=40gbit"], Change);
        check(base, &["--set", "link_delay=3us"], Change);
        for (key, instead) in [
            ("marking=naive", "use scheme=RESPONSE/MARKING here"),
            ("response=lipd", "use scheme=RESPONSE/MARKING here"),
            ("timer_delay=1us", "applies to `hp`, `rig` and `bridge`"),
        ] {
            check(base, &["--set", key], Refused(instead));
        }
    }
}

#[test]
fn options_of_shares_change_them() {
    for base in SHARES {
        for key in [
            "marking=naive",
            "link_rate=40mbit",
            "buffer=7",
            "initial_rate=1/4",
        ] {
            check(base, &["--set", key], Change);
        }
        check(base, &["--window", "200us..5ms"], Change);
        check(base, &["--seed", "2"], Change);
        // Keys of schemes and networks that are not chosen.
        for (others, key) in [
            (&["marking=none"][..], "threshold=3"),
            (&["response=none"], "rmin=1/8"),
            (&["response=lipd"], "m=3"),
        ] {
            let mut option: Vec<&str> = others.iter().flat_map(|other| ["--set", *other]).collect();
            option.extend(["--set", key]);
            let (name, _) = key.split_once('=').expect("a key");
            let (code, _, error) = sim(&[base, &option[..]].concat());
            assert!(
                code == 2 && error.contains("does not apply to"),
                "{option:?}: {error}"
            );
            assert!(error.contains(name), "{error}");
        }
    }
    let hp = SHARES[0];
    check(
        hp,
        &["--set", "queue=5"],
        Refused("queue = 5: does not apply to switch = input"),
    );
    check(
        SHARES[1],
        &["--set", "window=3"],
        Refused("window = 3: does not apply to switch = output"),
    );
    for key in [
        "threshold_counts=present",
        "output_trigger=crossing",
        "threshold=4",
    ] {
        check(
            hp,
            &["--set", "marking=input", "--set", key],
            Refused("does not apply to hp, marking=input"),
        );
    }
}

/// Each scheme, in each kind of switch and with each flow control.
#[test]
fn every_scheme_has_an_effect_everywhere() {
    let base = FABRICS[1];
    let kinds = [
        ("shared-memory", "pfc"),
        ("shared-memory", "cbfc"),
        ("shared-memory", "none"),
        ("crossbar", "pfc"),
        ("crossbar", "cbfc"),
        ("input-queued", "cbfc"),
    ];
    for (switch, control) in kinds {
        let switch = format!("switch={switch}");
        let control = format!("flow_control={control}");
        let base = [base, &["--set", &switch, "--set", &control]].concat();
        for scheme in ecn_sim::fabric::cc::Name::NAMES.iter().skip(1) {
            check(&base, &["--set", &format!("scheme={scheme}")], Change);
        }
    }
    for (switch, control, reason) in [
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
        let (switch, control) = (
            format!("switch={switch}"),
            format!("flow_control={control}"),
        );
        check(
            base,
            &["--set", &switch, "--set", &control],
            Refused(reason),
        );
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

fn check_file(folder: &Path, (base, other): (&str, &str), options: &[&str], does: Does) {
    let write = |name: &str, text: &str| {
        let path = folder.join(name).display().to_string();
        fs::write(&path, text).expect("a file");
        path
    };
    // With the same name, which reports contain.
    let path = write("network.toml", base);
    let words = |path| [&["run", path], options, &["-j"]].concat();
    let (code, alone, error) = sim(&words(&path));
    assert_eq!(code, 0, "{base}: {error}");
    let path = write("network.toml", other);
    let (code, printed, error) = sim(&words(&path));
    match does {
        Refused(reason) => assert!(code == 2 && error.contains(reason), "{other}: {error}"),
        Change | Keep => {
            assert!(code == 0, "{other}: {error}");
            let same = results(&printed) == results(&alone);
            assert_eq!(same, matches!(does, Keep), "{other}");
        }
    }
}

const FAILURE: &str = "[[failures]]\nlink = [\"a1\", \"s1\"]\nfrom = \"50us\"\nto = \"90us\"\n";

#[test]
fn links_and_flows_of_data_centres_are_as_their_file_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |pair: (&str, &str), options: &[&str], does| {
        check_file(folder.path(), pair, options, does);
    };
    let base = custom("", "", "");
    let kinds: [&[&str]; 4] = [
        &[],
        &["--set", "flow_control=none"],
        &["--set", "switch=crossbar"],
        &["--set", "switch=input-queued", "--set", "flow_control=cbfc"],
    ];
    for kind in kinds {
        for other in [
            custom(", rate = \"10gbit\"", "", ""),
            custom(", delay = \"9us\"", "", ""),
            custom("", ", start = \"20us\"", ""),
            custom("", ", stop = \"90us\"", ""),
            custom("", ", stagger = \"7us\"", ""),
            custom("", ", size = \"40kB\"", ""),
            custom("", ", rate = \"1gbit\"", ""),
            custom("", "", "scheme = \"timely\"\n"),
        ] {
            check((&base, &other), kind, Change);
        }
        let named = base.replace("class = \"all\"", "class = \"other\"");
        check((&base, &named), kind, Change);
        let failing = custom("", "", FAILURE);
        match kind.get(1) {
            None | Some(&"flow_control=none") => {
                check(
                    (&base, &failing),
                    kind,
                    Refused("no path is left from 50us on"),
                );
            }
            _ => check((&base, &failing), kind, Refused("must be shared-memory")),
        }
    }
    let classed = custom("", ", priority = 1", "");
    let two = ["--set", "priorities=2"];
    check((&base, &classed), &two, Change);
    check(
        (&base, &classed),
        &[],
        Refused("priority must be below priorities=1"),
    );
    for (flow, reason) in [
        (
            ", start = \"1ms\"",
            "must start before the end, limit=300us",
        ),
        (", stop = \"0s\"", "must stop after its start"),
        (", packet_bytes = 100", "unknown key `packet_bytes`"),
    ] {
        check((&base, &custom("", flow, "")), &[], Refused(reason));
    }
    let unknown = base.replace("to = \"z\"", "to = \"zz\"");
    check((&base, &unknown), &[], Refused("unknown host `zz`"));
    let workload = ["--set", "workload=permutation"];
    let path = folder.path().join("network.toml").display().to_string();
    fs::write(&path, &base).expect("a file");
    let (code, _, error) = sim(&[&["run", path.as_str()], &workload[..]].concat());
    assert!(
        code == 2 && error.contains("must be flows: the file has [[flows]]"),
        "{error}"
    );
    let model = custom("", "", "[model]\nmarking = \"naive\"\n");
    check(
        (&base, &model),
        &[],
        Refused("in files with `topology`, keys are at the top"),
    );
}

#[test]
fn links_and_flows_of_shares_are_as_their_file_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |pair: (&str, &str), options: &[&str], does| {
        check_file(folder.path(), pair, options, does);
    };
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
            check((&base, &other), &[], Change);
        }
        for (flow, model, reason) in [
            (", size = \"1MB\"", model.to_owned(), "`size`"),
            (", priority = 1", model.to_owned(), "`priority`"),
            ("", FAILURE.to_owned(), "a data centre needs `topology"),
        ] {
            check((&base, &shares(rate, flow, &model)), &[], Refused(reason));
        }
        let scheme = format!(
            "{}scheme = \"dcqcn\"\n",
            if model.is_empty() { "[model]\n" } else { model }
        );
        check(
            (&base, &shares(rate, "", &scheme)),
            &[],
            Refused("applies to data centres"),
        );
    }
    let path = folder.path().join("network.toml").display().to_string();
    fs::write(&path, shares(rate, ", control = false", "")).expect("a file");
    let (code, _, error) = sim(&["run", &path]);
    assert!(
        code == 2 && error.contains("do not apply to switch = input"),
        "{error}"
    );
}

/// Every command accepts every network.
#[test]
fn networks_are_drawn_swept_compared_and_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let ok = |words: &[&str]| {
        let (code, printed, error) = sim(words);
        assert_eq!(code, 0, "{words:?}: {error}");
        printed
    };
    for base in SHARES.iter().chain(FABRICS) {
        let (name, settings) = (base[1], &base[2..]);
        let is_file = |path: String| assert!(Path::new(&path).is_file(), "{path}");
        let out = at(&format!("{name}-run"));
        ok(&[base, &["--out", &out][..]].concat());
        is_file(format!("{out}/run.json"));
        is_file(format!("{out}/series.csv"));
        let svg = at(&format!("{name}.svg"));
        ok(&["draw", name, "--out", &svg]);
        is_file(svg);
        let out = at(&format!("{name}-compare"));
        let words = [
            "compare",
            name,
            "--schemes",
            "none,lipd/input-output",
            "--seeds",
            "2",
            "--out",
            &out,
        ];
        let printed = ok(&[&words, settings].concat());
        assert!(printed.contains("lipd/input-output"), "{printed}");
        is_file(format!("{out}/compare.csv"));
        is_file(format!("{out}/runs.csv"));
        let set = settings.chunks(2).map(|pair| {
            let (key, value) = pair[1].split_once('=').expect("a setting");
            format!("{key} = \"{value}\"\n")
        });
        let set: String = set.collect();
        let sweep = at(&format!("{name}.toml"));
        let text = format!(
            "scenario = \"{name}\"\nseeds = [1, 2]\n[set]\n{set}[sweep]\nlink_delay = [\"1us\", \"2us\"]\n"
        );
        let text = if name == "bridge" {
            text.replace("link_delay", "initial_rate")
                .replace("\"1us\", \"2us\"", "\"1/2\", \"1/4\"")
        } else {
            text
        };
        fs::write(&sweep, text).expect("a file");
        let printed = ok(&["sweep", &sweep, "--out", &at(&format!("{name}-sweep"))]);
        assert!(printed.starts_with("4 runs"), "{printed}");
    }
}

/// The files of the crate can be run, drawn or swept.
#[test]
fn scenario_files_are_sound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ecn-sim/scenarios");
    let svg = tempfile::tempdir().expect("a folder");
    for file in fs::read_dir(folder).expect("a folder") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a text");
        if text.contains("[sweep]") {
            ecn_sim::sweep::Sweep::load(&path).expect("a sweep");
            continue;
        }
        let (path, out) = (path.display().to_string(), svg.path().join("network.svg"));
        let (code, _, error) = sim(&["draw", &path, "--out", &out.display().to_string()]);
        assert_eq!(code, 0, "{path}: {error}");
    }
}
