use super::figures::{SHARE_LABEL, TIME_LABEL};
use super::*;

fn parameters() -> RigParameters {
    RigParameters {
        link_rate_bytes_per_s: 12_500_000,
        packet_bytes: 2068,
        local_flows: 10,
        remote_flows: 10,
        victim: true,
        transport: "udp".to_owned(),
        congestion_control: None,
        offload: false,
        buffer: 4,
        threshold: 8,
        mark_at: MarkAt::Arrival,
        feedback: Feedback::Echo,
        rmin: Fraction::new(1, 64).unwrap(),
        m: 2.0,
        round: Round::Packets,
        echo: Every::Packet,
        warm_up_s: 4,
        other: BTreeMap::new(),
    }
}

fn uncontrolled() -> Phase {
    Phase {
        name: "uncontrolled".to_owned(),
        marking: Marking::None,
        response: Function::None,
        seconds: 10,
        root: 0.998,
        inter_switch: 0.99,
        local: 0.88,
        remote: 0.12,
        victim: 0.09,
        remote_local_ratio: Some(0.12 / 0.88),
        jain_local: Some(0.999),
        jain_remote: Some(0.998),
        sent_packets: 1_176_000,
        dropped_packets: 588_000,
        marked_packets: 0,
        messages: Some(0),
        root_queue_mean_packets: 99.2,
        root_queue_max_packets: 116,
        control_latency_us_p50: None,
        control_latency_us_p99: None,
        cpu_share: Some(0.06),
        victim_ping_us_p50: Some(16_900),
        victim_ping_us_p99: Some(17_300),
        victim_tcp_rtt_us_p50: None,
        victim_tcp_rtt_us_p99: None,
        tcp_retransmitted_segments: Some(0),
        tcp_resets: Some(0),
        checksum_errors: Some(0),
        samples: samples(0.88, 0.12, 0.09, 99.0, 0.01),
    }
}

fn controlled() -> Phase {
    Phase {
        name: "controlled".to_owned(),
        marking: Marking::InputOutput,
        response: Function::Lipd,
        root: 0.945,
        inter_switch: 0.85,
        local: 0.58,
        remote: 0.36,
        victim: 0.49,
        remote_local_ratio: Some(0.36 / 0.58),
        jain_remote: Some(0.999),
        sent_packets: 64_000,
        dropped_packets: 0,
        marked_packets: 13_440,
        root_queue_mean_packets: 3.2,
        root_queue_max_packets: 39,
        control_latency_us_p50: Some(1_200),
        control_latency_us_p99: Some(2_900),
        cpu_share: Some(0.07),
        victim_ping_us_p50: Some(1_200),
        victim_ping_us_p99: Some(3_900),
        samples: samples(0.58, 0.36, 0.49, 3.2, 0.05),
        ..uncontrolled()
    }
}

/// Artificial series around given means.
fn samples(local: f64, remote: f64, victim: f64, queue: f64, noise: f64) -> Vec<Sample> {
    let wave = |index: u32, speed: f64| (f64::from(index) * speed).sin();
    (1..=100_u32)
        .map(|index| {
            let local = local + noise * wave(index, 0.9) * wave(index, 0.37);
            let remote = remote + noise * wave(index, 1.3) * wave(index, 0.21);
            let victim = victim + noise * wave(index, 1.1) * wave(index, 0.33);
            Sample {
                t_s: f64::from(index) / 10.0,
                root: (local + remote).min(1.0),
                inter_switch: (remote + victim).min(1.0),
                local,
                remote,
                victim,
                root_queue_packets: (queue * (1.0 + noise * 8.0 * wave(index, 2.3))).max(0.0)
                    as u32,
            }
        })
        .collect()
}

fn report(phases: Vec<Phase>) -> Report {
    Report {
        kernel: "6.18.0".to_owned(),
        parameters: parameters(),
        phases,
    }
}

fn without_victim(mut report: Report) -> Report {
    report.parameters.victim = false;
    for phase in &mut report.phases {
        phase.victim = 0.0;
    }
    report
}

fn many() -> Report {
    let mut phases = vec![uncontrolled()];
    let markings = [Marking::Naive, Marking::Input, Marking::InputOutput];
    let responses = [Function::Lipd, Function::Fimd, Function::Aimd];
    for (index, marking) in markings.into_iter().enumerate() {
        for (step, response) in responses.into_iter().enumerate() {
            let (index, step) = (index as f64, step as f64);
            let (local, remote) = (0.6 - 0.12 * step, 0.26 + 0.06 * index);
            let victim = 0.3 + 0.1 * index - 0.12 * step;
            phases.push(Phase {
                name: format!("{marking}-{response}"),
                marking,
                response,
                root: local + remote,
                inter_switch: remote + victim,
                local,
                remote,
                victim,
                remote_local_ratio: remote_local_ratio(remote, local),
                samples: samples(local, remote, victim, 3.0 + step, 0.05),
                ..controlled()
            });
        }
    }
    phases[3].victim = 0.08;
    report(phases)
}

#[test]
fn json_is_that_of_the_contract() {
    // Section 7 of the design, verbatim except for the parameters.
    let contract = r#"{"kernel": "...", "parameters": {...},
 "phases": [{"name": "uncontrolled", "marking": "none", "response": "none", "seconds": 10,
             "root": 0.98, "inter_switch": 0.97, "local": 0.9, "remote": 0.08, "victim": 0.09,
             "remote_local_ratio": 0.09, "jain_local": 0.99, "jain_remote": 0.99,
             "sent_packets": 0, "dropped_packets": 0, "marked_packets": 0,
             "root_queue_mean_packets": 0.0, "root_queue_max_packets": 0,
             "control_latency_us_p50": 0, "control_latency_us_p99": 0, "cpu_share": 0.0}]}"#;
    let given = serde_json::to_string(&parameters()).unwrap();
    let contract = contract.replace("{...}", &given);
    let report: Report = serde_json::from_str(&contract).unwrap();
    // Compared as text, so that order, names and number formats count. Fields added later follow.
    let squeezed: String = contract.split_whitespace().collect();
    let json = serde_json::to_string(&report).unwrap();
    let (theirs, ours) = json.split_once(",\"victim_ping_us_p50\":").unwrap();
    assert_eq!(format!("{theirs}}}]}}"), squeezed);
    let end = ",\"checksum_errors\":null,\"messages\":null}]}";
    assert!(ours.ends_with(end), "{json}");
    assert!(report.to_json().unwrap().ends_with("}\n"));
}

#[test]
fn json_keeps_no_noise() {
    let mut phase = uncontrolled();
    phase.root = 0.1 + 0.2;
    phase.jain_remote = Some(f64::NAN);
    phase.jain_local = None;
    let json = serde_json::to_string(&phase).unwrap();
    for part in [
        "\"root\":0.3,",
        "\"jain_local\":null,\"jain_remote\":null,",
        "\"control_latency_us_p50\":null,",
    ] {
        assert!(json.contains(part), "{json}");
    }
    assert!(!json.contains("samples"), "{json}");
}

#[test]
fn further_parameters_stand_beside_the_others() {
    let mut report = report(vec![]);
    report
        .parameters
        .other
        .insert("window_packets".to_owned(), 1.into());
    let json = report.to_json().unwrap();
    assert!(json.contains("\n    \"window_packets\": 1\n"), "{json}");
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

#[test]
fn ratios_have_their_known_values() {
    assert_eq!(remote_local_ratio(0.3, 0.6), Some(0.5));
    assert_eq!(remote_local_ratio(0.3, 0.0), None);
}

#[test]
fn the_table_sets_phases_side_by_side() {
    let expected = "                               uncontrolled    controlled
marking                                none  input-output
response                               none          lipd
measured            s                    10            10
root link           % of link          99.8          94.5
inter-switch link   % of link          99.0          85.0
local flows         % of link          88.0          58.0
remote flows        % of link          12.0          36.0
victim              % of link           9.0          49.0
remote / local      ratio              0.14          0.62
fairness, local     Jain              0.999         0.999
fairness, remote    Jain              0.998         0.999
sent                packets       1,176,000        64,000
dropped             packets         588,000             0
marked              packets               0        13,440
root queue, mean    packets            99.2           3.2
root queue, most    packets             116            39
victim ping, 50 %   us               16,900         1,200
victim ping, 99 %   us               17,300         3,900
mark to rate, 50 %  us                    -         1,200
mark to rate, 99 %  us                    -         2,900
agent               % of core           6.0           7.0
";
    let mut record = report(vec![uncontrolled(), controlled()]);
    assert_eq!(record.table(), expected);

    record.parameters.congestion_control = Some("bbr".to_owned());
    record.phases[1].tcp_retransmitted_segments = Some(1_234);
    record.phases[1].victim_tcp_rtt_us_p99 = Some(4_321);
    let table = record.table();
    for row in [
        "TCP, sent again packets 0 1,234",
        "victim TCP, 99 % us - 4,321",
        "TCP, bad checksum packets 0 0",
    ] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(table.lines().any(|line| words(line) == row), "{table}");
    }
    let table = without_victim(report(vec![uncontrolled()])).table();
    let row = "victim              % of link             -\n";
    assert!(table.contains(row), "{table}");
}

fn is_narrow(text: &str) -> bool {
    text.lines().all(|line| line.chars().count() <= 80)
}

#[test]
fn many_phases_are_rows_that_fit_80_columns() {
    let table = many().table();
    assert_eq!(table.lines().count(), 2 + 10, "{table}");
    assert!(is_narrow(&table), "{table}");
    assert!(table.contains("588k"), "{table}");
}

/// The verdict without line breaks within paragraphs, with [`BEFORE`] as `BEFORE`.
fn verdict(report: &Report) -> String {
    let verdict = report.verdict();
    assert!(is_narrow(&verdict), "{verdict}");
    report.paragraphs().join("\n").replace(BEFORE, "BEFORE")
}

/// Of [`uncontrolled`].
const BEFORE: &str = "Uncontrolled, the victim got 9 % of the link rate. Nobody shares its \
    output port, and with fair shares the inter-switch link has room for 50 %: the congestion \
    of the root port has spread to it. 588,000 of 1,176,000 packets were dropped; 99 packets \
    waited at the root port on average. The root link was used to 100 %; remote flows got \
    14 % of what local flows got.";

#[test]
fn the_verdict_says_that_control_helped() {
    assert_eq!(
        verdict(&report(vec![uncontrolled(), controlled()])),
        "BEFORE\n\
         Controlled (input-output, lipd), the victim got 49 % of the link rate, 5.4 times \
         as much. No packet was dropped; 3.2 packets waited at the root port on average, \
         99 packets before. The root link was used to 94 % (100 % before); remote flows \
         got 62 % of what local flows got (14 % before).\n\
         Control helped, at a price. Better: victim 49 % instead of 9 %, 0 drops instead \
         of 588,000, root queue 3.2 packets instead of 99 packets, remote/local 0.62 \
         instead of 0.14. Worse: root link 94 % instead of 100 %."
    );
}

#[test]
fn the_verdict_says_that_control_did_not_help() {
    let useless = Phase {
        name: "controlled".into(),
        marking: Marking::Naive,
        response: Function::Aimd,
        ..uncontrolled()
    };
    let slow = Phase {
        root: 0.7,
        local: 0.6,
        remote: 0.1,
        ..useless.clone()
    };
    let harm = Phase {
        victim: 0.03,
        dropped_packets: 0,
        ..useless.clone()
    };
    let elsewhere = Phase {
        dropped_packets: 10,
        ..useless.clone()
    };
    for (phase, part, end) in [
        (
            useless,
            "got 9 % of the link rate, about as much as without.",
            "Control changed next to nothing.",
        ),
        (
            slow,
            "",
            "Control did not help. Worse: root link 70 % instead of 100 %.",
        ),
        (
            harm,
            "got 3 % of the link rate, down from 9 %.",
            "Control did harm: the victim got less than without it. \
             Better: 0 drops instead of 588,000. Worse: victim 3 % instead of 9 %.",
        ),
        (
            elsewhere,
            "",
            "Control did not help the victim, though something else improved. \
             Better: 10 drops instead of 588,000.",
        ),
    ] {
        let text = verdict(&report(vec![uncontrolled(), phase]));
        assert!(text.contains(part), "{text}");
        assert!(text.ends_with(&format!("\n{end}")), "{text}");
    }
}

#[test]
fn the_verdict_does_without_a_victim() {
    let report = without_victim(report(vec![uncontrolled(), controlled()]));
    let text = verdict(&report);
    assert!(!text.contains("victim"), "{text}");
    let first = "Uncontrolled, the root link was used to 100 %. 588,000 of 1,176,000 packets were \
                 dropped; 99 packets waited at the root port on average. Remote flows got 14 % of \
                 what local flows got.\n";
    assert!(text.starts_with(first), "{text}");
    let last = "\nControl helped, at a price. Better: 0 drops";
    assert!(text.contains(last), "{text}");
}

/// The verdict on few phases, by its start and its end.
#[test]
fn the_verdict_suits_the_phases() {
    let nothing_to_stop = Phase {
        victim: 0.5,
        ..uncontrolled()
    };
    let not_answered = Phase {
        marking: Marking::Input,
        ..uncontrolled()
    };
    let silent = Phase {
        root: 0.0,
        inter_switch: 0.0,
        victim: 0.0,
        ..controlled()
    };
    for (phases, start, end) in [
        (
            vec![nothing_to_stop],
            "Uncontrolled, the victim got 50 % of the link rate, and with fair shares the \
             inter-switch link has room for 50 %: hardly any congestion spread to it.",
            "",
        ),
        (
            vec![not_answered],
            "Marked (input) but not controlled, the victim got 9 %",
            "",
        ),
        (
            vec![controlled()],
            "Controlled (input-output, lipd), the victim got 49 % of the link rate. No",
            "There is no phase without control to compare it with.",
        ),
    ] {
        let text = verdict(&report(phases));
        assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    }
    assert_eq!(verdict(&report(vec![])), "Nothing was measured.");
    assert_eq!(
        verdict(&report(vec![uncontrolled(), silent])),
        "Phase controlled: next to no traffic arrived. Its numbers say nothing about control.\nBEFORE"
    );
}

#[test]
fn a_victim_with_its_share_is_no_measure_of_control() {
    let before = Phase {
        victim: 0.49,
        ..uncontrolled()
    };
    let text = verdict(&report(vec![before, controlled()]));
    let last = "\nControl helped, at a price. Better: 0 drops instead";
    assert!(text.contains(last), "{text}");
}

#[test]
fn the_verdict_has_no_baseline_in_a_comparison_without_one() {
    let mut report = many();
    report.phases.remove(0);
    report.phases[4].dropped_packets = 1_234;
    let text = verdict(&report);
    let first = "Most for the victim: input-output with lipd (50 %). ";
    assert!(text.starts_with(first), "{text}");
    let last = "Fewest drops: input-output with aimd (0; the most were 1,234).";
    assert!(text.ends_with(last), "{text}");
}

#[test]
fn the_verdict_ranks_many_phases() {
    assert_eq!(
        verdict(&many()),
        "BEFORE\n\
         8 of 9 other settings gave the victim more. Not so: naive with aimd (8 %).\n\
         Most for the victim: input-output with lipd (50 %). Busiest root link: \
         input-output with lipd (98 %). Most even shares: input-output with aimd \
         (remote/local 1.06). None of them dropped a packet."
    );
}

#[test]
fn live_lines_fit_80_columns() {
    let sample = uncontrolled().samples[99];
    let row = live_row("uncontrolled", &sample, true);
    assert_eq!(
        format!("{}\n{row}\n", live_header()),
        "\
phase                        s    root   inter   local  remote  victim   queue
uncontrolled                10    99 %    20 %    87 %    11 %     9 %      94
"
    );
    let view = live_view("controlled", 10.0, &sample, Some(&uncontrolled()), true);
    assert!(is_narrow(&view), "{view}");
    assert_eq!(view.lines().count(), 8, "{view}");
    let view = live_view("controlled", 10.0, &sample, None, false);
    for absent in ["victim", "before"] {
        assert!(!view.contains(absent), "{view}");
    }
}

/// Checks that tags are closed in order, attributes are quoted and everything else is escaped.
fn assert_well_formed(xml: &str) {
    let mut open = Vec::new();
    let mut rest = xml;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            let name = entity.split_once(';').unwrap().0;
            assert!(
                ["amp", "lt", "gt", "quot", "apos"].contains(&name),
                "{text}"
            );
        }
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        let (tag, is_closed) = tag
            .strip_suffix('/')
            .map_or((tag, false), |tag| (tag, true));
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        assert_eq!(
            tag.matches('=').count(),
            tag.matches('"').count() / 2,
            "{tag}"
        );
        if !is_closed {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

/// Writes a report to a temporary directory or, for visual inspection, below the directory in `ECN_FIGURES`.
fn written(report: &Report, name: &str) -> (tempfile::TempDir, BTreeMap<String, String>) {
    let temporary = tempfile::tempdir().unwrap();
    let dir = match std::env::var_os("ECN_FIGURES") {
        Some(dir) => Path::new(&dir).join(name),
        None => temporary.path().join("made"),
    };
    let paths = report.write(&dir).unwrap();
    let mut files = BTreeMap::new();
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        files.insert(name, std::fs::read_to_string(path).unwrap());
    }
    assert_eq!(files.len(), paths.len());
    let written = std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(written, paths.len(), "no temporary file stays");
    for (name, text) in &files {
        if name.ends_with(".svg") {
            assert_well_formed(text);
        }
    }
    (temporary, files)
}

fn texts(svg: &str) -> Vec<&str> {
    let mut texts = Vec::new();
    for part in svg.split("<text ").skip(1) {
        let (_, rest) = part.split_once('>').unwrap();
        texts.push(rest.split_once('<').unwrap().0.trim());
    }
    texts
}

#[test]
fn two_phases_are_written_as_files() {
    let report = report(vec![uncontrolled(), controlled()]);
    let (_dir, files) = written(&report, "two");
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names.join(" "),
        "rig-rates-controlled.svg rig-rates-uncontrolled.svg rig-rates.svg rig-report.json \
         rig-root-queue.svg rig-samples.csv"
    );
    assert_eq!(files["rig-report.json"], report.to_json().unwrap());
    let csv = &files["rig-samples.csv"];
    assert_eq!(csv.lines().count(), 1 + 200);
    assert!(csv.lines().all(|line| line.split(',').count() == 8));

    let labels = texts(&files["rig-rates.svg"]);
    for series in ["root", "inter-switch", "local", "remote", "victim"] {
        let found = labels.iter().filter(|text| **text == series);
        assert_eq!(found.count(), 2, "{series}");
    }
    for text in ["uncontrolled", "controlled", TIME_LABEL, SHARE_LABEL] {
        assert!(labels.contains(&text), "{text}: {labels:?}");
    }
    let labels = texts(&files["rig-root-queue.svg"]);
    for text in ["uncontrolled", "controlled", TIME_LABEL, "packets"] {
        assert!(labels.contains(&text), "{text}: {labels:?}");
    }
}

#[test]
fn without_a_victim_no_figure_shows_one() {
    let (_dir, files) = written(&without_victim(report(vec![uncontrolled()])), "no-victim");
    assert!(!texts(&files["rig-rates.svg"]).contains(&"victim"));
}

#[test]
fn many_phases_are_compared() {
    let report = many();
    let (_dir, files) = written(&report, "many");
    let labels = texts(&files["rig-compare.svg"]);
    for text in "root,inter-switch,victim,remote / local,input-output,aimd".split(',') {
        assert!(labels.contains(&text), "{text}: {labels:?}");
    }
    for phase in &report.phases {
        let number = format!("{:.2}", phase.inter_switch);
        assert!(labels.contains(&number.as_str()), "{number}: {labels:?}");
    }
}

#[test]
fn odd_names_stay_inside_the_directory_and_the_markup() {
    let odd = "../a<b> & \"c\",d";
    let phase = |name: &str| Phase {
        name: name.to_owned(),
        ..uncontrolled()
    };
    let report = report(vec![phase(odd), phase(odd)]);
    let (_dir, files) = written(&report, "odd");
    for name in [
        "rig-rates----a-b-----c--d.svg",
        "rig-rates----a-b-----c--d-2.svg",
    ] {
        assert!(files.contains_key(name), "{:?}", files.keys());
    }
    assert!(files["rig-samples.csv"].contains("\n\"../a<b> & \"\"c\"\",d\",0.100,"));
}

#[test]
fn phases_without_samples_are_drawn_too() {
    let phase = Phase {
        samples: Vec::new(),
        ..uncontrolled()
    };
    written(&report(vec![phase]), "empty");
    written(&report(Vec::new()), "none");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "").unwrap();
    let error = report(Vec::new()).write(&path).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot write {}: ", path.display())),
        "{error}"
    );
}
