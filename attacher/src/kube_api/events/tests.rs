use super::*;
use crate::plan::tests::mk_attachment;

fn mk_notice(reason: Reason, code: Option<i32>, note: &str) -> Notice {
    let code = code.and_then(Code::from_number);
    Notice::new(ObjectReference::from(&mk_attachment("va")), reason, code, note)
}

#[test]
fn action_contains_the_code_of_the_failure() {
    for (reason, code, note, action) in [
        (
            Reason::AttachFailed,
            Some(8),
            "no room",
            "Attach (ResourceExhausted)",
        ),
        (Reason::DetachFailed, Some(5), "no volume", "Detach (NotFound)"),
        (Reason::AttachRecovered, None, "attached", "Attach"),
        (Reason::AttachmentLost, None, "not listed", "Reconcile"),
        // The text of a message is ignored.
        (
            Reason::AttachmentRestored,
            None,
            "rpc error: code = NotFound desc = x",
            "Reconcile",
        ),
    ] {
        assert_eq!(mk_notice(reason, code, note).action, action, "{note}");
    }
}

#[test]
fn failures_without_code_share_an_action_only_if_their_cause_is_the_same() {
    let action = |note| mk_notice(Reason::AttachFailed, None, note).action;
    let (missing, forbidden) = ("persistentvolume \"pv\" not found", "secrets is forbidden");
    assert_eq!(action(missing), action(missing));
    assert_ne!(action(missing), action(forbidden));
    assert_ne!(
        action(missing),
        mk_notice(Reason::DetachFailed, None, missing).action
    );
}

#[test]
fn truncates_the_note_to_the_api_servers_limit() {
    let notice = mk_notice(Reason::AttachFailed, None, &"é".repeat(1000));
    assert_eq!(notice.note, "é".repeat(512));
}
