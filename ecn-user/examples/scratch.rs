use ecn_user::rig::{run::*, topology::Topology, traffic};
use ecn_user::config::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(|s| s.as_str()) == Some("traffic") { traffic::main_traffic().unwrap(); return; }
    let get = |k: &str, d: &str| args.iter().position(|a| a == k).and_then(|i| args.get(i+1).cloned()).unwrap_or(d.to_string());
    tracing_subscriber::fmt().with_env_filter(std::env::var("ECN_LOG").unwrap_or("warn".into())).with_writer(std::io::stderr).init();
    let rt = tokio::runtime::Runtime::new().unwrap();
    let _g = rt.enter();
    let marking: Marking = get("--marking","input-output").parse().unwrap();
    let response: Function = get("--response","lipd").parse().unwrap();
    let mut phases = Plan::two_phases(marking, response);
    if get("--phases","both") == "controlled" { phases.remove(0); }
    if args.iter().any(|a| a=="--compare") { phases = Plan::compare(); }
    let rate: ecn_user::units::Rate = get("--link-rate","100mbit").parse().unwrap();
    let plan = Plan {
        topology: Topology { victim: !args.iter().any(|a| a=="--no-victim"), link_rate_bytes_per_s: rate.bytes_per_s(), ..Topology::default() },
        phases, traffic: Some(get("--traffic","udp").parse().unwrap()), ipv6: args.iter().any(|a| a=="--ipv6"),
        warm_up_s: get("--warm-up","4").parse().unwrap(), seconds: get("--seconds","10").parse().unwrap(),
        buffer: get("--buffer","4").parse().unwrap(), threshold: get("--threshold","8").parse().unwrap(),
        mark_at: get("--mark-at","arrival").parse().unwrap(), rmin: get("--rmin","1/64").parse().unwrap(), m: 2.0,
        round: get("--round","packets").parse().unwrap(), every: get("--echo","packet").parse().unwrap(),
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let t = std::time::Instant::now();
    let verbose = args.iter().any(|a| a=="-v");
    let report = run(&plan, &stop, |p| match p { Progress::Begin{phase,..} => eprintln!("{:.1} {}", t.elapsed().as_secs_f64(), phase.name),
        Progress::Sample{sample,..} if args.iter().any(|a| a=="--dump") && sample.t_s > 2.9 && sample.t_s < 3.0 => {
            let maps = ecn_user::datapath::Maps::open(std::path::Path::new("/sys/fs/bpf/ecn")).unwrap();
            if args.iter().any(|a| a=="--flows") { for (k,f) in maps.flows().unwrap() { eprintln!("{} ipd {:.2} sent {} acked {} marked {} ignored {} decr {} rp {} least {} {} off {}", ecn_user::cli::table::address(&k.src), f.response.ipd as f64 / ecn_core::fixed::ONE as f64, f.sent_packets, f.acked_packets, f.marked_packets, f.ignored_marks, f.decreases, f.response.round_packets, f.echo.least, f.echo.least_before, f.echo.offset); } }
            let rig = ecn_user::rig::topology::Rig::find("ecn-rig").unwrap().unwrap();
            for (n, c) in rig.port_counters().unwrap() { eprintln!("{n} {c:?}"); }
            for c in ecn_core::abi::Count::ALL { eprint!("{c:?} {} ", maps.count(c).unwrap()); }
            for b in 0..2 { let v = maps.bridge(b).unwrap(); for s in 0..14 { let p = v.port(s); if p.arrived > 0 { eprintln!("b{b} {s} arr {} dep {} drop {} cnt1 {} occ {} rep {} marked {}", p.arrived, p.departed, p.dropped, p.cnt1, p.occupancy, p.repaired, p.marked); } } }
        }
        Progress::Sample{sample,..} if verbose => eprintln!("{:.1} root {:.2} is {:.2} l {:.2} r {:.2} v {:.2} q {}", sample.t_s, sample.root, sample.inter_switch, sample.local, sample.remote, sample.victim, sample.root_queue_packets),
        _=>{} }).unwrap_or_else(|e| { eprintln!("{e}"); std::process::exit(1) });
    for p in &report.phases { println!("{:22} root {:.3} is {:.3} l {:.3} r {:.3} v {:.3} r/l {:.3} jain {:.4} {:.4} sent {} drop {} marked {} ({:.3}) q {:.1}/{} lat {}/{} cpu {:.3}", p.name, p.root, p.inter_switch, p.local, p.remote, p.victim, p.remote_local_ratio, p.jain_local, p.jain_remote, p.sent_packets, p.dropped_packets, p.marked_packets, p.marked_packets as f64/p.sent_packets as f64, p.root_queue_mean_packets, p.root_queue_max_packets, p.control_latency_us_p50, p.control_latency_us_p99, p.cpu_share); }
}
