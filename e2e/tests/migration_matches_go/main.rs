//! Compares the hand-written translation of in-tree volumes with Kubernetes' csi-translation-lib, which the
//! Go sidecar uses, on thousands of generated volumes of every plugin: field by field, including error
//! messages. The test also compares the embedded cluster's own translation.

mod embedded;
mod volumes;

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use csi_attacher::migration::{self, Plugin};
use csi_attacher::model::wire::VolumeObject;
use csi_attacher::model::{Capabilities, Driver};
use csi_e2e::toolchain::csi_translations;
use fastrand::Rng;
use k8s_openapi::api::core::v1::CSIPersistentVolumeSource;
use libtest_mimic::{Arguments, Trial};
use serde::Deserialize;
use serde_json::{Value, json};
use verdict::Requirement::RealComponents;

const SEED: u64 = 0x0a11_0c47;
/// Number of volumes per plugin.
const VOLUMES: usize = 4000;
/// Number of handles to complete, and of names to look up.
const OTHERS: usize = 4000;
/// Minimum number of translatable volumes per plugin, so that the comparison is meaningful.
const FEWEST: usize = 300;
/// Minimum number of handles that are completed, and of those that cannot be.
const FEWEST_REPAIRED: usize = 150;
/// Maximum number of printed differences.
const PRINTED: usize = 10;
/// Prefix that the Go sidecar adds to the library's error.
const SIDECAR_PREFIX: &str = "failed to translate in tree pv to CSI: ";

/// Output of the library; see `e2e/peers/csi-translation`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct LibraryResult {
    not_migrated: bool,
    error: Option<String>,
    name: Option<String>,
    source: Option<CSIPersistentVolumeSource>,
    access_modes: Vec<String>,
    handle: Option<String>,
    yes: Option<bool>,
    finalizer: Option<String>,
}

/// The result for a volume, in a form common to both sides.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    NotMigrated,
    Refused(String),
    Translated {
        driver: String,
        handle: String,
        read_only: bool,
        fs_type: String,
        attributes: BTreeMap<String, String>,
        secret: Option<(String, String)>,
        access_modes: Vec<String>,
    },
}

fn main() -> ExitCode {
    let mut trials: Vec<_> = volumes::PLUGINS
        .iter()
        .map(|&(field, generator)| {
            trial(
                &format!("translates volumes of {field} like the library"),
                move || translates_volumes_like_the_library(field, generator),
            )
        })
        .collect();
    let embedded = volumes::PLUGINS
        .iter()
        .filter(|(field, _)| embedded::PLUGINS.contains(field));
    trials.extend(embedded.map(|&(field, generator)| {
        trial(
            &format!("the embedded cluster translates volumes of {field} like the library"),
            move || embedded::translates_like_the_library(field, generator),
        )
    }));
    trials.push(trial(
        "completes handles like the library",
        completes_handles_like_the_library,
    ));
    trials.push(trial(
        "recognizes drivers and names finalizers like the library",
        names_match,
    ));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    verdict::trial(name, &[RealComponents], test)
}

fn translates_volumes_like_the_library(field: &str, generator: volumes::Generator) -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let volumes: Vec<Value> = (0..VOLUMES)
        .map(|_| {
            let source = generator(&mut random);
            volumes::volume(&mut random, field, source)
        })
        .collect();
    let results = query_library(volumes.iter().map(|volume| json!({"translate": volume})))?;
    let outcomes = volumes
        .into_iter()
        .zip(results)
        .map(|(volume, result)| anyhow::Ok((ours(&volume)?, theirs(result)?, volume)));
    let is_translated = |outcome: &Outcome| matches!(outcome, Outcome::Translated { .. });
    compare(field, outcomes, is_translated, is_match)
}

/// Fails if our outcome for a volume differs from Go's, or if too few volumes were translated.
fn compare<T: fmt::Debug>(
    field: &str,
    outcomes: impl Iterator<Item = Result<(T, T, Value)>>,
    is_translated: impl Fn(&T) -> bool,
    is_match: impl Fn(&T, &T) -> bool,
) -> Result<()> {
    let (mut differences, mut translated) = (Vec::new(), 0);
    for outcome in outcomes {
        let (ours, theirs, input) = outcome?;
        translated += usize::from(is_translated(&theirs));
        if !is_match(&ours, &theirs) {
            differences.push(format!("{input}\n  ours: {ours:?}\n  Go's: {theirs:?}"));
        }
    }
    none(&differences)?;
    let is_migrated = !["csi", "hostPath"].contains(&field);
    ensure!(
        (translated >= FEWEST) == is_migrated,
        "{translated} of {VOLUMES} volumes were translated"
    );
    Ok(())
}

/// Accepted differences: Go refuses more of an EBS id's URL than its path, and says why; Kubernetes creates no VolumeAttachment of such
/// an id. CSI handles are text, so csi-attacher rejects invalid bytes (U+FFFD here) immediately, whereas the Go sidecar fails in
/// each call.
fn is_match(ours: &Outcome, theirs: &Outcome) -> bool {
    match (ours, theirs) {
        (ours, Outcome::Refused(theirs)) if theirs.contains(embedded::INVALID_URL) => {
            *ours != Outcome::NotMigrated
        }
        (Outcome::Refused(ours), Outcome::Translated { handle, .. }) => {
            handle.contains('\u{fffd}') && ours.contains("Invalid format for AWS volume")
        }
        (ours, theirs) => ours == theirs,
    }
}

fn completes_handles_like_the_library() -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let cases: Vec<_> = (0..OTHERS)
        .map(|_| {
            let driver = match random.bool() {
                true => Plugin::GcePd.driver().to_owned(),
                false => volumes::driver(&mut random),
            };
            (
                driver,
                volumes::handle(&mut random),
                volumes::node_id(&mut random),
            )
        })
        .collect();
    let requests = cases.iter().map(
        |(driver, handle, node)| json!({"repair": {"driver": driver, "handle": handle, "nodeId": node}}),
    );
    let results = query_library(requests)?;
    let (mut differences, mut changed, mut failed) = (Vec::new(), 0, 0);
    for ((driver, handle, node), result) in cases.iter().zip(results) {
        let ours = migration::repaired(driver, handle, node);
        let theirs = match (result.handle, result.error) {
            (Some(handle), _) => Ok(handle),
            // The library fails without a plugin for the driver, whose handles are complete.
            (None, Some(_)) if !migration::is_migration_driver(driver) => Ok(handle.clone()),
            (None, error) => Err(error.unwrap_or_default()),
        };
        changed += usize::from(theirs.as_ref().is_ok_and(|repaired| repaired != handle));
        failed += usize::from(theirs.is_err());
        let ours = ours.map(String::from).map_err(|error| error.to_string());
        if ours != theirs {
            differences.push(format!(
                "{driver} {handle} {node}\n  ours: {ours:?}\n  Go's: {theirs:?}"
            ));
        }
    }
    none(&differences)?;
    ensure!(
        changed >= FEWEST_REPAIRED && failed >= FEWEST_REPAIRED,
        "{changed} handles were repaired, {failed} could not be"
    );
    Ok(())
}

fn names_match() -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let names: Vec<String> = (0..OTHERS).map(|_| volumes::driver(&mut random)).collect();
    let results = query_library(
        names
            .iter()
            .flat_map(|name| [json!({"isMigrationDriver": name}), json!({"finalizer": name})]),
    )?;
    let mut differences = Vec::new();
    for (name, results) in names.iter().zip(results.chunks_exact(2)) {
        let driver = Driver::new(name, Capabilities::default(), "");
        let ours = (migration::is_migration_driver(name), driver.finalizer.to_string());
        let theirs = (
            results[0].yes.context("the first result must be a boolean")?,
            results[1]
                .finalizer
                .clone()
                .context("the second result must be a finalizer")?,
        );
        if ours != theirs {
            differences.push(format!("{name:?}\n  ours: {ours:?}\n  Go's: {theirs:?}"));
        }
    }
    none(&differences)
}

fn ours(volume: &Value) -> Result<Outcome> {
    let object = VolumeObject::deserialize(volume).with_context(|| format!("decode {volume}"))?;
    Ok(match migration::translate(&object) {
        None => Outcome::NotMigrated,
        Some(Err(error)) => Outcome::Refused(error.to_string()),
        Some(Ok(translation)) => Outcome::Translated {
            driver: translation.source.driver,
            handle: translation.source.handle.to_string(),
            read_only: translation.source.read_only,
            fs_type: translation.source.fs_type,
            attributes: translation.source.attributes,
            secret: translation
                .source
                .publish_secret
                .map(|secret| (secret.namespace.to_string(), secret.name.to_string())),
            access_modes: translation.access_modes,
        },
    })
}

fn theirs(result: LibraryResult) -> Result<Outcome> {
    if result.not_migrated {
        return Ok(Outcome::NotMigrated);
    }
    if let Some(error) = result.error {
        return Ok(Outcome::Refused(format!("{SIDECAR_PREFIX}{error}")));
    }
    let source = result.source.context("a translated volume has a source")?;
    let secret = source.controller_publish_secret_ref;
    Ok(Outcome::Translated {
        driver: source.driver,
        handle: source.volume_handle,
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.unwrap_or_default(),
        attributes: source.volume_attributes.unwrap_or_default(),
        secret: secret.map(|secret| {
            (
                secret.namespace.unwrap_or_default(),
                secret.name.unwrap_or_default(),
            )
        }),
        access_modes: result.access_modes,
    })
}

fn query_library(requests: impl Iterator<Item = Value>) -> Result<Vec<LibraryResult>> {
    let (mut count, mut lines) = (0, String::new());
    for request in requests {
        lines.push_str(&request.to_string());
        lines.push('\n');
        count += 1;
    }
    let results = csi_translations(lines.as_bytes())?;
    let results = serde_json::Deserializer::from_slice(&results)
        .into_iter()
        .collect::<Result<Vec<LibraryResult>, _>>()
        .context("decode the output of csi-translation")?;
    ensure!(
        results.len() == count,
        "{} results for {count} requests",
        results.len()
    );
    Ok(results)
}

fn none(differences: &[String]) -> Result<()> {
    let printed = &differences[..differences.len().min(PRINTED)];
    ensure!(
        differences.is_empty(),
        "{} differences (seed {SEED:#x}), the first of them:\n{}",
        differences.len(),
        printed.join("\n")
    );
    Ok(())
}
