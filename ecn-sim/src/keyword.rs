//! Words that are keys or values, and what to say of a mistyped one.

/// The nearest of `candidates` to a mistyped `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    near(word, candidates).first().copied()
}

/// Those of `candidates` that are near enough to be meant, the nearest first.
pub fn near<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let lower = word.to_lowercase();
    let mut near: Vec<_> = candidates
        .into_iter()
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
            (distance, candidate)
        })
        .filter(|(distance, candidate)| {
            // A third of the letters may differ; short names allow one.
            *distance <= (candidate.chars().count() / 3).max(1)
        })
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

/// ``did you mean `x`?`` or, if nothing is near, `allowed are a, b, c`.
pub fn suggestion(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("allowed are {}", candidates.join(", ")),
    }
}

/// A word that is none of those that a key takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown value `{value}`: {hint}")]
pub struct KeywordError {
    value: String,
    hint: String,
}

impl KeywordError {
    /// `value` is not among `names`.
    pub fn new(value: &str, names: &[&str]) -> Self {
        Self {
            value: value.to_owned(),
            hint: suggestion(value, names),
        }
    }
}

/// `Serialize`, `Deserialize` and `JsonSchema` of a type as the text that it displays as and is parsed from.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        $crate::serde_as_text!(@serde $type);
        $crate::serde_as_text!(@schema $type, ::schemars::json_schema!({ "type": "string" }));
    };
    (@schema $type:ty, $schema:expr) => {
        impl ::schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                $schema
            }
        }
    };
    (@serde $type:ty) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                <String as ::serde::Deserialize>::deserialize(deserializer)?
                    .parse()
                    .map_err(::serde::de::Error::custom)
            }
        }
    };
}

/// An enumeration whose values have a name each, the same in files, on the command line and in JSON.
#[macro_export]
macro_rules! keywords {
    (
        $(#[$doc:meta])*
        $name:ident { $( $(#[$variant_doc:meta])* $variant:ident = $text:literal, )+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $( $(#[$variant_doc])* $variant, )+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$( Self::$variant, )+];

            /// The names of [`Self::ALL`].
            pub const NAMES: &[&str] = &[$( $text, )+];

            /// The name in configuration files, on the command line and in JSON.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $text, )+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::keyword::KeywordError;

            fn from_str(text: &str) -> Result<Self, $crate::keyword::KeywordError> {
                match text {
                    $( $text => Ok(Self::$variant), )+
                    _ => Err($crate::keyword::KeywordError::new(text, Self::NAMES)),
                }
            }
        }

        $crate::serde_as_text!(@serde $name);
        $crate::serde_as_text!(
            @schema $name,
            ::schemars::json_schema!({ "type": "string", "enum": [$($text),+] })
        );
    };
}
