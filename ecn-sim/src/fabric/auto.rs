//! A value that is derived from others unless it is set.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A value, or `auto`: derived from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// Derived from others.
    Auto,
    /// A fixed value.
    Is(T),
}

impl<T> Auto<T> {
    /// The value if set, else `value`.
    pub fn or(self, value: T) -> T {
        match self {
            Self::Auto => value,
            Self::Is(own) => own,
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Is(value) => value.fmt(f),
        }
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for Auto<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let reason = |error| format!("{error}; or auto");
        text.parse().map(Self::Is).map_err(reason)
    }
}

impl<T: fmt::Display> Serialize for Auto<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl<T: JsonSchema> JsonSchema for Auto<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Auto".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let auto = json_schema!({ "type": "string", "const": "auto" });
        json_schema!({ "anyOf": [auto, T::json_schema(generator)] })
    }
}
