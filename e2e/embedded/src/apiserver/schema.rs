//! Kubernetes' API types: the fields of Go's structs, their types, and which of them are serialized when empty.

mod decode;
mod table;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub(crate) use decode::{Codec, decode, type_error_of_text};
pub(crate) use table::{INLINE, find, get, of};

/// A struct.
#[derive(Debug)]
pub(crate) struct Struct {
    /// Its name in Go.
    pub(crate) name: &'static str,
    /// Its fields in Go's order; those named [`INLINE`] are embedded structs.
    pub(crate) declared: Vec<Field>,
    /// The fields, those of embedded structs included, by their names in JSON.
    pub(crate) fields: BTreeMap<&'static str, Field>,
}

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Its name in JSON.
    pub(crate) name: &'static str,
    /// Its number in protobuf.
    pub(crate) number: Option<u64>,
    pub(crate) ty: FieldType,
    pub(crate) presence: Presence,
    /// The key by which a strategic merge patch merges the structs of a list, empty for a list of scalars; `None` if the
    /// patch replaces the list.
    pub(crate) merge_key: Option<&'static str>,
    /// Whether the elements of a patch's list name the keys to retain (the patch strategy `retainKeys`).
    pub(crate) retains_keys: bool,
    /// Name of the embedded struct that has the field.
    embedded_in: Option<&'static str>,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldType {
    /// Its name in `types.txt`, without the star of a pointer.
    name: &'static str,
    pub(crate) shape: Shape,
    /// The type of the value, or of the elements.
    pub(crate) base: Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    List,
    /// Keys are strings.
    Map,
}

/// The type of a value that is neither a list nor a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int32,
    Int64,
    String,
    Time,
    MicroTime,
    Quantity,
    /// Base64 text.
    Bytes,
    IntOrString,
    /// The struct with this number.
    Struct(usize),
    /// Any JSON value, stored unchanged.
    Any,
}

/// When a field is serialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// If it does not have the zero value.
    OmitEmpty,
    /// If it is set, even to the zero value (a pointer in Go).
    Optional,
    /// Always; as the zero value if it is not set.
    Always,
    /// Always; as null if it is not set.
    Nullable,
}

// === impl Struct ===

impl Struct {
    /// Adds the fields that Go always writes, and drops those that Go omits when they are empty.
    pub(crate) fn normalize(&self, object: &mut Map<String, Value>) {
        object.retain(|name, value| {
            let Some(field) = self.fields.get(name.as_str()) else {
                return true;
            };
            field.ty.normalize(value);
            if field.presence == Presence::Always && value.as_array().is_some_and(Vec::is_empty) {
                // The store does not distinguish an empty list from a missing one.
                *value = Value::Null;
            }
            match field.presence {
                Presence::OmitEmpty => !field.ty.is_zero(value),
                Presence::Optional => !value.is_null(),
                Presence::Always | Presence::Nullable => true,
            }
        });
        for (name, field) in &self.fields {
            if object.contains_key(*name) {
                continue;
            }
            if field.presence == Presence::Nullable {
                object.insert((*name).to_owned(), Value::Null);
            }
            if field.presence == Presence::Always {
                let mut zero = field.ty.zero();
                field.ty.normalize(&mut zero);
                object.insert((*name).to_owned(), zero);
            }
        }
    }

    /// An object with its fields in the order of Go's struct.
    pub(crate) fn sorted(&self, mut object: Map<String, Value>) -> Map<String, Value> {
        let mut sorted = Map::new();
        self.move_fields(&mut object, &mut sorted);
        sorted.extend(object);
        sorted
    }

    fn move_fields(&self, object: &mut Map<String, Value>, sorted: &mut Map<String, Value>) {
        for field in &self.declared {
            match field.ty.structure() {
                Some(embedded) if field.name == INLINE => embedded.move_fields(object, sorted),
                _ => {
                    if let Some(value) = object.remove(field.name) {
                        sorted.insert(field.name.to_owned(), field.ty.sorted(value));
                    }
                }
            }
        }
    }
}

// === impl FieldType ===

impl FieldType {
    /// The struct of a value, or of the elements.
    pub(crate) fn structure(self) -> Option<&'static Struct> {
        if let Type::Struct(number) = self.base {
            Some(get(number))
        } else {
            None
        }
    }

    /// The type of the elements of a list or a map.
    fn element(self) -> Self {
        let (_, name) = self.name.split_once(']').unwrap_or(("", self.name));
        Self {
            name,
            shape: Shape::One,
            ..self
        }
    }

    /// Whether Go's type implements its own decoder.
    fn decodes_itself(self) -> bool {
        let decoders = [Type::Time, Type::MicroTime, Type::Quantity, Type::IntOrString];
        self.shape == Shape::One && decoders.contains(&self.base)
    }

    fn normalize(self, value: &mut Value) {
        let Some(schema) = self.structure() else {
            return;
        };
        self.for_each(value, |item| {
            if let Value::Object(object) = item {
                schema.normalize(object);
            }
        });
    }

    fn sorted(self, mut value: Value) -> Value {
        if let Some(schema) = self.structure() {
            self.for_each(&mut value, |item| {
                if let Value::Object(object) = item {
                    *object = schema.sorted(std::mem::take(object));
                }
            });
        }
        value
    }

    /// Calls `visit` for a value, or for its elements.
    fn for_each(self, value: &mut Value, mut visit: impl FnMut(&mut Value)) {
        match (self.shape, value) {
            (Shape::One, value) => visit(value),
            (Shape::List, Value::Array(items)) => items.iter_mut().for_each(visit),
            (Shape::Map, Value::Object(entries)) => entries.values_mut().for_each(visit),
            (Shape::List | Shape::Map, _) => {}
        }
    }

    /// Whether Go's `omitempty` omits the value. A struct is never empty: its field is a pointer.
    fn is_zero(self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Number(value) => value.as_f64() == Some(0.0),
            Value::String(value) => value.is_empty(),
            Value::Array(value) => value.is_empty(),
            Value::Object(entries) => self.shape == Shape::Map && entries.is_empty(),
        }
    }

    fn zero(self) -> Value {
        match (self.shape, self.base) {
            (Shape::List | Shape::Map, _) => Value::Null,
            (Shape::One, Type::Bool) => false.into(),
            (Shape::One, Type::Int32 | Type::Int64 | Type::IntOrString) => 0.into(),
            // The store does not distinguish missing bytes from an empty string.
            (Shape::One, Type::String | Type::Bytes) => "".into(),
            (Shape::One, Type::Quantity) => "0".into(),
            (Shape::One, Type::Struct(_)) => Value::Object(Map::new()),
            (Shape::One, Type::Time | Type::MicroTime | Type::Any) => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn converts_numbers_like_go() {
        let object = json!({"count": 3_000_000_000_i64});
        let decoded = |codec| decode(of("", "Event"), object.as_object().unwrap().clone(), codec);
        assert_eq!(decoded(Codec::Converter).unwrap().0["count"], -1_294_967_296);
        let why = "json: cannot unmarshal number 3000000000 into Go struct field Event.count of type int32";
        assert_eq!(decoded(Codec::Json).unwrap_err(), why);
    }

    /// Kind, object, a path in it, and what kube-apiserver 1.36 writes there.
    #[test]
    fn writes_fields_that_go_always_writes() {
        let container = |fields: Value| json!({"spec": {"containers": [fields]}});
        let limit = json!({"resourceFieldRef": {"resource": "limits.cpu"}});
        let table = [
            (
                "VolumeAttachment",
                json!({"metadata": {"name": "a", "labels": {}, "finalizers": []}, "spec": {}}),
                "",
                json!({
                    "metadata": {"name": "a"},
                    "spec": {"attacher": "", "nodeName": "", "source": {}},
                    "status": {"attached": false},
                }),
            ),
            (
                "PersistentVolume",
                json!({"spec": {"azureFile": {"secretName": "a", "shareName": "b"}}}),
                "/spec/azureFile",
                json!({"secretName": "a", "shareName": "b", "secretNamespace": null}),
            ),
            (
                "PersistentVolume",
                json!({"spec": {"iscsi": {"iqn": "a", "targetPortal": "b"}}}),
                "/spec/iscsi",
                json!({"iqn": "a", "lun": 0, "targetPortal": "b"}),
            ),
            (
                "PersistentVolume",
                json!({"spec": {"scaleIO": {"gateway": "a", "system": "b"}}}),
                "/spec/scaleIO",
                json!({"gateway": "a", "secretRef": null, "system": "b"}),
            ),
            (
                "Node",
                json!({"status": {"runtimeHandlers": [{"features": {}, "name": ""}]}}),
                "/status/runtimeHandlers/0",
                json!({"features": {}, "name": ""}),
            ),
            (
                "Pod",
                container(json!({"env": [{"name": "A", "valueFrom": limit}]})),
                "/spec/containers/0/env/0/valueFrom/resourceFieldRef",
                json!({"divisor": "0", "resource": "limits.cpu"}),
            ),
            (
                "Pod",
                container(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 0}}}})),
                "/spec/containers/0/lifecycle/preStop/sleep",
                json!({"seconds": 0}),
            ),
            (
                "Pod",
                json!({"spec": {"securityContext": {"sysctls": [{"name": "a", "value": ""}]}}}),
                "/spec/securityContext/sysctls/0",
                json!({"name": "a", "value": ""}),
            ),
            (
                "Pod",
                json!({"status": {"containerStatuses": [{"user": {"linux": {"gid": 0, "uid": 0}}}]}}),
                "/status/containerStatuses/0/user/linux",
                json!({"gid": 0, "uid": 0}),
            ),
        ];
        for (kind, object, pointer, expected) in table {
            let mut schemas = ["", "storage.k8s.io"].into_iter();
            let schema = schemas.find_map(|group| find(group, kind)).unwrap();
            let object = object.as_object().unwrap().clone();
            let (mut decoded, _) = decode(schema, object, Codec::Json).unwrap();
            schema.normalize(&mut decoded);
            assert_eq!(
                Value::Object(decoded).pointer(pointer),
                Some(&expected),
                "{kind} {pointer}"
            );
        }
    }

    /// Group, kind, object, and the error of kube-apiserver 1.36.
    #[test]
    fn type_errors_name_fields_and_types_as_go() {
        let probe = |fields: Value| json!({"spec": {"containers": [{"livenessProbe": fields}]}});
        let port = |port: Value| probe(json!({"httpGet": {"port": port}}));
        let table = [
            (
                "Pod",
                json!({"spec": {"dnsPolicy": 1}}),
                "number into Go struct field PodSpec.spec.dnsPolicy of type v1.DNSPolicy",
            ),
            (
                "Pod",
                json!({"spec": {"volumes": [{"emptyDir": []}]}}),
                "array into Go struct field Volume.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource",
            ),
            (
                "Pod",
                probe(json!({"exec": {"command": "a"}})),
                "string into Go struct field ExecAction.spec.containers.livenessProbe.ProbeHandler.exec.command of type \
                 []string",
            ),
            (
                "Pod",
                port(json!(true)),
                "bool into Go struct field HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type \
                 int32",
            ),
            (
                "Pod",
                port(json!(3_000_000_000_i64)),
                "number 3000000000 into Go struct field \
                 HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type int32",
            ),
            (
                "PersistentVolumeClaim",
                json!({"spec": {"accessModes": [true]}}),
                "bool into Go struct field PersistentVolumeClaimSpec.spec.accessModes of type \
                 v1.PersistentVolumeAccessMode",
            ),
            (
                "PersistentVolumeClaim",
                json!({"status": {"allocatedResourceStatuses": "a"}}),
                "string into Go struct field PersistentVolumeClaimStatus.status.allocatedResourceStatuses of type \
                 map[v1.ResourceName]v1.ClaimResourceStatus",
            ),
            (
                "PersistentVolumeClaim",
                json!({"spec": {"resources": {"limits": "a"}}}),
                "string into Go struct field VolumeResourceRequirements.spec.resources.limits of type v1.ResourceList",
            ),
            (
                "Secret",
                json!({"data": {"a": true}}),
                "bool into Go struct field Secret.data of type []uint8",
            ),
            (
                "Secret",
                json!({"metadata": {"uid": true}}),
                "bool into Go struct field ObjectMeta.metadata.uid of type types.UID",
            ),
            (
                "Secret",
                json!({"metadata": {"managedFields": true}}),
                "bool into Go struct field ObjectMeta.metadata.managedFields of type []v1.ManagedFieldsEntry",
            ),
        ];
        for (kind, object, expected) in table {
            let object = object.as_object().unwrap().clone();
            let error = decode(of("", kind), object, Codec::Json).unwrap_err();
            assert_eq!(error, format!("json: cannot unmarshal {expected}"));
        }
    }

    #[test]
    fn sorts_fields_as_structs() {
        let event = json!({
            "type": "Normal",
            "metadata": { "labels": { "b": "", "a": "" }, "name": "a" },
            "reportingController": "c",
            "extra": 1,
            "eventTime": null,
        });
        let sorted = of("events.k8s.io", "Event").sorted(event.as_object().unwrap().clone());
        let expected = r#"{"metadata":{"name":"a","labels":{"b":"","a":""}},"eventTime":null,"reportingController":"c","type":"Normal","extra":1}"#;
        assert_eq!(serde_json::to_string(&sorted).unwrap(), expected);
    }
}
