//! How fast the HP scenario runs: packet-hops (a data packet crossing a link) and events per second,
//! with each queue; and data centres, with each number of threads.
//!
//! To hold a change against what was before, on one quiet machine: `cargo bench -p ecn-sim --bench hops -- --save-baseline
//! before`, then `--baseline before`. In November 2026 a virtual machine of two processors gave, in millions of packet-hops
//! per second (medians, +- 10 %; data centres before -> after routes in blocks, fetching ahead, and lines between parts, on
//! one quiet day):
//!
//! | | one thread | two |
//! |---|---|---|
//! | Fig. 1, uncontrolled; input-output, LIPD (calendar) | 16.7; 13.5 | - |
//! | incast, 20 to 1 of 128 hosts | 12.4 -> 13.3 | - |
//! | permutation, 1,024 hosts | 4.6 -> 4.8 | 7.8 -> 9.7 |
//! | permutation, 8,192 hosts | 3.0 -> 6.5 | 2.2 -> 9.9 |
//! | permutation, 65,536 hosts | 1.2 | 3.7 |
//!
//! Huge pages for packets and ports, later, made permutations of 1,024 hosts 1.2 times as fast (best of nine runs each,
//! alternating, in one hour), and left the incast, whose packets stay in the caches, as it was. What else was tried:
//! link-time optimization with one unit of code changed nothing, and fetching the output port ahead of a packet cost
//! more than it saved with 1,024 hosts (the route is computed twice).

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ecn_sim::engine::{Calendar, Heap, Queue};
use ecn_sim::fabric::{self, parts};
use ecn_sim::measure::Record;
use ecn_sim::network::Network;
use ecn_sim::scenario::Scenario;
use ecn_sim::simulation::{Options, run_with};

/// Fig. 1 over 100 ms, without control and with the papers' most demanding one.
const MODELS: [(&str, [&str; 2]); 2] = [
    ("none", ["marking=none", "response=none"]),
    (
        "input-output-lipd",
        ["marking=input-output", "response=lipd"],
    ),
];

struct Hp {
    scenario: Scenario,
    network: Network,
    options: Options,
}

impl Hp {
    fn new(settings: [&str; 2]) -> Self {
        let mut scenario = Scenario::hp();
        for setting in settings {
            scenario.set_text(setting).expect("a setting");
        }
        Self {
            network: scenario.network().expect("a network"),
            options: Options {
                seed: 1,
                duration: scenario.duration(),
                ..Options::default()
            },
            scenario,
        }
    }

    fn run<Q: Queue>(&self) -> Record {
        run_with::<Q>(&self.network, &self.scenario.model, None, &self.options).expect("a run")
    }
}

fn bench(criterion: &mut Criterion) {
    for (unit, count) in [
        ("hops", (|record| record.packet_hops) as fn(&Record) -> u64),
        ("events", |record| record.events),
    ] {
        let mut group = criterion.benchmark_group(unit);
        for (name, settings) in MODELS {
            let hp = Hp::new(settings);
            group.throughput(Throughput::Elements(count(&hp.run::<Calendar>())));
            group.bench_function(format!("{name}-heap"), |b| {
                b.iter(|| black_box(hp.run::<Heap>()));
            });
            group.bench_function(format!("{name}-calendar"), |b| {
                b.iter(|| black_box(hp.run::<Calendar>()));
            });
        }
        group.finish();
    }
}

/// Fat trees: 20 MB from each of 20 hosts to one of 128, and permutations of 625 kB from each of 1,024 hosts, or of 10
/// packets from each of 8,192 and 65,536.
const FABRICS: [(&str, &[&str], &[u16]); 4] = [
    ("incast", &["senders=20", "flow_size=20MB"], &[1]),
    (
        "permutation",
        &["hosts=1024", "workload=permutation", "flow_size=625kB"],
        &[1, 2, 4],
    ),
    (
        "permutation-8192",
        &["hosts=8192", "workload=permutation", "flow_size=10kB"],
        &[1, 2],
    ),
    (
        "permutation-65536",
        &["hosts=65536", "workload=permutation", "flow_size=10kB"],
        &[1, 2],
    ),
];

fn data_centres(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("data-hops");
    group.sample_size(10);
    for (name, settings, threads) in FABRICS {
        let mut scenario = fabric::Scenario::find("fat-tree").expect("built in");
        for setting in settings {
            scenario.set_text(setting).expect("a setting");
        }
        let topology = scenario.topology().expect("a topology");
        for &threads in threads {
            let options = fabric::Options {
                threads,
                ..fabric::Options::default()
            };
            let run = || parts::run(&scenario, &topology, 1, &options).expect("a run");
            group.throughput(Throughput::Elements(run().data_packet_hops));
            group.bench_function(format!("{name}-{threads}"), |b| b.iter(|| black_box(run())));
        }
    }
    group.finish();
}

fn config() -> Criterion {
    let seconds = std::time::Duration::from_secs;
    Criterion::default()
        .sample_size(20)
        .warm_up_time(seconds(1))
        .measurement_time(seconds(3))
        .without_plots()
}

criterion_group! { name = hops; config = config(); targets = bench, data_centres }
criterion_main!(hops);
