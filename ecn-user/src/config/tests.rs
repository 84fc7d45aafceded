#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use super::{file::*, *};

/// All errors in `text`, as printed.
fn errors(text: &str) -> String {
    Config::parse(text, "ecn.toml").unwrap_err().to_string()
}

/// The error for a key of a section in an otherwise valid file; the key is on line 5.
fn error_of(section: &str, key_value: &str) -> String {
    errors(&format!(
        "version = 1\n[[bridge]]\nname = \"br0\"\n{section}\n{key_value}\n"
    ))
}

/// The example with every commented-out key enabled.
fn example_uncommented() -> String {
    EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => key,
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_key_of_the_example_is_its_default() {
    let expected = Config {
        bridges: vec![Bridge::new("br0")],
        endpoints: vec![Endpoint::new("eth0")],
        ..Config::default()
    };
    assert_eq!(
        Config::parse(EXAMPLE, "ecn.example.toml").unwrap(),
        expected
    );
    let uncommented = example_uncommented();
    assert_ne!(uncommented, EXAMPLE);
    assert_eq!(
        Config::parse(&uncommented, "ecn.example.toml").unwrap(),
        expected
    );
}

#[test]
fn the_example_has_every_key() {
    let uncommented = example_uncommented();
    let table: toml::Table = uncommented.parse().unwrap();
    for section in &SECTIONS {
        let value = &table[section.name];
        let keys = value.get(0).unwrap_or(value).as_table().unwrap();
        for key in section.keys {
            // Keys that have no value by default are shown as `# key = ...`.
            let shown = format!("\n# {key} = ");
            assert!(
                keys.contains_key(*key) || EXAMPLE.contains(&shown),
                "{key} of {}",
                section.name
            );
        }
    }
    assert!(table.contains_key("version"));
}

#[test]
fn the_table_of_keys_is_that_of_the_structs() {
    let bridge = Bridge {
        netns: Some("web".into()),
        severe_threshold: Some(64),
        drop_threshold: Some(16),
        ports: Some(vec!["p".into()]),
        queue: Queue::Virtual,
        queue_rate: "1gbit".parse().ok(),
        queue_rates: BTreeMap::from([("p".to_owned(), "1mbit".parse().unwrap())]),
        ..Bridge::new("br0")
    };
    let endpoint = Endpoint {
        netns: Some("web".into()),
        link_rate: "1gbit".parse().ok(),
        feedback: Some(Feedback::Both),
        ..Endpoint::new("eth0")
    };
    let config = Config {
        bridges: vec![bridge],
        endpoints: vec![endpoint],
        agent: Agent {
            cgroup: Some("/sys/fs/cgroup/web".into()),
            ..Agent::default()
        },
        echo: Echo {
            key: "000102030405060708090a0b0c0d0e0f"
                .to_owned()
                .try_into()
                .ok(),
            also_accept: Some(AlsoAccept::None),
            ..Echo::default()
        },
        metrics: Metrics {
            listen: "127.0.0.1:9471".parse().ok(),
            ..Metrics::default()
        },
        ..Config::default()
    };
    let table = toml::Table::try_from(&config).unwrap();
    assert_eq!(table.keys().collect::<HashSet<_>>().len(), TOP_KEYS.len());
    assert!(TOP_KEYS.iter().all(|key| table.contains_key(*key)));
    for section in &SECTIONS {
        let value = &table[section.name];
        assert_eq!(value.is_array(), section.is_list);
        let keys = value.get(0).unwrap_or(value).as_table().unwrap();
        let expected: HashSet<_> = section.keys.iter().copied().collect();
        assert_eq!(
            keys.keys().map(String::as_str).collect::<HashSet<_>>(),
            expected
        );
    }
}

/// All keys, none as it is by default.
const FULL_FILE: &str = r#"
        version = 1
        [[bridge]]
        name = "br0"
        netns = "web"
        marking = "naive"
        buffer = 5
        threshold = 16
        mark_at = "departure"
        shares = "port"
        unmarkable = "drop"
        drop_threshold = 40
        ports = ["veth1", "veth2"]
        [[bridge]]
        name = "br0"
        [[endpoint]]
        device = "eth0"
        netns = "/proc/1/ns/net"
        link_rate = "100mbit"
        enforcement = "none"
        hook = "xdp"
        tcp = "control"
        feedback = "backward"
        limit_by = "destination"
        [response]
        function = "aimd"
        rmin = "1/256"
        m = 3
        round = "1500us"
        [echo]
        protocol = 254
        every = "5ms"
        key = "000102030405060708090a0b0c0d0e0f"
        also_accept = "none"
        [flow]
        idle = "10s"
        max = 1024
        [agent]
        period = "200us"
        heartbeat = "3s"
        keep = true
        pin = "/run/bpf/ecn"
        cgroup = "/sys/fs/cgroup/web"
        [metrics]
        listen = "127.0.0.1:9471"
        top_flows = 20
    "#;

#[test]
fn a_full_file_is_read_as_it_says() {
    let config = Config::parse(FULL_FILE, "ecn.toml").unwrap();
    let expected = Config {
        bcn: Bcn::default(),
        qcn: Qcn::default(),
        version: 1,
        bridges: vec![
            Bridge {
                name: "br0".into(),
                netns: Some("web".into()),
                marking: Marking::Naive,
                buffer: 5,
                threshold: 16,
                mark_at: MarkAt::Departure,
                shares: Shares::Port,
                unmarkable: Unmarkable::Drop,
                drop_threshold: Some(40),
                ports: Some(vec!["veth1".into(), "veth2".into()]),
                ..Bridge::new("br0")
            },
            Bridge::new("br0"),
        ],
        endpoints: vec![Endpoint {
            device: "eth0".into(),
            netns: Some("/proc/1/ns/net".into()),
            link_rate: Rate::from_bytes_per_s(12_500_000),
            enforcement: Enforcement::None,
            hook: Hook::Xdp,
            tcp: Tcp::Control,
            feedback: Some(Feedback::Backward),
            limit_by: LimitBy::Destination,
        }],
        response: Response {
            function: Function::Aimd,
            rmin: fraction(1, 256),
            m: 3.0,
            round: Round::Time(DurationText::from_micros(1500)),
        },
        echo: Echo {
            protocol: 254,
            every: Every::Time(DurationText::from_millis(5)),
            key: "000102030405060708090a0b0c0d0e0f"
                .to_owned()
                .try_into()
                .ok(),
            also_accept: Some(AlsoAccept::None),
        },
        flow: Flow {
            idle: DurationText::from_secs(10),
            max: 1024,
        },
        agent: Agent {
            period: DurationText::from_micros(200),
            heartbeat: DurationText::from_secs(3),
            keep: true,
            pin: "/run/bpf/ecn".into(),
            cgroup: Some("/sys/fs/cgroup/web".into()),
        },
        metrics: Metrics {
            listen: Some("127.0.0.1:9471".parse().unwrap()),
            top_flows: 20,
        },
    };
    assert_eq!(config, expected);
    let written = config.to_toml().unwrap();
    assert_eq!(
        Config::parse(&written, "ecn.toml").unwrap(),
        config,
        "{written}"
    );
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    assert_eq!(
        error_of("netns = \"web\"\nbuffer = 4", "makring = \"naive\""),
        "unknown key `makring` in [[bridge]]: did you mean `marking`? (ecn.toml:6)"
    );
    assert_eq!(
        error_of("[echo]", "frobnicate = 1"),
        "unknown key `frobnicate` in [echo]: expected one of protocol, every, key, also_accept (ecn.toml:5)"
    );
    assert_eq!(
        error_of("[ehco]", "protocol = 253"),
        "unknown section `ehco`: did you mean `echo`? (ecn.toml:4)"
    );
    assert_eq!(
        errors("marking = \"naive\"\nvresion = 1\n[[bridge]]\nname = \"br0\"\n"),
        "unknown key `marking` outside of any section: it belongs in [[bridge]] (ecn.toml:1)\n\
         unknown key `vresion`: did you mean `version`? (ecn.toml:2)"
    );
}

#[test]
fn every_unknown_key_is_reported_in_the_order_of_the_file() {
    assert_eq!(
        errors("[agent]\nperoid = \"1ms\"\n[[bridge]]\nname = \"b\"\n[[bridge]]\nbufer = 4\n"),
        "unknown key `peroid` in [agent]: did you mean `period`? (ecn.toml:2)\n\
         `name` is missing in [[bridge]] (ecn.toml:5)\n\
         unknown key `bufer` in [[bridge]]: did you mean `buffer`? (ecn.toml:6)"
    );
}

#[test]
fn sections_of_the_wrong_kind_are_refused() {
    assert_eq!(
        errors("[bridge]\nname = \"br0\"\n"),
        "`bridge` is a section: write [[bridge]] (ecn.toml:1)"
    );
    assert_eq!(
        error_of("[[flow]]", "max = 1"),
        "`flow` is a section: write [flow] (ecn.toml:4)"
    );
    assert_eq!(
        errors("endpoint = \"eth0\"\n"),
        "`endpoint` is a section: write [[endpoint]] (ecn.toml:1)"
    );
}

#[test]
fn unknown_values_are_refused_with_the_nearest() {
    for (section, key_value, expected) in [
        (
            "",
            "marking = \"inptu\"",
            "`marking` in [[bridge]]: unknown value `inptu`: did you mean `input`?",
        ),
        (
            "",
            "marking = \"red\"",
            "`marking` in [[bridge]]: unknown value `red`: \
             expected one of none, naive, input, input-output, bcn, qcn",
        ),
        (
            "",
            "mark_at = \"depature\"",
            "`mark_at` in [[bridge]]: unknown value `depature`: did you mean `departure`?",
        ),
        (
            "[response]",
            "function = \"LIPD\"",
            "`function` in [response]: unknown value `LIPD`: did you mean `lipd`?",
        ),
        (
            "[response]",
            "round = \"packet\"",
            "`round` in [response]: unknown value `packet`: did you mean `packets`?",
        ),
        (
            "[response]",
            "round = \"rtt\"",
            "`round` in [response]: unknown value `rtt`: \
             expected one of off, packets, fractional, or a duration such as 1500us",
        ),
        (
            "[response]",
            "round = \"1500\"",
            "`round` in [response]: `1500` is not a duration: the unit is missing \
             (accepted: a number and ns, us, ms, s, min or h, such as 1500us)",
        ),
        (
            "[response]",
            "rmin = \"1/0\"",
            "`rmin` in [response]: `1/0` is not a fraction: the denominator is zero \
             (accepted: two whole numbers such as 1/64, or a decimal such as 0.25)",
        ),
        (
            "[response]",
            "rmin = 0.1",
            "`rmin` in [response]: invalid type: floating point `0.1`, \
             expected a fraction in quotes, such as \"1/64\"",
        ),
        (
            "",
            "buffer = \"4\"",
            "`buffer` in [[bridge]]: invalid type: string \"4\", \
             expected a whole number from 0 to 4294967295",
        ),
        (
            "",
            "ports = \"veth1\"",
            "`ports` in [[bridge]]: invalid type: string \"veth1\", \
             expected a list such as [\"veth1\"]",
        ),
        (
            "[echo]",
            "protocol = 300",
            "`protocol` in [echo]: invalid value: integer `300`, \
             expected a whole number from 0 to 255",
        ),
        (
            "[agent]",
            "period = 1",
            "`period` in [agent]: invalid type: integer `1`, \
             expected a duration in quotes, such as \"1500us\"",
        ),
    ] {
        assert_eq!(
            error_of(section, key_value),
            format!("{expected} (ecn.toml:5)")
        );
    }
    assert_eq!(
        errors("[[endpoint]]\ndevice = \"eth0\"\nenforcement = \"hbt\"\n"),
        "`enforcement` in [[endpoint]]: unknown value `hbt`: did you mean `htb`? (ecn.toml:3)"
    );
    assert_eq!(
        errors("version = \"1\"\n[[bridge]]\nname = \"br0\"\n"),
        "`version`: invalid type: string \"1\", \
         expected a whole number from 0 to 4294967295 (ecn.toml:1)"
    );
}

/// A section, one of its lines, and the error.
const OUT_OF_RANGE: &[(&str, &str, &str)] = &[
    (
        "",
        "buffer = 0",
        "`buffer` in [[bridge]]: must be between 1 and 65535, not 0",
    ),
    (
        "",
        "buffer = 65536",
        "`buffer` in [[bridge]]: must be between 1 and 65535, not 65536",
    ),
    (
        "",
        "queue = \"virtual\"",
        "`queue` in [[bridge]]: \"virtual\" needs `queue_rate`, such as queue_rate = \"1gbit\"",
    ),
    (
        "",
        "queue_rate = \"1gbit\"",
        "`queue_rate` in [[bridge]]: only applies with queue = \"virtual\": a device's own queue has its own rate",
    ),
    (
        "",
        "mark_at = \"departure\"\nqueue = \"virtual\"\nqueue_rate = \"1gbit\"",
        "`mark_at` in [[bridge]]: must be \"arrival\" with queue = \"virtual\", from which nothing departs",
    ),
    (
        "",
        "threshold = 64\nqueue = \"virtual\"\nqueue_rate = \"1gbit\"",
        "`threshold` in [[bridge]]: must be between 1 and 63, not 64",
    ),
    (
        "",
        "threshold = 0",
        "`threshold` in [[bridge]]: must be between 1 and 65535, not 0",
    ),
    (
        "",
        "shares = \"sources\"",
        "`shares` in [[bridge]]: unknown value `sources`: did you mean `source`?",
    ),
    (
        "",
        "unmarkable = \"pas\"",
        "`unmarkable` in [[bridge]]: unknown value `pas`: did you mean `pass`?",
    ),
    (
        "",
        "drop_threshold = 7",
        "`drop_threshold` in [[bridge]]: must be at least `threshold` (8), not 7",
    ),
    (
        "",
        "drop_threshold = 20\nunmarkable = \"pass\"",
        "`drop_threshold` in [[bridge]]: only applies with unmarkable = \"drop\" and shares \"source\" or \"port\"",
    ),
    (
        "",
        "ports = []",
        "`ports` in [[bridge]]: must not be empty; omit it for all ports",
    ),
    (
        "",
        "ports = [\"p1\", \"p1\"]",
        "`ports` in [[bridge]]: duplicate port `p1`",
    ),
    (
        "",
        "netns = \"a/b\"",
        "`netns` in [[bridge]]: \
             must be a name in /run/netns or an absolute path, not `a/b`",
    ),
    (
        "[response]",
        "rmin = \"1\"",
        "`rmin` in [response]: must be at least 1/65536 and below 1, not 1",
    ),
    (
        "[response]",
        "rmin = \"1/65537\"",
        "`rmin` in [response]: must be at least 1/65536 and below 1, not 1/65537",
    ),
    (
        "[response]",
        "rmin = \"0\"",
        "`rmin` in [response]: must be at least 1/65536 and below 1, not 0",
    ),
    (
        "[response]",
        "m = 1",
        "`m` in [response]: must be above 1 and at most 16, not 1",
    ),
    (
        "[response]",
        "m = 16.5",
        "`m` in [response]: must be above 1 and at most 16, not 16.5",
    ),
    (
        "[response]",
        "m = nan",
        "`m` in [response]: must be above 1 and at most 16, not NaN",
    ),
    (
        "[response]",
        "round = \"0ms\"",
        "`round` in [response]: must not be 0s",
    ),
    (
        "[echo]",
        "every = \"0ms\"",
        "`every` in [echo]: must not be 0s",
    ),
    (
        "[echo]",
        "protocol = 6",
        "`protocol` in [echo]: must be between 148 and 254, not 6",
    ),
    (
        "[flow]",
        "idle = \"0s\"",
        "`idle` in [flow]: must not be 0s",
    ),
    (
        "[flow]",
        "max = 0",
        "`max` in [flow]: must be between 1 and 16777216, not 0",
    ),
    (
        "[agent]",
        "period = \"0s\"",
        "`period` in [agent]: must not be 0s",
    ),
    (
        "[agent]",
        "heartbeat = \"0s\"",
        "`heartbeat` in [agent]: must not be 0s",
    ),
    (
        "[agent]",
        "heartbeat = \"1ms\"",
        "`heartbeat` in [agent]: must be longer than `period` (1ms), not 1ms: limits would lapse",
    ),
    (
        "[agent]",
        "pin = \"ecn\"",
        "`pin` in [agent]: must be an absolute path (such as /sys/fs/bpf/ecn), not `ecn`",
    ),
];

#[test]
fn values_out_of_range_are_refused_with_the_range() {
    for (section, key_value, expected) in OUT_OF_RANGE {
        assert_eq!(
            error_of(section, key_value),
            format!("{expected} (ecn.toml:5)")
        );
    }
    let error = errors("[[endpoint]]\ndevice = \"eth0\"\nlink_rate = \"0mbit\"\n");
    assert!(
        error.starts_with(
            "`link_rate` in [[endpoint]]: `0mbit` is not a rate: \
             it is less than one byte per second (accepted: "
        ),
        "{error}"
    );
    assert!(error.ends_with("such as 100mbit) (ecn.toml:3)"), "{error}");
}

#[test]
fn bad_names_of_devices_are_refused() {
    for (name, reason) in [
        ("", "it is empty"),
        ("a-name-of-16-byt", "it is longer than 15 bytes"),
        ("..", "it names a directory"),
        ("a b", "it contains a space, `/` or `:`"),
        ("a/b", "it contains a space, `/` or `:`"),
    ] {
        assert_eq!(
            errors(&format!("[[endpoint]]\ndevice = \"{name}\"\n")),
            format!(
                "`device` in [[endpoint]]: invalid device name `{name}`: {reason} \
                 (ecn.toml:2)"
            )
        );
    }
}

#[test]
fn patterns_are_names_for_all_that_match() {
    assert!(means("br-*", "br-1a2b") && means("tap[0-9]", "tap3") && means("web-?", "web-1"));
    assert!(!means("br-*", "br0") && !means("tap[0-9]", "tap10") && !means("br0", "br00"));
    // One component of a path at a time.
    assert!(means("/run/docker/netns/*", "/run/docker/netns/1a"));
    assert!(!means("/run/*", "/run/docker/netns/1a"));
    assert!(Config::parse("[[bridge]]\nname = \"br-*\"\nports = [\"veth*\"]\n", "x").is_ok());
    assert_eq!(
        errors("[[endpoint]]\ndevice = \"eth[0\"\n"),
        "`device` in [[endpoint]]: invalid pattern `eth[0`: invalid range pattern (ecn.toml:2)"
    );
    assert_eq!(
        errors("[[endpoint]]\ndevice = \"a\\u0000b\"\n"),
        "`device` in [[endpoint]]: invalid device name `a\\0b`: it contains a \
         control character (ecn.toml:2)"
    );
}

#[test]
fn absurd_values_are_refused() {
    let endpoint = "[[endpoint]]\ndevice = \"eth0\"\n";
    for (text, why) in [
        (
            "link_rate = \"8bit\"\n",
            "`link_rate` in [[endpoint]]: must be at least 8kbit, not 8bit",
        ),
        (
            "[agent]\nheartbeat = \"1000000000s\"\n",
            "`heartbeat` in [agent]: must be at most 60s, not 1000000000s",
        ),
        (
            "[echo]\nevery = \"1000000000s\"\n",
            "`every` in [echo]: must be at most 60s, not 1000000000s",
        ),
        (
            "[agent]\npin = \"/sys/fs/bpf/../ecn\"\n",
            "`pin` in [agent]: must be a path without `..` (such as /sys/fs/bpf/ecn), not `/sys/fs/bpf/../ecn`",
        ),
        (
            "[agent]\npin = \"/\"\n",
            "`pin` in [agent]: must be a directory below a BPF file system, such as \
             /sys/fs/bpf/ecn, not `/`",
        ),
        (
            "[agent]\npin = \"/sys/fs/bpf/a\\u0000b\"\n",
            "`pin` in [agent]: must be an absolute path (such as /sys/fs/bpf/ecn), not `/sys/fs/bpf/a\\0b`",
        ),
    ] {
        let found = errors(&format!("{endpoint}{text}"));
        assert!(found.starts_with(why), "{found}");
    }
    let many: String = (0..1024)
        .map(|n| format!("[[endpoint]]\ndevice = \"eth{n}\"\n"))
        .collect();
    assert_eq!(
        errors(&many),
        "`device` in [[endpoint]]: at most 1023 endpoints are supported (ecn.toml:2048)"
    );
}

#[test]
fn duplicates_are_refused_at_the_second() {
    assert_eq!(
        errors("[[bridge]]\nname = \"br0\"\n[[bridge]]\nbuffer = 2\nname = \"br0\"\n"),
        "`name` in [[bridge]]: duplicate `br0` in the agent's own netns (ecn.toml:5)"
    );
    // The same namespace under two names.
    assert_eq!(
        errors(
            "[[endpoint]]\ndevice = \"eth0\"\nnetns = \"web\"\n\
             [[endpoint]]\ndevice = \"eth0\"\nnetns = \"/var/run/netns/web\"\n"
        ),
        "`device` in [[endpoint]]: duplicate `eth0` in netns `/var/run/netns/web` \
         (ecn.toml:5)"
    );
    let apart = "[[endpoint]]\ndevice = \"eth0\"\nnetns = \"web\"\n\
                 [[endpoint]]\ndevice = \"eth0\"\nnetns = \"db\"\n\
                 [[endpoint]]\ndevice = \"eth0\"\n";
    assert_eq!(Config::parse(apart, "ecn.toml").unwrap().endpoints.len(), 3);
}

#[test]
fn a_file_without_work_is_refused() {
    let nothing = "nothing to do: at least one [[bridge]] or [[endpoint]] is needed";
    assert_eq!(errors(""), format!("{nothing} (ecn.toml)"));
    assert_eq!(
        Config::default().validate().unwrap_err().to_string(),
        nothing
    );
}

#[test]
fn a_later_version_is_refused() {
    assert_eq!(
        errors("\nversion = 2\n[[bridge]]\nname = \"br0\"\n"),
        "`version` must be 1, not 2 (ecn.toml:2)"
    );
}

#[test]
fn bad_syntax_is_one_line_with_its_place() {
    let error = errors("version = 1\n[[bridge]]\nname = \n");
    assert!(error.starts_with("not valid TOML: "), "{error}");
    assert!(error.ends_with(" (ecn.toml:3)"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.toml");
    let error = Config::load(&path).unwrap_err().to_string();
    let start = format!("cannot read the configuration file {}: ", path.display());
    assert!(error.starts_with(&start), "{error}");

    let path = dir.path().join("ecn.toml");
    std::fs::write(&path, "[[bridge]]\nname = \"br0\"\nbufer = 1\n").unwrap();
    assert_eq!(
        Config::load(&path).unwrap_err().to_string(),
        format!(
            "unknown key `bufer` in [[bridge]]: did you mean `buffer`? ({}:3)",
            path.display()
        )
    );
}

#[test]
fn code_built_configurations_are_checked_too() {
    let mut config = Config {
        bridges: vec![Bridge::new("br0")],
        ..Config::default()
    };
    config.validate().unwrap();
    config.bridges[0].buffer = 0;
    config.response.m = 0.5;
    assert_eq!(
        config.validate().unwrap_err().to_string(),
        "`buffer` in [[bridge]]: must be between 1 and 65535, not 0\n\
         `m` in [response]: must be above 1 and at most 16, not 0.5"
    );
}

#[test]
fn namespaces_are_named_or_paths() {
    assert_eq!(netns_path("web"), Path::new("/run/netns/web"));
    assert_eq!(
        netns_path("/var/run/netns/web"),
        Path::new("/run/netns/web")
    );
    assert_eq!(netns_path("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
}

#[test]
fn where_what_cannot_be_marked_is_dropped() {
    let bridge = Bridge {
        threshold: 10,
        ..Bridge::new("br0")
    };
    assert_eq!(bridge.drops_above(), Some(20));
    let at = |unmarkable, shares| {
        Bridge {
            unmarkable,
            shares,
            drop_threshold: Some(30),
            ..bridge.clone()
        }
        .drops_above()
    };
    assert_eq!(at(Unmarkable::Drop, Shares::Port), Some(30));
    assert_eq!(at(Unmarkable::Pass, Shares::Source), None);
    assert_eq!(at(Unmarkable::Drop, Shares::Off), None);
}

#[test]
fn notifications_have_bridges_defaults_and_are_checked_by_key() {
    let parse = |text: &str| Config::parse(text, "ecn.toml");
    let bridge = "[[bridge]]\nname = \"br0\"\nmarking = \"bcn\"\n";
    let config = parse(&format!(
        "{bridge}[bcn]\ngi = \"2\"\n[qcn]\nrai = \"1mbit\""
    ))
    .unwrap();
    assert_eq!(config.bcn.0.pm, "1/90".parse().unwrap());
    assert_eq!(config.bcn.0.gi, "2".parse().unwrap());
    assert_eq!(config.qcn.0.stage_timer, DurationText::from_millis(150));
    assert_eq!(config.feedback(), Feedback::Backward);
    assert_eq!(config.bridges[0].drops_above(), None);
    for (text, expected) in [
        (
            "[bcn]\npm = \"0\"",
            "`pm` in [bcn]: must be above 0 and at most 1 (ecn.toml:5)",
        ),
        ("[bcn]\nlimiters = 3", "unknown key `limiters` in [bcn]"),
        (
            "feedback = \"both\"",
            "`feedback` in [[bridge]]: \"both\" does not apply with marking = \"bcn\"",
        ),
        ("severe_threshold = 0", "`severe_threshold` in [[bridge]]: "),
        (
            "[[endpoint]]\ndevice = \"eth0\"\nfeedback = \"both\"\nlimit_by = \"device\"",
            "`limit_by` in [[endpoint]]: \"device\" only applies with feedback = \"backward\"",
        ),
        (
            "[[endpoint]]\ndevice = \"eth0\"\nenforcement = \"pacing\"\nlimit_by = \"device\"",
            "\"device\" does not apply with enforcement = \"pacing\"",
        ),
    ] {
        let error = parse(&format!("{bridge}{text}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
