//! Histories of the clauses about the end of an operation or of a history.

use super::*;

pub(super) fn rows() -> Vec<Row> {
    vec![
        (
            Clause::Uneventful,
            history()
                .va(va("a"))
                .va(guarded("a"))
                .publish("a", OK)
                .publish("a", OK)
                .va(attached("a")),
            history()
                .va(va("a"))
                .va(guarded("a"))
                .add(Observation::Fault("restart".to_owned()))
                .publish("a", OK)
                .publish("a", OK)
                .va(attached("a")),
        ),
        (
            Clause::Settles,
            history().va(va("a")).add(Observation::Settled),
            history()
                .va(va("a"))
                .va(Attachment {
                    attach_error: Some("no slot".to_owned()),
                    ..va("a")
                })
                .add(Observation::Settled),
        ),
        (
            // The attacher gave up after the driver's last refusal.
            Clause::Recovers,
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .va(failed("a", "the port is locked"))
                .add(Observation::Healed)
                .add(Observation::Settled),
            history()
                .va(guarded("a"))
                .add(Observation::Healed)
                .publish("a", "ABORTED")
                .va(failed("a", "the port is locked"))
                .add(Observation::Settled),
        ),
        (
            Clause::ArrayAgrees,
            history().array("a", true).add(Observation::Settled),
            history().attach("a").add(Observation::Settled),
        ),
        (
            Clause::NothingLeft,
            history().attach("a").detach("a").add(Observation::CleanedUp),
            history()
                .attach("a")
                .detach("a")
                .add(volume(0))
                .add(Observation::CleanedUp),
        ),
        (
            Clause::RecordComplete,
            history()
                .add(Observation::GapBegan("watch".to_owned()))
                .add(Observation::Settled),
            history()
                .add(Observation::GapBegan("watch".to_owned()))
                .add(Observation::GapEnded("watch".to_owned()))
                .add(Observation::Settled),
        ),
    ]
}
