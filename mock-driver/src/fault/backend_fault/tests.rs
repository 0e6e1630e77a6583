use serde_json::json;

use super::*;
use crate::fault::{
    DeviceOverlay, DiskOverlay, Faults, Origin, Reservations, RuleError, Script, VolumeLocation,
};

/// A call as backend faults see it.
struct Call {
    path: &'static str,
    volume: &'static str,
    node: &'static str,
}

impl CallInfo for Call {
    fn path(&self) -> &str {
        self.path
    }

    fn volume(&self) -> &str {
        self.volume
    }

    fn node(&self) -> &str {
        self.node
    }

    fn name(&self) -> &str {
        ""
    }

    fn entry(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn size(&self) -> u64 {
        0
    }

    fn place(&self) -> Option<VolumeLocation> {
        None
    }
}

fn mk_call(path: &'static str, volume: &'static str, node: &'static str) -> Call {
    Call { path, volume, node }
}

fn mk_trouble(fields: Value) -> BackendFault {
    let mut whole = json!({"id": "x"});
    let fields = fields.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(fields);
    BackendFault::from_value(whole).unwrap()
}

/// What one backend fault does to calls at times in milliseconds: a wait in milliseconds, a code, or nothing.
fn meets(fields: Value, stock: ArrayUsage, calls: &[(u64, Call)]) -> Vec<Result<u128, Code>> {
    let trouble = mk_trouble(fields);
    let mut memory = Memory::default();
    let mut decide = |(at, call): &(u64, Call)| {
        let changes = call.path != "/csi.v1.Controller/ListVolumes";
        let now = Duration::from_millis(*at);
        match trouble.kind.decide(
            &mut memory,
            call,
            changes,
            &Reservations::default(),
            &|_| stock,
            now,
        ) {
            None => Ok(0),
            Some(Injection::Wait(time)) => Ok(time.as_millis()),
            Some(Injection::Refuse { code, message }) => {
                assert!(!message.is_empty());
                Err(code)
            }
        }
    };
    calls.iter().map(&mut decide).collect()
}

const LIST: &str = "/csi.v1.Controller/ListVolumes";

#[test]
fn node_gone_refuses_attaches_and_lets_detaches_through() {
    let calls = [
        (0, mk_call(PUBLISH, "v", "a")),
        (0, mk_call(PUBLISH, "v", "b")),
        (0, mk_call(UNPUBLISH, "v", "a")),
    ];
    let met = meets(
        json!({"trouble": "node-gone", "node": "a"}),
        ArrayUsage::default(),
        &calls,
    );
    assert_eq!(met, [Err(Code::NotFound), Ok(0), Ok(0)]);
}

#[test]
fn read_only_and_busy_refuse_changes_and_nothing_else() {
    let calls = || {
        [
            (0, mk_call(PUBLISH, "v", "a")),
            (0, mk_call(PUBLISH, "w", "a")),
            (0, mk_call(LIST, "", "")),
        ]
    };
    let met = |fields| meets(fields, ArrayUsage::default(), &calls());
    let failed = Err(Code::FailedPrecondition);
    assert_eq!(met(json!({"trouble": "read-only"})), [failed, failed, Ok(0)]);
    let busy = json!({"trouble": "busy", "volume": "v"});
    assert_eq!(met(busy), [Err(Code::Aborted), Ok(0), Ok(0)]);
    let coded = json!({"trouble": "busy", "volume": "v", "code": "UNAVAILABLE"});
    assert_eq!(met(coded), [Err(Code::Unavailable), Ok(0), Ok(0)]);
}

#[test]
fn quotas_and_node_limits_count_what_is_there_and_let_repeats_through() {
    let stock = ArrayUsage {
        volumes: 2,
        bytes: 100,
        asked: 10,
        on_node: 2,
        is_repeat: false,
    };
    let repeat = ArrayUsage {
        is_repeat: true,
        ..stock
    };
    // (backend fault, path, for a new volume)
    let full = Err(Code::ResourceExhausted);
    let table = [
        (json!({"trouble": "quota", "volumes": 2}), CREATE, full),
        (json!({"trouble": "quota", "volumes": 3}), CREATE, Ok(0)),
        (json!({"trouble": "quota", "bytes": 109}), CREATE, full),
        (json!({"trouble": "quota", "bytes": 110}), CREATE, Ok(0)),
        (json!({"trouble": "quota", "bytes": 1}), PUBLISH, Ok(0)),
        (json!({"trouble": "node-limit", "limit": 2}), PUBLISH, full),
        (json!({"trouble": "node-limit", "limit": 3}), PUBLISH, Ok(0)),
        (
            json!({"trouble": "node-limit", "limit": 1, "node": "b"}),
            PUBLISH,
            Ok(0),
        ),
    ];
    for (fields, path, expected) in table {
        let call = || [(0, mk_call(path, "v", "a"))];
        assert_eq!(meets(fields.clone(), stock, &call()), [expected], "{fields}");
        assert_eq!(meets(fields.clone(), repeat, &call()), [Ok(0)], "{fields}");
    }
}

#[test]
fn slow_nodes_have_a_queue_each() {
    let calls = [
        (0, mk_call(PUBLISH, "v", "a")),
        (0, mk_call(PUBLISH, "w", "a")),
        (0, mk_call(PUBLISH, "x", "b")),
        (1500, mk_call(UNPUBLISH, "v", "a")),
        (9000, mk_call(UNPUBLISH, "w", "a")),
        (9000, mk_call(LIST, "", "")),
    ];
    let met = meets(
        json!({"trouble": "slow-node", "time": "1s"}),
        ArrayUsage::default(),
        &calls,
    );
    assert_eq!(met, [Ok(1000), Ok(2000), Ok(1000), Ok(1500), Ok(1000), Ok(0)]);
}

#[test]
fn rate_limit_is_a_bucket_that_fills_with_time() {
    let at = [0, 0, 0, 400, 500, 500, 60_000, 60_000, 60_000];
    let calls = at.map(|at| (at, mk_call(PUBLISH, "v", "a")));
    let fields = json!({"trouble": "rate-limit", "per-second": 2, "burst": 2, "method": "Controller*"});
    let full = Err(Code::ResourceExhausted);
    assert_eq!(
        meets(fields, ArrayUsage::default(), &calls),
        [Ok(0), Ok(0), full, full, Ok(0), full, Ok(0), Ok(0), full]
    );
    let other = [(0, mk_call("/csi.v1.Identity/Probe", "", "")); 1];
    let fields = json!({"trouble": "rate-limit", "per-second": 0.001, "method": "Controller*"});
    assert_eq!(meets(fields, ArrayUsage::default(), &other), [Ok(0)]);
}

#[tokio::test(start_paused = true)]
async fn troubles_are_put_switched_and_removed_and_tell_what_they_do_together() {
    let faults = Faults::default();
    let troubles = faults.backend_faults();
    let script = Script::read(
        "troubles:
- {id: gone, trouble: node-gone, node: a}
- {id: lacks, trouble: list-lacks, volume: v}
- {id: wrong, trouble: wrong-device, volume: v, device: /dev/x}
- {id: late, trouble: not-ready, for: 10s}
- {id: old, trouble: frozen-list, age: 5s, enabled: false}
",
    )
    .unwrap();
    faults.load(Origin::File, script).unwrap();
    let stock = |_: &Reservations| ArrayUsage::default();
    let decide = || {
        troubles
            .decide(&mk_call(PUBLISH, "v", "a"), true, &stock)
            .obstacle
    };
    assert!(matches!(decide(), Some((id, Injection::Refuse { .. })) if id == "gone"));
    assert_eq!(troubles.reports()[0].met, 1);
    assert_eq!(troubles.listing().lacks.len(), 1);
    assert_eq!(troubles.listing().frozen, None);
    assert!(troubles.set_enabled("old", true) && !troubles.set_enabled("new", true));
    assert_eq!(troubles.listing().frozen, Some(Some(Duration::from_secs(5))));

    assert_eq!(troubles.device("v", "n"), DeviceOverlay::Wrong("/dev/x".into()));
    assert_eq!(troubles.device("w", "n"), DeviceOverlay::Right);
    troubles
        .put(mk_trouble(
            json!({"id": "absent", "trouble": "device-absent", "node": "n"}),
        ))
        .unwrap();
    let taken = mk_trouble(json!({"id": "gone", "trouble": "tracking-off"}));
    let clash = troubles.put(taken).unwrap_err();
    assert!(clash.to_string().contains("a trouble of the File"), "{clash}");
    let absent = "troubles: [{id: absent, trouble: tracking-off}]";
    let clash = faults
        .load(Origin::Scenario, Script::read(absent).unwrap())
        .unwrap_err();
    assert!(clash.to_string().contains("a trouble of the Admin"), "{clash}");
    assert_eq!(troubles.device("v", "n"), DeviceOverlay::Absent);
    assert!(troubles.remove("absent") && !troubles.remove("absent"));

    assert!(!troubles.is_ready());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(troubles.is_ready());

    faults.load(Origin::File, Script::default()).unwrap();
    assert!(decide().is_none() && troubles.reports().is_empty());
}

#[tokio::test]
async fn disks_and_losses_are_as_the_first_trouble_says_that_is_there() {
    let faults = Faults::default();
    let troubles = faults.backend_faults();
    let loss = troubles.loss();
    let now = || loss.borrow().map(|loss| loss.loses);
    let script = |yaml: &str| faults.load(Origin::File, Script::read(yaml).unwrap()).unwrap();
    assert_eq!((troubles.disk("v", "here"), now()), (DiskOverlay::Right, None));
    script(
        "troubles:
- {id: torn, trouble: dirty-filesystem, volume: v, repairable: false}
- {id: dirty, trouble: dirty-filesystem, node: here}
- {id: foreign, trouble: foreign-data}
- {id: lost, trouble: state-loss, enabled: false}
- {id: blank, trouble: state-loss, loses: everything}
",
    );
    assert_eq!(troubles.disk("v", "here"), DiskOverlay::Damaged);
    assert_eq!(troubles.disk("w", "here"), DiskOverlay::Dirty);
    assert_eq!(
        troubles.disk("w", "there"),
        DiskOverlay::Foreign("data of an unknown kind")
    );
    assert_eq!(troubles.device("v", "here"), DeviceOverlay::Right);
    assert_eq!(now(), Some(Loses::Everything));
    assert!(troubles.set_enabled("lost", true));
    assert_eq!(now(), Some(Loses::Changes), "unless it says otherwise");
    assert!(troubles.remove("lost") && troubles.set_enabled("blank", false));
    assert_eq!(now(), None);
    troubles
        .put(mk_trouble(
            json!({"trouble": "state-loss", "loses": "attachments"}),
        ))
        .unwrap();
    assert_eq!(now(), Some(Loses::Attachments));
}

#[test]
fn mistakes_are_told_by_trouble_and_field() {
    // (backend fault without id, field, words of the reason)
    let table = [
        (json!({}), ".", "trouble"),
        (json!({"trouble": "rust"}), "trouble", "rate-limit"),
        (
            json!({"trouble": "read-only", "node": "a"}),
            "node",
            "means nothing",
        ),
        (json!({"trouble": "busy", "code": "OK"}), "code", "ABORTED"),
        (json!({"trouble": "busy", "volume": ""}), "volume", "empty"),
        (json!({"trouble": "quota"}), "volumes", "volumes: 10"),
        (json!({"trouble": "node-limit"}), "limit", "limit: 3"),
        (json!({"trouble": "list-adds"}), "node", "node-9"),
        (json!({"trouble": "slow-node"}), "time", "time: 2s"),
        (
            json!({"trouble": "slow-node", "time": "soon"}),
            "time",
            "duration",
        ),
        (json!({"trouble": "rate-limit"}), "per-second", "per-second: 5"),
        (
            json!({"trouble": "rate-limit", "per-second": 0}),
            "per-second",
            "above 0",
        ),
        (
            json!({"trouble": "rate-limit", "per-second": 1, "method": "Nope"}),
            "method",
            "ListVolumes",
        ),
        (json!({"trouble": "frozen-list", "age": 5}), "age", "string"),
        (
            json!({"trouble": "foreign-data", "data": "zfs"}),
            "data",
            "unknown, btrfs, luks",
        ),
        (
            json!({"trouble": "dirty-filesystem", "repairable": "no"}),
            "repairable",
            "boolean",
        ),
        (
            json!({"trouble": "state-loss", "loses": "sleep"}),
            "loses",
            "attachments",
        ),
        (
            json!({"trouble": "state-loss", "volume": "v"}),
            "volume",
            "means nothing",
        ),
        (
            json!({"trouble": "not-ready", "fore": "1s"}),
            "fore",
            "unknown field",
        ),
    ];
    for (fields, at, words) in table {
        let mut whole = json!({"id": "x"});
        whole
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        match BackendFault::from_value(whole) {
            Err(RuleError::Rule { field, reason, .. }) => {
                assert!(
                    field == at && reason.contains(words),
                    "{fields}: {field}: {reason}"
                );
            }
            other => panic!("{fields}: {other:?}"),
        }
    }
    let twice = "rules: [{id: a, action: {code: ABORTED}}]\ntroubles: [{id: a, trouble: read-only}]";
    let error = Script::read(twice).unwrap_err().to_string();
    assert!(error.contains("trouble 1 (\"a\"): id"), "{error}");
    let odd = Script::read("rule: []").unwrap_err().to_string();
    assert!(odd.contains("rules and troubles"), "{odd}");
}
