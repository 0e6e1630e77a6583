//! The whole cluster: only what waits, the worst first.

use super::*;

#[test]
fn lists_what_waits_and_names_the_object_that_shows_more() {
    for (name, world, expected) in [
        ("all is well", World::fine as fn() -> World, &[][..]),
        (
            "a pod without attachment",
            World::waiting,
            &[(Cause::NoAttachmentYet, Some("pod/db-0 -n shop"))],
        ),
        (
            "an attachment that nothing has written",
            World::unattached,
            &[(Cause::AttacherBehind, Some("pod/db-0 -n shop"))],
        ),
        (
            "an attachment that is being deleted",
            World::deleting,
            &[(Cause::Detaching, Some("volumeattachment/va-1"))],
        ),
    ] {
        let report = explain(&world().snapshot(ResourceKind::Cluster, ""));
        let text = printer::text(&report, now());
        let findings: Vec<_> = report
            .paths
            .iter()
            .map(|path| (path.finding.cause, path.names.arguments()))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(cause, object)| (*cause, object.map(str::to_owned)))
            .collect();
        assert_eq!(findings, expected, "{name}:\n{text}");
        assert_eq!(
            report.state == State::Fine,
            text.contains("No volume waits for anything."),
            "{name}:\n{text}"
        );
    }
}

#[test]
fn a_pod_and_its_attachment_are_one_entry_and_the_worst_is_the_first() {
    let mut world = World::needed_on_another_node();
    world.set(
        "va",
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:55Z"}}),
    );
    let report = explain(&world.snapshot(ResourceKind::Cluster, ""));
    let text = printer::text(&report, now());
    let states: Vec<_> = report.paths.iter().map(|path| path.finding.state).collect();
    assert!(states.is_sorted_by(|a, b| a >= b), "{text}");
    let mut names: Vec<_> = report.paths.iter().map(|path| &path.names).collect();
    assert_eq!(names.len(), 2, "{text}");
    names.dedup();
    assert_eq!(names.len(), 2, "{text}");
    assert!(text.starts_with("cluster: STUCK\n"), "{text}");
    assert!(
        text.contains("$ kubectl csi-attach explain pod/db-1 -n shop"),
        "{text}"
    );
    // Steps and advice are those of the named object.
    assert!(!text.contains("[x]") && !text.contains("do:"), "{text}");
}
