//! Parses the part of an EBS volume id after `aws://` like Go's `net/url`, with its errors.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::fmt::Write as _;

/// Why Go's `url.Parse` rejects an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlProblem {
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    #[error("invalid URL escape {0}")]
    Escape(String),
    #[error("invalid character {0} in host name")]
    HostCharacter(String),
    #[error("net/url: invalid userinfo")]
    UserInfo,
    #[error("invalid port {0} after host")]
    Port(String),
    #[error("invalid IP-literal")]
    IpLiteral,
    #[error("missing ']' in host")]
    Bracket,
    #[error("invalid host: ParseAddr({0}): unable to parse IP")]
    Address(String),
}

type Part = Result<Vec<u8>, UrlProblem>;

/// The path of `aws://<rest>`, unescaped.
///
/// # Errors
///
/// The problem, and the length of the parsed part of `rest`: the fragment is parsed last.
pub(super) fn path(rest: &str) -> Result<Vec<u8>, (UrlProblem, usize)> {
    let (url, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let path = path_without_fragment(url).map_err(|problem| (problem, url.len()))?;
    unescaped(fragment).map_err(|problem| (problem, rest.len()))?;
    Ok(path)
}

fn path_without_fragment(url: &str) -> Part {
    if url.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(UrlProblem::ControlCharacter);
    }
    let (location, _query) = url.split_once('?').unwrap_or((url, ""));
    let (authority, path) = location.split_at(location.find('/').unwrap_or(location.len()));
    check_authority(authority)?;
    unescaped(path)
}

fn check_authority(authority: &str) -> Result<(), UrlProblem> {
    let Some((user, host)) = authority.rsplit_once('@') else {
        return check_host(authority);
    };
    check_host(host)?;
    let may_stand = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(may_stand) {
        return Err(UrlProblem::UserInfo);
    }
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    unescaped(name)?;
    unescaped(password)?;
    Ok(())
}

fn check_host(host: &str) -> Result<(), UrlProblem> {
    match host.rfind('[') {
        None => {
            check_port(host.rfind(':').map_or("", |colon| &host[colon..]))?;
            check_host_name(host)
        }
        Some(0) => {
            let close = host.rfind(']').ok_or(UrlProblem::Bracket)?;
            check_port(&host[close + 1..])?;
            check_address(&host[1..close])
        }
        Some(_) => Err(UrlProblem::IpLiteral),
    }
}

fn check_port(port: &str) -> Result<(), UrlProblem> {
    let digits = port.strip_prefix(':');
    if port.is_empty() || digits.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
        Ok(())
    } else {
        Err(UrlProblem::Port(quoted(port.as_bytes())))
    }
}

fn check_address(address: &str) -> Result<(), UrlProblem> {
    check_host_name(address)?;
    // The zone of a link-local address follows an escaped percent sign.
    let ip = address.split_once("%25").map_or(address, |(ip, _zone)| ip);
    if ip.parse::<Ipv4Addr>().is_ok() {
        Err(UrlProblem::IpLiteral)
    } else if ip.parse::<Ipv6Addr>().is_ok() {
        Ok(())
    } else {
        Err(UrlProblem::Address(quoted(address.as_bytes())))
    }
}

fn check_host_name(name: &str) -> Result<(), UrlProblem> {
    let bytes = name.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        if byte == b'%' {
            // Of ASCII, only the percent sign itself may be escaped in a host.
            let (escaped, text) = escape(&bytes[at..])?;
            if escaped.is_ascii() && escaped != b'%' {
                return Err(UrlProblem::Escape(quoted(text)));
            }
        } else if !(byte.is_ascii_alphanumeric()
            || !byte.is_ascii()
            || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte))
        {
            return Err(UrlProblem::HostCharacter(quoted(&[byte])));
        }
    }
    Ok(())
}

/// Resolves the escapes of a part in which every character is allowed.
fn unescaped(part: &str) -> Part {
    let mut rest = part.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some(&byte) = rest.first() {
        let (byte, length) = match byte {
            b'%' => (escape(rest)?.0, 3),
            _ => (byte, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    Ok(bytes)
}

/// The byte of the escape at the beginning of `text`, and the escape itself.
fn escape(text: &[u8]) -> Result<(u8, &[u8]), UrlProblem> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    let whole = &text[..text.len().min(3)];
    let (Some(high), Some(low)) = (digit(1), digit(2)) else {
        return Err(UrlProblem::Escape(quoted(whole)));
    };
    Ok(((high * 16 + low) as u8, whole))
}

/// A string in quotes, as Go writes it in a message.
pub(crate) fn quoted(text: &[u8]) -> String {
    let mut quoted = String::from('"');
    for chunk in text.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push_quoted(&mut quoted, c));
        for byte in chunk.invalid() {
            push_hex(&mut quoted, 'x', 2, u32::from(*byte));
        }
    }
    quoted.push('"');
    quoted
}

fn push_quoted(quoted: &mut String, c: char) {
    match c {
        '"' | '\\' => quoted.extend(['\\', c]),
        '\x07' => quoted.push_str("\\a"),
        '\x08' => quoted.push_str("\\b"),
        '\x0b' => quoted.push_str("\\v"),
        '\x0c' => quoted.push_str("\\f"),
        '\n' => quoted.push_str("\\n"),
        '\r' => quoted.push_str("\\r"),
        '\t' => quoted.push_str("\\t"),
        c if c.is_ascii_control() => push_hex(quoted, 'x', 2, u32::from(c)),
        c if is_printable(c) => quoted.push(c),
        c if u32::from(c) <= 0xffff => push_hex(quoted, 'u', 4, u32::from(c)),
        c => push_hex(quoted, 'U', 8, u32::from(c)),
    }
}

/// Whether Rust prints the character unescaped, as Go then does, too. Tested after another character, because
/// Rust escapes combining characters only at the beginning.
fn is_printable(c: char) -> bool {
    String::from_iter(['a', c]).escape_debug().count() == 2
}

fn push_hex(quoted: &mut String, kind: char, width: usize, value: u32) {
    write!(quoted, "\\{kind}{value:0width$x}").expect("writing to a String must succeed");
}
