//! What backend faults do to calls and to what the array shows.

use serde_json::Value;
use serde_json::json;
use tonic::Code;

use super::*;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const UNPUBLISH: &str = "/csi.v1.Controller/ControllerUnpublishVolume";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const LIST: &str = "/csi.v1.Controller/ListVolumes";
const STAGE: &str = "/csi.v1.Node/NodeStageVolume";
const PROBE: &str = "/csi.v1.Identity/Probe";

/// A call as backend faults see it.
struct Call {
    path: &'static str,
    volume: &'static str,
    node: &'static str,
    usage: ArrayUsage,
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

    fn usage(&self, _: &Reservations) -> ArrayUsage {
        self.usage
    }
}

fn mk_call(path: &'static str, volume: &'static str, node: &'static str) -> Call {
    Call {
        path,
        volume,
        node,
        usage: ArrayUsage::default(),
    }
}

fn mk_backend_fault(fields: Value) -> Rule {
    let mut whole = json!({"id": "x"});
    let fields = fields.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(fields);
    Rule::backend_fault_from_value(whole).unwrap()
}

/// What one backend fault does to calls at times in milliseconds: a wait in milliseconds, a code, or nothing.
fn meets(
    fields: Value,
    usage: ArrayUsage,
    calls: impl IntoIterator<Item = (u64, Call)>,
) -> Vec<Result<u128, Code>> {
    let rule_state = RuleState::new(mk_backend_fault(fields), Origin::Admin, Duration::ZERO);
    let decide = |(at, call): (u64, Call)| {
        let call = Call { usage, ..call };
        let now = Duration::from_millis(at);
        let covers = rule_state.rule.matches.covers(&call, FIRST_STATE);
        let fired = covers.then(|| rule_state.take(&call, Seed(0), &Reservations::default(), now));
        match fired.flatten() {
            None => Ok(0),
            Some(fired) => match fired.status() {
                None => Ok(fired.delay.as_millis()),
                Some((code, message)) => {
                    assert!(!message.is_empty());
                    Err(code)
                }
            },
        }
    };
    calls.into_iter().map(decide).collect()
}

#[test]
fn node_gone_refuses_attaches_and_lets_detaches_through() {
    let calls = [
        (0, mk_call(PUBLISH, "v", "a")),
        (0, mk_call(PUBLISH, "v", "b")),
        (0, mk_call(UNPUBLISH, "v", "a")),
    ];
    let met = meets(
        json!({"type": "node-gone", "node": "a"}),
        ArrayUsage::default(),
        calls,
    );
    assert_eq!(met, [Err(Code::NotFound), Ok(0), Ok(0)]);
}

#[test]
fn conditions_of_the_array_pass_calls_to_nodes() {
    for fields in [
        json!({"type": "read-only"}),
        json!({"type": "busy"}),
        json!({"type": "rate-limit", "per-second": 0.001}),
        json!({"type": "rate-limit", "per-second": 0.001, "method": "*"}),
    ] {
        let calls = [
            (0, mk_call(PUBLISH, "v", "a")),
            (0, mk_call(STAGE, "v", "a")),
            (0, mk_call(PROBE, "", "")),
            (0, mk_call(PUBLISH, "v", "a")),
        ];
        let met = meets(fields.clone(), ArrayUsage::default(), calls);
        assert_eq!(met[1..3], [Ok(0), Ok(0)], "{fields}");
        assert!(met[3].is_err(), "{fields}: {met:?}");
    }
    let never = json!({"id": "x", "type": "rate-limit", "per-second": 1, "method": "Node*"});
    let error = Rule::backend_fault_from_value(never).unwrap_err().to_string();
    assert!(
        error.contains("method: ") && error.contains("Controller"),
        "{error}"
    );
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
    let met = |fields| meets(fields, ArrayUsage::default(), calls());
    let failed = Err(Code::FailedPrecondition);
    assert_eq!(met(json!({"type": "read-only"})), [failed, failed, Ok(0)]);
    let everywhere = met(json!({"type": "busy", "volume": "**", "node": "**"}));
    let create = [(0, mk_call(CREATE, "", ""))];
    let without_volume = json!({"type": "busy", "volume": "**", "node": "**"});
    assert_eq!(everywhere, [Err(Code::Aborted), Err(Code::Aborted), Ok(0)]);
    assert_eq!(
        meets(without_volume, ArrayUsage::default(), create),
        [Err(Code::Aborted)]
    );
    let busy = json!({"type": "busy", "volume": "v"});
    assert_eq!(met(busy), [Err(Code::Aborted), Ok(0), Ok(0)]);
    let coded = json!({"type": "busy", "volume": "v", "code": "UNAVAILABLE"});
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
        (json!({"type": "quota", "volumes": 2}), CREATE, full),
        (json!({"type": "quota", "volumes": 3}), CREATE, Ok(0)),
        (json!({"type": "quota", "bytes": 109}), CREATE, full),
        (json!({"type": "quota", "bytes": 110}), CREATE, Ok(0)),
        (json!({"type": "quota", "bytes": "109"}), CREATE, full),
        (json!({"type": "quota", "bytes": "1Ki"}), CREATE, Ok(0)),
        (json!({"type": "quota", "bytes": 1}), PUBLISH, Ok(0)),
        (json!({"type": "node-limit", "limit": 2}), PUBLISH, full),
        (json!({"type": "node-limit", "limit": 3}), PUBLISH, Ok(0)),
        (
            json!({"type": "node-limit", "limit": 1, "node": "b"}),
            PUBLISH,
            Ok(0),
        ),
    ];
    for (fields, path, expected) in table {
        let call = || [(0, mk_call(path, "v", "a"))];
        assert_eq!(meets(fields.clone(), stock, call()), [expected], "{fields}");
        assert_eq!(meets(fields.clone(), repeat, call()), [Ok(0)], "{fields}");
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
        json!({"type": "slow-node", "time": "1s"}),
        ArrayUsage::default(),
        calls,
    );
    assert_eq!(met, [Ok(1000), Ok(2000), Ok(1000), Ok(1500), Ok(1000), Ok(0)]);
}

#[test]
fn node_lock_refuses_calls_of_the_node_until_it_ends() {
    let calls = [
        (0, mk_call(PUBLISH, "v", "a")),
        (0, mk_call(PUBLISH, "w", "b")),
        (900, mk_call(UNPUBLISH, "v", "a")),
        (1000, mk_call(PUBLISH, "w", "a")),
        (1999, mk_call(PUBLISH, "v", "a")),
        (1999, mk_call(LIST, "", "")),
    ];
    let locked = Err(Code::Aborted);
    assert_eq!(
        meets(
            json!({"type": "node-lock", "time": "1s"}),
            ArrayUsage::default(),
            calls
        ),
        [Ok(0), Ok(0), locked, Ok(0), locked, Ok(0)]
    );
}

#[test]
fn rate_limit_is_a_bucket_that_fills_with_time() {
    let at = [0, 0, 0, 400, 500, 500, 60_000, 60_000, 60_000];
    let calls = at.map(|at| (at, mk_call(PUBLISH, "v", "a")));
    let fields = json!({"type": "rate-limit", "per-second": 2, "burst": 2, "method": "Controller*"});
    let full = Err(Code::ResourceExhausted);
    assert_eq!(
        meets(fields, ArrayUsage::default(), calls),
        [Ok(0), Ok(0), full, full, Ok(0), full, Ok(0), Ok(0), full]
    );
    let other = [(0, mk_call("/csi.v1.Identity/Probe", "", "")); 1];
    let fields = json!({"type": "rate-limit", "per-second": 0.001, "method": "Controller*"});
    assert_eq!(meets(fields, ArrayUsage::default(), other), [Ok(0)]);
}

#[tokio::test(start_paused = true)]
async fn backend_faults_are_put_switched_and_removed_and_show_their_effects() {
    let faults = Faults::default();
    let script = Rule::read_list(
        "backend-faults:
- {id: gone, type: node-gone, node: a}
- {id: lacks, type: list-lacks, volume: v}
- {id: wrong, type: wrong-device, volume: v, device: /dev/x}
- {id: late, type: not-ready, for: 10s}
- {id: old, type: frozen-list, age: 5s, enabled: false}
",
    )
    .unwrap();
    faults.load(Origin::File, script).unwrap();
    let decide = || faults.decide(&mk_call(PUBLISH, "v", "a")).backend;
    assert!(decide().is_some_and(|fired| fired.rule().id == "gone" && fired.status().is_some()));
    assert_eq!(faults.reports(RuleKind::BackendFault)[0].fired, 1);
    assert_eq!(faults.listing().lacks.len(), 1);
    let frozen = || faults.frozen.read().unwrap().map(|freeze| freeze.age);
    assert_eq!((faults.listing().is_frozen, frozen()), (false, None));
    assert!(
        faults.set_enabled(RuleKind::BackendFault, "old", true)
            && !faults.set_enabled(RuleKind::BackendFault, "new", true)
    );
    assert!(faults.listing().is_frozen);
    assert_eq!(frozen(), Some(Some(Duration::from_secs(5))));

    assert_eq!(faults.device("v", "n"), Some(DeviceFault::Wrong("/dev/x".into())));
    assert_eq!(faults.device("w", "n"), None);
    faults
        .put(mk_backend_fault(
            json!({"id": "absent", "type": "device-absent", "node": "n"}),
        ))
        .unwrap();
    let taken = mk_backend_fault(json!({"id": "gone", "type": "tracking-off"}));
    let clash = faults.put(taken).unwrap_err();
    assert!(
        clash.to_string().contains("a backend fault of the file"),
        "{clash}"
    );
    let absent = "backend-faults: [{id: absent, type: tracking-off}]";
    let clash = faults
        .load(Origin::Scenario, Rule::read_list(absent).unwrap())
        .unwrap_err();
    assert!(
        clash.to_string().contains("a backend fault of the admin"),
        "{clash}"
    );
    assert_eq!(faults.device("v", "n"), Some(DeviceFault::Absent));
    assert!(
        faults.remove(RuleKind::BackendFault, "absent") && !faults.remove(RuleKind::BackendFault, "absent")
    );

    assert!(!faults.is_ready());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(faults.is_ready());

    faults.load(Origin::File, Vec::new()).unwrap();
    assert!(decide().is_none() && faults.reports(RuleKind::BackendFault).is_empty());
}

#[tokio::test]
async fn backend_fault_that_refuses_wins_over_delays() {
    let faults = Faults::default();
    let script = "backend-faults:
- {id: slow, type: slow-node, time: 1s}
- {id: slower, type: slow-node, time: 2s}
- {id: busy, type: busy, volume: v}
- {id: gone, type: node-gone}
";
    faults
        .load(Origin::File, Rule::read_list(script).unwrap())
        .unwrap();
    let decide = |volume, path| {
        let decision = faults.decide(&mk_call(path, volume, "a"));
        let fired = decision.backend.unwrap();
        (fired.rule().id.clone(), decision.reservation.is_some())
    };
    assert_eq!(
        decide("v", PUBLISH),
        ("busy".to_owned(), false),
        "the first that refuses"
    );
    assert_eq!(
        decide("w", UNPUBLISH),
        ("slower".to_owned(), false),
        "the longest delay"
    );
    faults.remove(RuleKind::BackendFault, "gone");
    assert_eq!(decide("w", PUBLISH), ("slower".to_owned(), true));
    let fired: Vec<u64> = faults
        .reports(RuleKind::BackendFault)
        .iter()
        .map(|report| report.fired)
        .collect();
    assert_eq!(fired, [3, 3, 1]);
}

#[test]
fn first_active_backend_fault_decides_disks() {
    let faults = Faults::default();
    assert_eq!(faults.disk("v", "here"), None);
    let script = "backend-faults:
- {id: torn, type: damaged-filesystem, volume: v}
- {id: foreign, type: foreign-data}
";
    faults
        .load(Origin::File, Rule::read_list(script).unwrap())
        .unwrap();
    assert_eq!(faults.disk("v", "here"), Some(DiskFault::Damaged));
    let foreign = Some(DiskFault::Foreign("data of an unknown kind"));
    assert_eq!(faults.disk("w", "there"), foreign);
    assert_eq!(faults.device("v", "here"), None);
    assert!(faults.set_enabled(RuleKind::BackendFault, "torn", false));
    assert_eq!(faults.disk("v", "here"), foreign);
}

#[test]
fn mistakes_name_the_backend_fault_and_field() {
    // (backend fault without id, field, words of the reason)
    let table = [
        (json!({}), ".", "type"),
        (json!({"type": "busy", "id": 1}), "id", "string"),
        (
            json!({"type": "device-absent", "time": "1s"}),
            "time",
            "unknown field",
        ),
        (json!({"type": "rust"}), "type", "rate-limit"),
        (
            json!({"type": "read-only", "node": "a"}),
            "node",
            "unknown field `node`, expected `code`",
        ),
        (json!({"type": "busy", "code": "OK"}), "code", "ABORTED"),
        (json!({"type": "busy", "volume": ""}), "volume", "empty"),
        (json!({"type": "quota"}), "volumes", "volumes: 10 or bytes: 1Gi"),
        (json!({"type": "quota", "bytes": "1GiB"}), "bytes", "a unit"),
        (json!({"type": "node-limit"}), "limit", "limit: 3"),
        (json!({"type": "list-adds"}), "node", "node-9"),
        (json!({"type": "slow-node"}), "time", "time: 2s"),
        (json!({"type": "slow-node", "time": "soon"}), "time", "duration"),
        (json!({"type": "rate-limit"}), "per-second", "per-second: 5"),
        (
            json!({"type": "rate-limit", "per-second": 0}),
            "per-second",
            "above 0",
        ),
        (
            json!({"type": "rate-limit", "per-second": 1, "method": "Nope"}),
            "method",
            "ListVolumes",
        ),
        (json!({"type": "frozen-list", "age": 5}), "age", "string"),
        (
            json!({"type": "foreign-data", "data": "zfs"}),
            "data",
            "expected one of `unknown`, `btrfs`, `luks`",
        ),
        (
            json!({"type": "damaged-filesystem", "repairable": false}),
            "repairable",
            "unknown field",
        ),
        (
            json!({"type": "not-ready", "fore": "1s"}),
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
        match Rule::backend_fault_from_value(whole) {
            Err(RuleError::Rule { field, reason, .. }) => {
                assert!(
                    field == at && reason.contains(words),
                    "{fields}: {field}: {reason}"
                );
            }
            other => panic!("{fields}: {other:?}"),
        }
    }
    let twice = "rules: [{id: a, match: {method: '*'}, action: {code: ABORTED}}]\nbackend-faults: [{id: a, type: read-only}]";
    let error = Rule::read_list(twice).unwrap_err().to_string();
    assert!(error.contains("backend fault 1 (\"a\"): id"), "{error}");
    let odd = Rule::read_list("rule: []").unwrap_err().to_string();
    assert!(odd.contains("rules and backend-faults"), "{odd}");
}
