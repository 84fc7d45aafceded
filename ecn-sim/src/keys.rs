//! What the keys of scenarios mean: the documentation of the fields that they set, taken from their JSON Schema.

use ecn_report::table::Cell;
use ecn_units::{DurationText, Fraction, Rate, Size};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;

use crate::experiment::Experiment;
use crate::fabric;
use crate::model::Model;
use crate::scenario::{BUILT_IN, Bridge, Hp, Rig, Topology};
use crate::settings::shown;

/// A key of one or more scenarios.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Key {
    /// Name as in `--set`; for a key of a scheme's table with a dot, such as `dcqcn.kmin`.
    pub key: String,
    /// What it means.
    pub about: String,
    /// Accepted values: words and what each means, or forms.
    pub values: Vec<Choice>,
    /// Unit of numbers that are written without one.
    pub unit: Option<String>,
    /// Default by scenario.
    pub defaults: BTreeMap<String, String>,
    /// The sources that letters in `about` stand for.
    pub sources: BTreeMap<String, String>,
}

/// An accepted value of a key.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Choice {
    /// The word, or the form with an example.
    pub value: String,
    /// What it means, unless `about` of the key says so.
    pub about: Option<String>,
}

/// The schema of a type, with all subschemas inlined.
pub(crate) fn inlined<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.inline_subschemas = true);
    let generator = settings.into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The properties of a schema, those of a table in it as `table.key`.
fn properties(schema: &Value, prefix: &str, into: &mut BTreeMap<String, Value>) {
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let name = format!("{prefix}{name}");
        if inner.get("properties").is_some() {
            properties(inner, &format!("{name}."), into);
        } else {
            into.insert(name, inner.clone());
        }
    }
}

/// The schemas of an experiment's keys.
fn schemas(experiment: &Experiment) -> BTreeMap<String, Value> {
    let of = match experiment {
        Experiment::Fabric(_) => vec![
            inlined::<fabric::parameters::FabricParameters>(),
            inlined::<fabric::cc::SchemeParameters>(),
        ],
        Experiment::Shares(scenario) => match scenario.topology {
            Topology::Hp(_) => vec![inlined::<Model>(), inlined::<Hp>()],
            Topology::Rig(_) => vec![inlined::<Model>(), inlined::<Rig>()],
            Topology::Bridge(_) => vec![inlined::<Model>(), inlined::<Bridge>()],
            Topology::Described { .. } => vec![inlined::<Model>()],
        },
    };
    let mut all = BTreeMap::new();
    for schema in &of {
        properties(schema, "", &mut all);
    }
    all
}

/// Type of a key's value in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Duration,
    Size,
    Rate,
    /// A number without a unit, or in the unit of the key.
    Plain,
    Text,
}

impl Kind {
    /// The type of a key.
    pub(crate) fn of(experiment: &Experiment, key: &str) -> Self {
        let schemas = schemas(experiment);
        schemas.get(key).map_or(Self::Text, Self::of_schema)
    }

    fn of_schema(schema: &Value) -> Self {
        let branches = schema["anyOf"].as_array().map_or(&[][..], Vec::as_slice);
        match (branches, schema["title"].as_str()) {
            ([auto, inner], _) if auto["const"] == "auto" => Self::of_schema(inner),
            (_, Some("duration")) => Self::Duration,
            (_, Some("size")) => Self::Size,
            (_, Some("rate")) => Self::Rate,
            (_, Some("fraction")) => Self::Plain,
            _ if schema["type"] == "integer" => Self::Plain,
            _ => Self::Text,
        }
    }

    /// The name of its column.
    pub(crate) fn column(self, key: &str) -> String {
        let unit = match self {
            Self::Duration => "_ms",
            Self::Size => "_bytes",
            Self::Rate => "_bytes_per_s",
            Self::Plain | Self::Text => "",
        };
        key.replace('.', "_") + unit
    }

    /// A value in it: `auto` is null.
    pub(crate) fn cell(self, value: &toml::Value) -> Cell {
        let text = shown(value);
        match self {
            Self::Duration => number(&text, |time: DurationText| {
                (time.as_nanos() as f64 / 1e6).into()
            }),
            Self::Size => number(&text, |size: Size| size.bytes().into()),
            Self::Rate => number(&text, |rate: Rate| rate.bytes_per_s().into()),
            Self::Plain => match text.parse::<u64>() {
                Ok(whole) => whole.into(),
                Err(_) => number(&text, |fraction: Fraction| fraction.as_f64().into()),
            },
            Self::Text => Cell::Text(text),
        }
    }
}

fn number<T: FromStr>(text: &str, cell: impl Fn(T) -> Cell) -> Cell {
    text.parse().map_or(Cell::Null, cell)
}

/// A documentation comment as one line of text, with rustdoc links replaced by their text.
pub(crate) fn about(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace('\n', " ")
        .replace("[`", "`")
        .replace("`]", "`")
}

/// The values that a schema accepts, in the order of the code.
fn choices(schema: &Value, is_part: bool, into: &mut Vec<Choice>) {
    let branches = ["oneOf", "anyOf"]
        .iter()
        .find_map(|key| schema[key].as_array());
    if let Some(branches) = branches {
        for branch in branches {
            choices(branch, true, into);
        }
        return;
    }
    let value = match (schema["const"].as_str(), schema["title"].as_str()) {
        (Some(word), _) => word.to_owned(),
        (None, Some(form)) => match schema["examples"][0].as_str() {
            Some(example) => format!("{form}, such as {example}"),
            None => form.to_owned(),
        },
        (None, None) if schema["type"] == "integer" => "whole number".to_owned(),
        (None, None) => return,
    };
    let about = Some(about(schema)).filter(|about| is_part && !about.is_empty());
    into.push(Choice { value, about });
}

/// Every key of the built-in scenarios, by name; a key that means something else in other scenarios is listed again.
pub fn all() -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for scenario in Experiment::names() {
        let Some(experiment) = Experiment::built_in(scenario) else {
            continue;
        };
        let schemas = schemas(&experiment);
        for (key, default) in experiment.keys() {
            let schema = schemas.get(&key).unwrap_or(&Value::Null);
            let mut values = Vec::new();
            choices(schema, false, &mut values);
            let about = about(schema);
            let known = keys.iter().position(|known| {
                known.key == key && known.about == about && known.values == values
            });
            let at = known.unwrap_or_else(|| {
                keys.push(Key {
                    sources: sources(&key, scenario, &about),
                    unit: schema["unit"].as_str().map(str::to_owned),
                    defaults: BTreeMap::new(),
                    key,
                    about,
                    values,
                });
                keys.len() - 1
            });
            keys[at]
                .defaults
                .insert(scenario.to_owned(), shown(&default));
        }
    }
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    keys
}

/// What the letters of `sources.md` stand for.
const SOURCES: &str = include_str!("../../docs/sources.md");

/// Its sections by table of parameters; keys outside tables belong to data centres or to HP's networks.
const SECTIONS: [(&str, &str); 5] = [
    ("bcn", "BCN and QCN"),
    ("qcn", "BCN and QCN"),
    ("tcd", "TCD"),
    ("ibcc", "InfiniBand's congestion control"),
    ("hp", "HP's"),
];

/// The letters in brackets in the text about a key, with the sources that they stand for.
fn sources(key: &str, scenario: &str, about: &str) -> BTreeMap<String, String> {
    let table = key.split_once('.').map(|(table, _)| table);
    let of_table = SECTIONS.iter().find(|(name, _)| table == Some(name));
    let of_hp = BUILT_IN.iter().any(|(name, _)| *name == scenario);
    let section = match of_table {
        _ if of_hp => "HP's",
        Some((_, section)) => section,
        None => "DCQCN and TIMELY",
    };
    let mut own = SOURCES.split("\n## ");
    let everywhere = own.next().unwrap_or_default();
    let own = own.find(|text| text.lines().next() == Some(section));
    let lines = everywhere.lines().chain(own.unwrap_or_default().lines());
    let legend = lines.filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        Some((cells.next()?, cells.next()?))
    });
    // Every second part is in brackets.
    let cited: Vec<&str> = about.split(['(', ')']).skip(1).step_by(2).collect();
    let is_cited = |letter: &str| {
        cited.iter().any(|text| match letter {
            "from memory" => text.contains(letter),
            _ => text
                .split(|c: char| !c.is_alphanumeric())
                .any(|word| word == letter),
        })
    };
    legend
        .filter(|(letter, _)| is_cited(letter))
        .map(|(letter, text)| (letter.to_owned(), text.to_owned()))
        .collect()
}

impl Key {
    /// Its table, if it is in one.
    pub fn table(&self) -> Option<&str> {
        self.key.split_once('.').map(|(table, _)| table)
    }

    /// Its name in that table.
    pub fn name(&self) -> &str {
        self.key.split_once('.').map_or(&self.key, |(_, name)| name)
    }

    /// Restricts the key to these scenarios; `None` if none of them has it.
    fn of(mut self, has: impl Fn(&str) -> bool) -> Option<Self> {
        self.defaults.retain(|scenario, _| has(scenario));
        (!self.defaults.is_empty()).then_some(self)
    }

    /// The default in most scenarios, and those in the others.
    fn default_text(&self) -> String {
        let values = || self.defaults.values();
        let count = |value: &str| values().filter(|other| *other == value).count();
        let usual = values().max_by_key(|value| count(value));
        let usual = usual.map_or("", String::as_str);
        let others = self.defaults.iter().filter(|(_, value)| *value != usual);
        let others = others.map(|(scenario, value)| format!("; in {scenario} {value}"));
        usual.to_owned() + &others.collect::<String>()
    }

    /// The lines below its name, without indentation: its meaning first, then lists.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.about.clone()];
        match &self.values[..] {
            [] => {}
            [Choice { value, about: None }] => lines.push(format!("value: {value}")),
            values => lines.extend(values.iter().map(|Choice { value, about }| {
                // Words are quoted; forms are described.
                let is_form = value.contains(", such as ");
                let quote = if is_form { "" } else { "`" };
                let about = about.iter().map(|about| format!(": {about}"));
                format!("- {quote}{value}{quote}{}", about.collect::<String>())
            })),
        }
        lines.extend(self.unit.iter().map(|unit| format!("unit: {unit}")));
        lines.push(format!("default: {}", self.default_text()));
        lines
    }

    /// The text for a terminal.
    pub fn text(&self, columns: usize) -> String {
        let scenarios: Vec<&str> = self.defaults.keys().map(String::as_str).collect();
        let mut text = format!("{}  (scenarios: {})\n", self.key, scenarios.join(", "));
        let sources = self.sources.iter();
        let sources = sources.map(|(letter, text)| format!("{letter}: {text}"));
        for line in self.lines().into_iter().chain(sources) {
            let further = if line.starts_with("- ") { 6 } else { 4 };
            let further = " ".repeat(further);
            let options = textwrap::Options::new(columns)
                .initial_indent("    ")
                .subsequent_indent(&further);
            let _ = writeln!(text, "{}", textwrap::fill(&line, options));
        }
        text
    }
}

/// The names that [`find`] accepts.
fn names(keys: &[Key]) -> Vec<&str> {
    let mut names = Experiment::names();
    names.extend(fabric::cc::Name::NAMES);
    for key in keys {
        names.extend(key.table());
        names.extend([key.key.as_str(), key.name()]);
        let words = key.values.iter().map(|choice| choice.value.as_str());
        names.extend(words.filter(|value| !value.contains(' ')));
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The keys that a name stands for: of a scenario, of a scheme or its table, one key (also without its table), or
/// those that take it as a value.
///
/// # Errors
///
/// The name is unknown; the error suggests the nearest.
pub fn find(name: &str) -> Result<Vec<Key>, String> {
    let all = all();
    let scheme = name.parse::<fabric::cc::Name>();
    let tables = scheme.map_or(Vec::new(), fabric::cc::Name::tables);
    let is_of_table = |key: &Key| {
        let table = key.table();
        table.is_some_and(|own| own == name || tables.contains(&own))
    };
    let keys = all.iter().cloned();
    let of_scenario = keys.filter_map(|key| key.of(|own| own == name));
    let mut found: Vec<Key> = of_scenario.collect();
    // `hp` is a scenario and a table, of other scenarios.
    let mut add = |is_meant: &dyn Fn(&Key) -> bool| {
        found.extend(all.iter().filter(|key| is_meant(key)).cloned());
        !found.is_empty()
    };
    if add(&|key| key.key == name || is_of_table(key))
        || add(&|key| key.name() == name)
        || add(&|key| key.values.iter().any(|choice| choice.value == name))
    {
        return Ok(found);
    }
    Err(match ecn_units::nearest(name, names(&all)) {
        Some(near) => format!("unknown name `{name}`: did you mean `{near}`?"),
        None => format!("unknown name `{name}`: `list` without one shows all keys"),
    })
}

/// The keys of a scenario that a name stands for.
///
/// # Errors
///
/// The scenario or key is unknown; the error suggests the nearest.
pub fn find_in(scenario: &str, name: &str) -> Result<Vec<Key>, String> {
    let experiment = Experiment::built_in(scenario).ok_or_else(|| {
        let hint = ecn_units::suggestion(scenario, &Experiment::names());
        format!("unknown scenario `{scenario}`: {hint}")
    })?;
    let found = find(name)?.into_iter();
    let found: Vec<Key> = found
        .filter_map(|key| key.of(|own| own == scenario))
        .collect();
    if found.is_empty() {
        let keys = experiment.keys();
        let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
        let hint = ecn_units::suggestion(name, &keys);
        return Err(format!("`{scenario}` has no key `{name}`: {hint}"));
    }
    Ok(found)
}

/// All keys as a page of Markdown, by scenario and table.
pub fn page() -> String {
    let all = all();
    let is_share = |key: &&Key| {
        let mut own = BUILT_IN.iter().map(|(name, _)| *name);
        own.any(|name| key.defaults.contains_key(name))
    };
    let mut text = PAGE.to_owned();
    let mut section = |title: String, keys: Vec<&Key>| {
        let _ = writeln!(text, "\n## {title}");
        for key in keys {
            let scenarios: Vec<String> = key.defaults.keys().map(|s| format!("`{s}`")).collect();
            let mut lines = key.lines().into_iter();
            let about = lines.next().unwrap_or_default();
            let _ = writeln!(text, "\n### `{}`\n\n{about}\n", key.key);
            let _ = writeln!(text, "- scenarios: {}", scenarios.join(", "));
            for line in lines {
                let item = if line.starts_with("- ") { "" } else { "- " };
                let _ = writeln!(text, "{item}{line}");
            }
        }
    };
    section(
        "HP's networks, the testbed model and bridges".to_owned(),
        all.iter().filter(is_share).collect(),
    );
    let others = || all.iter().filter(|key| !is_share(key));
    section(
        "Data centres".to_owned(),
        others().filter(|key| key.table().is_none()).collect(),
    );
    let mut tables: Vec<&str> = others().filter_map(Key::table).collect();
    tables.dedup();
    for table in tables {
        let keys = others().filter(|key| key.table() == Some(table)).collect();
        section(format!("Data centres: `{table}`"), keys);
    }
    text
}

/// The head of that page.
const PAGE: &str = "# Keys of the simulator

Every key of `ecn sim run --set KEY=VALUE` and of scenario files, from the documentation of the code: `ecn sim list KEY` prints the
same. Letters in brackets are those of [Sources of the schemes](sources.md).
<!-- Generated: INSTA_UPDATE=always cargo test -p ecn-sim pages -->
";
