//! The translation of the embedded attach/detach controller and kubelet.

use anyhow::{Context as _, Result};
use embedded_cluster::migration::{inline_to_csi, to_csi};
use fastrand::Rng;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, Volume};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{LibraryResult, SEED, VOLUMES, compare, query_library, volumes};

/// Prefix that kube-controller-manager and kubelet add to the library's error.
const KUBERNETES_PREFIX: &str = "failed to translate in-tree pv to CSI: ";
/// The start of an error whose rest is Go's reason for an invalid URL, which the embedded cluster leaves out.
pub(crate) const INVALID_URL: &str = "EBS Volume ID Invalid disk name (";

/// The volumes that the embedded cluster translates, and two that are not migrated.
pub(crate) const PLUGINS: [&str; 5] = ["awsElasticBlockStore", "azureDisk", "cinder", "csi", "hostPath"];

/// Name, CSI source and access modes; none if the volume is not migrated.
type Outcome = Result<Option<(String, CSIPersistentVolumeSource, Vec<String>)>, String>;

pub(crate) fn translates_like_the_library(field: &str, generator: volumes::Generator) -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let (mut requests, mut ours) = (Vec::new(), Vec::new());
    for number in 0..VOLUMES {
        let source = generator(&mut random);
        if number % 2 == 0 {
            let volume = volumes::volume(&mut random, field, source);
            ours.push(of_persistent_volume(&volume)?);
            requests.push(json!({ "translate": volume }));
        } else {
            let volume = in_pod(field, source);
            let namespace = ["", "ns"][random.usize(..2)];
            ours.push(of_inline(&volume)?);
            requests.push(json!({"translateInline": {"volume": volume, "namespace": namespace}}));
        }
    }
    let results = query_library(requests.iter().cloned())?;
    let outcomes = requests
        .into_iter()
        .zip(ours)
        .zip(results)
        .map(|((request, ours), result)| anyhow::Ok((ours, theirs(&request, result)?, request)));
    let is_translated = |outcome: &Outcome| matches!(outcome, Ok(Some(_)));
    compare(field, outcomes, is_translated, is_match)
}

fn is_match(ours: &Outcome, theirs: &Outcome) -> bool {
    match (ours, theirs) {
        (Err(ours), Err(theirs)) => {
            ours == theirs || ours.contains(INVALID_URL) && theirs.contains(INVALID_URL)
        }
        (ours, theirs) => ours == theirs,
    }
}

/// The volume of a pod with this source.
fn in_pod(field: &str, source: Value) -> Value {
    json!({"name": "data", field: source})
}

fn of_persistent_volume(volume: &Value) -> Result<Outcome> {
    let volume = PersistentVolume::deserialize(volume).with_context(|| format!("decode {volume}"))?;
    let is_native = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some());
    if is_native {
        return Ok(Ok(None));
    }
    let translated = to_csi(&volume).map(|translated| translated.map(std::borrow::Cow::into_owned));
    Ok(translated
        .map(|volume| volume.and_then(parts))
        .map_err(|error| error.to_string()))
}

fn of_inline(volume: &Value) -> Result<Outcome> {
    let volume = Volume::deserialize(volume).with_context(|| format!("decode {volume}"))?;
    Ok(inline_to_csi(&volume)
        .map(|volume| volume.and_then(parts))
        .map_err(|error| error.to_string()))
}

fn parts(volume: PersistentVolume) -> Option<(String, CSIPersistentVolumeSource, Vec<String>)> {
    let spec = volume.spec?;
    let name = volume.metadata.name.unwrap_or_default();
    Some((name, spec.csi?, spec.access_modes.unwrap_or_default()))
}

fn theirs(request: &Value, result: LibraryResult) -> Result<Outcome> {
    if result.not_migrated {
        return Ok(Ok(None));
    }
    if let Some(error) = result.error {
        return Ok(Err(format!("{KUBERNETES_PREFIX}{error}")));
    }
    let source = result.source.context("a translated volume has a source")?;
    // A PersistentVolume keeps its name.
    let own_name = request["translate"]["metadata"]["name"]
        .as_str()
        .map(str::to_owned);
    let name = result.name.or(own_name).unwrap_or_default();
    Ok(Ok(Some((name, source, result.access_modes))))
}
