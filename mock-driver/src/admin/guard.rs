//! Protection against other web pages: a browser on this machine can access the admin API, and runs the code of the pages
//! that it visits.
//!
//! - A page whose host name resolves to this machine (DNS rebinding) sends that name as `Host`; only addresses, `localhost`
//!   and the names of `--admin-allowed-host` are accepted.
//! - A page of another site can send requests, but not read the responses. The browser adds `Origin` or `Sec-Fetch-Site`, and
//!   sends JSON only after a CORS preflight, which is never granted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tonic::Code;

use super::problem::Refusal;

/// Content Security Policy: everything is loaded from the same origin.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// Accepted names in `Host` besides addresses; `None` for a Unix socket, which browsers cannot open.
    hosts: Option<Arc<[String]>>,
    /// The flag that adds a name, for the error.
    flag: Option<&'static str>,
}

// === impl Guard ===

impl Guard {
    pub(super) fn tcp(allowed_hosts: Vec<String>) -> Self {
        Self {
            hosts: Some(allowed_hosts.into()),
            flag: Some("--admin-allowed-host"),
        }
    }

    pub(super) fn unix() -> Self {
        Self {
            hosts: None,
            flag: None,
        }
    }

    /// Addresses and `localhost` only.
    pub(super) fn loopback() -> Self {
        Self {
            flag: None,
            ..Self::tcp(Vec::new())
        }
    }

    /// Whether a `Host` is an IP address, `localhost` or an allowed name, with or without a port.
    fn allows(&self, host: &str) -> bool {
        let Some(allowed) = &self.hosts else {
            return true;
        };
        let name = name_of(host);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        // RFC 6874: the zone of a link-local address.
        let bare = bare.map(|address| address.split('%').next().unwrap_or_default());
        name.eq_ignore_ascii_case("localhost")
            || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
            || host.parse::<IpAddr>().is_ok()
            || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

/// A `Host` without port and final dot.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

/// Refuses requests of other sites, and adds security headers to responses.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match check(&guard, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn check(guard: &Guard, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let forbidden = |message: String| Err(Refusal::new(Code::PermissionDenied, message));
    let host = text(&HOST).unwrap_or_default();
    if !guard.allows(host) {
        let name = name_of(host);
        let is_name = !name.is_empty() && !name.contains(['[', ':']);
        let flag = guard.flag.filter(|_| is_name);
        let flag = flag.map(|flag| format!(", or start the driver with {flag}={name}"));
        return forbidden(format!(
            "Host: \"{host}\" is refused, as a protection against DNS rebinding: use an address or localhost{}",
            flag.unwrap_or_default()
        ))
        .map_err(|refusal| refusal.with_status(StatusCode::MISDIRECTED_REQUEST));
    }
    if method.is_safe() {
        return Ok(());
    }
    if let Some(origin) = text(&ORIGIN)
        && origin.strip_prefix("http://") != Some(host)
    {
        return forbidden(format!("Origin: \"{origin}\" may not change anything here"));
    }
    let site = text(&HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return forbidden("Sec-Fetch-Site: another site may not change anything here".to_owned());
    }
    let media_type = text(&CONTENT_TYPE).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    let has_body = *method != Method::DELETE;
    if has_body && !matches!(media_type, "application/json" | "application/yaml") {
        return Err(Refusal::invalid(
            "Content-Type",
            "Content-Type must be application/json or application/yaml, also of an empty body",
        )
        .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Header = (&'static str, &'static str);

    fn mk_headers(pairs: &[Header]) -> HeaderMap {
        let header =
            |(name, value): &Header| (HeaderName::from_static(name), HeaderValue::from_static(value));
        pairs.iter().map(header).collect()
    }

    #[test]
    fn only_addresses_localhost_and_allowed_names_are_accepted() {
        let allowed = ["csi-mock-driver.storage.svc", "my_host", "driver.1"];
        let guard = Guard::tcp(allowed.map(str::to_owned).to_vec());
        // (host, let in)
        let table = [
            ("127.0.0.1:9810", true),
            ("127.0.0.1", true),
            ("[::1]:9810", true),
            ("[::1]", true),
            ("[fe80::1%25eth0]:9810", true),
            ("[evil.example]:9810", false),
            ("localhost:9810", true),
            ("LOCALHOST", true),
            ("10.1.2.3:80", true),
            ("evil.example:9810", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("csi-mock-driver.storage.svc:9810", true),
            ("CSI-mock-driver.storage.svc", true),
            ("csi-mock-driver.storage.svc.:9810", true),
            ("localhost.:1", true),
            ("my_host:9810", true),
            ("driver.1", true),
            (".", false),
            ("x.csi-mock-driver.storage.svc", false),
            ("csi-mock-driver.storage.svc.evil.example", false),
            ("", false),
        ];
        for (host, let_in) in table {
            let headers = mk_headers(&[("host", host)]);
            assert_eq!(check(&guard, &Method::GET, &headers).is_ok(), let_in, "{host:?}");
            assert!(check(&Guard::unix(), &Method::GET, &headers).is_ok(), "{host:?}");
        }
    }

    #[test]
    fn refusal_names_the_flag_for_a_name_only() {
        let guard = Guard::tcp(Vec::new());
        for (host, hint) in [
            ("my_host.:9810", Some("--admin-allowed-host=my_host")),
            ("[evil.example]:9810", None),
            ("", None),
        ] {
            let refusal = check(&guard, &Method::GET, &mk_headers(&[("host", host)])).unwrap_err();
            let text = format!("{refusal:?}");
            match hint {
                Some(hint) => assert!(text.contains(&format!("{hint}\"")), "{text}"),
                None => assert!(!text.contains("--admin-allowed-host"), "{text}"),
            }
        }
    }

    #[test]
    fn another_site_changes_nothing() {
        let guard = Guard::tcp(Vec::new());
        let own = ("host", "127.0.0.1:1");
        let json = ("content-type", "application/json");
        // (case, headers, let in)
        let table: [(&str, &[Header], bool); 9] = [
            ("a program", &[own, json], true),
            (
                "our page",
                &[
                    own,
                    json,
                    ("origin", "http://127.0.0.1:1"),
                    ("sec-fetch-site", "same-origin"),
                ],
                true,
            ),
            (
                "a form",
                &[own, ("content-type", "application/x-www-form-urlencoded")],
                false,
            ),
            ("plain text", &[own, ("content-type", "text/plain")], false),
            ("no type", &[own], false),
            (
                "with a charset",
                &[own, ("content-type", "application/json; charset=utf-8")],
                true,
            ),
            (
                "another port",
                &[own, json, ("origin", "http://127.0.0.1:2")],
                false,
            ),
            (
                "another site",
                &[own, json, ("sec-fetch-site", "cross-site")],
                false,
            ),
            ("no site", &[own, json, ("origin", "null")], false),
        ];
        for (case, headers, let_in) in table {
            let headers: Vec<_> = headers.to_vec();
            assert_eq!(
                check(&guard, &Method::POST, &mk_headers(&headers)).is_ok(),
                let_in,
                "{case}"
            );
        }
        let foreign = mk_headers(&[own, ("origin", "http://evil.example")]);
        assert!(check(&guard, &Method::DELETE, &foreign).is_err());
        assert!(check(&guard, &Method::DELETE, &mk_headers(&[own])).is_ok());
    }
}
