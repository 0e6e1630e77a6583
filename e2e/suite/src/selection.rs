//! Selects the tests of the suite, with reasons for the excluded ones.

use anyhow::{Context, Result};
use clap::ValueEnum;

/// Number of the capability (capabilities(7)).
const CAP_SYS_RESOURCE: u32 = 24;

/// A family of the suite's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Family {
    /// External.Storage: the driver of `deploy/`, as `deploy/e2e-suite/testdriver.yaml` describes it.
    External,
    /// CSI Volumes: csi-driver-host-path's manifests.
    Volumes,
    /// CSI Mock: the suite implements most calls itself, with the driver as a proxy.
    Mock,
}

/// Excluded tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    /// The reason.
    pub(crate) reason: &'static str,
    /// Test names, each as a list of its parts in order.
    names: &'static [&'static [&'static str]],
}

/// A selection of the suite's tests.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Families.
    pub(crate) families: Vec<Family>,
    /// A regular expression for the part of a test's name after its family's; empty: all tests.
    pub(crate) focus: String,
    /// Parts of names: for each, at least one matching test must run.
    pub(crate) required: &'static [&'static str],
}

const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        reason: "needs the image of hello-populator, whose Go module the module proxy does not have",
        names: &[&["any volume data source"]],
    },
    LeftOut {
        reason: "builds snapshot-metadata-verifier from its main branch (`go install ...@main`) in an image of Go, for which the nodes have no registry and no network",
        names: &[&["[Feature:snapshotmetadata]"]],
    },
    LeftOut {
        reason: "needs Windows nodes",
        names: &[&["[Feature:Windows]"]],
    },
    LeftOut {
        reason: "needs nodes with SELinux",
        names: &[&["[Feature:SELinux]"]],
    },
];

/// Growing a mounted ext4 filesystem needs CAP_SYS_RESOURCE; without it each of these waits ten minutes.
const GROWTH: LeftOut = LeftOut {
    reason: "grows a mounted ext4 filesystem, for which the machine lacks CAP_SYS_RESOURCE",
    names: &[
        &[
            "(default fs)(allowExpansion)",
            "volume-expand",
            "while pod is using it",
        ],
        &[
            "(default fs) (immediate-binding)",
            "ephemeral should support expansion",
        ],
        &[
            "(default fs) (late-binding)",
            "ephemeral should support expansion",
        ],
        &["CSI Mock volume expansion", "online volume expansion"],
        &["CSI Mock volume expansion", "should record target size"],
    ],
};

/// Some tests of each family, which take minutes in total.
const SMOKE: &[&str] = &[
    // For the two drivers.
    "[Testpattern: Dynamic PV (default fs)] volumes should store data",
    "[Testpattern: Dynamic PV (block volmode)] volumes should store data",
    "[Testpattern: Dynamic PV (default fs)] subPath should support existing directory",
    "[Testpattern: Generic Ephemeral-volume (default fs) (late-binding)] ephemeral should create read/write inline",
    // For the suite's own driver.
    "should require VolumeAttach for drivers with attachment",
    "should not require VolumeAttach for drivers without attachment",
    "should preserve attachment policy when no CSIDriver present",
    "should require VolumeAttach for ephemermal volume",
    "should modify fsGroup if fsGroupPolicy=File",
    "should be passed when podInfoOnMount=true",
    "should observe dynamic changes in CSINode allocatable count",
];

// === impl Family ===

impl Family {
    /// All families.
    pub(crate) const ALL: [Self; 3] = [Self::External, Self::Volumes, Self::Mock];

    /// Name in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::External => "External.Storage",
            Self::Volumes => "CSI Volumes",
            Self::Mock => "CSI Mock",
        }
    }

    /// Texts, one of which the names of its tests contain.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::External => &["External Storage [Driver: mock.csi.local]"],
            Self::Volumes => &["CSI Volumes [Driver: csi-hostpath]"],
            Self::Mock => &["CSI Mock", "MutableCSINodeAllocatableCount"],
        }
    }

    /// The family of a test.
    pub(crate) fn of(test: &str) -> Option<Self> {
        let contains = |name: &&str| test.contains(*name);
        Self::ALL
            .into_iter()
            .find(|family| family.names().iter().any(contains))
    }
}

// === impl LeftOut ===

impl LeftOut {
    /// All tests that this machine cannot run or that the harness does not support.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let mut all = LEFT_OUT.to_vec();
        if !may_grow_mounted_ext4()? {
            all.push(GROWTH);
        }
        Ok(all)
    }

    /// Whether it matches the test.
    pub(crate) fn matches(&self, test: &str) -> bool {
        self.names.iter().any(|parts| {
            let mut rest = Some(test);
            for part in *parts {
                rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, rest)| rest);
            }
            rest.is_some()
        })
    }

    /// The same as a Go regular expression.
    pub(crate) fn pattern(&self) -> String {
        let patterns = self.names.iter().map(|parts| {
            let parts: Vec<_> = parts.iter().map(|part| literal(part)).collect();
            parts.join(".*")
        });
        patterns.collect::<Vec<_>>().join("|")
    }
}

// === impl Selection ===

impl Selection {
    /// The tests of these families that match `focus`.
    pub(crate) fn new(families: &[Family], focus: &str) -> Self {
        Self {
            families: families.to_vec(),
            focus: focus.to_owned(),
            required: &[],
        }
    }

    /// Some tests of each family.
    pub(crate) fn smoke() -> Self {
        let names: Vec<_> = SMOKE.iter().map(|name| literal(name)).collect();
        Self {
            required: SMOKE,
            ..Self::new(&Family::ALL, &names.join("|"))
        }
    }

    /// A Go regular expression for the names of its tests.
    pub(crate) fn pattern(&self) -> String {
        let names = self.families.iter().flat_map(|family| family.names());
        let names: Vec<_> = names.map(|name| literal(name)).collect();
        format!("(?:{}).*(?:{})", names.join("|"), self.focus)
    }
}

/// A Go regular expression that matches this text literally.
fn literal(text: &str) -> String {
    format!(r"\Q{text}\E")
}

/// Whether the nodes have CAP_SYS_RESOURCE, which they inherit from this process.
fn may_grow_mounted_ext4() -> Result<bool> {
    let status = procfs::process::Process::myself()
        .and_then(|process| process.status())
        .context("read the capabilities of this process")?;
    Ok(status
        .capbnd
        .is_some_and(|set| set & (1 << CAP_SYS_RESOURCE) != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_name_must_come_in_their_order() {
        let left_out = LeftOut {
            reason: "",
            names: &[&["(ext4)", "grow"], &["[Slow]"]],
        };
        let cases = [
            ("PV (ext4) should grow", true),
            ("should grow (ext4)", false),
            ("anything [Slow]", true),
            ("PV (xfs) should grow", false),
        ];
        for (name, wanted) in cases {
            assert_eq!(left_out.matches(name), wanted, "{name}");
        }
        assert_eq!(left_out.pattern(), r"\Q(ext4)\E.*\Qgrow\E|\Q[Slow]\E");
    }

    /// docs/conformance.md must not list an obsolete reason, or a test that its reason does not match.
    #[test]
    fn conformance_table_has_only_these_reasons() {
        let file = csi_e2e::toolchain::workspace_root().join("docs/conformance.md");
        let table = std::fs::read_to_string(file).unwrap();
        let known = [LEFT_OUT, &[GROWTH]].concat();
        let mut reason = None;
        let mut tests = 0;
        for line in table.lines() {
            if let Some(text) = line.strip_prefix("Left out: ") {
                let found = known.iter().find(|left_out| left_out.reason == text);
                reason = Some(
                    found.unwrap_or_else(|| panic!("docs/conformance.md has an unknown reason: {text}")),
                );
            } else if let (Some(reason), Some(test)) = (reason, line.strip_prefix("- ")) {
                assert!(
                    reason.matches(test),
                    "docs/conformance.md lists a test that its reason does not match: {test}"
                );
                tests += 1;
            } else if !line.is_empty() {
                reason = None;
            }
        }
        assert!(tests > 0, "no test is left out");
    }
}
