//! Keys and values that are words, and suggestions for mistyped ones.

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

/// ``did you mean `x`?`` or, if nothing is near, `expected one of a, b, c`.
pub fn suggestion(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("expected one of {}", candidates.join(", ")),
    }
}

/// A word that a key does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown value `{value}`: {hint}")]
pub struct KeywordError {
    value: String,
    hint: String,
}

impl KeywordError {
    /// `value` is not one of `names`.
    pub fn new(value: &str, names: &[&str]) -> Self {
        Self {
            value: value.to_owned(),
            hint: suggestion(value, names),
        }
    }
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
        #[derive($crate::__private::schemars::JsonSchema)]
        #[schemars(inline)]
        pub enum $name { $( $(#[$variant_doc])* #[schemars(rename = $text)] $variant, )+ }

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

        $crate::keyword_impls!($name);
    };
}

/// `Display`, `FromStr`, `Serialize` and `Deserialize` of an enumeration that has `ALL` and `name()`. Its `JsonSchema` is
/// derived, for the documentation of the values.
#[macro_export]
macro_rules! keyword_impls {
    ($name:ty) => {
        const _: () = {
            use $crate::__private::std::{fmt, result::Result, str::FromStr, vec::Vec};

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.pad(self.name())
                }
            }

            impl FromStr for $name {
                type Err = $crate::KeywordError;

                fn from_str(text: &str) -> Result<Self, $crate::KeywordError> {
                    let named = Self::ALL.iter().find(|value| value.name() == text);
                    named.copied().ok_or_else(|| {
                        let names: Vec<_> = Self::ALL.iter().map(|value| value.name()).collect();
                        $crate::KeywordError::new(text, &names)
                    })
                }
            }
        };

        $crate::serde_as_text!(@serde $name, "a keyword in quotes");
    };
}
