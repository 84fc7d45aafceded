//! The phases as a table.

use ecn_report::number::{short_count, thousands};
use ecn_report::terminal::{plain_table, table_text};

use super::{Phase, Report};

/// Unit of shares.
const LINK: &str = "% of link";

impl Report {
    /// The phases side by side; a phase per row if there are more than four.
    pub fn table(&self) -> String {
        if self.phases.len() > 4 {
            self.table_of_many()
        } else {
            self.table_side_by_side()
        }
    }

    fn table_side_by_side(&self) -> String {
        let mut header = vec!["", ""];
        header.extend(self.phases.iter().map(|phase| phase.name.as_str()));
        let mut table = plain_table(&header, &[0, 1]);
        let mut row = |name: &str, unit: &str, value: &dyn Fn(&Phase) -> String| {
            let mut cells = vec![name.to_owned(), unit.to_owned()];
            cells.extend(self.phases.iter().map(value));
            table.add_row(cells);
        };
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        let victim = self.parameters.victim;
        let has_tcp = self.parameters.congestion_control.is_some();
        row("marking", "", &|p| p.marking.to_string());
        row("response", "", &|p| p.response.to_string());
        row("measured", "s", &|p| p.seconds.to_string());
        row("root link", LINK, &|p| percent(p.root));
        row("inter-switch link", LINK, &|p| percent(p.inter_switch));
        row("local flows", LINK, &|p| percent(p.local));
        row("remote flows", LINK, &|p| percent(p.remote));
        row("victim", LINK, &|p| match victim {
            true => percent(p.victim),
            false => dash(),
        });
        row("remote / local", "ratio", &|p| {
            fixed(p.remote_local_ratio, 2)
        });
        row("fairness, local", "Jain", &|p| fixed(p.jain_local, 3));
        row("fairness, remote", "Jain", &|p| fixed(p.jain_remote, 3));
        row("sent", "packets", &|p| thousands(p.sent_packets));
        row("dropped", "packets", &|p| thousands(p.dropped_packets));
        row("marked", "packets", &|p| thousands(p.marked_packets));
        if self.phases.iter().any(|p| p.messages.unwrap_or(0) > 0) {
            row("messages of ports", "packets", &|p| count(p.messages));
        }
        let mean = |p: &Phase| format!("{:.1}", p.root_queue_mean_packets);
        row("root queue, mean", "packets", &mean);
        let most = |p: &Phase| thousands(p.root_queue_max_packets);
        row("root queue, most", "packets", &most);
        if victim {
            row("victim ping, 50 %", "us", &|p| count(p.victim_ping_us_p50));
            row("victim ping, 99 %", "us", &|p| count(p.victim_ping_us_p99));
        }
        if victim && has_tcp {
            row("victim TCP, 50 %", "us", &|p| {
                count(p.victim_tcp_rtt_us_p50)
            });
            row("victim TCP, 99 %", "us", &|p| {
                count(p.victim_tcp_rtt_us_p99)
            });
        }
        if has_tcp {
            let again = |p: &Phase| count(p.tcp_retransmitted_segments);
            row("TCP, sent again", "packets", &again);
            row("TCP, resets", "", &|p| count(p.tcp_resets));
            row("TCP, bad checksum", "packets", &|p| {
                count(p.checksum_errors)
            });
        }
        row("mark to rate, 50 %", "us", &|p| {
            count(p.control_latency_us_p50)
        });
        row("mark to rate, 99 %", "us", &|p| {
            count(p.control_latency_us_p99)
        });
        let agent = |p: &Phase| p.cpu_share.map_or_else(dash, percent);
        row("agent", "% of core", &agent);
        table_text(&table)
    }

    fn table_of_many(&self) -> String {
        let header = [
            "marking",
            "response",
            "root",
            "inter\nswitch",
            "local",
            "remote",
            "victim",
            "rem/\nloc.",
            "queue\nmean",
            "drops",
        ];
        let mut table = plain_table(&header, &[0, 1]);
        for phase in &self.phases {
            let share = |share: f64| format!("{share:.3}");
            let victim = Some(phase.victim).filter(|_| self.parameters.victim);
            table.add_row([
                phase.marking.to_string(),
                phase.response.to_string(),
                share(phase.root),
                share(phase.inter_switch),
                share(phase.local),
                share(phase.remote),
                fixed(victim, 3),
                fixed(phase.remote_local_ratio, 2),
                format!("{:.1}", phase.root_queue_mean_packets),
                short_count(phase.dropped_packets),
            ]);
        }
        table_text(&table)
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn fixed(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(dash, |number| format!("{number:.decimals$}"))
}

fn count(number: Option<u64>) -> String {
    number.map_or_else(dash, thousands)
}
