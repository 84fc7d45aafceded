//! What `ecn rig` is asked for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::config::{
    Bridge, Config, ConfigError, Echo, Every, Function, MarkAt, Marking, Response, Round,
};
use crate::rig::run::Plan;
use crate::rig::topology::Topology;
use crate::rig::traffic::Kind;
use crate::units::{Fraction, Rate};

/// Which rig.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub struct HostArgs {
    /// Local flows: their sources are at the congested switch
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub local: u32,
    /// Remote flows: over the inter-switch link to the same sink
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub remote: u32,
    /// Without the victim: a flow over the inter-switch link to a sink of its own
    #[arg(long)]
    pub no_victim: bool,
    /// Rate of all links
    #[arg(long, value_name = "RATE", default_value = "100mbit")]
    pub link_rate: Rate,
}

impl HostArgs {
    /// The rig to make.
    pub fn topology(&self) -> Topology {
        Topology {
            local: self.local,
            remote: self.remote,
            victim: !self.no_victim,
            link_rate_bytes_per_s: self.link_rate.bytes_per_s(),
            ..Topology::default()
        }
    }
}

/// What traffic the sources send.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Traffic {
    /// Greedy UDP of our own
    #[default]
    Udp,
    /// Greedy TCP of our own
    Tcp,
    /// UDP of iperf3
    #[value(name = "iperf3")]
    Iperf3,
    /// TCP of iperf3
    #[value(name = "iperf3-tcp")]
    Iperf3Tcp,
    /// None: somebody else sends
    None,
}

impl Traffic {
    /// What the rig's traffic calls it.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Self::Udp => Some(Kind::Udp),
            Self::Tcp => Some(Kind::Tcp),
            Self::Iperf3 => Some(Kind::Iperf3Udp),
            Self::Iperf3Tcp => Some(Kind::Iperf3Tcp),
            Self::None => None,
        }
    }
}

/// Which phases to run.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phases {
    /// Only the controlled one
    Controlled,
    /// Without control first, then with it
    #[default]
    Both,
}

/// `ecn rig run`.
#[derive(Args, Debug, Clone, PartialEq)]
pub struct RigArgs {
    /// Which rig.
    #[command(flatten)]
    pub hosts: HostArgs,
    /// Which packets the bridges mark: none, naive, input, input-output
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub marking: Marking,
    /// Where they mark: arrival, departure
    #[arg(long, value_name = "PLACE", default_value_t)]
    pub mark_at: MarkAt,
    /// How flows answer to marks: none, lipd, fimd, aimd
    #[arg(long, value_name = "FUNCTION", default_value_t)]
    pub response: Function,
    /// Lowest rate of a flow, as a fraction of the link rate
    #[arg(long, value_name = "FRACTION", default_value = "1/64")]
    pub rmin: Fraction,
    /// Factor of the multiplicative decrease of fimd and aimd
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub m: f64,
    /// Within what a flow decreases its rate at most once: packets, off, or a time such as 2ms
    #[arg(long, value_name = "ROUND", default_value_t)]
    pub round: Round,
    /// How often receivers send an echo: packet, or a time such as 5ms
    #[arg(long, value_name = "EVERY", default_value_t)]
    pub echo: Every,
    /// Packets per input buffer
    #[arg(long, value_name = "PACKETS", default_value_t = 4)]
    pub buffer: u32,
    /// Packets waiting for one output, above which they are marked
    #[arg(long, value_name = "PACKETS", default_value_t = 8)]
    pub threshold: u32,
    /// Length of the measurement of each phase
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Time before it, in each phase
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub warm_up: u64,
    /// What the sources send
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub traffic: Traffic,
    /// IPv6 instead of IPv4
    #[arg(long)]
    pub ipv6: bool,
    /// Which phases to run
    #[arg(long, value_enum, value_name = "PHASES", default_value_t)]
    pub phases: Phases,
    /// Run every marking with every response, one after the other
    #[arg(long, conflicts_with_all = ["marking", "response", "phases"])]
    pub compare: bool,
    /// Directory for figures, samples and the report
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub out: PathBuf,
    /// Print one JSON document and nothing else
    #[arg(long, short = 'j')]
    pub json: bool,
}

impl RigArgs {
    /// What to run.
    pub fn plan(&self) -> Plan {
        let mut phases = if self.compare {
            Plan::compare()
        } else {
            Plan::two_phases(self.marking, self.response)
        };
        if self.phases == Phases::Controlled {
            phases.remove(0);
        }
        Plan {
            topology: self.hosts.topology(),
            phases,
            traffic: self.traffic.kind(),
            ipv6: self.ipv6,
            warm_up_s: self.warm_up,
            seconds: self.seconds,
            buffer: self.buffer,
            threshold: self.threshold,
            mark_at: self.mark_at,
            rmin: self.rmin,
            m: self.m,
            round: self.round,
            every: self.echo,
        }
    }

    /// Checks what no single option shows, by the rules of the configuration file.
    ///
    /// # Errors
    ///
    /// With everything that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let config = Config {
            bridges: vec![Bridge {
                buffer: self.buffer,
                threshold: self.threshold,
                ..Bridge::new("brb")
            }],
            response: Response {
                function: self.response,
                rmin: self.rmin,
                m: self.m,
                round: self.round,
            },
            echo: Echo {
                every: self.echo,
                ..Echo::default()
            },
            ..Config::default()
        };
        config.validate()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use clap::Parser;

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
        assert_eq!(args.hosts.topology(), Topology::default());
        let (plan, response, bridge) = (args.plan(), Response::default(), Bridge::new("b"));
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
            Plan::two_phases(bridge.marking, response.function)
        );
        args.check().unwrap();
    }

    #[test]
    fn options_are_read() {
        let args = parse(
            "--local 2 --remote 3 --no-victim --link-rate 1gbit --marking naive --mark-at departure \
             --response fimd --rmin 1/256 --m 4 --round 2ms --echo 5ms --traffic iperf3-tcp \
             --phases controlled --seconds 3 --warm-up 0 -j",
        )
        .unwrap();
        assert_eq!(args.hosts.topology().link_rate_bytes_per_s, 125_000_000);
        assert!(!args.hosts.topology().victim && args.json);
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
    fn phases_are_as_asked() {
        let names = |words: &str| {
            let phases = parse(words).unwrap().plan().phases;
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
        for words in ["--rmin 1/70000", "--m 1", "--buffer 0", "--threshold 70000"] {
            assert!(parse(words).unwrap().check().is_err(), "{words}");
        }
        for words in [
            "--local 300",
            "--seconds 0",
            "--traffic x",
            "--round soon",
            "--compare --marking none",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
