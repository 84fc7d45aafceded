//! Flows listed in a file.

use std::collections::HashMap;
use std::path::Path;

use ecn_units::near;

use super::table::{at, number, rows};
use super::{Arrival, round_robin};
use crate::engine::NS;
use crate::fabric::parameters::FabricParameters;

/// Maximum number of names suggested or listed at once.
const NAMES: usize = 5;

/// The flows of a file, in order of starts.
pub(super) fn listed(
    file: &Path,
    names: &[String],
    parameters: &FabricParameters,
) -> Result<Vec<Arrival>, String> {
    let priorities = parameters.priorities;
    let numbers: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    let hosts = names.len() as u32;
    // Hosts may have numbers as names, which take precedence over indices.
    let host = |text: &str| {
        let numbered = || text.parse().ok().filter(|number| *number < hosts);
        numbers.get(text).copied().or_else(numbered)
    };
    let unknown = |text: &str| {
        let near = near(text, names.iter().map(String::as_str));
        let hint = match &near[..near.len().min(NAMES)] {
            [] if names.len() <= NAMES => format!("the hosts are {}", names.join(", ")),
            [] => format!("the hosts are {} to {}", names[0], names[names.len() - 1]),
            some => format!("near are {}", some.join(", ")),
        };
        format!("unknown host `{text}`: {hint}, or 0 to {}", hosts - 1)
    };
    let most = u64::from(parameters.payload) * u64::from(u32::MAX / 2);
    let mut flows = Vec::new();
    let columns = ["start_ns", "from", "to", "bytes", "priority"];
    for (line, [start, from, to, bytes, priority]) in rows(file, columns, 4)? {
        let whole = |text: &str| {
            let value = number(line, text)?;
            let what = format_args!("`{text}` is not a whole number");
            let value = Some(value).filter(|value| value.fract() == 0.0);
            value
                .map(|value| value as u64)
                .ok_or_else(|| at(line, what))
        };
        let named = |text: &str| host(text).ok_or_else(|| at(line, unknown(text)));
        let (start, from, to, bytes) = (whole(&start)?, named(&from)?, named(&to)?, whole(&bytes)?);
        if from == to {
            let name = &names[from as usize];
            return Err(at(line, format_args!("a flow from {name} to itself")));
        }
        let limit = parameters.limit;
        if start >= limit.as_nanos() {
            let what = format_args!("it starts at {start} ns, and the run ends at limit={limit}");
            return Err(at(line, what));
        }
        if !(1..=most).contains(&bytes) {
            return Err(at(line, format_args!("must be between 1 and {most} bytes")));
        }
        let given = match &priority[..] {
            "" => None,
            text => Some(whole(text)?),
        };
        if given.is_some_and(|priority| priority >= priorities.into()) {
            let most = priorities - 1;
            let what =
                format_args!("the priority must be between 0 and {most} (priorities={priorities})");
            return Err(at(line, what));
        }
        flows.push((Arrival::new(start * NS, from, to, bytes), given));
    }
    flows.sort_by_key(|(flow, _)| flow.start);
    let classed = flows
        .into_iter()
        .zip(1..)
        .map(|((arrival, given), id)| Arrival {
            priority: given.map_or_else(|| round_robin(id, priorities), |priority| priority as u8),
            ..arrival
        });
    Ok(classed.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::fs;

    /// Parses a file's text for hosts with these names.
    fn read(
        names: &[&str],
        text: &str,
        parameters: &FabricParameters,
    ) -> Result<Vec<Arrival>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows");
        fs::write(&path, text).unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        listed(&path, &names, parameters)
    }

    #[test]
    fn flows_are_in_the_order_of_their_starts() {
        let text = "\u{feff}start_ns,from,to,bytes\r\n# later\r\n500,1,0,7\r\n0, 0, 1, 1000\r\n";
        let found = read(&["a", "b"], text, &FabricParameters::default()).unwrap();
        assert_eq!(found.len(), 2);
        let later = found[1];
        assert_eq!((later.start, later.from, later.bytes), (500_000, 1, 7));
    }

    #[test]
    fn hosts_are_named_or_numbered() {
        let read = |names: &[&str], flows: &str| {
            let text = format!("start_ns,from,to,bytes\n{flows}");
            read(names, &text, &FabricParameters::default())
        };
        let ends = |flows: Vec<Arrival>| -> Vec<_> {
            flows.iter().map(|flow| (flow.from, flow.to)).collect()
        };
        let chain = ["S0", "S1", "R0", "R1", "A0", "A1", "A2"];
        let flows = read(&chain, "0,S1,R1,5\n0, A2 ,0,5\n0,1,R0,5\n").unwrap();
        assert_eq!(ends(flows), [(1, 3), (6, 0), (1, 2)]);
        // As names, if the names are numbers.
        let flows = read(&["1", "2", "3"], "0,1,3,5\n0,0,2,5\n");
        assert_eq!(ends(flows.unwrap()), [(0, 2), (0, 1)]);
        for (flow, reason) in [
            (
                "0,S2,R1,5",
                "line 3: unknown host `S2`: near are S0, S1, A2, or 0 to 6",
            ),
            (
                "0,S0,web,5",
                "line 3: unknown host `web`: the hosts are S0 to A2, or 0 to 6",
            ),
            (
                "0,7,S0,5",
                "line 3: unknown host `7`: the hosts are S0 to A2, or 0 to 6",
            ),
            (
                "0,S0,-1,5",
                "line 3: unknown host `-1`: near are S1, R1, A1, or 0 to 6",
            ),
            ("0,S0,0,5", "line 3: a flow from S0 to itself"),
            (
                "0,S0,S1,0",
                "line 3: must be between 1 and 2147483647000 bytes",
            ),
            (
                "# as well\n\n0.5,S0,S1,1",
                "line 5: `0.5` is not a whole number",
            ),
            ("0,S0,S1", "line 3: 3 values, where the first line has 4"),
            (
                "10000000000,S0,S1,1",
                "line 3: it starts at 10000000000 ns, and the run ends at limit=10s",
            ),
            ("x,S0,S1,1", "line 3: `x` is not a number from 0 up"),
        ] {
            let error = read(&chain, &format!("0,S0,S1,1\n{flow}\n")).unwrap_err();
            assert_eq!(error, reason);
        }
        let error = read(&["a", "b"], "0,host,b,1\n").unwrap_err();
        assert_eq!(
            error,
            "line 2: unknown host `host`: the hosts are a, b, or 0 to 1"
        );
    }

    #[test]
    fn flows_have_the_classes_of_their_file() {
        let parameters = FabricParameters {
            priorities: 3,
            ..FabricParameters::default()
        };
        let read = |text: &str| read(&["a", "b"], text, &parameters);
        let classes =
            |flows: Vec<Arrival>| -> Vec<u8> { flows.iter().map(|flow| flow.priority).collect() };
        let header = "start_ns,from,to,bytes,priority";
        let flows = read(&format!("{header}\n5,a,b,7,0\n0,a,b,7,2\n1,a,b,7,\n"));
        assert_eq!(classes(flows.unwrap()), [2, 1, 0]);
        let flows = read("start_ns,from,to,bytes\n5,a,b,7\n0,a,b,7\n");
        assert_eq!(classes(flows.unwrap()), [0, 1]);
        for (wrong, reason) in [
            (
                "3",
                "line 2: the priority must be between 0 and 2 (priorities=3)",
            ),
            ("0.5", "line 2: `0.5` is not a whole number"),
            ("-1", "line 2: `-1` is not a number from 0 up"),
        ] {
            let error = read(&format!("{header}\n0,a,b,7,{wrong}\n")).unwrap_err();
            assert_eq!(error, reason);
        }
        let error = read("start_ns,from\n").unwrap_err();
        let needed = "the first line must be start_ns,from,to,bytes[,priority]";
        assert_eq!(error, needed);
    }
}
