//! Types in documents as the text that they are written as.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Visitor};

/// Reads a value from a string of a configuration file or JSON document.
pub struct TextVisitor<T> {
    expecting: &'static str,
    of: PhantomData<T>,
}

impl<T> TextVisitor<T> {
    /// `expecting` is for the error of another type: "a rate in quotes".
    pub fn new(expecting: &'static str) -> Self {
        Self {
            expecting,
            of: PhantomData,
        }
    }
}

impl<T> Visitor<'_> for TextVisitor<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// `Serialize`, `Deserialize` and `JsonSchema` of a type as the text that it displays as and is parsed from: what it is,
/// and an example. With `@serde`, without the schema, which is another one or derived.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty, $what:literal, $example:literal) => {
        $crate::serde_as_text!(
            @serde $type,
            $crate::__private::std::concat!("a ", $what, " in quotes, such as \"", $example, "\"")
        );
        $crate::serde_as_text!(
            @schema $type,
            $crate::__private::schemars::json_schema!({
                "type": "string", "title": $what, "examples": [$example],
            })
        );
    };
    (@serde $type:ty) => {
        $crate::serde_as_text!(@serde $type, "a string");
    };
    (@serde $type:ty, $expecting:expr) => {
        const _: () = {
            use $crate::__private::{TextVisitor, serde, std::result::Result};

            impl serde::Serialize for $type {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> serde::Deserialize<'de> for $type {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_str(TextVisitor::new($expecting))
                }
            }
        };
    };
    (@schema $type:ty, $schema:expr) => {
        const _: () = {
            use $crate::__private::{schemars, std::borrow::Cow};

            impl schemars::JsonSchema for $type {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    Cow::Borrowed(stringify!($type))
                }

                fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                    $schema
                }
            }
        };
    };
}
