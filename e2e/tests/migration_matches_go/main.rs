//! Compares the hand-written translation of in-tree volumes with Kubernetes' csi-translation-lib, which the
//! Go sidecar uses, on thousands of generated volumes of every plugin: field by field, including error
//! messages. The embedded cluster has a translation of its own, which is compared, too.

mod embedded;
mod volumes;

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use csi_attacher::migration::{self, Plugin};
use csi_attacher::model::wire::VolumeObject;
use csi_attacher::model::{Capabilities, Driver};
use csi_e2e::toolchain::{MissingGo, csi_translations};
use fastrand::Rng;
use k8s_openapi::api::core::v1::CSIPersistentVolumeSource;
use libtest_mimic::{Arguments, Completion, Trial};
use serde::Deserialize;
use serde_json::{Value, json};

const SEED: u64 = 0x0a11_0c47;
/// Number of volumes per plugin.
const VOLUMES: usize = 4000;
/// Number of handles to complete, and of names to look up.
const OTHERS: usize = 4000;
/// Minimum number of translatable volumes per plugin; with fewer the comparison would mean little.
const FEWEST: usize = 300;
/// Minimum number of handles that are completed, and of those that cannot be.
const FEWEST_REPAIRED: usize = 150;
/// Maximum number of printed differences.
const TOLD: usize = 10;
/// Prefix that the Go sidecar adds to the library's error.
const SIDECAR_SAYS: &str = "failed to translate in tree pv to CSI: ";

/// Output of the library; see `e2e/peers/csi-translation`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Answer {
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
            trial(&format!("volumes of {field} are translated alike"), move || {
                volumes_are_translated_alike(field, generator)
            })
        })
        .collect();
    trials.extend(volumes::PLUGINS.iter().map(|&(field, generator)| {
        trial(
            &format!("the embedded cluster translates volumes of {field} alike"),
            move || embedded::translates_alike(field, generator),
        )
    }));
    trials.push(trial("handles are repaired alike", handles_are_repaired_alike));
    trials.push(trial(
        "drivers are told and finalizers named alike",
        names_are_alike,
    ));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        let skipped = MissingGo::skips(test())?;
        Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
    })
}

fn volumes_are_translated_alike(field: &str, generator: volumes::Generator) -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let asked: Vec<Value> = (0..VOLUMES)
        .map(|_| {
            let source = generator(&mut random);
            volumes::volume(&mut random, field, source)
        })
        .collect();
    let answers = ask(asked.iter().map(|volume| json!({"translate": volume})))?;
    let outcomes = asked
        .into_iter()
        .zip(answers)
        .map(|(volume, answer)| anyhow::Ok((ours(&volume)?, theirs(answer)?, volume)));
    let is_translated = |outcome: &Outcome| matches!(outcome, Outcome::Translated { .. });
    compare(field, outcomes, is_translated, are_alike)
}

/// Fails if our outcome of a volume is not like Go's, or if fewer volumes were translated than the plugin has.
fn compare<T: fmt::Debug>(
    field: &str,
    outcomes: impl Iterator<Item = Result<(T, T, Value)>>,
    is_translated: impl Fn(&T) -> bool,
    are_alike: impl Fn(&T, &T) -> bool,
) -> Result<()> {
    let (mut differences, mut translated) = (Vec::new(), 0);
    for outcome in outcomes {
        let (ours, theirs, asked) = outcome?;
        translated += usize::from(is_translated(&theirs));
        if !are_alike(&ours, &theirs) {
            differences.push(format!("{asked}\n  ours: {ours:?}\n  Go's: {theirs:?}"));
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

/// Differing messages: Go explains in brackets why an address is invalid. CSI handles are text, so
/// csi-attacher rejects at once the bytes with which the Go sidecar fails in each call (here they arrive as
/// U+FFFD).
fn are_alike(ours: &Outcome, theirs: &Outcome) -> bool {
    match (ours, theirs) {
        (Outcome::Refused(ours), Outcome::Refused(theirs)) => {
            const ADDRESS: &str = ": invalid host: ParseAddr(";
            let before = |text: &str| text.split_once(ADDRESS).map(|(before, _)| before.to_owned());
            ours == theirs || before(ours).is_some() && before(ours) == before(theirs)
        }
        (Outcome::Refused(ours), Outcome::Translated { handle, .. }) => {
            handle.contains('\u{fffd}') && ours.contains("Invalid format for AWS volume")
        }
        (ours, theirs) => ours == theirs,
    }
}

fn handles_are_repaired_alike() -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let asked: Vec<_> = (0..OTHERS)
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
    let questions = asked.iter().map(
        |(driver, handle, node)| json!({"repair": {"driver": driver, "handle": handle, "nodeId": node}}),
    );
    let answers = ask(questions)?;
    let (mut differences, mut changed, mut failed) = (Vec::new(), 0, 0);
    for ((driver, handle, node), answer) in asked.iter().zip(answers) {
        let ours = migration::repaired(driver, handle, node);
        let theirs = match (answer.handle, answer.error) {
            (Some(handle), _) => Ok(handle),
            // There the library needs a plugin; the handle of any other driver is complete.
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

fn names_are_alike() -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    let names: Vec<String> = (0..OTHERS).map(|_| volumes::driver(&mut random)).collect();
    let answers = ask(names
        .iter()
        .flat_map(|name| [json!({"isMigrationDriver": name}), json!({"finalizer": name})]))?;
    let mut differences = Vec::new();
    for (name, answers) in names.iter().zip(answers.chunks_exact(2)) {
        let driver = Driver::new(name, Capabilities::default(), "");
        let ours = (migration::is_migration_driver(name), driver.finalizer.to_string());
        let theirs = (
            answers[0].yes.context("the first answer is a yes or a no")?,
            answers[1]
                .finalizer
                .clone()
                .context("the second answer is a finalizer")?,
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

fn theirs(answer: Answer) -> Result<Outcome> {
    if answer.not_migrated {
        return Ok(Outcome::NotMigrated);
    }
    if let Some(error) = answer.error {
        return Ok(Outcome::Refused(format!("{SIDECAR_SAYS}{error}")));
    }
    let source = answer.source.context("a translated volume has a source")?;
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
        access_modes: answer.access_modes,
    })
}

fn ask(questions: impl Iterator<Item = Value>) -> Result<Vec<Answer>> {
    let (mut asked, mut lines) = (0, String::new());
    for question in questions {
        lines.push_str(&question.to_string());
        lines.push('\n');
        asked += 1;
    }
    let answers = csi_translations(lines.as_bytes())?;
    let answers = serde_json::Deserializer::from_slice(&answers)
        .into_iter()
        .collect::<Result<Vec<Answer>, _>>()
        .context("understand what csi-translation printed")?;
    ensure!(
        answers.len() == asked,
        "{} answers to {asked} questions",
        answers.len()
    );
    Ok(answers)
}

fn none(differences: &[String]) -> Result<()> {
    let told = &differences[..differences.len().min(TOLD)];
    ensure!(
        differences.is_empty(),
        "{} differences (seed {SEED:#x}), the first of them:\n{}",
        differences.len(),
        told.join("\n")
    );
    Ok(())
}
