//! Links, commands and known issues in the documents are valid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::attacher::Kind;
use csi_e2e::document;
use csi_e2e::scenario::{self, ExpectedOutcome, KnownIssue};
use csi_e2e::toolchain::workspace_root;

use crate::Harness;

trials! { "documents":
    links_have_targets,
    commands_name_existing_files,
    known_issues_of_scenarios_are_described,
    scenarios_of_the_architecture_exist,
    readme_lists_all_scenarios,
    figures_of_the_readme_are_those_of_the_benchmark,
}

/// Checks links within the repository, including anchors.
async fn links_have_targets(_harness: Arc<Harness>) -> Result<()> {
    let mut followed = 0;
    for document in documents()? {
        let text = read(&document)?;
        for link in text.split("](").skip(1) {
            let (target, _) = link.split_once(')').context("a link must end")?;
            if target.contains("://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = document.parent().context("a document must be in a folder")?;
            let wanted = if path.is_empty() {
                document.clone()
            } else {
                folder.join(path)
            };
            let what = || format!("{} points at {target}", document.display());
            ensure!(wanted.exists(), "{}, which does not exist", what());
            if !heading.is_empty() {
                let anchors = anchors(&read(&wanted)?);
                ensure!(
                    anchors.iter().any(|known| known == heading),
                    "{}, which has {anchors:?}",
                    what()
                );
            }
            followed += 1;
        }
    }
    ensure!(followed >= 10, "only {followed} links were found");
    Ok(())
}

/// Functions and fields of the attach/detach path, by component: controllers, external-provisioner, kubelet.
const FUNCTIONS: &str = "
    NewAttachDetachController populateActualStateOfWorld populateDesiredStateOfWorld getNodeVolumeDevicePath
    CreateVolumeSpec FindAttachablePluginBySpec GetUniqueVolumeNameFromSpec
    podAdd podUpdate podDelete ProcessPodVolumes DetermineVolumeAction IsPodTerminated
    nodeAdd nodeUpdate nodeDelete addNodeToDswp processVolumesInUse SetVolumeMountedByNode pvcWorker
    AddNode DeleteNode NodeExists AddPod DeletePod GetPodToAdd GetUniquePodName VolumeExists GetVolumesToAttach SetMultiAttachError
    populatorLoopFunc findAndRemoveDeletedPods findAndAddActivePods
    MarkVolumeAsAttached MarkVolumeAsUncertain MarkVolumeAsDetached AddVolumeNode DeleteVolumeNode
    RemoveVolumeFromReportAsAttached AddVolumeToReportAsAttached SetDetachRequestTime ResetDetachRequestTime
    IsVolumeAttachedToNode GetAttachedVolumes GetAttachedVolumesForNode GetNodesForAttachedVolume
    GetVolumesToReportAttached SetNodeStatusUpdateNeeded
    reconciliationLoopFunc reconcile attachDesiredVolumes isMultiAttachForbidden reportMultiAttachError sync
    disableReconciliationSync RecordForcedDetachMetric GenerateErrorDetailed
    AttachVolume GenerateAttachVolumeFunc DetachVolume GenerateDetachVolumeFunc IsOperationPending verifySafeToDetach
    UpdateNodeStatuses updateNodeStatus PatchNodeStatus metrics.Register InTreeToCSITranslator
    NewController newPersistentVolumeOrderedIndex NewGoRoutineMap enqueueWork claimWorker updateClaim volumeWorker updateVolume syncClaim syncBoundClaim bind syncVolume unbindVolume
    createProvisionedPVRetryCount
    runClaimWorker syncClaimHandler provisionClaimOperation Provision CreateVolume
    runVolumeWorker syncVolumeHandler deleteVolumeOperation Delete DeleteVolume
    populatorLoop findAndAddNewPods GetMountedVolumes populatorHasAddedPods StatesHasBeenSynced OperationExecutor
";

/// The table of components in docs/architecture.md names scenarios in its last column; those on real kubelets are
/// functions, so their names have underscores. With the list after it, it names all [`FUNCTIONS`].
async fn scenarios_of_the_architecture_exist(_harness: Arc<Harness>) -> Result<()> {
    let text = read(&workspace_root().join("docs/architecture.md"))?;
    let (_, table) = text
        .split_once("## Scenarios by component")
        .context("the table of components is missing")?;
    let words: BTreeSet<_> = table
        .split(|letter: char| !letter.is_alphanumeric() && letter != '.')
        .map(|word| word.trim_end_matches('.'))
        .collect();
    let missing: Vec<_> = FUNCTIONS
        .split_whitespace()
        .filter(|name| !words.contains(name))
        .collect();
    ensure!(
        missing.is_empty(),
        "docs/architecture.md: the table of components lacks {missing:?}"
    );
    let mut on_kubelets = String::new();
    for file in ["volumes.rs", "disturbances.rs"] {
        on_kubelets += &read(&workspace_root().join("e2e/tests/nodes").join(file))?;
    }
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let mut columns = row.trim_end_matches('|').rsplit('|');
        let scenarios = columns.next().context("a row must have a column")?;
        for name in scenarios.split('`').skip(1).step_by(2) {
            let function = format!("async fn {name}(");
            ensure!(
                scenario::Scenario::named(name).is_some() || on_kubelets.contains(&function),
                "docs/architecture.md: there is no scenario {name}"
            );
            named += 1;
        }
    }
    ensure!(named >= 50, "only {named} scenarios were found in the table");
    Ok(())
}

/// The README's table about the Go sidecar has rows of docs/benchmark.md, unchanged.
async fn figures_of_the_readme_are_those_of_the_benchmark(_harness: Arc<Harness>) -> Result<()> {
    let (readme, measured) = (
        read(&workspace_root().join("README.md"))?,
        read(&workspace_root().join("docs/benchmark.md"))?,
    );
    let (_, section) = readme
        .split_once("## Compare it with the Go sidecar")
        .context("the README's section about the Go sidecar is missing")?;
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with('|')).collect();
    ensure!(
        rows.len() > 2,
        "the README's table about the Go sidecar is missing"
    );
    for row in rows {
        ensure!(
            measured.lines().any(|line| line == row),
            "docs/benchmark.md has no such row:\n{row}"
        );
    }
    Ok(())
}

/// The table of scenarios in e2e/README.md is the one of the code.
async fn readme_lists_all_scenarios(_harness: Arc<Harness>) -> Result<()> {
    let table = scenario::backends::markdown_table();
    ensure!(
        read(&workspace_root().join("e2e/README.md"))?.contains(&format!("\n\n{table}\n")),
        "replace the table of scenarios in e2e/README.md by\n{table}"
    );
    Ok(())
}

/// Paths below `deploy/`, relative to the repository's root.
async fn commands_name_existing_files(_harness: Arc<Harness>) -> Result<()> {
    let mut named = 0;
    for document in documents()? {
        let blocks = document::blocks(&document)?;
        for block in blocks.iter().filter(|block| block.language == "console") {
            // In a `kubectl exec` command, deploy/ is a resource kind.
            for line in block.text.lines().filter(|line| !line.contains(" exec ")) {
                for word in line.split_whitespace().filter(|word| word.starts_with("deploy/")) {
                    ensure!(
                        workspace_root().join(word).exists(),
                        "{}: there is no {word}",
                        document.display()
                    );
                    named += 1;
                }
            }
        }
    }
    ensure!(named >= 10, "only {named} files were found");
    Ok(())
}

/// Scenarios name a known issue of the Go sidecar by its number.
async fn known_issues_of_scenarios_are_described(_harness: Arc<Harness>) -> Result<()> {
    let anchors = anchors(&read(&workspace_root().join("docs/go-sidecar.md"))?);
    let mut named = 0;
    for scenario in scenario::ALL {
        if let ExpectedOutcome::Fails {
            issue: KnownIssue(number),
            ..
        } = scenario.expected_outcome(Kind::Go)
        {
            let anchor = format!("issue-{number}");
            ensure!(anchors.contains(&anchor), "docs/go-sidecar.md has no {anchor}");
            named += 1;
        }
    }
    ensure!(named >= 5, "only {named} scenarios name a known issue");
    Ok(())
}

/// All Markdown files outside hidden directories and `target`.
pub(crate) fn documents() -> Result<Vec<PathBuf>> {
    let mut folders = vec![workspace_root().to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_folder = entry.file_type()?.is_dir();
            if is_folder && !name.starts_with('.') && name != "target" {
                folders.push(entry.path());
            } else if !is_folder && name.ends_with(".md") {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Anchors: the ids that GitHub derives from headings, and explicit ones.
fn anchors(text: &str) -> Vec<String> {
    let ids = text
        .split("<a id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    headings(text).into_iter().chain(ids.map(str::to_owned)).collect()
}

fn headings(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
    let titles = lines.map(|line| line.trim_start_matches('#').trim());
    titles
        .map(|title| {
            let kept = title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.flat_map(char::to_lowercase)
                .map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}
