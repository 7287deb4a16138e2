//! The JSON form of a graph: its fields and their types.
//!
//! A structure with serde's derived code could also be read from an array of its fields, without their names: here
//! every structure is an object.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::model::{
    Component, Compute, Condition, Edge, Graph, InstancesFrom, MAX_DOCUMENT_BYTES, Medium, MemoryNeed,
    MemoryRights, Problem, Relation, Resources, Role, RunLimits, VERSION, Warmth,
};
use crate::pool::Pool;

/// A document as it is written.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphSource {
    pub(super) version: u32,
    pub(super) name: String,
    #[serde(deserialize_with = "objects")]
    pub(super) components: Vec<ComponentDocument>,
    #[serde(default, deserialize_with = "objects")]
    pub(super) edges: Vec<EdgeDocument>,
    #[serde(default, deserialize_with = "object")]
    pub(super) limits: RunLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) warm: Option<Warmth>,
}

/// A component of either type. One structure for both allows to report a field of the other type as such.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ComponentDocument {
    pub(super) name: String,
    pub(super) r#type: ComponentType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) entry: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) package: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) function: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) parallelism: Option<ParallelismDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) external_effects: Option<bool>,
    #[serde(default, deserialize_with = "optional_object", skip_serializing_if = "Option::is_none")]
    pub(super) resources: Option<Resources>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) initial_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) increment_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pool: Option<Pool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) medium: Option<Medium>,
}

/// The number of a component's instances, or what it follows from.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ParallelismDocument {
    Number(u32),
    From(InstancesDocument),
}

/// Source of a number of instances: the output of a compute component, or the bytes of a memory component.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InstancesDocument {
    pub(super) from: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes_each: Option<u64>,
    pub(super) limit: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ComponentType {
    #[default]
    Compute,
    Memory,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EdgeDocument {
    pub(super) r#type: EdgeType,
    pub(super) from: String,
    pub(super) to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rights: Option<MemoryRights>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) when: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) otherwise: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EdgeType {
    Trigger,
    Access,
    Message,
}

impl Serialize for Warmth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Warmth::Off => serializer.serialize_str("off"),
            Warmth::For(seconds) => serializer.serialize_u32(*seconds),
            Warmth::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Warmth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Warmth, D::Error> {
        deserializer.deserialize_any(WarmthVisitor)
    }
}

struct WarmthVisitor;

impl Visitor<'_> for WarmthVisitor {
    type Value = Warmth;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"auto\", \"off\" or a number of seconds")
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Warmth, E> {
        // A number that is too large is refused with those that are only a little too large.
        Ok(Warmth::For(u32::try_from(seconds).unwrap_or(u32::MAX)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Warmth, E> {
        match text {
            "auto" => Ok(Warmth::Auto),
            "off" => Ok(Warmth::Off),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

impl GraphSource {
    /// Parses a document. The first part that is not of the form is reported with its position, line and column.
    pub(super) fn parse(json: &[u8]) -> Result<GraphSource, Problem> {
        let whole = |message| Problem { at: String::new(), message };
        if json.len() > MAX_DOCUMENT_BYTES {
            let message =
                format!("the document has {} bytes, at most {MAX_DOCUMENT_BYTES} are taken", json.len());
            return Err(whole(message));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let WrittenObject(document) =
            serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
                let at = match error.path().to_string() {
                    whole if whole == "." => String::new(),
                    at => at,
                };
                Problem { at, message: error.into_inner().to_string() }
            })?;
        deserializer.end().map_err(|error| whole(error.to_string()))?;
        Ok(document)
    }

    /// Returns the document that parses as this graph.
    pub(super) fn of(graph: &Graph) -> GraphSource {
        let name = |index: usize| graph.components[index].name.clone();
        GraphSource {
            version: VERSION,
            name: graph.name.clone(),
            components: graph.components.iter().map(|of| ComponentDocument::of(of, name)).collect(),
            edges: graph.edges.iter().map(|edge| EdgeDocument::of(edge, name)).collect(),
            limits: graph.limits.clone(),
            warm: (graph.warm != Warmth::Off).then_some(graph.warm),
        }
    }
}

impl ComponentDocument {
    fn of(component: &Component, name: impl Fn(usize) -> String) -> ComponentDocument {
        let named = ComponentDocument { name: component.name.clone(), ..ComponentDocument::default() };
        match component.role.clone() {
            Role::Compute(Compute {
                package,
                function,
                is_entry,
                parallelism,
                instances_from,
                has_external_effects,
                resources,
            }) => ComponentDocument {
                entry: Some(is_entry),
                package: Some(package),
                function: Some(function),
                parallelism: Some(match instances_from {
                    None => ParallelismDocument::Number(parallelism),
                    Some(from) => ParallelismDocument::From(InstancesDocument::of(from, parallelism, name)),
                }),
                external_effects: Some(has_external_effects),
                resources: Some(resources),
                ..named
            },
            Role::Memory(MemoryNeed {
                initial_bytes,
                increment_bytes,
                limit_bytes,
                pool,
                is_result,
                medium,
            }) => ComponentDocument {
                r#type: ComponentType::Memory,
                initial_bytes,
                increment_bytes,
                limit_bytes: Some(limit_bytes),
                pool,
                result: is_result.then_some(true),
                medium: (medium != Medium::default()).then_some(medium),
                ..named
            },
        }
    }

    /// The fields that are given and that only this type has.
    pub(super) fn fields_of(&self, r#type: ComponentType) -> Vec<&'static str> {
        let given = match r#type {
            ComponentType::Compute => vec![
                ("entry", self.entry.is_some()),
                ("package", self.package.is_some()),
                ("function", self.function.is_some()),
                ("parallelism", self.parallelism.is_some()),
                ("external_effects", self.external_effects.is_some()),
                ("resources", self.resources.is_some()),
            ],
            ComponentType::Memory => vec![
                ("initial_bytes", self.initial_bytes.is_some()),
                ("increment_bytes", self.increment_bytes.is_some()),
                ("limit_bytes", self.limit_bytes.is_some()),
                ("pool", self.pool.is_some()),
                ("result", self.result.is_some()),
                ("medium", self.medium.is_some()),
            ],
        };
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(field, _)| field).collect()
    }
}

impl InstancesDocument {
    fn of(from: InstancesFrom, limit: u32, name: impl Fn(usize) -> String) -> InstancesDocument {
        match from {
            InstancesFrom::Output { component } => {
                InstancesDocument { from: name(component), bytes_each: None, limit }
            }
            InstancesFrom::Memory { memory, bytes_each } => {
                InstancesDocument { from: name(memory), bytes_each: Some(bytes_each), limit }
            }
        }
    }
}

impl<'de> Deserialize<'de> for ParallelismDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ParallelismDocument, D::Error> {
        struct NumberOrObject;

        impl<'de> Visitor<'de> for NumberOrObject {
            type Value = ParallelismDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of instances, or an object with \"from\" and \"limit\"")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ParallelismDocument, E> {
                let number = u32::try_from(number);
                let number = number.map_err(|_| E::custom("the number of instances is too large"))?;
                Ok(ParallelismDocument::Number(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ParallelismDocument, E> {
                Err(E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<ParallelismDocument, A::Error> {
                InstancesDocument::deserialize(MapAccessDeserializer::new(fields))
                    .map(ParallelismDocument::From)
            }
        }

        deserializer.deserialize_any(NumberOrObject)
    }
}

impl EdgeDocument {
    fn of(edge: &Edge, name: impl Fn(usize) -> String) -> EdgeDocument {
        let (r#type, rights) = match edge.relation {
            Relation::Trigger => (EdgeType::Trigger, None),
            Relation::Access(rights) => (EdgeType::Access, Some(rights)),
            Relation::Message => (EdgeType::Message, None),
        };
        let (when, otherwise) = match edge.condition.clone() {
            None => (None, None),
            Some(Condition::When(text)) => (Some(text), None),
            Some(Condition::Otherwise) => (None, Some(true)),
        };
        EdgeDocument { r#type, from: name(edge.from), to: name(edge.to), rights, when, otherwise }
    }
}

impl ComponentType {
    pub(super) fn name(self) -> &'static str {
        match self {
            ComponentType::Compute => "compute",
            ComponentType::Memory => "memory",
        }
    }
}

impl EdgeType {
    pub(super) fn name(self) -> &'static str {
        match self {
            EdgeType::Trigger => "trigger",
            EdgeType::Access => "access",
            EdgeType::Message => "message",
        }
    }
}

/// A structure that is written as an object.
struct WrittenObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WrittenObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WrittenObject<T>, D::Error> {
        struct ObjectFields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectFields<T> {
            type Value = WrittenObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<WrittenObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(WrittenObject)
            }
        }

        deserializer.deserialize_map(ObjectFields(PhantomData))
    }
}

fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    WrittenObject::deserialize(deserializer).map(|WrittenObject(value)| value)
}

fn optional_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value: Option<WrittenObject<T>> = Option::deserialize(deserializer)?;
    Ok(value.map(|WrittenObject(value)| value))
}

fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let values: Vec<WrittenObject<T>> = Vec::deserialize(deserializer)?;
    Ok(values.into_iter().map(|WrittenObject(value)| value).collect())
}
