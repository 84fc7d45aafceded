//! Whether a command prints what a page shows.

/// The duration of a run depends on the machine.
fn without_times(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let took = line.rsplit_once(" in ").filter(|(_, time)| {
            let seconds = time.split_once(" s");
            seconds.is_some_and(|(seconds, _)| seconds.parse::<f64>().is_ok())
        });
        took.map_or(line, |(what, _)| what).trim_end().to_owned()
    };
    text.trim_end().lines().map(line).collect()
}

/// The lines, without figures, their units and the kind of enforcement.
fn layout(text: &str) -> Vec<String> {
    let word = |word: &str| match word {
        "htb" | "edt" | "pacing" => "by".to_owned(),
        "KBytes" | "MBytes" | "GBytes" => "Bytes".to_owned(),
        "Kbits/sec" | "Mbits/sec" | "Gbits/sec" => "bits/sec".to_owned(),
        // Flows have the same names in each run.
        _ if word.contains('>') => word.to_owned(),
        _ => {
            let is_figure = word
                .trim_start_matches(['(', '[', '-', '.'])
                .starts_with(|c: char| c.is_ascii_digit());
            if is_figure {
                "#".to_owned()
            } else {
                word.to_owned()
            }
        }
    };
    let line = |line: &str| {
        // An interval is one word or two, depending on its width.
        let line = line.replace("- ", "-");
        let words: Vec<_> = line.split_whitespace().map(word).collect();
        words.join(" ")
    };
    text.trim_end().lines().map(line).collect()
}

/// Whether the output is what the page shows; `...` stands for any lines. With `varies`, only the layout is compared.
pub fn is_shown(printed: &str, expected: &str, varies: bool) -> bool {
    let lines = if varies { layout } else { without_times };
    let (printed, expected) = (lines(printed), lines(expected));
    let mut left = &printed[..];
    let mut parts = expected.split(|line| line == "...").peekable();
    let first = parts.next().unwrap_or_default();
    let Some(rest) = left.strip_prefix(first) else {
        return false;
    };
    left = rest;
    if parts.peek().is_none() {
        return left.is_empty();
    }
    while let Some(part) = parts.next() {
        let at = match parts.peek() {
            _ if part.is_empty() => continue,
            Some(_) => left.windows(part.len()).position(|lines| lines == part),
            None => left.ends_with(part).then(|| left.len() - part.len()),
        };
        let Some(at) = at else { return false };
        left = &left[at + part.len()..];
    }
    true
}

#[test]
fn dots_stand_for_lines() {
    for (expected, same) in [
        ("a\nb\nc", true),
        ("a\n...\nc", true),
        ("a\n...\nb\n...\nc", true),
        ("a\nb\nc\n...", true),
        ("...\nc", true),
        ("a\nc", false),
        ("a\n...\nb", false),
        ("a\n...\nd\n...\nc", false),
    ] {
        assert_eq!(is_shown("a\nb\nc", expected, false), same, "{expected}");
    }
}

#[test]
fn times_and_figures_are_not_compared() {
    assert!(is_shown("2 hops in 0.1 s", "2 hops in 3.25 s", false));
    assert!(!is_shown("2 hops in 0.1 s", "3 hops in 0.1 s", false));
    assert!(is_shown("rate 998kbit by edt", "rate  50mbit by htb", true));
    assert!(!is_shown("rate 50mbit", "pace 50mbit", true));
}
