//! Histories of the clauses about calls.

use super::*;

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn rows() -> Vec<Row> {
    vec![
        (
            Clause::FinalizerBeforePublish,
            history()
                .va(va("a"))
                .publish("a", OK)
                .va(guarded("a"))
                .va(attached("a")),
            history().attach("a"),
        ),
        (
            Clause::RecordBeforePublish,
            history()
                .va(va("a"))
                .va(Attachment {
                    handle: None,
                    ..guarded("a")
                })
                .publish("a", OK)
                .va(Attachment {
                    handle: None,
                    ..attached("a")
                }),
            history()
                .with(|settings| settings.record = Record::NodeId)
                .va(va("a"))
                .va(Attachment {
                    handle: None,
                    ..guarded("a")
                })
                .publish("a", OK),
        ),
        (
            Clause::OneCallAtATime,
            history()
                .va(guarded("a"))
                .begin(Method::Publish, "a", |_| {})
                .begin(Method::Publish, "a", |_| {})
                .end_of(1, "ABORTED")
                .end_of(2, "ABORTED"),
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .publish("a", "ABORTED"),
        ),
        (
            Clause::OnlyTheLeader,
            history()
                .va(guarded("a"))
                .add(Observation::Lease(Some("one".into())))
                .begin(Method::Publish, "a", by("two"))
                .end("ABORTED"),
            history()
                .va(guarded("a"))
                .add(Observation::Lease(Some("one".into())))
                .begin(Method::Publish, "a", by("one"))
                .end("ABORTED"),
        ),
        (
            Clause::OwnVolumesOnly,
            history()
                .add(volume_with(1, |volume| volume.foreign = true))
                .attach("a"),
            history().attach("a"),
        ),
        (
            Clause::SecretSent,
            history()
                .add(volume_with(1, |volume| volume.secret = true))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| call.secret = Some(false))
                .end("ABORTED"),
            history()
                .add(volume_with(1, |volume| volume.secret = true))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| call.secret = Some(true))
                .end("ABORTED"),
        ),
        (
            Clause::RequestMatchesVolume,
            history()
                .add(volume_with(1, |volume| volume.request = Some(Arc::default())))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| {
                    call.request = Some(PublishRequest {
                        readonly: true,
                        ..PublishRequest::default()
                    });
                })
                .end("ABORTED"),
            history()
                .add(volume_with(1, |volume| volume.request = Some(Arc::default())))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| {
                    call.request = Some(PublishRequest::default())
                })
                .end("ABORTED"),
        ),
    ]
}
