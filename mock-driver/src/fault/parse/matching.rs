//! `match`: the calls that a rule matches.

use http::HeaderName;
use wildmatch::WildMatch;

use super::field_error::FieldError;
use crate::fault::ValueMatch;
use crate::fault::io::{IoKinds, LARGEST_IO, NEEDS_BYTES, Offsets};
use crate::fault::rule::{LocationMatch, Match, Methods, State};
use crate::rpc::method::Method;

// === impl Match ===

impl Match {
    /// Rejects a `match` that matches no call.
    pub(super) fn check(&self) -> Result<(), FieldError> {
        self.check_io(self.io.is_some())?;
        // A method that only a proxy can receive may have any field.
        let known = self.method.as_ref().map(Methods::known).unwrap_or_default();
        let any = |is: fn(Method) -> bool| known.is_empty() || known.iter().any(|method| is(*method));
        let takes = |field: &str| known.is_empty() || known.iter().any(|rpc| rpc.takes(field));
        let location = self.r#while.volume;
        // (field, whether it is set, whether a method has it)
        let fields = [
            ("match.volume", self.volume.is_some(), any(Method::has_volume)),
            ("match.node", self.node.is_some(), any(Method::has_node)),
            ("match.name", self.name.is_some(), any(Method::has_name)),
            ("match.secrets", !self.secrets.is_empty(), takes("secrets")),
            (
                "match.parameters",
                !self.parameters.is_empty(),
                takes("parameters") || takes("volume_context"),
            ),
            (
                "match.bytes-above",
                self.bytes_above.is_some(),
                takes("capacity_range"),
            ),
            ("match.while.volume", location.is_some(), any(Method::has_volume)),
        ];
        if let Some((field, ..)) = fields.iter().find(|(_, is_set, has)| *is_set && !has) {
            let names: Vec<&str> = known.iter().map(|rpc| rpc.name()).collect();
            let names = names.join(", ");
            let reason = format!("{names} has no such field, so the rule would never fire: remove it");
            return Err(FieldError::new(field, reason));
        }
        self.check_request(&known)?;
        if let Some(key) = self
            .metadata
            .keys()
            .find(|key| HeaderName::from_bytes(key.as_bytes()).is_err())
        {
            return Err(FieldError(
                format!("match.metadata.{key}"),
                "is no key of metadata".to_owned(),
            ));
        }
        self.check_not()?;
        let here = location == Some(LocationMatch::AttachedHere);
        // (whether it is wrong, field, reason)
        let mistakes = [
            (
                self.call == Some(0),
                "match.call",
                "must be at least 1: calls are counted from 1",
            ),
            (
                self.every == Some(0),
                "match.every",
                "must be at least 1: calls are counted from 1",
            ),
            (
                self.probability
                    .is_some_and(|chance| !(chance > 0.0 && chance <= 1.0)),
                "match.probability",
                "must be above 0 and at most 1, as in 0.1 for one call in ten",
            ),
            (
                self.seed.is_some() && self.probability.is_none(),
                "match.seed",
                "is never used without a probability",
            ),
            (
                here && !any(|rpc| rpc.has_volume() && rpc.has_node()),
                "match.while.volume",
                "attached-here needs a method with a node: use attached",
            ),
        ];
        FieldError::first(mistakes)
    }
}

impl Match {
    /// Rejects fields of calls in a `match` of I/O, and the reverse.
    fn check_io(&self, is_io: bool) -> Result<(), FieldError> {
        let of_calls = [
            ("match.method", self.method.is_some()),
            ("match.name", self.name.is_some()),
            ("match.secrets", !self.secrets.is_empty()),
            ("match.parameters", !self.parameters.is_empty()),
            ("match.request", !self.request.is_empty()),
            ("match.metadata", !self.metadata.is_empty()),
            ("match.deadline", self.deadline.is_set()),
            ("match.while.volume", self.r#while.volume.is_some()),
        ];
        let of_io = [
            ("match.path", self.path.is_some()),
            ("match.offset", self.offset.is_some()),
        ];
        let (fields, reason) = match is_io {
            true => (
                &of_calls[..],
                "is of a call, and match.io matches I/O: remove one of them",
            ),
            false => (&of_io[..], "is of I/O: add match.io with the operations"),
        };
        if let Some((field, _)) = fields.iter().find(|(_, is_set)| *is_set) {
            return Err(FieldError::new(field, reason));
        }
        let is_empty = self.offset.is_some_and(Offsets::is_empty);
        let kinds = self.io.iter().flat_map(|IoKinds(kinds)| kinds);
        let has_bytes = kinds.into_iter().all(|kind| kind.has_bytes());
        FieldError::first([
            (is_empty, "match.offset", "to must be above from"),
            (self.offset.is_some() && !has_bytes, "match.offset", NEEDS_BYTES),
            (
                self.io.is_some() && self.bytes_above.is_some() && !has_bytes,
                "match.bytes-above",
                NEEDS_BYTES,
            ),
            (
                self.io.is_some() && self.bytes_above.is_some_and(|bytes| bytes.0 >= LARGEST_IO),
                "match.bytes-above",
                "must be below 1Mi: the kernel splits reads and writes into operations of at most 1 MiB",
            ),
        ])?;
        match &self.not {
            Some(not) if is_io => not.check_io(true).map_err(in_not),
            Some(_) | None => Ok(()),
        }
    }

    /// The request of one of the methods must be able to meet each condition. Secrets have a field of their own, whose values are never shown.
    fn check_request(&self, known: &[Method]) -> Result<(), FieldError> {
        let methods = if known.is_empty() { &Method::ALL[..] } else { known };
        ValueMatch::check(&self.request, methods)
            .map_err(|(path, reason)| FieldError(format!("match.request.{path}"), reason))
    }

    fn check_not(&self) -> Result<(), FieldError> {
        let Some(not) = &self.not else { return Ok(()) };
        let counts = not.call.is_some() || not.every.is_some() || not.probability.is_some();
        if counts || not.not.is_some() {
            let reason = "takes the fields of a call: write call, every and probability beside it";
            return Err(FieldError::new("match.not", reason));
        }
        match (self.io.is_some(), not.io.is_some()) {
            (true, _) => Ok(()),
            (false, true) => Err(FieldError::new("match.not.io", "calls are no I/O: add match.io")),
            (false, false) => not.check().map_err(in_not),
        }
    }
}

fn in_not(FieldError(field, reason): FieldError) -> FieldError {
    FieldError(field.replacen("match.", "match.not.", 1), reason)
}

// === impl State ===

impl TryFrom<String> for State {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "" => Err("must not be empty; the first state is \"start\""),
            text => Ok(Self(text.into())),
        }
    }
}

// === impl Methods ===

/// Parses a name, a path or a pattern of CSI's methods, or the path of another service's method.
impl TryFrom<String> for Methods {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if let Ok(method) = text.parse::<Method>() {
            return Ok(Self::One(method.path().to_owned()));
        }
        let pattern = WildMatch::new(&text);
        if text.contains(['*', '?']) && Method::ALL.into_iter().any(|method| method.matches(&pattern)) {
            return Ok(Self::Like(pattern));
        }
        let is_foreign = |path: &str| path.split('/').count() == 2 && !path.starts_with("csi.v1.");
        if text.strip_prefix('/').is_some_and(is_foreign) {
            return Ok(Self::One(text));
        }
        let names = Method::ALL.map(Method::name).join(", ");
        Err(format!(
            "\"{text}\" matches no CSI method; use one of {names}; write those of other services as /package.Service/Method"
        ))
    }
}
