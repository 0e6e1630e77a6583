//! `Table` responses, which `kubectl get` prints (`pkg/printers/internalversion` of Kubernetes).

mod cells;

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
