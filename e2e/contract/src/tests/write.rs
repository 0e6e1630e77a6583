//! Histories of the clauses about writes and other output.

use super::*;

pub(super) fn rows() -> Vec<Row> {
    let secret =
        |history: History| history.with(|settings| settings.secrets = vec!["hunter2-hunter2".to_owned()]);
    vec![
        (
            Clause::VolumeGuarded,
            history().attach("a").add(volume(0)),
            history().attach("a").detach("a").add(volume(0)),
        ),
        (
            Clause::FinalizerOnce,
            history().add(volume(2)),
            history().add(volume(1)),
        ),
        (
            Clause::NoIdleWrite,
            history().add(write(None, true, false)),
            history().add(write(None, false, true)),
        ),
        (
            Clause::NoSecretShown,
            secret(history()).add(text("password: aHVudGVyMi1odW50ZXIy")),
            secret(history()).add(text("password: ***stripped***")),
        ),
    ]
}
