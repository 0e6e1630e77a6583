use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::kubelet::mount_spec::tests::mk_spec;

const POD: &str = "uid-1";

struct Node {
    manager: VolumeManager,
    now: Instant,
}

impl Node {
    fn new() -> Self {
        Self {
            manager: VolumeManager::default(),
            now: Instant::now(),
        }
    }

    /// Starts all possible operations.
    fn started(&mut self) -> Vec<Operation> {
        self.manager.reconcile(self.now)
    }

    /// The API server has stored `volumesInUse`, and the attach/detach controller has attached these volumes.
    fn report_in_use(&mut self) {
        let in_use = self.in_use();
        self.manager.mark_volumes_as_reported_in_use(&in_use);
        self.manager.mark_volumes_as_reported_attached(in_use);
    }

    fn in_use(&self) -> BTreeSet<UniqueVolumeName> {
        let in_use = self.manager.volumes_in_use().into_iter();
        in_use.map(str::to_owned).collect()
    }

    /// Starts the only possible operation and finishes it with `outcome`.
    fn run(&mut self, outcome: Outcome) -> &'static str {
        let started = self.started();
        assert_eq!(started.len(), 1, "{started:?}");
        self.manager.finish(&started[0], outcome, self.now);
        started[0].name()
    }

    fn after_backoff(&mut self) {
        self.now += Duration::from_secs(200);
    }

    fn mounted() -> Self {
        let mut node = Self::new();
        node.manager.add_pod_to_volume(POD, mk_spec());
        node.report_in_use();
        assert_eq!(node.run(Outcome::Done), Operation::VERIFY);
        assert_eq!(node.run(Outcome::Done), "volume_mount");
        node
    }
}

#[test]
fn volume_is_not_mounted_before_it_is_reported_in_use() {
    let mut node = Node::new();
    node.manager.add_pod_to_volume(POD, mk_spec());
    assert_eq!(node.started(), []);
    assert_eq!(node.manager.volumes_in_use().len(), 1);
    let in_use = node.in_use();
    node.manager.mark_volumes_as_reported_in_use(&in_use);
    assert_eq!(node.started(), [], "not reported as attached");
    node.report_in_use();
    assert_eq!(node.run(Outcome::NotAttachedYet), Operation::VERIFY);
    assert_eq!(node.started(), [], "verified once per interval");
    assert!(!node.manager.all_mounted(POD));
}

#[test]
fn volumes_that_a_pod_waits_for_are_named_as_in_the_pod() {
    let mut node = Node::new();
    node.manager.add_pod_to_volume(POD, mk_spec());
    let unattachable = MountSpec {
        unique_name: "local".to_owned(),
        outer_name: "cache".to_owned(),
        attachable: false,
        ..mk_spec()
    };
    node.manager.add_pod_to_volume(POD, unattachable);
    assert_eq!(
        node.manager.unmounted(POD),
        [["cache", "data"], ["cache", "data"]]
    );
    assert_eq!(node.manager.unattached(POD), [Arc::new(mk_spec())]);
    assert_eq!(node.run(Outcome::Done), Operation::VERIFY);
    assert_eq!(node.manager.unmounted(POD), [vec!["cache", "data"], vec!["data"]]);
    assert_eq!(node.run(Outcome::Done), "volume_mount");
    assert_eq!(node.manager.unmounted(POD), [["data"], ["data"]]);
    node.report_in_use();
    assert_eq!(node.run(Outcome::Done), Operation::VERIFY);
    assert_eq!(node.manager.unattached(POD), []);
}

#[test]
fn volume_is_in_use_until_it_is_unpublished_and_unstaged() {
    let mut node = Node::mounted();
    assert!(node.manager.all_mounted(POD));
    assert_eq!(node.started(), []);

    node.manager.delete_pod(POD);
    assert_eq!(node.run(Outcome::Done), "volume_unmount");
    assert!(!node.manager.has_mounts(POD));
    assert_eq!(node.manager.volumes_in_use().len(), 1, "still staged");
    assert_eq!(node.run(Outcome::Done), "unmount_device");
    assert_eq!(node.started(), []);
    assert!(node.manager.volumes_in_use().is_empty());
}

#[test]
fn inline_volume_is_not_unstaged() {
    let mut node = Node::new();
    let spec = MountSpec {
        attachable: false,
        ephemeral: true,
        ..mk_spec()
    };
    node.manager.add_pod_to_volume(POD, spec);
    assert_eq!(node.run(Outcome::Done), Operation::VERIFY);
    assert_eq!(node.run(Outcome::Done), "volume_mount");
    node.manager.delete_pod(POD);
    assert_eq!(node.run(Outcome::Done), "volume_unmount");
    assert_eq!(node.started(), []);
}

#[test]
fn volume_is_not_staged_again_for_a_second_pod() {
    let mut node = Node::mounted();
    node.manager.add_pod_to_volume("uid-2", mk_spec());
    let started = node.started();
    assert!(matches!(&started[..], [Operation::MountVolume { pod, staged: true, .. }] if pod == "uid-2"));
    node.manager.finish(&started[0], Outcome::Done, node.now);
    node.manager.delete_pod(POD);
    assert_eq!(node.run(Outcome::Done), "volume_unmount");
    assert_eq!(node.started(), [], "the other pod keeps the device");
}

#[test]
fn volume_stays_desired_until_its_last_pod_is_deleted() {
    let mut node = Node::mounted();
    node.manager.add_pod_to_volume("uid-2", mk_spec());
    assert!(node.manager.all_mounted(POD));
    assert!(!node.manager.all_mounted("uid-2"));
    node.manager.delete_pod(POD);
    assert!(node.manager.desired.contains_key(&mk_spec().unique_name));
    node.manager.delete_pod("uid-2");
    assert!(node.manager.desired.is_empty());
    assert!(node.manager.desired_of_pod.is_empty());
}

#[test]
fn outcome_of_a_failed_mount_determines_the_cleanup() {
    // outcome of the mount, operations after the pod is deleted
    let cases: [(Outcome, &[&str]); 6] = [
        (Outcome::Failed, &[]),
        (Outcome::NotStaged, &[]),
        (Outcome::StageUncertain, &["unmount_device"]),
        (Outcome::PublishNotCalled, &["unmount_device"]),
        (Outcome::NotPublished, &["unmount_device"]),
        (Outcome::PublishUncertain, &["volume_unmount", "unmount_device"]),
    ];
    for (outcome, expected) in cases {
        let mut node = Node::new();
        node.manager.add_pod_to_volume(POD, mk_spec());
        node.report_in_use();
        node.run(Outcome::Done);
        assert_eq!(node.run(outcome), "volume_mount");
        assert_eq!(node.started(), [], "{outcome:?}: backoff");
        node.manager.delete_pod(POD);
        node.after_backoff();
        for operation in expected {
            assert_eq!(node.run(Outcome::Done), *operation, "{outcome:?}");
            node.after_backoff();
        }
        assert_eq!(node.started(), [], "{outcome:?}");
        assert!(node.manager.volumes_in_use().is_empty(), "{outcome:?}");
    }
}

#[test]
fn final_error_after_an_uncertain_one_proves_that_nothing_is_staged() {
    let mut node = Node::new();
    node.manager.add_pod_to_volume(POD, mk_spec());
    node.report_in_use();
    node.run(Outcome::Done);
    node.run(Outcome::StageUncertain);
    node.after_backoff();
    node.run(Outcome::NotStaged);
    node.manager.delete_pod(POD);
    node.after_backoff();
    assert_eq!(node.started(), []);
    assert!(node.manager.volumes_in_use().is_empty());
}

#[test]
fn failed_unmount_keeps_the_volume_in_use_and_is_retried() {
    let mut node = Node::mounted();
    node.manager.delete_pod(POD);
    assert_eq!(node.run(Outcome::Failed), "volume_unmount");
    assert!(node.manager.has_mounts(POD));
    node.after_backoff();
    assert_eq!(node.run(Outcome::Done), "volume_unmount");
    assert_eq!(node.run(Outcome::Failed), "unmount_device");
    assert_eq!(node.manager.volumes_in_use().len(), 1);
    node.after_backoff();
    assert_eq!(node.run(Outcome::Done), "unmount_device");
}

#[test]
fn readded_volume_is_reported_in_use_before_it_is_mounted() {
    let mut node = Node::mounted();
    node.manager.delete_pod(POD);
    node.run(Outcome::Done);
    node.run(Outcome::Done);
    assert_eq!(node.started(), []);
    node.manager.add_pod_to_volume("uid-2", mk_spec());
    assert_eq!(node.started(), []);
    node.report_in_use();
    assert_eq!(node.run(Outcome::Done), Operation::VERIFY);
}

#[test]
fn restarted_kubelet_unmounts_unneeded_volumes_and_remounts_needed_ones() {
    let mut orphaned = Node::new();
    orphaned.manager.add_reconstructed(mk_spec(), Some(POD));
    orphaned.manager.add_reconstructed(mk_spec(), None);
    assert_eq!(orphaned.manager.volumes_in_use().len(), 1);
    assert_eq!(orphaned.run(Outcome::Done), "volume_unmount");
    assert_eq!(orphaned.run(Outcome::Done), "unmount_device");

    let mut needed = Node::new();
    needed.manager.add_reconstructed(mk_spec(), Some(POD));
    needed.manager.add_reconstructed(mk_spec(), None);
    needed.manager.add_pod_to_volume(POD, mk_spec());
    // As upstream, only the check that a volume is attached waits for `volumesInUse`.
    assert_eq!(needed.run(Outcome::Done), "volume_mount");
    assert!(needed.manager.all_mounted(POD));
}

#[test]
fn failed_mount_of_a_reconstructed_volume_does_not_prove_that_it_is_unmounted() {
    for failed in [Outcome::NotPublished, Outcome::PublishUncertain] {
        let mut node = Node::new();
        node.manager.add_reconstructed(mk_spec(), Some(POD));
        node.manager.add_reconstructed(mk_spec(), None);
        node.manager.add_pod_to_volume(POD, mk_spec());
        node.report_in_use();
        assert_eq!(node.run(failed), "volume_mount");
        node.after_backoff();
        // Even a final error after an uncertain one.
        assert_eq!(node.run(Outcome::NotPublished), "volume_mount");
        node.manager.delete_pod(POD);
        assert!(node.manager.has_mounts(POD), "{failed:?}");
        assert_eq!(node.run(Outcome::Done), "volume_unmount", "{failed:?}");
        assert_eq!(node.run(Outcome::Done), "unmount_device", "{failed:?}");
    }
    let mut node = Node::new();
    node.manager.add_reconstructed(mk_spec(), None);
    node.manager.add_pod_to_volume(POD, mk_spec());
    node.report_in_use();
    assert_eq!(node.run(Outcome::StageUncertain), "volume_mount");
    node.after_backoff();
    assert_eq!(node.run(Outcome::NotStaged), "volume_mount");
    node.manager.delete_pod(POD);
    node.after_backoff();
    assert_eq!(node.run(Outcome::Done), "unmount_device");
}

#[test]
fn failed_unstage_of_a_reconstructed_volume_keeps_it_reconstructed() {
    let mut node = Node::new();
    node.manager.add_reconstructed(mk_spec(), Some(POD));
    assert_eq!(node.run(Outcome::Failed), "volume_unmount");
    assert_eq!(
        node.manager.mount_state(&mk_spec().unique_name, POD),
        Some(MountState::Reconstructed)
    );
    node.after_backoff();
    assert_eq!(node.run(Outcome::Done), "volume_unmount");
    assert_eq!(node.run(Outcome::Failed), "unmount_device");
    node.manager.add_pod_to_volume("uid-2", mk_spec());
    node.report_in_use();
    node.after_backoff();
    assert_eq!(node.run(Outcome::NotStaged), "volume_mount");
    assert!(
        node.manager.may_be_staged(&mk_spec().unique_name),
        "the failed stage does not prove that the earlier one is undone"
    );
}

#[test]
fn volume_of_a_driver_that_stops_requiring_attach_is_mounted_without() {
    let mut node = Node::new();
    node.manager.add_pod_to_volume(POD, mk_spec());
    assert_eq!(node.started(), [], "waits for its attach");
    node.manager.mark_not_attachable("other");
    assert_eq!(node.started(), []);
    node.manager.mark_not_attachable(&mk_spec().driver);
    assert!(node.manager.volumes_in_use().is_empty());
    assert_eq!(node.run(Outcome::Done), Operation::VERIFY);
    assert_eq!(node.run(Outcome::Done), "volume_mount");
}
