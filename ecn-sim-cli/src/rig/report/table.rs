//! The phases as a table.

use ecn_report::number::{short_count, thousands};
use ecn_report::terminal::{plain_table, table_text};

use super::{Phase, Report};

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
        /// Name, unit, and value of a phase.
        type Row<'a> = (&'a str, &'a str, &'a dyn Fn(&Phase) -> String);
        let none = || "-".to_owned();
        let percent: fn(f64) -> String = |share| format!("{:.1}", share * 100.0);
        let victim = self.parameters.victim;
        let has_tcp = self.parameters.congestion_control.is_some();
        // Rows that do not apply to this traffic are omitted.
        let shown = |name: &str| match name {
            "TCP, sent again" | "TCP, resets" | "TCP, bad checksum" => has_tcp,
            "victim TCP, 50 %" | "victim TCP, 99 %" => victim && has_tcp,
            "victim ping, 50 %" | "victim ping, 99 %" => victim,
            "messages of ports" => self.phases.iter().any(|p| p.messages.unwrap_or(0) > 0),
            _ => true,
        };
        let rows: [Row<'_>; 27] = [
            ("marking", "", &|p| p.marking.to_string()),
            ("response", "", &|p| p.response.to_string()),
            ("measured", "s", &|p| p.seconds.to_string()),
            ("root link", "% of link", &|p| percent(p.root)),
            ("inter-switch link", "% of link", &|p| {
                percent(p.inter_switch)
            }),
            ("local flows", "% of link", &|p| percent(p.local)),
            ("remote flows", "% of link", &|p| percent(p.remote)),
            ("victim", "% of link", &|p| {
                if victim { percent(p.victim) } else { none() }
            }),
            ("remote / local", "ratio", &|p| {
                fixed(p.remote_local_ratio, 2)
            }),
            ("fairness, local", "Jain", &|p| fixed(p.jain_local, 3)),
            ("fairness, remote", "Jain", &|p| fixed(p.jain_remote, 3)),
            ("sent", "packets", &|p| thousands(p.sent_packets)),
            ("dropped", "packets", &|p| thousands(p.dropped_packets)),
            ("marked", "packets", &|p| thousands(p.marked_packets)),
            ("messages of ports", "packets", &|p| or_dash(p.messages)),
            ("root queue, mean", "packets", &|p| {
                format!("{:.1}", p.root_queue_mean_packets)
            }),
            ("root queue, most", "packets", &|p| {
                thousands(p.root_queue_max_packets)
            }),
            ("victim ping, 50 %", "us", &|p| {
                or_dash(p.victim_ping_us_p50)
            }),
            ("victim ping, 99 %", "us", &|p| {
                or_dash(p.victim_ping_us_p99)
            }),
            ("victim TCP, 50 %", "us", &|p| {
                or_dash(p.victim_tcp_rtt_us_p50)
            }),
            ("victim TCP, 99 %", "us", &|p| {
                or_dash(p.victim_tcp_rtt_us_p99)
            }),
            ("TCP, sent again", "packets", &|p| {
                or_dash(p.tcp_retransmitted_segments)
            }),
            ("TCP, resets", "", &|p| or_dash(p.tcp_resets)),
            ("TCP, bad checksum", "packets", &|p| {
                or_dash(p.checksum_errors)
            }),
            ("mark to rate, 50 %", "us", &|p| {
                or_dash(p.control_latency_us_p50)
            }),
            ("mark to rate, 99 %", "us", &|p| {
                or_dash(p.control_latency_us_p99)
            }),
            ("agent", "% of core", &|p| {
                p.cpu_share.map_or_else(none, percent)
            }),
        ];
        let mut header = vec!["", ""];
        header.extend(self.phases.iter().map(|phase| phase.name.as_str()));
        let mut table = plain_table(&header, &[0, 1]);
        for (name, unit, value) in rows.into_iter().filter(|(name, ..)| shown(name)) {
            let mut cells = vec![name.to_owned(), unit.to_owned()];
            cells.extend(self.phases.iter().map(value));
            table.add_row(cells);
        }
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
            table.add_row([
                phase.marking.to_string(),
                phase.response.to_string(),
                share(phase.root),
                share(phase.inter_switch),
                share(phase.local),
                share(phase.remote),
                if self.parameters.victim {
                    share(phase.victim)
                } else {
                    "-".to_owned()
                },
                fixed(phase.remote_local_ratio, 2),
                format!("{:.1}", phase.root_queue_mean_packets),
                short_count(phase.dropped_packets),
            ]);
        }
        table_text(&table)
    }
}

fn fixed(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.decimals$}"))
}

fn or_dash(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), thousands)
}
