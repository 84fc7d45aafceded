//! The programs' counters, mainly of exceptions.

use std::borrow::Cow;

use ecn_core::abi::Count;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, json};

use crate::datapath::{self, Maps};

/// The counters of a running datapath, summed over all CPUs. As JSON an object with all of them.
#[derive(Debug, Default)]
pub struct Counters(Vec<(Count, u64)>);

impl Counters {
    /// Reads all counters.
    ///
    /// # Errors
    ///
    /// [`datapath::Error::Map`]
    pub fn read(maps: &Maps) -> datapath::Result<Self> {
        let read = |what| Ok((what, maps.count(what)?));
        Count::ALL
            .into_iter()
            .map(read)
            .collect::<datapath::Result<_>>()
            .map(Self)
    }

    /// All counters: key and count.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, n)| (key(*what), *n))
    }

    /// Counters that are not 0: key, count and meaning.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
        let counted = self.0.iter().filter(|(_, n)| *n > 0);
        counted.map(|(what, n)| (key(*what), *n, meaning(*what)))
    }
}

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (what, n) in &self.0 {
            map.serialize_entry(key(*what), n)?;
        }
        map.end()
    }
}

impl JsonSchema for Counters {
    fn schema_name() -> Cow<'static, str> {
        "Counters".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let counter = |what| {
            let schema = json!({"type": "integer", "minimum": 0, "description": meaning(what)});
            (key(what).to_owned(), schema)
        };
        // Without an agent the object is empty.
        json_schema!({
            "type": "object",
            "properties": Count::ALL.into_iter().map(counter).collect::<Map<_, _>>(),
        })
    }
}

const fn key(what: Count) -> &'static str {
    about(what).0
}

const fn meaning(what: Count) -> &'static str {
    about(what).1
}

/// Key and meaning of a counter.
#[expect(
    clippy::too_many_lines,
    reason = "a match of all counts: the compiler finds one without"
)]
const fn about(what: Count) -> (&'static str, &'static str) {
    match what {
        Count::FlowsFull => (
            "flows_full_packets",
            "of flows for which the flow table had no room ([flow] max): limited with the short flows",
        ),
        Count::ClassesFull => (
            "classes_full",
            "decreases of flows for which no class was free: limited with the short flows",
        ),
        Count::ReceiversFull => (
            "receivers_full_packets",
            "received of flows for which the receiver table had no room ([flow] max): not echoed",
        ),
        Count::LimitExpired => (
            "limit_expired_packets",
            "not limited, because the agent's heartbeat had stopped",
        ),
        Count::EchoSent => ("echo_sent", "echoes sent"),
        Count::EchoFailed => ("echo_failed", "echoes that could not be sent"),
        Count::EchoAccepted => ("echo_accepted", "echoes accepted"),
        Count::EchoLost => (
            "echo_lost",
            "echoes lost, by sequence number; the next one includes their counts",
        ),
        Count::EchoMalformed => (
            "echo_malformed",
            "echoes of another version or too short: passed on",
        ),
        Count::EchoUnknown => (
            "echo_unknown",
            "echoes about flows that are not sent from here: dropped",
        ),
        Count::EchoDuplicate => (
            "echo_duplicate",
            "echoes that are duplicate or too late: dropped",
        ),
        Count::EchoImpossible => (
            "echo_impossible",
            "echoes of more packets than were sent: dropped; forged, or from a receiver that counts an earlier flow",
        ),
        Count::EchoForged => (
            "echo_forged",
            "echoes not signed by an accepted key: dropped; forged, or from a host with another `key` in [echo]",
        ),
        Count::RingFull => (
            "ring_full",
            "new rates of which the agent was not notified at once, because the ring buffer was full",
        ),
        Count::EctFailed => (
            "ect_failed_packets",
            "whose ECN field could not be written at an endpoint",
        ),
        Count::MarkFailed => (
            "mark_failed_packets",
            "to be marked whose ECN field could not be written",
        ),
        Count::Marked => ("marked_packets", "marked at ports"),
        Count::SourceDropped => (
            "source_dropped_packets",
            "dropped at their source, because too much of the flow was waiting to depart",
        ),
        Count::Unparsed => (
            "unparsed_packets",
            "whose headers are truncated or inconsistent: passed on untouched",
        ),
        Count::Unpaced => (
            "unpaced_packets",
            "not limited by enforcement = \"pacing\": no TCP socket of this machine sends them",
        ),
        Count::EchoXdp => ("echo_xdp", "echoes processed in the driver"),
        Count::AceBlocked => (
            "ace_blocked",
            "echoes sent for TCP, because no ACK could carry the CE count",
        ),
        Count::EchoAsked => ("echo_asked", "echoes sent for TCP only to request headroom"),
        Count::MessageSent => ("message_sent", "messages from ports to sources sent"),
        Count::MessageFailed => ("message_failed", "messages that could not be sent"),
        Count::MessageHeld => (
            "message_held",
            "messages held back by messages_per_s of [[bridge]]; later ones report their marks",
        ),
        Count::MessageAccepted => ("message_accepted", "messages of ports accepted"),
        Count::MessageMalformed => (
            "message_malformed",
            "messages of an unknown kind or too short: dropped",
        ),
        Count::MessageFar => (
            "message_far",
            "messages that have passed a router (TTL below 255): dropped",
        ),
        Count::MessageForged => (
            "message_forged",
            "messages not signed by an accepted key of [echo]: dropped",
        ),
        Count::MessageUnknown => (
            "message_unknown",
            "messages about flows that are not sent from here, or where feedback is \"echo\": dropped",
        ),
        Count::MessageDuplicate => (
            "message_duplicate",
            "messages that are duplicate, too late, or about marks that echoes also report: dropped",
        ),
        Count::MessageImpossible => (
            "message_impossible",
            "messages about packets that were not sent recently, or with impossible counts: dropped; forged",
        ),
        Count::AceFailed => (
            "ace_failed",
            "TCP segments whose ECN flags could not be written",
        ),
        Count::Shared => (
            "shared_packets",
            "of flows that are limited with the short flows, because they have no class, or none yet",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_in_json_and_what_happened_in_text() {
        let keys: BTreeSet<_> = Count::ALL.into_iter().map(key).collect();
        assert_eq!(
            keys.len(),
            Count::ALL.len(),
            "a key stands for two counters"
        );
        let counted = |what| (what, u64::from(what == Count::Unparsed) * 3);
        let counters = Counters(Count::ALL.map(counted).to_vec());
        let json = serde_json::to_value(&counters).expect("JSON");
        assert_eq!(json["unparsed_packets"], 3);
        assert_eq!(json["marked_packets"], 0);
        assert_eq!(json.as_object().map(Map::len), Some(Count::ALL.len()));
        let rows: Vec<_> = counters.rows().collect();
        assert_eq!(rows, [("unparsed_packets", 3, meaning(Count::Unparsed))]);
    }
}
