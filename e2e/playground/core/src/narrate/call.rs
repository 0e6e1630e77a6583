//! Calls of the driver.

use serde_json::Value;

use super::{Actor, Line, Names};
use csi_e2e::driver::journal::{self, PUBLISH, UNPUBLISH};

/// Describes a line of the driver's journal; `None` for calls other than publish and unpublish.
pub fn describe(line: &journal::Line, names: &Names) -> Option<Line> {
    match line {
        journal::Line::Begin {
            method,
            start,
            request,
            ..
        } => {
            let method = journal::name_of(method);
            let (verb, preposition) = verb(method)?;
            let (volume, node) = (
                names.volume(field(request, "volume_id")),
                names.node(field(request, "node_id")),
            );
            let text = format!("calls {method}: {verb} {volume} {preposition} {node}");
            Some(Line {
                at: *start,
                actor: Actor::Attacher,
                volumes: vec![volume],
                text,
            })
        }
        journal::Line::End {
            method,
            start,
            end,
            code,
            message,
            request,
            ..
        } => {
            let method = journal::name_of(method);
            verb(method)?;
            let took = end.duration_since(*start).as_millis();
            let (volume, node) = (
                names.volume(field(request, "volume_id")),
                names.node(field(request, "node_id")),
            );
            let text = match &**code {
                "OK" if method == PUBLISH => {
                    format!("responds OK after {took} ms: {volume} is published to {node}")
                }
                "OK" => format!("responds OK after {took} ms: {volume} is unpublished from {node}"),
                "CANCELLED" => format!("call cancelled by its client after {took} ms, without a response"),
                code => format!("responds {code} after {took} ms: {}", names.translated(message)),
            };
            Some(Line {
                at: *end,
                actor: Actor::Driver,
                volumes: vec![volume],
                text,
            })
        }
        journal::Line::Late { .. } | journal::Line::Faults { .. } | journal::Line::Lost { .. } => None,
    }
}

/// Describes a mount or unmount of the driver for the kubelet of `node`.
pub fn describe_mount(line: &journal::Line, node: &str, names: &Names) -> Option<Line> {
    let journal::Line::End {
        method,
        end,
        code,
        request,
        ..
    } = line
    else {
        return None;
    };
    let verb = match journal::name_of(method) {
        "NodePublishVolume" => "mounts",
        "NodeUnpublishVolume" => "unmounts",
        _ => return None,
    };
    let volume = names.volume(field(request, "volume_id"));
    (code == "OK").then(|| Line {
        at: *end,
        actor: Actor::Kubelet(names.short(node)),
        text: format!("{verb} {volume}"),
        volumes: vec![volume],
    })
}

/// The verb for a call, and the preposition before the node.
fn verb(method: &str) -> Option<(&'static str, &'static str)> {
    match method {
        PUBLISH => Some(("attach", "to")),
        UNPUBLISH => Some(("detach", "from")),
        _ => None,
    }
}

fn field<'a>(request: &'a Value, name: &str) -> &'a str {
    request.get(name).and_then(Value::as_str).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(line: &str) -> Option<String> {
        describe(&serde_json::from_str(line).unwrap(), &Names::with_prefix("s")).map(|line| line.text)
    }

    #[test]
    fn calls_about_attaching_are_described() {
        let request = r#""request":{"volume_id":"vol-1","node_id":"node-0"}"#;
        let begin = format!(
            r#"{{"event":"begin","call":1,"method":"/csi.v1.Controller/ControllerPublishVolume","start":"2026-01-01T00:00:00Z",{request}}}"#
        );
        assert_eq!(
            described(&begin).as_deref(),
            Some("calls ControllerPublishVolume: attach vol-1 to node-0")
        );
        let end = |code: &str| {
            format!(
                r#"{{"event":"end","call":1,"method":"/csi.v1.Controller/ControllerPublishVolume","start":"2026-01-01T00:00:00Z",
                    "end":"2026-01-01T00:00:00.3Z","code":"{code}","message":"no slot",{request}}}"#
            )
        };
        assert_eq!(
            described(&end("OK")).as_deref(),
            Some("responds OK after 300 ms: vol-1 is published to node-0")
        );
        assert_eq!(
            described(&end("CANCELLED")).as_deref(),
            Some("call cancelled by its client after 300 ms, without a response")
        );
        assert_eq!(
            described(&end("RESOURCE_EXHAUSTED")).as_deref(),
            Some("responds RESOURCE_EXHAUSTED after 300 ms: no slot")
        );
    }

    #[test]
    fn other_calls_are_not() {
        let probe =
            r#"{"event":"begin","call":1,"method":"Probe","start":"2026-01-01T00:00:00Z","request":{}}"#;
        assert_eq!(described(probe), None);
    }
}
