//! EBS volumes: by id, or by a URL of zone and id, such as `aws://us-east-1a/vol-1`.

use std::net::Ipv6Addr;

const SCHEME: &str = "aws://";

/// The id of a volume. An id that is not a URL is returned unchanged.
pub(super) fn volume_id(id: &str) -> Result<String, String> {
    let Some(rest) = id.strip_prefix(SCHEME) else {
        return Ok(id.to_owned());
    };
    // Go's detailed reason is omitted.
    let path = url_path(rest).ok_or_else(|| format!("Invalid disk name ({id}): parse {id:?}"))?;
    let path = String::from_utf8_lossy(&path);
    let volume = path.trim_matches('/');
    if volume.starts_with("vol-") && !volume.contains('/') {
        Ok(volume.to_owned())
    } else {
        Err(format!("Invalid format for AWS volume ({id})"))
    }
}

/// The unescaped path of a URL after its scheme; `None` if Go's `net/url` rejects the URL.
fn url_path(rest: &str) -> Option<Vec<u8>> {
    let (url, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    if url.bytes().any(|byte| byte.is_ascii_control()) {
        return None;
    }
    unescape(fragment)?;
    let url = url.split('?').next()?;
    let (authority, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_user = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    (user.chars().all(is_user) && is_host(host)).then_some(())?;
    unescape(user)?;
    unescape(path)
}

fn is_host(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match host.rfind('[') {
        None => is_host_name(host) && host.rsplit_once(':').is_none_or(|(_, port)| is_port(port)),
        Some(0) => host[1..].rsplit_once(']').is_some_and(|(address, port)| {
            let ip = address.split("%25").next().unwrap_or_default();
            let port_is_valid = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            port_is_valid && is_host_name(address) && ip.parse::<Ipv6Addr>().is_ok()
        }),
        Some(_) => false,
    }
}

/// Whether all characters are valid in a host name. Of ASCII, only the percent sign may be escaped.
fn is_host_name(name: &str) -> bool {
    let may_stand = |c: char| {
        c.is_ascii_alphanumeric() || !c.is_ascii() || c == '%' || "-_.~!$&'()*+,;=:[]<>\"".contains(c)
    };
    let mut escapes = name
        .match_indices('%')
        .map(|(at, _)| escaped(&name.as_bytes()[at..]));
    name.chars().all(may_stand)
        && escapes.all(|byte| byte.is_some_and(|byte| byte == b'%' || !byte.is_ascii()))
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut rest = text.as_bytes();
    let mut unescaped = Vec::with_capacity(rest.len());
    while let Some(&byte) = rest.first() {
        let (byte, length) = if byte == b'%' {
            (escaped(rest)?, 3)
        } else {
            (byte, 1)
        };
        unescaped.push(byte);
        rest = &rest[length..];
    }
    Some(unescaped)
}

/// The byte of the escape at the beginning of a text.
fn escaped(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    u8::try_from(digit(1)? * 16 + digit(2)?).ok()
}
