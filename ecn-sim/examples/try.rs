fn main() {
    let mut s = ecn_sim::scenario::Scenario::hp();
    for a in std::env::args().skip(1) {
        s.set_text(&a).expect("set");
    }
    for seed in 1..=2 {
        let run = ecn_sim::report::run(&s, seed, &[], 0).expect("run");
        let r = run.report(&s, seed);
        for w in &r.windows {
            if let ecn_sim::report::WindowReport::Hp(w) = w {
                println!(
                    "{:3.0}..{:3.0} root {:.3} is {:.3} local {:.3} remote {:.3} victim {:.3} r/l {:.3} jl {:.3} jr {:.3}",
                    w.from_ms,
                    w.to_ms,
                    w.root,
                    w.inter_switch,
                    w.local,
                    w.remote,
                    w.victim,
                    w.remote_local_ratio.unwrap_or(0.0),
                    w.jain_local,
                    w.jain_remote
                );
            }
        }
        println!(
            "marked {:?} in {} out {} hops {} events {} {:.1} Mhops/s",
            r.marked_packets,
            r.input_triggers,
            r.output_triggers,
            r.packet_hops,
            r.events,
            r.packet_hops as f64 / r.wall_s / 1e6
        );
    }
}
