//! Device faults: which I/O a rule matches, and that calls and I/O have rules of their own.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::fault::{FilePath, Io};

struct Operation {
    kind: IoKind,
    range: Range<u64>,
    path: &'static str,
}

impl CallInfo for Operation {
    fn path(&self) -> &str {
        self.kind.name()
    }

    fn volume(&self) -> &str {
        "vol-0"
    }

    fn node(&self) -> &str {
        "n"
    }

    fn io(&self) -> Option<Io<'_>> {
        Some(Io {
            kind: self.kind,
            range: Some(self.range.clone()),
            path: self,
        })
    }

    fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl FilePath for Operation {
    fn file_path(&self) -> String {
        self.path.to_owned()
    }
}

fn mk_operation(kind: IoKind, path: &'static str, range: Range<u64>) -> Operation {
    Operation { kind, range, path }
}

#[test]
fn rules_match_io_by_kind_path_offset_and_length() {
    let operation = mk_operation(IoKind::Write, "a/b.db", 4096..8192);
    for (matches, expected) in [
        ("io: write", true),
        ("io: '*'", true),
        ("io: [read, fsync]", false),
        ("io: detach", false),
        ("io: write, volume: vol-1", false),
        ("io: write, node: 'n', path: '*.db'", true),
        ("io: write, path: b.db", false),
        ("io: write, offset: {from: 8Ki}", false),
        ("io: write, offset: {from: 8191}", true),
        ("io: write, offset: {to: 4Ki}", false),
        ("io: write, offset: {to: 4097}", true),
        ("io: write, bytes-above: 4095", true),
        ("io: write, bytes-above: 4096", false),
        ("io: write, not: {path: 'a/*'}", false),
        ("io: write, not: {path: 'c/*'}", true),
        ("io: write, not: {volume: vol-0}", false),
        ("method: '*'", false),
    ] {
        let action = match matches {
            "method: '*'" => "{delay: 1s}",
            _ => "{lose-unsynced: true}",
        };
        let faults = mk_rules(&format!("- {{id: a, match: {{{matches}}}, action: {action}}}"));
        let is_matched = faults.decide(&operation).rule.is_some();
        assert_eq!(is_matched, expected, "{matches}");
    }
    let faults = mk_rules("- {id: a, match: {io: '*', not: {path: x}}, action: {errno: EIO}}");
    assert!(
        faults.decide(&Publish::of("vol-0")).rule.is_none(),
        "a call is no I/O"
    );
    assert!(faults.names_io("vol-9", "n"));
}

#[test]
fn operations_share_the_bandwidth_of_their_volume() {
    let faults = mk_rules("- {id: a, match: {io: write}, action: {bandwidth: 4Ki}}");
    let delay = || {
        let operation = mk_operation(IoKind::Write, "a", 0..4096);
        faults.decide(&operation).rule.unwrap().delay
    };
    let second = Duration::from_secs(1);
    assert!(delay() <= second);
    let behind = delay();
    assert!(behind > second && behind <= 2 * second, "{behind:?}");
}

#[test]
fn rules_that_cannot_take_effect_conflict() {
    let rule = |yaml: &str| Rule::read_list(yaml).unwrap().remove(0);
    let eio = rule("- {id: eio, match: {io: read, volume: 'vol-*'}, action: {errno: EIO}}");
    let other = rule("- {id: other, match: {io: read, volume: other}, action: {errno: EIO}}");
    let not_vol_0 = rule("- {id: not, match: {io: read, not: {volume: vol-0}}, action: {errno: EIO}}");
    let not_log =
        rule("- {id: log, match: {io: read, not: {volume: vol-0, path: log}}, action: {errno: EIO}}");
    let faults = Faults::default();
    let published = PublishedWithout::default();
    faults.add_device_fault_check(published.clone());
    faults.load(Origin::File, vec![eio.clone()]).unwrap();
    assert!(faults.names_io("vol-0", "n") && !faults.names_io("other", "n"));
    assert!(faults.remove(RuleKind::Rule, "eio"));
    *crate::lock(&published.0) = vec!["vol-0"];
    for refused in [&eio, &not_log] {
        let error = faults.put(refused.clone()).unwrap_err().to_string();
        assert!(
            error.contains("volume \"vol-0\" is a raw block device"),
            "{error}"
        );
    }
    let error = faults.restart().unwrap_err().to_string();
    assert!(error.contains("rule \"eio\": match.io"), "{error}");
    assert!(faults.is_empty());
    faults.put(not_vol_0).unwrap();
    assert!(faults.names_io("vol-1", "n") && !faults.names_io("vol-0", "n"));
    faults.put(other).unwrap();
    crate::lock(&published.0).clear();
    faults.put_all(vec![eio.clone(), not_log]).unwrap();
    faults.add_device_fault_check("there is no /dev/fuse".to_owned());
    let conflicts: Vec<String> = faults.io_conflicts().iter().map(ToString::to_string).collect();
    assert_eq!(conflicts.len(), 4, "{conflicts:?}");
    assert!(conflicts[0].contains("there is no /dev/fuse"), "{conflicts:?}");
    assert!(faults.check(&[eio]).is_err());
}

/// Volumes that are published without device faults.
#[derive(Clone, Debug, Default)]
struct PublishedWithout(Arc<Mutex<Vec<&'static str>>>);

impl DeviceFaultCheck for PublishedWithout {
    fn reason(&self, is_named: NamesVolume<'_>) -> Option<String> {
        let volumes = crate::lock(&self.0);
        let named = volumes.iter().find(|volume| is_named(volume, "n"))?;
        Some(format!("volume \"{named}\" is a raw block device"))
    }
}

/// An I/O during whose decision the rule is removed.
struct Removing<'f>(&'f Faults, AtomicBool);

impl CallInfo for Removing<'_> {
    fn path(&self) -> &str {
        "read"
    }

    fn volume(&self) -> &str {
        "vol-0"
    }

    fn io(&self) -> Option<Io<'_>> {
        Some(Io {
            kind: IoKind::Read,
            range: None,
            path: self,
        })
    }
}

impl FilePath for Removing<'_> {
    fn file_path(&self) -> String {
        self.1.store(true, Ordering::SeqCst);
        // Until the rule is removed, or its removal waits for the decision.
        while self.0.rules.try_read().is_ok_and(|rules| !rules.is_empty()) {
            std::thread::yield_now();
        }
        "a".to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn rule_that_is_removed_during_a_decision_blocks_nothing() {
    let faults = mk_rules("- {id: a, match: {io: read, path: a}, action: {hang: release}}");
    let operation = Removing(&faults, AtomicBool::new(false));
    let rule = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !operation.1.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            faults.remove(RuleKind::Rule, "a")
        });
        faults.decide(&operation).rule
    });
    if let Some(mut rule) = rule {
        let released = tokio::time::timeout(Duration::from_secs(60), rule.pause()).await;
        released.expect("must be released when the rule is removed");
    }
}
