//! Invariants of any network under any model: random trees and meshes of switches, random flows, and every modelling choice.

use std::fmt::Debug;

use ecn_core::marking::{MarkAt, Marking};
use ecn_core::response::Function;
use ecn_sim::engine::{Calendar, Event, Heap, Lanes, Queue, Scheduler, Time, US, WORD};
use ecn_sim::measure::Record;
use ecn_sim::model::{
    Arbitration, Bypass, BypassCounts, Counting, Crossbar, Forwarding, MarkIn, Model,
    OutputTrigger, Phases, Response, SlotFreed, Spacing, SwitchKind, Trigger,
};
use ecn_sim::network::{Description, FlowSpec, LinkSpec, Network};
use ecn_sim::simulation::{Options, run_with};
use ecn_sim::traffic::Traffic;
use ecn_units::{DurationText, Every, Fraction, Rate, Round};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Length of a run. Slow links carry a few packets in it, fast ones a hundred.
const DURATION: Time = 120 * US;
const STEP: Time = 10 * US;

#[derive(Clone, Debug)]
struct Case {
    description: Description,
    model: Model,
    seed: u64,
    /// Without a loop in which credits could wait for each other.
    tree: bool,
}

/// The values of a keyword.
fn any_of<T: Copy + Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    select(all)
}

fn fractions(texts: &'static [&'static str]) -> impl Strategy<Value = Fraction> {
    select(texts).prop_map(|text| text.parse().expect("a fraction"))
}

fn nanos(values: &'static [u64]) -> impl Strategy<Value = DurationText> {
    select(values).prop_map(DurationText::from_nanos)
}

fn model() -> impl Strategy<Value = Model> {
    let mechanisms = (
        prop_oneof![Just(Marking::None), any_of(&Marking::HP)],
        0u32..12,
        prop_oneof![4 => 1u32..8, 1 => Just(16u32)],
        any_of(&Function::ALL),
        fractions(&["1/256", "1/16", "2/5"]),
        fractions(&["2", "3/2", "5"]),
        prop_oneof![Just(1u32), 2u32..=8],
        select(&["off", "packets", "3us"]).prop_map(|text| text.parse::<Round>().expect("a round")),
    );
    let switches = (
        any_of(Arbitration::ALL),
        select(&[0, 1, 4, u32::MAX]).prop_map(Bypass),
        any_of(BypassCounts::ALL),
        any_of(Crossbar::ALL),
        any_of(Trigger::ALL),
        any_of(Counting::ALL),
        any_of(Counting::ALL),
        any_of(OutputTrigger::ALL),
        select(&["all", "s0", "s0,s1"]).prop_map(|text| text.parse::<MarkIn>().expect("names")),
    );
    let times = (
        any_of(SlotFreed::ALL),
        any_of(Forwarding::ALL),
        nanos(&[0, 40, 700]),
        nanos(&[0, 1_000]),
        any_of(Spacing::ALL),
        fractions(&["1", "1/2", "1/5", "1/100"]),
        any_of(Phases::ALL),
    );
    (mechanisms, switches, times).prop_map(|(mechanisms, switches, times)| {
        let (marking, threshold, buffer, function, rmin, m, window, round) = mechanisms;
        let (arbitration, bypass, bypass_counts, crossbar, trigger, full, over, output, mark_in) =
            switches;
        let (slot_freed, forwarding, forwarding_delay, ack_delay, spacing, initial_rate, phases) =
            times;
        Model {
            marking,
            threshold,
            buffer,
            response: Response::Function(function),
            rmin,
            m,
            window,
            round,
            arbitration,
            bypass,
            bypass_counts,
            crossbar,
            trigger,
            full_counts: full,
            threshold_counts: over,
            output_trigger: output,
            mark_in,
            slot_freed,
            forwarding,
            forwarding_delay,
            ack_delay,
            spacing,
            initial_rate,
            phases,
            ..Model::default()
        }
    })
}

/// Settings that only bridges have.
fn bridges() -> impl Strategy<Value = Model> {
    (
        any_of(&Marking::ALL),
        prop_oneof![1u32..8, Just(100u32)],
        any_of(&MarkAt::ALL),
        select(&["packet", "3us"]).prop_map(|text| text.parse::<Every>().expect("a time")),
        select(&["off", "packets", "3us"]).prop_map(|text| text.parse::<Round>().expect("a round")),
        nanos(&[0, 2_000, 10_000]),
        nanos(&[0, 500, 5_000]),
        nanos(&[5_000, 50_000]),
        nanos(&[0, 700, 5_000]),
    )
        .prop_map(
            |(
                marking,
                queue,
                mark_at,
                echo,
                round,
                burst,
                timer_delay,
                agent_period,
                enforcement_delay,
            )| {
                Model {
                    marking,
                    switch: SwitchKind::Output,
                    queue,
                    mark_at,
                    echo,
                    round,
                    burst,
                    timer_delay,
                    agent_period,
                    enforcement_delay,
                    ..Model::default()
                }
            },
        )
}

/// Rate and delay of a link. Half of all are equal, so that events coincide.
fn wire() -> impl Strategy<Value = (Rate, DurationText)> {
    let rate = prop_oneof![
        3 => Just(1_000_000_000u64),
        2 => select(&[125_000_000, 500_000_000, 777_777_777, 2_500_000_000]),
    ];
    let rate = rate.prop_map(|rate| Rate::from_bytes_per_s(rate).expect("a rate"));
    (rate, nanos(&[0, 0, 5, 1_000, 12_345]))
}

/// Ends, start and length in ns, size of packets.
fn flow() -> impl Strategy<Value = (Index, Index, u64, u64, u32)> {
    let bytes = prop_oneof![3 => Just(2068u32), 2 => select(&[20, 64, 1500, 4096])];
    let (start, length) = (0u64..30_000, 40_000u64..120_000);
    (any::<Index>(), any::<Index>(), start, length, bytes)
}

fn case() -> impl Strategy<Value = Case> {
    let switches = prop::collection::vec((any::<Index>(), wire()), 2..=5);
    let loops = prop_oneof![
        1 => Just(Vec::new()),
        1 => prop::collection::vec((any::<Index>(), any::<Index>(), wire()), 1..=3),
    ];
    let hosts = prop::collection::vec((any::<Index>(), wire()), 2..=9);
    let flows = prop::collection::vec(flow(), 1..=12);
    // Many to one: this causes congestion.
    let incast = any::<bool>();
    (switches, loops, hosts, flows, incast, model(), any::<u64>()).prop_map(
        |(switches, loops, hosts, flows, incast, model, seed)| {
            let s = |index: usize| format!("s{index}");
            let h = |index: usize| format!("h{index}");
            let mut links: Vec<LinkSpec> = Vec::new();
            let mut link = |from: String, to: String, (rate, delay)| {
                links.push(LinkSpec {
                    name: format!("{from}-{to}-{}", links.len()),
                    between: [from, to],
                    rate,
                    delay,
                });
            };
            for (index, (above, wire)) in switches.iter().enumerate().skip(1) {
                link(s(above.index(index)), s(index), *wire);
            }
            let mut tree = true;
            for (a, b, wire) in &loops {
                let (a, b) = (a.index(switches.len()), b.index(switches.len()));
                if a != b {
                    tree = false;
                    link(s(a), s(b), *wire);
                }
            }
            for (index, (at, wire)) in hosts.iter().enumerate() {
                link(h(index), s(at.index(switches.len())), *wire);
            }
            let last = hosts.len() - 1;
            let flows = flows.iter().map(|(from, to, start, length, bytes)| {
                let (from, to) = if incast {
                    (from.index(last), last)
                } else {
                    let from = from.index(hosts.len());
                    (from, (from + 1 + to.index(last)) % hosts.len())
                };
                FlowSpec {
                    class: format!("to {to}"),
                    from: h(from),
                    to: h(to),
                    start: DurationText::from_nanos(*start),
                    stop: Some(DurationText::from_nanos(start + length)),
                    packet_bytes: *bytes,
                    traffic: Traffic::Greedy,
                    controlled: true,
                    arrivals: None,
                }
            });
            let description = Description {
                flows: flows.collect(),
                switches: (0..switches.len()).map(s).collect(),
                hosts: (0..hosts.len()).map(h).collect(),
                links,
            };
            Case {
                description,
                model,
                seed,
                tree,
            }
        },
    )
}

/// A run with every check after every event.
fn record<Q: Queue>(
    case: &Case,
    network: &Network,
    duration: Time,
) -> Result<Record, TestCaseError> {
    let options = Options {
        seed: case.seed,
        duration,
        windows: vec![(DURATION / 4, DURATION / 2), (0, duration)],
        series_step: if duration == DURATION { STEP } else { 0 },
        check: true,
        ..Options::default()
    };
    run_with::<Q>(network, &case.model, None, &options)
        .map_err(|error| TestCaseError::fail(error.to_string()))
}

/// Sent packets are delivered or in flight.
fn conserved(record: &Record) -> Result<(), TestCaseError> {
    for flow in 0..record.sent_packets.len() {
        prop_assert_eq!(
            record.sent_packets[flow],
            record.delivered_packets[flow] + record.in_flight_packets[flow],
            "flow {}",
            flow
        );
    }
    Ok(())
}

/// No channel carries more than its rate permits, and no host more than its sources' rates, where those do not change.
fn within_rates(case: &Case, network: &Network, record: &Record) -> Result<(), TestCaseError> {
    let fixed = case.model.response == Response::Function(Function::None);
    let pace = case.model.initial_rate;
    for (index, channel) in network.channels.iter().enumerate() {
        let users = network.flows.iter().filter(|flow| {
            let hops = flow.hops.start as usize..flow.hops.end as usize;
            network.hops[hops]
                .iter()
                .any(|hop| hop.channel as usize == index)
        });
        let users: Vec<_> = users.collect();
        let largest = users.iter().map(|flow| flow.packet_bytes).max();
        let largest = u128::from(largest.unwrap_or(0));
        for (from, first) in record.series.iter().enumerate() {
            for (to, last) in record.series.iter().enumerate().skip(from + 1) {
                let time = u128::from(STEP) * (to - from) as u128;
                let bytes = u128::from(last.channel_bytes[index] - first.channel_bytes[index]);
                let most = time * u128::from(channel.rate.bytes_per_s()) / 1_000_000_000_000;
                prop_assert!(bytes <= most + largest, "{}", channel.name);
                if channel.sender.is_none() && fixed {
                    let at_pace = users.iter().map(|flow| {
                        // n starts span n - 1 delays, each rounded down to a picosecond.
                        let delay = u128::from(flow.packet_time) * u128::from(pace.denominator())
                            / u128::from(pace.numerator());
                        (time / (delay - 1) + 1) * u128::from(flow.packet_bytes)
                    });
                    let at_pace: u128 = at_pace.sum();
                    prop_assert!(bytes <= at_pace, "{}: {bytes} > {at_pace}", channel.name);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// The checks after each event are cnt1 = scan, 0 <= cnt2 <= cnt1, buffers within their size,
    /// and work conservation.
    #[test]
    fn any_network_runs_soundly(case in case()) {
        let network = Network::new(&case.description, &case.model).expect("a network");
        let first = record::<Calendar>(&case, &network, DURATION)?;
        conserved(&first)?;
        within_rates(&case, &network, &first)?;
        let again = record::<Calendar>(&case, &network, DURATION)?;
        prop_assert_eq!(format!("{first:?}"), format!("{again:?}"));
        prop_assert_eq!(&first, &record::<Heap>(&case, &network, DURATION)?);
        // In a loop, lossless switches can wait for each other's credits; in a tree never: when all sources have
        // stopped, everything sent arrives.
        if case.tree {
            let drained = record::<Calendar>(&case, &network, 1_000_000 * US)?;
            conserved(&drained)?;
            prop_assert_eq!(drained.in_flight_packets.iter().sum::<u64>(), 0);
            prop_assert!(drained.delivered_packets.iter().all(|&packets| packets > 0));
        }
    }

    /// The checks after each event are cnt1 and occupancy = scan, queues within their limit, and that the marking had
    /// nothing to repair.
    #[test]
    fn any_network_of_bridges_runs_soundly(case in case(), bridges in bridges()) {
        let Model { marking, threshold, buffer, ref response, rmin, m, .. } = case.model;
        let model = Model { marking, threshold, buffer, response: response.clone(), rmin, m, ..bridges };
        let case = Case { model, ..case };
        let network = Network::new(&case.description, &case.model).expect("a network");
        let first = record::<Calendar>(&case, &network, DURATION)?;
        let again = record::<Calendar>(&case, &network, DURATION)?;
        prop_assert_eq!(&first, &again);
        // When all sources have stopped, everything that was not dropped arrives, loop or not.
        let drained = record::<Calendar>(&case, &network, 10_000 * US)?;
        prop_assert_eq!(drained.in_flight_packets.iter().sum::<u64>(), 0);
        let dropped = &drained.windows[1].counts.dropped;
        prop_assert_eq!(drained.dropped_packets(), dropped.iter().sum::<u64>());
        for (record, end) in [(&first, DURATION), (&drained, 10_000 * US)] {
            // Each flow may exceed its rate by its device's last packet; an idle port may send a burst.
            for (index, channel) in network.channels.iter().enumerate() {
                let window = &record.windows[0];
                let time = u128::from(window.to - window.from + 1_000 * case.model.burst.as_nanos());
                let most = time * u128::from(channel.rate.bytes_per_s()) / 1_000_000_000_000;
                let bytes = u128::from(window.counts.channel_bytes[index]);
                prop_assert!(bytes <= most + 2 * 4096, "{}: {bytes} > {most}", channel.name);
            }
            prop_assert!(record.control_latencies.iter().all(|(at, latency)| latency <= at && *at <= end));
        }
    }

    #[test]
    fn events_come_by_time_then_in_the_order_of_scheduling(
        steps in prop::collection::vec((delay(), kind(), 0u8..3), 1..300)
    ) {
        in_order::<Heap>(&steps)?;
        in_order::<Calendar>(&steps)?;
        in_order::<Calendar<11>>(&steps)?;
    }

    /// Events for any line, or none, and many at a time.
    #[test]
    fn lanes_keep_time_then_rank_then_the_order_of_scheduling(
        steps in prop::collection::vec(
            (
                prop_oneof![4 => Just(Some(1_000_000)), 1 => delay()],
                0usize..4,
                prop::option::of(0u64..40),
                prop_oneof![6 => Just(0u8), 1 => 0u8..12],
            ),
            1..400,
        )
    ) {
        let mut lanes = Lanes::<Calendar, 3>::default();
        let mut expected: Vec<(Time, u64, u32)> = Vec::new();
        for (number, (delay, line, rank, takes)) in (0..).zip(steps) {
            let now = lanes.now();
            let time = delay.map_or(now / 2, |delay| now + delay);
            // Those of this time have been returned.
            match rank.filter(|_| time > now) {
                Some(rank) => {
                    lanes.at_rank(line, time, rank, number);
                    expected.push((time, rank, number));
                }
                None => {
                    lanes.at(line, time, number);
                    expected.push((time.max(now), u64::MAX, number));
                }
            }
            expected.sort_unstable();
            for _ in 0..takes {
                let next = expected.first().map(|(time, ..)| *time);
                prop_assert_eq!(lanes.next_time(), next.unwrap_or(Time::MAX));
                prop_assert_eq!(lanes.pop(lanes.next_time()), None);
                let event = lanes.pop(Time::MAX);
                prop_assert_eq!(event.is_some(), next.is_some());
                if let Some((_, event)) = event {
                    let (time, _, number) = expected.remove(0);
                    prop_assert_eq!((lanes.now(), event as u32 & ((1 << WORD) - 1)), (time, number));
                }
            }
        }
    }
}

/// Kinds of events, of which those of switches need no sorting as long as they are scheduled in order.
fn kind() -> impl Strategy<Value = Kind> {
    select(vec![
        Event::Arrive as Kind,
        Event::Tail,
        Event::Source,
        Event::Instant,
    ])
}

/// Delays around the lengths of a calendar's days and years; a common one, as of a link; `None` for a time in the past.
fn delay() -> impl Strategy<Value = Option<Time>> {
    let (day, year) = (1u64 << 15, 1u64 << 27);
    prop_oneof![
        Just(Some(0)),
        Just(Some(63 * day)),
        (0..4 * day).prop_map(Some),
        (0..2 * year).prop_map(Some),
        (year - day..year + day).prop_map(Some),
        (0..1_000 * year).prop_map(Some),
        Just(None),
    ]
}

/// A kind of event.
type Kind = fn(u32) -> Event;

/// Expected: time, number, event.
type Expected = Vec<(Time, u32, Event)>;

/// Schedules one event per step, then takes some out.
fn in_order<Q: Queue>(steps: &[(Option<Time>, Kind, u8)]) -> Result<(), TestCaseError> {
    let mut scheduler = Scheduler::<Q>::default();
    let mut expected = Expected::new();
    for (number, &(delay, kind, takes)) in steps.iter().enumerate() {
        let (number, now) = (number as u32, scheduler.now());
        let time = delay.map_or(now / 2, |delay| now + delay);
        scheduler.at(time, kind(number));
        expected.push((time.max(now), number, kind(number)));
        for _ in 0..takes {
            take(&mut scheduler, &mut expected)?;
        }
    }
    while !expected.is_empty() {
        take(&mut scheduler, &mut expected)?;
    }
    prop_assert_eq!(scheduler.pop(), None);
    Ok(())
}

fn take<Q: Queue>(
    scheduler: &mut Scheduler<Q>,
    expected: &mut Expected,
) -> Result<(), TestCaseError> {
    let order = |&(time, number, _): &(Time, u32, Event)| (time, number);
    let next = expected.iter().copied().min_by_key(order);
    expected.retain(|event| Some(*event) != next);
    prop_assert_eq!(scheduler.pop(), next.map(|(_, _, event)| event));
    if let Some((time, ..)) = next {
        prop_assert_eq!(scheduler.now(), time);
    }
    Ok(())
}
