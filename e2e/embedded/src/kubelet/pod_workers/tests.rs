use std::collections::BTreeSet;

use super::super::mount_spec::tests::mk_spec;
use super::super::volume_manager::Outcome;
use super::*;

fn mk_pod(deleting: bool) -> Pod {
    let mut pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "uid-1"},
        "spec": {"nodeName": "a", "containers": []},
    }))
    .unwrap();
    if deleting {
        pod.metadata.deletion_timestamp =
            serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
    }
    pod
}

fn name(action: &PodAction) -> &'static str {
    match action {
        PodAction::Resolve(_) => "resolve",
        PodAction::VerifyAttachLimit(_) => "verify attach limit",
        PodAction::Start(_) => "start",
        PodAction::Stop(..) => "stop",
        PodAction::Remove(_) => "remove",
        PodAction::ReportFailedMount(..) => "failed mount",
    }
}

fn run_volumes(volumes: &mut VolumeManager, now: Instant) {
    loop {
        let in_use: BTreeSet<_> = volumes.volumes_in_use().into_iter().map(str::to_owned).collect();
        volumes.mark_volumes_as_reported_in_use(&in_use);
        volumes.mark_volumes_as_reported_attached(in_use);
        let started = volumes.reconcile(now);
        if started.is_empty() {
            return;
        }
        for operation in started {
            volumes.finish(&operation, Outcome::Done, now);
        }
    }
}

#[test]
fn pod_is_removed_only_after_its_volumes_are_unmounted() {
    let (mut pods, mut volumes, now) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
    let step = |pods: &mut PodWorkers, volumes: &mut VolumeManager| -> Vec<&'static str> {
        pods.actions(volumes, now).iter().map(name).collect()
    };
    pods.apply(mk_pod(false));
    assert_eq!(step(&mut pods, &mut volumes), ["resolve"]);
    assert!(!pods.all_resolved_once());
    pods.resolved("uid-1", Ok(vec![mk_spec()]), &mut volumes, now);
    assert!(pods.all_resolved_once());
    assert_eq!(step(&mut pods, &mut volumes), [""; 0], "waits for the volume");
    run_volumes(&mut volumes, now);
    assert_eq!(step(&mut pods, &mut volumes), ["start"]);
    pods.started("uid-1");

    pods.apply(mk_pod(true));
    assert_eq!(step(&mut pods, &mut volumes), ["stop"]);
    run_volumes(&mut volumes, now);
    assert!(volumes.has_mounts("uid-1"), "its containers still run");
    pods.stopped("uid-1", &mut volumes);
    assert_eq!(
        step(&mut pods, &mut volumes),
        [""; 0],
        "its volume is still mounted"
    );
    run_volumes(&mut volumes, now);
    assert_eq!(step(&mut pods, &mut volumes), ["remove"]);
    assert_eq!(step(&mut pods, &mut volumes), [""; 0], "returned once");
}

#[test]
fn volumes_of_a_completed_pod_are_unmounted() {
    for (policy, code, completes) in [
        ("Never", 1, true),
        ("OnFailure", 0, true),
        ("OnFailure", 1, false),
        ("Always", 0, false),
    ] {
        let (mut pods, mut volumes, now) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
        let mut pod = mk_pod(false);
        pod.spec.as_mut().unwrap().restart_policy = Some(policy.to_owned());
        pods.apply(pod);
        pods.actions(&mut volumes, now);
        pods.resolved("uid-1", Ok(vec![mk_spec()]), &mut volumes, now);
        run_volumes(&mut volumes, now);
        pods.actions(&mut volumes, now);
        pods.started("uid-1");
        pods.exited("uid-1", code);
        let actions = pods.actions(&mut volumes, now);
        let expected = completes.then_some(code);
        let stopped = actions.iter().find_map(|action| match action {
            PodAction::Stop(_, code) => Some(*code),
            PodAction::Resolve(_)
            | PodAction::VerifyAttachLimit(_)
            | PodAction::Start(_)
            | PodAction::Remove(_)
            | PodAction::ReportFailedMount(..) => None,
        });
        assert_eq!(stopped, expected, "{policy}, exit code {code}");
        if completes {
            pods.stopped("uid-1", &mut volumes);
        }
        run_volumes(&mut volumes, now);
        assert_eq!(volumes.volumes_in_use().is_empty(), completes, "{policy}");
        assert!(pods.actions(&mut volumes, now).is_empty(), "{policy}");
    }
}

#[test]
fn pod_with_unresolved_volumes_is_reported_and_can_be_deleted() {
    let (mut pods, mut volumes, start) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
    let mut reports = Vec::new();
    pods.apply(mk_pod(false));
    for tenth in 0..150 {
        let now = start + RESOLVE_RETRY * tenth;
        for action in pods.actions(&mut volumes, now) {
            match action {
                PodAction::Resolve(_) => {
                    let missing = ResolveError(vec![("data".to_owned(), "PVC is not bound".to_owned())]);
                    pods.resolved("uid-1", Err(missing), &mut volumes, now);
                }
                PodAction::ReportFailedMount(_, text) => reports.push((tenth, text)),
                PodAction::VerifyAttachLimit(_)
                | PodAction::Start(_)
                | PodAction::Stop(..)
                | PodAction::Remove(_) => panic!("{action:?}"),
            }
        }
    }
    assert_eq!(
        reports.iter().map(|(tenth, _)| *tenth).collect::<Vec<_>>(),
        [4, 104]
    );
    assert!(
        reports[0]
            .1
            .ends_with("failed to process volumes=[data]: PVC is not bound")
    );
    pods.apply(mk_pod(true));
    let actions = pods.actions(&mut volumes, start);
    assert_eq!(actions.iter().map(name).collect::<Vec<_>>(), ["remove"]);
    assert!(volumes.volumes_in_use().is_empty());
}

#[test]
fn volumes_of_a_removed_pod_are_unmounted() {
    let (mut pods, mut volumes, now) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
    pods.apply(mk_pod(false));
    pods.actions(&mut volumes, now);
    pods.resolved("uid-1", Ok(vec![mk_spec()]), &mut volumes, now);
    run_volumes(&mut volumes, now);
    pods.keep_only(&[], &mut volumes);
    run_volumes(&mut volumes, now);
    assert!(volumes.volumes_in_use().is_empty());
    assert!(pods.actions(&mut volumes, now).is_empty());
}

#[test]
fn attach_limit_is_verified_after_a_timeout() {
    let (mut pods, mut volumes, start) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
    pods.apply(mk_pod(false));
    pods.actions(&mut volumes, start);
    pods.resolved("uid-1", Ok(vec![mk_spec()]), &mut volumes, start);
    let cases: [(u64, &[&str]); 4] = [
        (122, &[]),
        (123, &["verify attach limit"]),
        (245, &[]),
        (246, &["verify attach limit"]),
    ];
    for (seconds, expected) in cases {
        let now = start + Duration::from_secs(seconds);
        assert_eq!(
            pods.next_due().is_some_and(|due| due <= now),
            !expected.is_empty()
        );
        let actions: Vec<_> = pods.actions(&mut volumes, now).iter().map(name).collect();
        assert_eq!(actions, expected, "after {seconds} s");
    }
}
