//! The cells of a pod, with a summary of the states of its containers.

use serde_json::Value;

use super::super::super::clock::Clock;
use super::super::super::object::{self, Object, list, text};
use super::{or, since};

/// The cells of a pod.
pub(super) fn cells(clock: &Clock, object: &Object, name: Value, age: Value) -> Vec<Value> {
    let PodSummary {
        mut reason,
        ready,
        restarts,
    } = PodSummary::of(object);
    let terminal = matches!(text(object, "/status/phase"), "Failed" | "Succeeded");
    if object::is_deleting(object) && text(object, "/status/reason") == "NodeLost" {
        "Unknown".clone_into(&mut reason);
    } else if object::is_deleting(object) && !terminal {
        "Terminating".clone_into(&mut reason);
    }
    let sidecars = list(object, "/spec/initContainers").iter();
    let total = list(object, "/spec/containers").len() + sidecars.filter(|it| is_sidecar(it)).count();
    let restarts = match restarts.last.as_str() {
        last if restarts.count != 0 && !last.is_empty() => {
            format!("{} ({} ago)", restarts.count, since(clock, last))
        }
        _ => restarts.count.to_string(),
    };
    vec![
        name,
        format!("{ready}/{total}").into(),
        reason.into(),
        restarts.into(),
        age,
        or(text(object, "/status/podIP"), "<none>"),
        or(text(object, "/spec/nodeName"), "<none>"),
        or(text(object, "/status/nominatedNodeName"), "<none>"),
        readiness_gates(object).into(),
    ]
}

/// Summary of a pod's container statuses.
struct PodSummary {
    reason: String,
    /// Number of ready containers.
    ready: usize,
    restarts: Restarts,
}

/// Number of restarts, and the end of the last run before one.
#[derive(Clone, Default)]
struct Restarts {
    count: i64,
    last: String,
}

// === impl PodSummary ===

impl PodSummary {
    fn of(pod: &Object) -> Self {
        let mut reason = match text(pod, "/status/reason") {
            "" => text(pod, "/status/phase"),
            reason => reason,
        };
        if condition(pod, "PodScheduled").any(|condition| condition["reason"] == "SchedulingGated") {
            reason = "SchedulingGated";
        }
        let mut summary = Self {
            reason: reason.to_owned(),
            ready: 0,
            restarts: Restarts::default(),
        };
        let (sidecars, initialized) = summary.add_init_containers(pod);
        let is_initialized = || condition(pod, "Initialized").next();
        if initialized || is_initialized().is_some_and(|condition| condition["status"] == "True") {
            // Restarts of completed init containers no longer count.
            summary.restarts = sidecars;
            summary.add_containers(pod);
        }
        summary
    }

    /// Adds init containers up to the first one that has neither completed nor, as a sidecar, started. Returns the restarts
    /// of sidecars, and whether there is no such container.
    fn add_init_containers(&mut self, pod: &Object) -> (Restarts, bool) {
        let specs = list(pod, "/spec/initContainers");
        let mut sidecars = Restarts::default();
        for (index, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let spec = specs.iter().rfind(|spec| spec["name"] == status["name"]);
            let is_sidecar = spec.is_some_and(is_sidecar);
            self.restarts.add(status);
            if is_sidecar {
                sidecars.add(status);
            }
            let terminated = &status["state"]["terminated"];
            if terminated.is_object() && exit_code(terminated) == 0 {
                continue;
            }
            if is_sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            let why = match status["state"]["waiting"]["reason"].as_str().unwrap_or_default() {
                _ if terminated.is_object() => termination(terminated),
                "" | "PodInitializing" => format!("{index}/{}", specs.len()),
                waiting => waiting.to_owned(),
            };
            self.reason = format!("Init:{why}");
            return (sidecars, false);
        }
        (sidecars, true)
    }

    fn add_containers(&mut self, pod: &Object) {
        let mut failure = None;
        let mut is_running = false;
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            self.restarts.add(status);
            let state = &status["state"];
            let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
            let terminated = &state["terminated"];
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if terminated.is_object() {
                self.reason = termination(terminated);
                if exit_code(terminated) != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if status["ready"] == true && state["running"].is_object() {
                is_running = true;
                self.ready += 1;
            }
        }
        if self.reason != "Completed" {
            return;
        }
        // The pod as a whole has not completed while another container runs or after one has failed.
        if is_running && condition(pod, "Ready").any(|condition| condition["status"] == "True") {
            "Running".clone_into(&mut self.reason);
        } else if let Some(failure) = failure {
            self.reason = failure;
        } else if is_running {
            "NotReady".clone_into(&mut self.reason);
        }
    }
}

// === impl Restarts ===

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += status["restartCount"].as_i64().unwrap_or_default();
        let finished = status["lastState"]["terminated"]["finishedAt"].as_str();
        let finished = finished.unwrap_or_default();
        if finished > self.last.as_str() {
            finished.clone_into(&mut self.last);
        }
    }
}

/// The conditions of a type; there may be several.
fn condition<'a>(pod: &'a Object, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let conditions = list(pod, "/status/conditions").iter();
    conditions.filter(move |condition| condition["type"] == kind)
}

/// Whether an init container runs beside the others.
fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or_default()
}

/// Why a container has terminated.
fn termination(terminated: &Value) -> String {
    let reason = terminated["reason"].as_str().unwrap_or_default();
    match (reason, terminated["signal"].as_i64().unwrap_or_default()) {
        ("", 0) => format!("ExitCode:{}", exit_code(terminated)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Number of readiness gates whose condition is true, and of all.
fn readiness_gates(pod: &Object) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let is_true = |gate: &&Value| {
        let kind = gate["conditionType"].as_str().unwrap_or_default();
        let first = condition(pod, kind).next();
        first.is_some_and(|condition| condition["status"] == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cell(pod: &Value, column: usize) -> Value {
        let clock = Clock::starting_at("2026-01-10T00:00:00Z".parse().unwrap());
        cells(&clock, pod.as_object().unwrap(), Value::Null, Value::Null)[column].clone()
    }

    fn mk_pod(containers: usize, init_containers: Value, status: Value) -> Value {
        let containers = vec![json!({}); containers];
        json!({ "spec": { "containers": containers, "initContainers": init_containers }, "status": status })
    }

    /// Pod, ready containers, status and restarts in kube-apiserver 1.37.
    #[tokio::test(start_paused = true)]
    async fn summarizes_container_statuses_as_kube_apiserver_does() {
        let completed = json!({ "state": { "terminated": { "exitCode": 0, "reason": "Completed" } } });
        let killed = json!({ "state": { "terminated": { "exitCode": 137, "signal": 9 } } });
        let failed = json!({ "state": { "terminated": { "exitCode": 2 } } });
        let running = json!({ "ready": true, "state": { "running": {} } });
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        let init = json!([{ "name": "i" }, { "name": "s", "restartPolicy": "Always" }]);
        let restarted = |name: &str, state: Value| {
            json!({ "name": name, "restartCount": 2, "state": state,
                "lastState": { "terminated": { "finishedAt": "2026-01-09T23:59:00Z" } } })
        };
        let started = json!({ "name": "s", "restartCount": 1, "started": true, "ready": true, "state": {} });
        let statuses = |containers: Value| json!({ "phase": "Running", "containerStatuses": containers });
        let table = [
            (
                mk_pod(
                    2,
                    json!([]),
                    json!({ "conditions": ready, "containerStatuses": [completed, running] }),
                ),
                ["1/2", "Running", "0"],
            ),
            (
                mk_pod(2, json!([]), statuses(json!([completed, running]))),
                ["1/2", "NotReady", "0"],
            ),
            (
                mk_pod(2, json!([]), statuses(json!([completed, killed]))),
                ["0/2", "Signal:9", "0"],
            ),
            (
                mk_pod(1, json!([]), statuses(json!([failed]))),
                ["0/1", "ExitCode:2", "0"],
            ),
            (
                mk_pod(
                    1,
                    init.clone(),
                    json!({ "phase": "Pending", "containerStatuses": [running],
                        "initContainerStatuses": [restarted("i", json!({ "running": {} }))] }),
                ),
                ["0/2", "Init:0/2", "2 (60s ago)"],
            ),
            (
                mk_pod(
                    1,
                    init.clone(),
                    json!({ "initContainerStatuses":
                        [restarted("i", json!({ "waiting": { "reason": "CrashLoopBackOff" } }))] }),
                ),
                ["0/2", "Init:CrashLoopBackOff", "2 (60s ago)"],
            ),
            (
                mk_pod(
                    1,
                    init.clone(),
                    json!({ "initContainerStatuses": [restarted("i", killed["state"].clone())] }),
                ),
                ["0/2", "Init:Signal:9", "2 (60s ago)"],
            ),
            (
                mk_pod(
                    1,
                    init,
                    json!({ "phase": "Running", "containerStatuses": [running],
                        "initContainerStatuses": [restarted("i", completed["state"].clone()), started] }),
                ),
                ["2/2", "Running", "1"],
            ),
        ];
        for (pod, expected) in table {
            let cells = [1, 2, 3].map(|column| cell(&pod, column));
            assert_eq!(cells, expected.map(Value::from), "{pod}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn counts_the_readiness_gates_of_a_pod() {
        let gates = json!([{ "conditionType": "example.com/a" }, { "conditionType": "example.com/b" }]);
        let conditions = json!([{ "type": "example.com/b", "status": "True" }]);
        let pod = json!({ "spec": { "readinessGates": gates }, "status": { "conditions": conditions } });
        assert_eq!(cell(&pod, 8), "1/2");
        assert_eq!(cell(&json!({}), 8), "<none>");
    }
}
