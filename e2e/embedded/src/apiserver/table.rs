//! `Table` responses, which `kubectl get` prints (`pkg/printers/internalversion` of Kubernetes).

mod cells;

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};

use super::clock::Clock;
use super::object::{self, Object};
use super::resource::{Kind, Resource};

/// A column: name, type, format, priority (1: only in wide output).
type Column = (&'static str, &'static str, &'static str, u8);

const fn column(name: &'static str) -> Column {
    (name, "string", "", 0)
}

const fn wide(name: &'static str) -> Column {
    (name, "string", "", 1)
}

const NAME: Column = ("Name", "string", "name", 0);
const AGE: Column = column("Age");

fn columns(kind: Kind) -> Vec<Column> {
    match kind {
        Kind::CsiDriver => vec![
            NAME,
            ("AttachRequired", "boolean", "", 0),
            ("PodInfoOnMount", "boolean", "", 0),
            ("StorageCapacity", "boolean", "", 0),
            column("TokenRequests"),
            ("RequiresRepublish", "boolean", "", 0),
            column("Modes"),
            AGE,
        ],
        Kind::CsiNode => vec![NAME, ("Drivers", "integer", "", 0), AGE],
        // kube-apiserver has no columns of its own for it.
        Kind::CsiStorageCapacity => vec![NAME, ("Created At", "date", "", 0)],
        Kind::Event => vec![
            column("Last Seen"),
            column("Type"),
            column("Reason"),
            column("Object"),
            wide("Subobject"),
            wide("Source"),
            column("Message"),
            wide("First Seen"),
            wide("Count"),
            ("Name", "string", "name", 1),
        ],
        Kind::Lease => vec![NAME, column("Holder"), AGE],
        Kind::Namespace => vec![NAME, column("Status"), AGE],
        Kind::Node => vec![
            NAME,
            column("Status"),
            column("Roles"),
            AGE,
            column("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime"),
        ],
        Kind::PersistentVolume => volume_columns(),
        Kind::PersistentVolumeClaim => claim_columns(),
        Kind::Pod => vec![
            NAME,
            column("Ready"),
            column("Status"),
            column("Restarts"),
            AGE,
            wide("IP"),
            wide("Node"),
            wide("Nominated Node"),
            wide("Readiness Gates"),
        ],
        Kind::Secret => vec![NAME, column("Type"), column("Data"), AGE],
        Kind::ServiceAccount => vec![NAME, AGE],
        Kind::StorageClass => vec![
            NAME,
            column("Provisioner"),
            column("ReclaimPolicy"),
            column("VolumeBindingMode"),
            column("AllowVolumeExpansion"),
            AGE,
        ],
        Kind::VolumeAttachment => vec![
            NAME,
            ("Attacher", "string", "name", 0),
            column("PV"),
            column("Node"),
            ("Attached", "boolean", "", 0),
            AGE,
        ],
    }
}

fn volume_columns() -> Vec<Column> {
    vec![
        NAME,
        column("Capacity"),
        column("Access Modes"),
        column("Reclaim Policy"),
        column("Status"),
        column("Claim"),
        column("StorageClass"),
        column("VolumeAttributesClass"),
        column("Reason"),
        AGE,
        wide("VolumeMode"),
    ]
}

fn claim_columns() -> Vec<Column> {
    vec![
        NAME,
        column("Status"),
        column("Volume"),
        column("Capacity"),
        column("Access Modes"),
        column("StorageClass"),
        column("VolumeAttributesClass"),
        AGE,
        wide("VolumeMode"),
    ]
}

fn row(kind: Kind, clock: &Clock, object: &Object, shown: Value) -> Value {
    let mut row = json!({ "cells": cells::cells(kind, clock, object), "object": shown });
    let phase = object::text(object, "/status/phase");
    let message = match (kind, phase) {
        (Kind::Pod, "Succeeded") => "The pod has completed successfully.",
        (Kind::Pod, "Failed") => "The pod failed.",
        _ => return row,
    };
    row["conditions"] =
        json!([{ "type": "Completed", "status": "True", "reason": phase, "message": message }]);
    row
}

/// Marks the StorageClass that new claims get (`getEffectiveDefaultStorageClass`): the newest default one. Only lists show it.
pub(crate) fn mark_default_class(table: &mut Value, classes: &[Arc<Object>]) {
    let defaults = classes
        .iter()
        .enumerate()
        .filter(|(_, class)| object::is_default_class(class));
    let created = |class: &Object| object::text(class, "/metadata/creationTimestamp").to_owned();
    let newest = defaults.max_by_key(|(_, class)| (created(class), Reverse(object::name(class).to_owned())));
    if let Some((row, class)) = newest {
        table["rows"][row]["cells"][0] = format!("{} (default)", object::name(class)).into();
    }
}

/// A table of objects; `shown` is the object of a row.
pub(crate) fn table(
    resource: &Resource,
    clock: &Clock,
    metadata: Value,
    objects: &[Arc<Object>],
    shown: impl Fn(&Object) -> Value,
) -> Value {
    let definitions: Vec<Value> = columns(resource.kind)
        .into_iter()
        .map(|(name, ty, format, priority)| {
            json!({ "name": name, "type": ty, "format": format, "description": "", "priority": priority })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| row(resource.kind, clock, object, shown(object)))
        .collect();
    // Kubernetes has no printer for this kind; the default table converter returns null in place of an empty list.
    let rows = if rows.is_empty() && resource.kind == Kind::CsiStorageCapacity {
        Value::Null
    } else {
        rows.into()
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_default_class_is_marked() {
        let class = |name: &str, annotation: &str, created: &str| {
            let annotations = json!({ annotation: "true" });
            let metadata = json!({ "name": name, "annotations": annotations, "creationTimestamp": created });
            Arc::new(json!({ "metadata": metadata }).as_object().unwrap().clone())
        };
        let default = "storageclass.kubernetes.io/is-default-class";
        let beta = "storageclass.beta.kubernetes.io/is-default-class";
        let classes = [
            class("a", default, "2026-01-01T00:00:00Z"),
            class("c", default, "2026-01-01T00:00:01Z"),
            class("b", beta, "2026-01-01T00:00:01Z"),
            class("d", "other", "2026-01-01T00:00:02Z"),
        ];
        let rows: Vec<Value> = classes
            .iter()
            .map(|class| json!({ "cells": [object::name(class)] }))
            .collect();
        let mut table = json!({ "rows": rows });
        mark_default_class(&mut table, &classes);
        let names: Vec<&Value> = table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["cells"][0])
            .collect();
        assert_eq!(names, ["a", "c", "b (default)", "d"]);
    }
}
