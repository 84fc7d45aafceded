//! Macros that expand the list of schemes: names, tables of parameters, and enumerations that dispatch to them.

/// An enumeration of the switches' halves of schemes, each call of which is forwarded to its variant.
macro_rules! either {
    (
        $(#[$meta:meta])*
        $name:ident $(<$($other:ident),+>)? { $($(#[$doc:meta])* $variant:ident($half:ty),)+ }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub enum $name $(<$($other),+>)? { $($(#[$doc])* $variant($half),)+ }

        impl $(<$($other: Switch),+>)? Switch for $name $(<$($other),+>)? {
            fn hooks(&self) -> Hooks {
                match self { $(Self::$variant(half) => half.hooks(),)+ }
            }

            #[inline]
            fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, waits: bool) -> Option<Cnm> {
                match self { $(Self::$variant(half) => half.on_enqueue(at, packet, waits),)+ }
            }

            #[inline]
            fn on_dequeue(&mut self, at: &QueueView, packet: &mut Packet, waited: bool) {
                match self { $(Self::$variant(half) => half.on_dequeue(at, packet, waited),)+ }
            }

            fn on_drop(&mut self, at: &QueueView) {
                match self { $(Self::$variant(half) => half.on_drop(at),)+ }
            }

            fn on_pause(&mut self, now: Time, queue: u32, paused: bool) {
                match self { $(Self::$variant(half) => half.on_pause(now, queue, paused),)+ }
            }

            fn state(&self, at: &QueueView) -> Option<State> {
                match self { $(Self::$variant(half) => half.state(at),)+ }
            }
        }
    };
}

/// The built-in schemes, besides `none`: `module::Scheme { name => value, ... }` for each. A name that ends with `+tcd`
/// has TCD's parameters in addition to its own.
macro_rules! schemes {
    ($(
        $(#[doc = $doc:literal])*
        $module:ident::$scheme:ident($parameters:ident) { $($text:literal => $value:expr),+ $(,)? }
    )+) => {
        $(pub use $module::$scheme;)+

        /// Congestion control scheme.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub enum Name {
            /// No control: every flow sends at the rate of its link.
            #[default]
            None,
            $($(#[doc = $doc])* $scheme($scheme),)+
        }

        impl Name {
            /// All.
            pub const ALL: &[Self] = &[Self::None, $($(Self::$scheme($value),)+)+];

            /// The names of [`Self::ALL`].
            pub const NAMES: &[&str] = &["none", $($($text,)+)+];

            /// The name in scenarios and reports.
            pub fn name(self) -> &'static str {
                let at = Self::ALL.iter().position(|scheme| *scheme == self);
                at.map_or("none", |at| Self::NAMES[at])
            }

            /// The scheme's tables of parameters in a scenario.
            pub fn tables(self) -> Vec<&'static str> {
                let own = match self {
                    Self::None => None,
                    $(Self::$scheme(_) => Some(stringify!($module)),)+
                };
                let tcd = self.name().ends_with("+tcd").then_some("tcd");
                own.into_iter().chain(tcd).collect()
            }
        }

        ecn_units::keyword_impls!(Name);
        ecn_units::serde_as_text!(@schema Name, schemars::json_schema!({
            "anyOf": [
                { "const": "none", "description": "No control: every flow sends at the rate of its link." },
                $({
                    "type": "string",
                    "title": ([$($text),+].join(", ")),
                    "description": (concat!($($doc),*).trim()),
                }),+
            ],
        }));

        /// The parameters of all schemes, each in a table of its own.
        #[derive(Clone, Debug, Default, PartialEq, schemars::JsonSchema, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct SchemeParameters {
            $($(#[doc = $doc])* pub $module: $module::$parameters,)+
            /// TCD's.
            pub tcd: tcd::TcdParameters,
        }

        impl Scheme for Name {
            type Sender = Senders;
            type Switch = Switches;

            fn name(&self) -> &str {
                Self::name(*self)
            }

            fn is_in_switches(&self) -> bool {
                match self {
                    Self::None => false,
                    $(Self::$scheme(scheme) => scheme.is_in_switches(),)+
                }
            }

            fn sender(&self, network: &Network) -> Result<Senders, ModelError> {
                Ok(match self {
                    Self::None => Senders::None(()),
                    $(Self::$scheme(scheme) => {
                        let sender = scheme.sender(network);
                        Senders::$scheme(sender.map_err(|error| error.within(stringify!($module)))?)
                    })+
                })
            }

            fn switch(&self, network: &Network) -> Result<Switches, ModelError> {
                Ok(match self {
                    Self::None => Switches::None(()),
                    $(Self::$scheme(scheme) => Switches::$scheme(scheme.switch(network)?),)+
                })
            }
        }

        list::either! {
            /// The switches' half of any scheme. Matching on it has no measurable cost: the variant is the same in
            /// every call of a run.
            Switches {
                /// No control.
                None(()),
                $($(#[doc = $doc])* $scheme(<$scheme as Scheme>::Switch),)+
            }
        }

        /// The hosts' half of any scheme.
        #[derive(Debug)]
        pub enum Senders {
            /// No control.
            None(()),
            $($(#[doc = $doc])* $scheme(<$scheme as Scheme>::Sender),)+
        }

        /// A sender's state of a flow.
        #[derive(Clone, Copy, Debug)]
        pub enum SchemeFlow {
            /// No control.
            None(()),
            $($(#[doc = $doc])* $scheme(<<$scheme as Scheme>::Sender as Sender>::Flow),)+
        }

        list::senders! { None, $($scheme),+ }
    };
}

/// Implements [`Senders`](super::Senders) by forwarding to its variant, with a [`Flow`](super::SchemeFlow) of the same
/// scheme.
macro_rules! senders {
    ($($scheme:ident),+) => {
        impl Sender for Senders {
            type Flow = SchemeFlow;

            fn window(&self, network: &Network) -> Option<u64> {
                match self { $(Self::$scheme(half) => half.window(network),)+ }
            }

            fn on_start(&mut self, endpoints: Endpoints) -> SchemeFlow {
                match self { $(Self::$scheme(half) => SchemeFlow::$scheme(half.on_start(endpoints)),)+ }
            }

            #[inline]
            fn on_send(&mut self, flow: &mut SchemeFlow, packet: &Sending) -> Option<Time> {
                match (self, flow) {
                    $((Self::$scheme(half), SchemeFlow::$scheme(flow)) => half.on_send(flow, packet),)+
                    _ => None,
                }
            }

            #[inline]
            fn tag(&self, endpoints: Endpoints) -> Option<u32> {
                match self { $(Self::$scheme(half) => half.tag(endpoints),)+ }
            }

            #[inline]
            fn on_ack(&mut self, flow: &mut SchemeFlow, ack: &Acknowledged) -> Option<Time> {
                match (self, flow) {
                    $((Self::$scheme(half), SchemeFlow::$scheme(flow)) => half.on_ack(flow, ack),)+
                    _ => None,
                }
            }

            #[inline]
            fn on_mark(&self, last: &mut LastNotification, now: Time, mark: Mark) -> bool {
                match self { $(Self::$scheme(half) => half.on_mark(last, now, mark),)+ }
            }

            fn on_notification(&mut self, flow: &mut SchemeFlow, now: Time, mark: Mark) {
                match (self, flow) {
                    $((Self::$scheme(half), SchemeFlow::$scheme(flow)) => {
                        half.on_notification(flow, now, mark);
                    })+
                    _ => {}
                }
            }

            fn on_feedback(&mut self, flow: &mut SchemeFlow, now: Time, endpoints: Endpoints, notice: Cnm) {
                match (self, flow) {
                    $((Self::$scheme(half), SchemeFlow::$scheme(flow)) => {
                        half.on_feedback(flow, now, endpoints, notice);
                    })+
                    _ => {}
                }
            }

            fn on_finish(&mut self, endpoints: Endpoints) {
                match self { $(Self::$scheme(half) => half.on_finish(endpoints),)+ }
            }
        }
    };
}

pub(super) use {either, schemes, senders};
