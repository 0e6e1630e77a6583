//! Device faults: which I/O a rule matches, and that calls and I/O have rules of their own.

use std::ops::Range;

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
    let faults = Faults::default();
    faults.set_volume_without_io("vol-0", "n", Some("is a raw block device"));
    let error = faults.put(eio.clone()).unwrap_err().to_string();
    assert!(
        error.contains("volume \"vol-0\" is a raw block device"),
        "{error}"
    );
    faults.put(other).unwrap();
    faults.set_volume_without_io("vol-0", "n", None);
    faults.put(eio.clone()).unwrap();
    let error = faults.reject_io("there is no /dev/fuse").unwrap_err().to_string();
    assert!(error.contains("there is no /dev/fuse"), "{error}");
    assert!(faults.check(&[eio]).is_err());
}
