//! The collector of traces: a flag, or else the environment variable of OpenTelemetry programs.

use super::MaybeText;
use crate::trace::Endpoint;

/// The variables of the OpenTelemetry specification. Headers and compression are read by its exporter.
pub(super) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// A variable's value; `None` if it is unset or empty.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where these settings are read"
)]
pub(super) fn from_environment(variable: &str) -> MaybeText {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

/// The collector that the flag names, or else the variable. An invalid flag is an error. The variable applies to all programs in
/// the container, some of which may export other forms of OTLP, so an unusable value only causes a [`warning`].
pub(super) fn endpoint(flag: Option<&str>, variable: Option<&str>) -> Result<Option<Endpoint>, String> {
    match flag {
        Some(flag) => {
            let endpoint = flag
                .parse()
                .map_err(|error| format!("--otlp-endpoint: {error}"))?;
            Ok(Some(endpoint))
        }
        None => Ok(variable.and_then(|variable| variable.parse().ok())),
    }
}

/// The warning about a variable that cannot be used and that no flag overrides. It omits the value, which may contain a
/// password.
pub(super) fn warning(flag: Option<&str>, variable: Option<&str>) -> Option<String> {
    let ignored = flag.is_none() && variable.is_some_and(|variable| variable.parse::<Endpoint>().is_err());
    ignored.then(|| {
        format!(
            "{ENDPOINT} is not the address of an OTLP/gRPC collector, so no traces are sent: set it, \
             or --otlp-endpoint, as in http://collector:4317"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_precedes_environment_variable_and_must_be_valid() {
        let chosen = |flag, variable| endpoint(flag, variable).map(|endpoint| endpoint.is_some());
        assert_eq!(chosen(None, None), Ok(false));
        assert_eq!(chosen(Some("http://c:4317"), None), Ok(true));
        assert_eq!(chosen(Some("c:4317"), None), Ok(true));
        assert_eq!(chosen(None, Some("http://[::1]:4317/")), Ok(true));
        assert_eq!(chosen(None, Some("https://c:4317")), Ok(true));
        assert_eq!(chosen(None, Some("unix:///run/c.sock")), Ok(false));
        for (flag, variable, warns) in [
            (None, None, false),
            (None, Some("http://c:4317"), false),
            (None, Some("https://user:hunter2@c:4317"), true),
            (Some("http://c:4317"), Some("unix:///run/c.sock"), false),
        ] {
            let warning = warning(flag, variable);
            assert_eq!(warning.is_some(), warns, "{flag:?} {variable:?}");
            assert!(!warning.unwrap_or_default().contains("hunter2"));
        }
        for wrong in [
            "https://user:hunter2@c:4317",
            "http://",
            "http://c:4318/v1/traces",
            "a b",
            "http://c?x",
        ] {
            let error = endpoint(Some(wrong), Some("http://c:4317")).unwrap_err();
            assert!(error.starts_with("--otlp-endpoint: "), "{error}");
        }
    }
}
