//! Expected spans of an attach and a detach that succeed at once.

use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

const PUBLISH: &str = "csi.v1.Controller/ControllerPublishVolume";
/// The requests of an attach.
const OF_ATTACH: [&str; 5] = [
    "GET secrets",
    "PATCH persistentvolumes",
    "PATCH volumeattachments",
    "PATCH volumeattachments/status",
    PUBLISH,
];
/// The requests of a detach of a VolumeAttachment without another finalizer.
const OF_DETACH: [&str; 3] = [
    "GET secrets",
    "PATCH volumeattachments",
    "csi.v1.Controller/ControllerUnpublishVolume",
];

/// The attach and the detach of this VolumeAttachment are one trace each: a root span with a child span for
/// each request. `contexts` are the `traceparent` headers that the driver received with
/// ControllerPublishVolume.
pub(super) fn verify(spans: &[Span], attachment: &str, contexts: &[String]) -> Result<()> {
    let attach = below(spans, "attach", attachment, &OF_ATTACH)?;
    below(spans, "detach", attachment, &OF_DETACH)?;
    let root = spans.iter().find(|span| span.span_id == attach[0].parent_span_id);
    let uid = root.and_then(|root| attribute(root, "uid")).context("the UID")?;
    ensure!(
        uid.replace('-', "") == hex(&attach[0].trace_id),
        "the trace of {uid} is {}",
        hex(&attach[0].trace_id)
    );
    let publish = attach
        .iter()
        .find(|span| span.name == PUBLISH)
        .context("the call of the driver")?;
    let context = format!("00-{}-{}-01", hex(&publish.trace_id), hex(&publish.span_id));
    ensure!(
        contexts == [context.as_str()],
        "the driver was given {contexts:?} for {context}"
    );
    Ok(())
}

/// Whether a root span of this name for the attachment has arrived. It is exported after the spans below it.
pub(super) fn has_root(spans: &[Span], name: &str, attachment: &str) -> bool {
    let mut roots = spans.iter().filter(|span| span.parent_span_id.is_empty());
    roots.any(|root| root.name == name && attribute(root, "va") == Some(attachment))
}

/// The spans below the only root of this name, which must be these and have succeeded.
fn below<'s>(spans: &'s [Span], name: &str, attachment: &str, expected: &[&str]) -> Result<Vec<&'s Span>> {
    let mut roots = spans
        .iter()
        .filter(|span| span.name == name && attribute(span, "va") == Some(attachment));
    let root = roots
        .next()
        .with_context(|| format!("no {name} of {attachment} was traced"))?;
    ensure!(roots.next().is_none(), "{attachment} has more than one {name}");
    ensure!(root.parent_span_id.is_empty(), "{name} is not a root");
    let mut found: Vec<&Span> = spans
        .iter()
        .filter(|span| span.trace_id == root.trace_id && span.span_id != root.span_id)
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<&str> = found.iter().map(|span| span.name.as_str()).collect();
    ensure!(
        names == expected,
        "the trace of {name} has {names:?}, not {expected:?}"
    );
    for span in &found {
        ensure!(
            span.parent_span_id == root.span_id,
            "{} is not below {name}",
            span.name
        );
        let failed = span
            .status
            .as_ref()
            .is_some_and(|status| status.code() == StatusCode::Error);
        ensure!(!failed, "{} failed: {:?}", span.name, span.status);
        ensure!(
            root.start_time_unix_nano <= span.start_time_unix_nano
                && span.start_time_unix_nano <= span.end_time_unix_nano
                && span.end_time_unix_nano <= root.end_time_unix_nano,
            "{} is not within the time of {name}",
            span.name
        );
    }
    Ok(found)
}

fn attribute<'s>(span: &'s Span, key: &str) -> Option<&'s str> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    let Value::StringValue(text) = pair.value.as_ref()?.value.as_ref()? else {
        return None;
    };
    Some(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
