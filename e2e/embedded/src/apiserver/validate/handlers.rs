//! Validation of a container's probes and of the handlers of its lifecycle.

use super::super::field::FieldError;
use super::super::names;
use super::fields::Fields;

/// The kinds of handlers in the order of validation.
const KINDS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// Handlers of the container's start and end, within the pod's grace period. The strategy has dropped the stop signal.
pub(super) fn lifecycle(container: &Fields<'_>, grace_period: Option<i64>) {
    let lifecycle = container.child("lifecycle");
    for event in ["postStart", "preStop"] {
        if let Some(handler) = lifecycle.given(event) {
            self::handler(&handler, grace_period);
        }
    }
}

/// Liveness, readiness and startup probe.
pub(super) fn probes(container: &Fields<'_>) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.given(name) else {
            continue;
        };
        handler(&probe, None);
        for field in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            probe.in_range(field, 0.., "must be greater than or equal to 0");
        }
        let grace_period = "terminationGracePeriodSeconds";
        probe.in_range(grace_period, 1.., "must be greater than 0");
        match (name, probe.integer(grace_period)) {
            ("readinessProbe", Some(seconds)) => {
                probe.invalid(grace_period, seconds, "must not be set for readinessProbes");
            }
            ("readinessProbe", None) => {}
            _ => probe.in_range("successThreshold", 1..=1, "must be 1"),
        }
    }
}

fn handler(handler: &Fields<'_>, grace_period: Option<i64>) {
    let mut given = KINDS.into_iter().filter(|kind| handler.has(kind));
    let Some(kind) = given.next() else {
        let why = "must specify a handler type";
        return handler.push(FieldError::required(handler.own_path(), why));
    };
    let action = handler.child(kind);
    match kind {
        "exec" => {
            if action.list("command").is_empty() {
                action.required("command", "");
            }
        }
        "httpGet" => http_get(&action),
        "tcpSocket" | "grpc" => port(&action),
        _ => sleep(&action, grace_period),
    }
    for kind in given {
        handler.forbidden(kind, "may not specify more than 1 handler type");
    }
}

fn http_get(action: &Fields<'_>) {
    action.require("path");
    port(action);
    action.one_of("scheme", &["HTTP", "HTTPS"]);
    for header in action.structs("httpHeaders") {
        let name = header.text("name");
        action.found("httpHeaders", name, names::http_header(name));
    }
}

/// A port's number or name.
fn port(action: &Fields<'_>) {
    if action.get("port").is_string() {
        action.check("port", names::port);
    } else {
        let why = "must be between 1 and 65535, inclusive";
        let number = action.integer("port").unwrap_or_default();
        if !(1..=65535).contains(&number) {
            action.invalid("port", number, why);
        }
    }
}

fn sleep(action: &Fields<'_>, grace_period: Option<i64>) {
    let seconds = action.integer("seconds").unwrap_or_default();
    if let Some(limit) = grace_period
        && !(0..=limit).contains(&seconds)
    {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({limit})");
        action.push(FieldError::invalid(action.own_path(), seconds, why));
    }
}
