//! Data centres from TOML: a topology, its keys (those of `--set`) and, for `topology = "custom"`, the names of hosts
//! and switches and the links between them.
//!
//! In any topology, `[[failures]]` describes links that are down for some time, and `[[flows]]` may replace the
//! workload. Names may contain ranges, as in other scenario files: `h[1-4]` stands for four names.

use std::collections::{BTreeMap, HashMap};

use ecn_units::{DurationText, Rate, suggestion};
use serde::Deserialize;
use toml::Table;

use super::failures::Failure;
use super::links::LinkOverride;
use super::scenario::Scenario;
use super::topology::{End, Plan, Topology};
use super::workload::{FlowEntry, Workload};
use crate::settings::{ScenarioError, dotted};
use crate::settings::{expand_all, located, pairs};

/// The topology that is described in the file itself.
const CUSTOM: &str = "custom";

#[derive(Deserialize)]
struct File {
    topology: String,
    name: Option<String>,
    #[serde(default)]
    links: Vec<LinkEntry>,
    #[serde(default)]
    failures: Vec<Failure>,
    flows: Option<Vec<FlowEntry>>,
    #[serde(flatten)]
    keys: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    between: [String; 2],
    rate: Option<Rate>,
    delay: Option<DurationText>,
}

/// Parses a file; `None` if it does not describe a data centre (it has no `topology`). `name` is used if the file
/// contains no name.
///
/// # Errors
///
/// The text is not valid TOML, or does not describe a data centre.
pub fn parse(text: &str, name: &str) -> Result<Option<Scenario>, ScenarioError> {
    let bad = ScenarioError::Text;
    let table: Table = toml::from_str(text).map_err(|error| bad(located(text, &error)))?;
    if table.is_empty() {
        let reason = "the file has no keys: a data centre needs `topology`, another network `switches`, `hosts`, \
                      `links`, `flows` and `duration`";
        return Err(bad(reason.to_owned()));
    }
    if !table.contains_key("topology") {
        return Ok(None);
    }
    let mut file: File = toml::from_str(text).map_err(|error| bad(located(text, &error)))?;
    let plan = if file.topology == CUSTOM {
        Some(plan(&mut file).map_err(bad)?)
    } else if file.links.is_empty() {
        None
    } else {
        let own = &file.topology;
        let reason = format!("[[links]] are for topology = \"{CUSTOM}\", not \"{own}\"");
        return Err(bad(reason));
    };
    let mut scenario = match plan {
        Some(plan) => Scenario::custom(plan),
        None => Scenario::find(&file.topology).ok_or_else(|| {
            let known = [&[CUSTOM], super::Kind::NAMES].concat();
            let hint = suggestion(&file.topology, &known);
            bad(format!("unknown topology `{}`: {hint}", file.topology))
        })?,
    };
    scenario.failures = file.failures;
    if let Some(flows) = file.flows {
        if flows.is_empty() {
            let reason = "`flows` is empty: list [[flows]], or remove it for a `workload`";
            return Err(bad(reason.to_owned()));
        }
        scenario.parameters.workload = Workload::Flows;
        scenario.entries = flows;
    }
    scenario.name = Some(file.name.unwrap_or_else(|| name.to_owned()));
    for (key, value) in dotted(&file.keys, |_, _| false) {
        scenario.set(&key, &value)?;
    }
    scenario.planned()?;
    Ok(Some(scenario))
}

/// The network described by a file; removes its keys from `file`.
fn plan(file: &mut File) -> Result<Plan, String> {
    let mut names = |key: &str| -> Result<Vec<String>, String> {
        let needed = || format!("`{key}` must be a list of names, such as [\"{key}[1-4]\"]");
        let value = file.keys.remove(key).ok_or_else(needed)?;
        let list: Vec<String> = value.try_into().map_err(|_| needed())?;
        expand_all(&list)
    };
    let (hosts, switches) = (names("hosts")?, names("switches")?);
    let numbered = |end: fn(u32) -> End| (0..).map(end);
    let nodes = hosts.iter().zip(numbered(End::Host));
    let nodes = nodes.chain(switches.iter().zip(numbered(End::Switch)));
    let mut ends: HashMap<&str, End> = HashMap::new();
    for (name, end) in nodes {
        if ends.insert(name, end).is_some() {
            return Err(format!("the name `{name}` is given twice"));
        }
    }
    let (mut links, mut link_overrides) = (Vec::new(), BTreeMap::new());
    for link in &file.links {
        let [from, to] = &link.between;
        let end = |name: &String| {
            ends.get(name.as_str()).copied().ok_or_else(|| {
                let known: Vec<&str> = hosts.iter().chain(&switches).map(String::as_str).collect();
                let hint = suggestion(name, &known);
                format!("link between `{from}` and `{to}`: unknown host or switch `{name}`: {hint}")
            })
        };
        let own = LinkOverride {
            rate: link.rate,
            delay: link.delay,
        };
        for (from, to) in pairs(from, to)? {
            if own != LinkOverride::default() {
                link_overrides.insert(links.len(), own);
            }
            links.push((end(&from)?, end(&to)?));
        }
    }
    let plan = Plan {
        hosts: hosts.len() as u32,
        links,
        link_overrides,
        host_names: hosts,
        switches,
        ..Plan::default()
    };
    Topology::new(plan.clone())?;
    Ok(plan)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::{Options, run};

    const TWO_RACKS: &str = r#"
        topology = "custom"
        name = "two racks"
        switches = ["rack[1-2]", "top"]
        hosts = ["a[1-4]", "b[1-4]"]
        workload = "permutation"
        payload = 1500
        links = [
            { between = ["a[1-4]", "rack1"] },
            { between = ["b[1-4]", "rack2"] },
            { between = ["rack[1-2]", "top"] },
        ]
    "#;

    #[test]
    fn a_network_is_what_the_file_says() {
        let scenario = parse(TWO_RACKS, "file").unwrap().unwrap();
        assert_eq!(scenario.name(), "two racks");
        assert_eq!(scenario.parameters()["payload"].as_integer(), Some(1500));
        assert_eq!(scenario.parameters()["hosts"].as_integer(), Some(8));
        let topology = scenario.topology().unwrap();
        assert_eq!(topology.hosts, 8);
        assert_eq!((topology.hops(0, 3), topology.hops(0, 4)), (2, 4));
        assert_eq!(topology.port_name(4), "host b1");
        let mut scenario = scenario;
        scenario.set_text("payload=1000").unwrap();
        assert_eq!(scenario.parameters.hosts, 8);
        let error = scenario.set_text("hosts=9").unwrap_err().to_string();
        assert!(error.contains("unknown key `hosts`"), "{error}");
        let (report, _) = run(&scenario, 1, &Options::default()).unwrap();
        assert_eq!(report.scenario, "two racks");
        assert_eq!(report.flows_finished, 8);
    }

    /// A flow on its own is limited only by the links of its path.
    #[test]
    fn links_have_rates_and_delays_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("flows.csv");
        let text = TWO_RACKS
            .replace(r#""rack1"] }"#, r#""rack1"], rate = "10gbit" }"#)
            .replace(r#""top"] }"#, r#""top"], rate = "1gbit", delay = "20us" }"#)
            .replace(r#""rack2"] }"#, r#""rack2"], delay = "3us" }"#)
            .replace("permutation", &format!("file:{}", file.display()));
        let flows = "a1,b1,1 b3,a2,1500 a4,b4,4501 b1,b2,90000 a1,a2,99999";
        for (number, flow) in flows.split(' ').enumerate() {
            std::fs::write(&file, format!("start_ns,from,to,bytes\n0,{flow}\n")).unwrap();
            let scenario = parse(&text, "racks").unwrap().unwrap();
            for threads in [1, 2] {
                let options = Options {
                    threads,
                    ..Options::default()
                };
                let (_, counts) = run(&scenario, 1, &options).unwrap();
                assert_eq!(counts.finished[0].slowdown, 1.0, "{flow}");
                if number == 0 {
                    // 61 bytes of data and 64 of ACK at 10, 1, 1 and 100 Gb/s, with delays of 1, 20, 20 and 3 us.
                    let header = u64::from(scenario.parameters.header);
                    let bits = 8 * (2 * header + 1 + 4);
                    let wire = bits * (100 + 1_000 + 1_000 + 10);
                    let delays = 2 * (1 + 20 + 20 + 3) * 1_000_000;
                    assert_eq!(counts.finished[0].time, wire + delays);
                }
            }
        }
    }

    /// A flow on its own is as fast as its application or the slowest link of its path, whichever is slower.
    #[test]
    fn an_offered_rate_is_part_of_the_ideal() {
        let flows = r#"
            [[flows]]
            class = "slow"
            from = "a1"
            to = "b1"
            size = "90kB"
            rate = "10gbit"

            [[flows]]
            class = "bottleneck"
            from = "a2"
            to = "a3"
            size = "50001B"
            rate = "80gbit"

            [[flows]]
            class = "short"
            from = "b2"
            to = "b3"
            size = "1B"
            rate = "1mbit"

            [[flows]]
            class = "stopped"
            from = "b4"
            to = "b2"
            rate = "3gbit"
            stop = "20us"
        "#;
        let text = TWO_RACKS.replace("workload = \"permutation\"\n", "");
        let text = text.replace("\"rack1\"] }", "\"rack1\"], rate = \"40gbit\" }");
        let mut scenario = parse(&(text + flows), "racks").unwrap().unwrap();
        // With so many slots, credits do not hold up flows.
        let input_queued = ["flow_control=cbfc", "switch=input-queued", "slots=64"];
        for settings in [&[][..], &input_queued] {
            for setting in settings {
                scenario.set_text(setting).unwrap();
            }
            let (report, counts) = run(&scenario, 1, &Options::default()).unwrap();
            assert_eq!(report.flows_finished, 4);
            let slowdowns: Vec<f64> = counts.finished.iter().map(|flow| flow.slowdown).collect();
            assert_eq!(slowdowns, [1.0; 4], "{settings:?}");
        }
    }

    /// A ring of five switches, which is not possible in a lossless network.
    #[test]
    fn cyclic_routing_is_refused() {
        let ring = r#"
            topology = "custom"
            hosts = ["h[1-5]"]
            switches = ["s[1-5]"]
            workload = "all-to-all"
            flow_size = "5kB"
            links = [
                { between = ["h1", "s1"] }, { between = ["h2", "s2"] }, { between = ["h3", "s3"] },
                { between = ["h4", "s4"] }, { between = ["h5", "s5"] },
                { between = ["s1", "s2"] }, { between = ["s2", "s3"] }, { between = ["s3", "s4"] },
                { between = ["s4", "s5"] }, { between = ["s5", "s1"] },
            ]
        "#;
        let mut scenario = parse(ring, "ring").unwrap().unwrap();
        for control in ["pfc", "cbfc"] {
            let setting = format!("flow_control={control}");
            scenario.set_text(&setting).unwrap();
            let error = scenario.topology().unwrap_err().to_string();
            assert!(error.contains("cyclic routing: s1 port 1, "), "{error}");
        }
        scenario.set_text("flow_control=none").unwrap();
        let (report, _) = run(&scenario, 1, &Options::default()).unwrap();
        assert_eq!(report.flows_finished, 20);
    }

    #[test]
    fn built_in_topologies_take_their_keys() {
        let text = "topology = \"leaf-spine\"\nhosts = 16\nleaves = 4\nload = \"1/4\"\nworkload = \"on-off\"\n";
        let scenario = parse(text, "racks").unwrap().unwrap();
        assert_eq!((scenario.name(), scenario.parameters.leaves), ("racks", 4));
        assert!(parse("duration = \"1ms\"", "other").unwrap().is_none());
    }

    /// Cases of a table: texts in [`TWO_RACKS`], their replacements, and what the error contains.
    fn cases(table: &str) -> impl Iterator<Item = (String, &str)> {
        let lines = table.lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).map(|line| {
            let (change, needed) = line.split_once(" => ").expect(line);
            let (old, new) = change.split_once(" -> ").expect(line);
            assert!(TWO_RACKS.contains(old), "{old}");
            (TWO_RACKS.replace(old, new), needed)
        })
    }

    #[test]
    fn what_is_no_network_is_named() {
        for (text, needed) in cases(
            r#"
            switches = ["rack[1-2]", "top"] -> switches = ["rack[1-2]"] => unknown host or switch `top`
            "rack[1-2]", "top"] } -> "rack1", "top"] } => rack2 cannot reach rack1, the switch of a1, a2, a3, a4
            "a[1-4]", "rack1"] } -> "a[1-3]", "rack1"] } => host a4 has no link
            "rack[1-2]", "top"] } -> "a1", "top"] } => host a1 has 2 links
            "rack[1-2]", "top"] } -> "a1", "b1"] } => a1 and b1 are hosts
            "a[1-4]", "b[1-4]"] -> "a[1-4]", "a[1-4]"] => `a1` is given twice
            "a[1-4]", "rack1" -> "a[1-4]", "rcak1" => did you mean `rack1`?
            "top"] } -> "top"], rate = "1gbits" } => `1gbits` is not a rate
            payload = 1500 -> paylaod = 1500 => `payload`
            hosts = ["a[1-4]", "b[1-4]"] -> hosts = 8 => a list of names
            topology = "custom" -> topology = "fat-treee" => are for topology = "custom"
            payload = 1500 -> payload = => line 7
            "#,
        ) {
            let error = parse(&text, "file").unwrap_err().to_string();
            assert!(error.contains(needed), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        // These can be corrected by a setting, and can be drawn.
        for (text, needed) in cases(
            r#"
            payload = 1500 -> payload = 1 => payload = 1
            "top"] } -> "top"], rate = "20tbit" } => links.rate = 20tbit
            "top"] } -> "top"], delay = "1s" } => links.delay = 1s
            payload = 1500 -> headroom = "1kB" => 28250 bytes are needed
            workload = "permutation" -> # => senders = 20: must be between 1 and 7
            "#,
        ) {
            let scenario = parse(&text, "file").unwrap().unwrap();
            let error = scenario.check().unwrap_err().to_string();
            assert!(error.contains(needed), "{text}: {error}");
            scenario.figure().unwrap();
        }
        let error = parse("topology = \"fat-treee\"", "file");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("did you mean `fat-tree`?"), "{error}");
    }

    #[test]
    fn what_was_typed_is_named() {
        for (text, needed) in [
            ("# only a comment", "the file has no keys"),
            ("topology = \"fat-tree\"\nflows = []", "`flows` is empty"),
            (
                "topology = \"fat-tree\"\nlink_rate = 100",
                "link_rate = 100: must be between 1mbit and 10tbit",
            ),
            (
                "topology = \"fat-tree\"\nhosts = 9999999999",
                "hosts = 9999999999: must be a whole number from 0 to 4294967295",
            ),
        ] {
            let error = parse(text, "file").unwrap_err().to_string();
            assert!(error.starts_with(needed), "{error}");
        }
    }
}
