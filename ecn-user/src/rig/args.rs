//! Converts the arguments of `ecn rig` to a plan and a configuration.

pub use ecn_sim_cli::rig::args::{HostArgs, Offload, Phases, RigArgs, Traffic};

use crate::config::{Bcn, Bridge, Config, ConfigError, Echo, Qcn, Response};
use crate::rig::run::Plan;
use crate::rig::topology::Topology;
use crate::rig::traffic::Kind;

impl From<&HostArgs> for Topology {
    fn from(args: &HostArgs) -> Self {
        Self {
            local: args.local,
            remote: args.remote,
            victim: !args.no_victim,
            offload: args.offload == Offload::On,
            link_rate_bytes_per_s: args.link_rate.bytes_per_s(),
            ..Self::default()
        }
    }
}

/// The rig's kind of traffic; `None`: traffic is generated elsewhere.
const fn kind(traffic: Traffic) -> Option<Kind> {
    match traffic {
        Traffic::Udp => Some(Kind::Udp),
        Traffic::Tcp => Some(Kind::Tcp),
        Traffic::Iperf3 => Some(Kind::Iperf3Udp),
        Traffic::Iperf3Tcp => Some(Kind::Iperf3Tcp),
        Traffic::Mixed => Some(Kind::Mixed),
        Traffic::Iperf3Mixed => Some(Kind::Iperf3Mixed),
        Traffic::None => None,
    }
}

impl From<&RigArgs> for Plan {
    fn from(args: &RigArgs) -> Self {
        Self {
            topology: (&args.hosts).into(),
            phases: args.phases(),
            traffic: kind(args.traffic),
            congestion_control: args.congestion_control.clone(),
            ipv6: args.ipv6,
            warm_up_s: args.warm_up,
            seconds: args.seconds,
            buffer: args.buffer,
            threshold: args.threshold,
            mark_at: args.mark_at,
            feedback: args.feedback,
            rmin: args.rmin,
            m: args.m,
            round: args.round,
            every: args.echo,
            notifications: (args.bcn.clone(), args.qcn.clone()),
        }
    }
}

/// Checks options by the rules of the configuration file.
///
/// # Errors
///
/// A value is out of range, or options exclude each other; all problems are listed.
pub fn check(args: &RigArgs) -> Result<(), ConfigError> {
    let config = Config {
        bridges: vec![Bridge {
            buffer: args.buffer,
            threshold: args.threshold,
            mark_at: args.mark_at,
            feedback: args.feedback,
            ..Bridge::new("brb")
        }],
        response: Response {
            function: args.response,
            rmin: args.rmin,
            m: args.m,
            round: args.round,
        },
        echo: Echo {
            every: args.echo,
            ..Echo::default()
        },
        bcn: Bcn(args.bcn.clone()),
        qcn: Qcn(args.qcn.clone()),
        ..Config::default()
    };
    config.validate()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::config::{Function, Marking};
    use clap::Parser;
    use ecn_sim_cli::rig::PhasePlan;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: RigArgs,
    }

    fn parse(words: &str) -> Result<RigArgs, clap::Error> {
        Command::try_parse_from(std::iter::once("rig").chain(words.split_whitespace()))
            .map(|command| command.args)
    }

    #[test]
    fn defaults_are_those_of_rig_and_configuration() {
        let args = parse("").unwrap();
        assert_eq!(Topology::from(&args.hosts), Topology::default());
        let (plan, response, bridge) = (Plan::from(&args), Response::default(), Bridge::new("b"));
        assert_eq!(
            (plan.rmin, plan.m, plan.round),
            (response.rmin, response.m, response.round)
        );
        assert_eq!(
            (plan.buffer, plan.threshold),
            (bridge.buffer, bridge.threshold)
        );
        assert_eq!(
            plan.phases,
            PhasePlan::two_phases(bridge.marking, response.function)
        );
        check(&args).unwrap();
    }

    #[test]
    fn options_are_read() {
        let args = parse(
            "--local 2 --remote 3 --no-victim --link-rate 1gbit --marking naive --mark-at departure \
             --response fimd --rmin 1/256 --m 4 --round 2ms --echo 5ms --traffic iperf3-tcp \
             --congestion-control bbr --offload on --phases controlled --seconds 3 --warm-up 0 -j",
        )
        .unwrap();
        assert_eq!(
            Topology::from(&args.hosts).link_rate_bytes_per_s,
            125_000_000
        );
        assert!(!Topology::from(&args.hosts).victim && args.json);
        assert!(Topology::from(&args.hosts).offload);
        assert_eq!(Plan::from(&args).congestion_control, "bbr");
        assert_eq!(
            (args.marking, args.response),
            (Marking::Naive, Function::Fimd)
        );
        assert_eq!(
            (args.traffic, args.phases),
            (Traffic::Iperf3Tcp, Phases::Controlled)
        );
        assert_eq!(args.round.to_string(), "2ms");
    }

    #[test]
    fn parameters_reach_the_rig_and_its_twin() {
        let args = parse("--marking bcn --bcn w=1,gd=1/256 --qcn stages=4").unwrap();
        let twin = ecn_sim_cli::rig::scenario(&args).unwrap().model;
        let (bcn, qcn) = Plan::from(&args).notifications;
        assert_eq!((&twin.bcn, &twin.qcn), (&bcn, &qcn));
        assert_eq!((bcn.w, bcn.gd.to_string()), (1, "1/256".to_owned()));
        assert_eq!((bcn.pm, qcn.stages), (Bcn::default().0.pm, 4));
    }

    #[test]
    fn phases_are_as_asked() {
        let names = |words: &str| {
            let phases = parse(words).unwrap().phases();
            phases
                .into_iter()
                .map(|phase| phase.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(""), ["uncontrolled", "controlled"]);
        assert_eq!(names("--phases controlled"), ["controlled"]);
        assert_eq!(names("--compare").len(), 10);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for words in [
            "--rmin 1/70000",
            "--m 1",
            "--buffer 0",
            "--threshold 70000",
            "--bcn pm=2/1",
        ] {
            assert!(check(&parse(words).unwrap()).is_err(), "{words}");
        }
        for words in [
            "--local 300",
            "--seconds 0",
            "--traffic x",
            "--round soon",
            "--compare --marking none",
            "--bcn weight=1",
            "--bcn w=x",
            "--qcn stages",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
