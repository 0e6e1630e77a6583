//! The cells of a table's row.

mod pod;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::super::clock::Clock;
use super::super::object::{self, Object, at, entries, list, text};
use super::super::resource::Kind;

/// The cells of an object.
pub(super) fn cells(kind: Kind, clock: &Clock, object: &Object) -> Vec<Value> {
    let name = Value::from(object::name(object));
    let age = Value::from(since(clock, text(object, "/metadata/creationTimestamp")));
    let field = |pointer: &str| Value::from(text(object, pointer));
    let flag = |pointer: &str| Value::from(at(object, pointer).as_bool().unwrap_or_default());
    match kind {
        Kind::CsiDriver => csi_driver(object, name, age),
        Kind::CsiNode => vec![name, list(object, "/spec/drivers").len().into(), age],
        // A bookmark has no time; Go shows its zero time.
        Kind::CsiStorageCapacity => vec![
            name,
            or(
                text(object, "/metadata/creationTimestamp"),
                "0001-01-01T00:00:00Z",
            ),
        ],
        Kind::Event => event(clock, object),
        Kind::Lease => vec![name, field("/spec/holderIdentity"), age],
        Kind::Namespace => vec![name, field("/status/phase"), age],
        Kind::Node => node(object, name, age),
        Kind::PersistentVolume => persistent_volume(object, name, age),
        Kind::PersistentVolumeClaim => claim(object, name, age),
        Kind::Pod => pod::cells(clock, object, name, age),
        Kind::Secret => vec![name, field("/type"), entries(object, "/data").count().into(), age],
        Kind::ServiceAccount => vec![name, age],
        Kind::StorageClass => vec![
            name,
            field("/provisioner"),
            // A bookmark has no fields. An empty policy is valid, and is shown as it is.
            at(object, "/reclaimPolicy").as_str().unwrap_or("Delete").into(),
            or(text(object, "/volumeBindingMode"), "Immediate"),
            flag("/allowVolumeExpansion"),
            age,
        ],
        Kind::VolumeAttachment => vec![
            name,
            field("/spec/attacher"),
            field("/spec/source/persistentVolumeName"),
            field("/spec/nodeName"),
            flag("/status/attached"),
            age,
        ],
    }
}

fn or(text: &str, missing: &str) -> Value {
    if text.is_empty() { missing } else { text }.into()
}

fn csi_driver(object: &Object, name: Value, age: Value) -> Vec<Value> {
    let flag = |name: &str| Value::from(at(object, &format!("/spec/{name}")).as_bool().unwrap_or_default());
    // A bookmark has no fields.
    let attach_required = at(object, "/spec/attachRequired").as_bool().unwrap_or(true);
    let join = |pointer: &str, field: &str| {
        let items = list(object, pointer).iter();
        let texts: Vec<&str> = items
            .map(|item| if field.is_empty() { item } else { &item[field] })
            .filter_map(Value::as_str)
            .collect();
        texts.join(",")
    };
    let audiences = if object::has(object, "/spec/tokenRequests") {
        join("/spec/tokenRequests", "audience").into()
    } else {
        Value::from("<unset>")
    };
    vec![
        name,
        attach_required.into(),
        flag("podInfoOnMount"),
        flag("storageCapacity"),
        audiences,
        flag("requiresRepublish"),
        or(&join("/spec/volumeLifecycleModes", ""), "<none>"),
        age,
    ]
}

fn event(clock: &Clock, object: &Object) -> Vec<Value> {
    let event_time = since(clock, text(object, "/eventTime"));
    let first = match text(object, "/firstTimestamp") {
        "" => event_time,
        first => since(clock, first),
    };
    let series = at(object, "/series");
    let last = match (series.is_null(), text(object, "/lastTimestamp")) {
        (false, _) => since(clock, text(object, "/series/lastObservedTime")),
        (true, "") => first.clone(),
        (true, last) => since(clock, last),
    };
    let count = if series.is_null() {
        at(object, "/count")
            .as_i64()
            .filter(|count| *count != 0)
            .unwrap_or(1)
    } else {
        series["count"].as_i64().unwrap_or_default()
    };
    let kind = text(object, "/involvedObject/kind").to_lowercase();
    let target = match text(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let first_of = |a: &str, b: &str| {
        let a = text(object, a);
        if a.is_empty() { text(object, b) } else { a }.to_owned()
    };
    let component = first_of("/source/component", "/reportingComponent");
    let instance = first_of("/source/host", "/reportingInstance");
    let source = if instance.is_empty() {
        component
    } else {
        format!("{component}, {instance}")
    };
    vec![
        last.into(),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        target.into(),
        text(object, "/involvedObject/fieldPath").into(),
        source.into(),
        text(object, "/message").trim().into(),
        first.into(),
        count.into(),
        object::name(object).into(),
    ]
}

fn node(object: &Object, name: Value, age: Value) -> Vec<Value> {
    let ready = list(object, "/status/conditions")
        .iter()
        .find(|condition| condition["type"] == "Ready");
    let mut status = match ready {
        Some(condition) if condition["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if at(object, "/spec/unschedulable").as_bool() == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    let roles: BTreeSet<&str> = entries(object, "/metadata/labels")
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                None if key == "kubernetes.io/role" => value.as_str(),
                role => role,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    let roles: Vec<&str> = roles.into_iter().collect();
    let address = |kind: &str| {
        let found = list(object, "/status/addresses")
            .iter()
            .find(|address| address["type"] == kind);
        or(
            found
                .and_then(|address| address["address"].as_str())
                .unwrap_or_default(),
            "<none>",
        )
    };
    let info = |field: &str| or(text(object, &format!("/status/nodeInfo/{field}")), "<unknown>");
    let mut kernel = info("kernelVersion").as_str().unwrap_or_default().to_owned();
    let architecture = text(object, "/status/nodeInfo/architecture");
    if !architecture.is_empty() {
        kernel = format!("{kernel} ({architecture})");
    }
    vec![
        name,
        status.into(),
        or(&roles.join(","), "<none>"),
        age,
        text(object, "/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        kernel.into(),
        info("containerRuntimeVersion"),
    ]
}

fn access_modes(object: &Object, pointer: &str) -> String {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let given = list(object, pointer);
    let found = short
        .iter()
        .filter(|(mode, _)| given.iter().any(|given| given == mode));
    let found: Vec<&str> = found.map(|(_, short)| *short).collect();
    found.join(",")
}

fn phase(object: &Object) -> Value {
    if object::is_deleting(object) {
        "Terminating".into()
    } else {
        text(object, "/status/phase").into()
    }
}

fn persistent_volume(object: &Object, name: Value, age: Value) -> Vec<Value> {
    let claim = if object::has(object, "/spec/claimRef") {
        format!(
            "{}/{}",
            text(object, "/spec/claimRef/namespace"),
            text(object, "/spec/claimRef/name")
        )
    } else {
        String::new()
    };
    vec![
        name,
        or(text(object, "/spec/capacity/storage"), "0"),
        access_modes(object, "/spec/accessModes").into(),
        text(object, "/spec/persistentVolumeReclaimPolicy").into(),
        phase(object),
        claim.into(),
        object::storage_class(object).into(),
        attributes_class(object),
        text(object, "/status/reason").into(),
        age,
        or(text(object, "/spec/volumeMode"), "<unset>"),
    ]
}

/// A class that is set and empty is shown as empty.
fn attributes_class(object: &Object) -> Value {
    let class = at(object, "/spec/volumeAttributesClassName").as_str();
    class.unwrap_or("<unset>").into()
}

fn claim(object: &Object, name: Value, age: Value) -> Vec<Value> {
    let volume = text(object, "/spec/volumeName");
    let (capacity, modes) = if volume.is_empty() {
        (Value::from(""), String::new())
    } else {
        let capacity = or(text(object, "/status/capacity/storage"), "0");
        (capacity, access_modes(object, "/status/accessModes"))
    };
    vec![
        name,
        phase(object),
        volume.into(),
        capacity,
        modes.into(),
        object::storage_class(object).into(),
        attributes_class(object),
        age,
        or(text(object, "/spec/volumeMode"), "<unset>"),
    ]
}

/// Age of a timestamp (`duration.HumanDuration`).
fn since(clock: &Clock, time: &str) -> String {
    let Ok(time) = time.parse::<Timestamp>() else {
        return "<unknown>".to_owned();
    };
    // The clocks of two machines differ.
    let seconds = match clock.now().duration_since(time).as_secs() {
        ..-1 => return "<invalid>".to_owned(),
        seconds => seconds.max(0),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |whole: i64, unit: &str, rest: i64, rest_unit: &str| {
        if rest == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{rest}{rest_unit}")
        }
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Kind, object, column, and the cell in kube-apiserver 1.37.
    #[tokio::test(start_paused = true)]
    async fn prints_objects_as_kube_apiserver_does() {
        let roles = json!({
            "node-role.kubernetes.io/worker": "",
            "node-role.kubernetes.io/control-plane": "",
            "node-role.kubernetes.io/": "",
            "kubernetes.io/role": "worker",
        });
        let table = [
            (Kind::Node, json!({"labels": roles}), 2, "control-plane,worker"),
            (
                Kind::Node,
                json!({"labels": {"kubernetes.io/role": ""}}),
                2,
                "<none>",
            ),
        ];
        for (kind, metadata, column, expected) in table {
            let object = json!({ "metadata": metadata });
            assert_eq!(cell(&object, kind, column), expected, "{metadata}");
        }
    }

    fn cell(object: &Value, kind: Kind, column: usize) -> Value {
        let clock = Clock::starting_at("2026-01-10T00:00:00Z".parse().unwrap());
        cells(kind, &clock, object.as_object().unwrap())[column].clone()
    }

    #[tokio::test(start_paused = true)]
    async fn shows_the_class_of_the_beta_annotation() {
        let annotations = json!({ "volume.beta.kubernetes.io/storage-class": "fast" });
        let object =
            json!({ "metadata": { "annotations": annotations }, "spec": { "storageClassName": "slow" } });
        assert_eq!(cell(&object, Kind::PersistentVolume, 6), "fast");
        assert_eq!(cell(&object, Kind::PersistentVolumeClaim, 5), "fast");
    }

    #[tokio::test(start_paused = true)]
    async fn prints_durations_as_kubectl_does() {
        let clock = Clock::starting_at("2026-01-10T00:00:00Z".parse().unwrap());
        for (time, expected) in [
            ("2026-01-09T23:59:30Z", "30s"),
            ("2026-01-09T23:57:55Z", "2m5s"),
            ("2026-01-09T23:40:00Z", "20m"),
            ("2026-01-09T20:30:00Z", "3h30m"),
            ("2026-01-09T00:00:00Z", "24h"),
            ("2026-01-07T00:00:00Z", "3d"),
            ("2026-01-10T00:00:01Z", "0s"),
            ("2026-01-10T00:00:02Z", "<invalid>"),
            ("", "<unknown>"),
        ] {
            assert_eq!(since(&clock, time), expected, "{time}");
        }
    }
}
