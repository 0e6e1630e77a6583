use super::*;

fn pod(uid: &str) -> PodKey {
    PodKey {
        uid: uid.to_owned(),
        namespace: "ns".to_owned(),
        name: uid.to_owned(),
    }
}

fn volume(handle: &str) -> VolumeKey {
    VolumeKey {
        unique_name: handle.to_owned(),
        driver: "d".to_owned(),
        handle: handle.to_owned(),
        attributes: BTreeMap::new(),
        access_modes: Vec::new(),
        block: false,
    }
}

fn set(names: &[&str]) -> BTreeSet<UniqueName> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// A manager with a running pod `p` that has the volume `v`.
fn running() -> VolumeManager {
    let mut manager = VolumeManager::default();
    for report in [
        Report::Assigned(pod("p")),
        Report::Resolved("p".to_owned(), vec![volume("v")]),
        Report::InUseStored(set(&["v"])),
        Report::Attached(set(&["v"])),
    ] {
        manager.apply(report);
        manager.reconcile();
    }
    manager.apply(Report::Mounted("v".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Start(pod("p"))]);
    manager.apply(Report::Started("p".to_owned()));
    manager
}

/// The same after the pod was deleted and its containers ended.
fn stopped() -> VolumeManager {
    let mut manager = running();
    manager.apply(Report::Deleting("p".to_owned()));
    manager.reconcile();
    manager.apply(Report::Stopped("p".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Unmount(volume("v"))]);
    manager
}

#[test]
fn a_volume_is_reported_in_use_before_it_is_mounted() {
    let mut manager = VolumeManager::default();
    manager.apply(Report::Assigned(pod("p")));
    assert_eq!(manager.reconcile(), [Action::Resolve(pod("p"))]);
    manager.apply(Report::Attached(set(&["v"])));
    manager.apply(Report::Resolved("p".to_owned(), vec![volume("v")]));
    assert_eq!(manager.reconcile(), [Action::StoreInUse(set(&["v"]))]);
    assert_eq!(
        manager.reconcile(),
        [],
        "nothing is mounted before the report is stored"
    );
    manager.apply(Report::InUseStored(set(&["v"])));
    assert_eq!(manager.reconcile(), [Action::Mount(volume("v"))]);
}

#[test]
fn a_volume_is_mounted_only_once_attached() {
    let mut manager = VolumeManager::default();
    manager.apply(Report::Assigned(pod("p")));
    manager.reconcile();
    manager.apply(Report::Resolved("p".to_owned(), vec![volume("v")]));
    manager.reconcile();
    manager.apply(Report::InUseStored(set(&["v"])));
    assert_eq!(manager.reconcile(), []);
    manager.apply(Report::Attached(set(&["v"])));
    assert_eq!(manager.reconcile(), [Action::Mount(volume("v"))]);
    manager.apply(Report::MountFailed("v".to_owned()));
    assert_eq!(
        manager.reconcile(),
        [Action::Mount(volume("v"))],
        "a failed mount is tried again"
    );
}

#[test]
fn a_deleted_pod_is_finished_after_unmount_and_report() {
    let mut manager = running();
    manager.apply(Report::Deleting("p".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Stop(pod("p"))]);
    assert_eq!(manager.reconcile(), [], "containers still have the volume open");
    manager.apply(Report::Stopped("p".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Unmount(volume("v"))]);
    assert_eq!(manager.reconcile(), [], "it stays in use until it is unmounted");
    manager.apply(Report::Unmounted("v".to_owned()));
    assert_eq!(manager.reconcile(), [Action::StoreInUse(set(&[]))]);
    assert_eq!(
        manager.reconcile(),
        [],
        "the pod stays until the report is stored"
    );
    manager.apply(Report::InUseStored(set(&[])));
    assert_eq!(manager.reconcile(), [Action::Finish(pod("p"))]);
    manager.apply(Report::Gone("p".to_owned()));
    assert!(manager.is_idle());
}

#[test]
fn a_report_on_its_way_keeps_a_pod_from_finishing() {
    let mut manager = VolumeManager::default();
    manager.apply(Report::Assigned(pod("p")));
    manager.apply(Report::Resolved("p".to_owned(), vec![volume("v")]));
    assert!(manager.reconcile().contains(&Action::StoreInUse(set(&["v"]))));
    manager.apply(Report::Deleting("p".to_owned()));
    assert_eq!(
        manager.reconcile(),
        [],
        "the volume is about to be reported as in use"
    );
    manager.apply(Report::InUseStored(set(&["v"])));
    assert_eq!(manager.reconcile(), [Action::StoreInUse(set(&[]))]);
}

#[test]
fn a_volume_wanted_again_waits_for_the_report_that_drops_it() {
    let mut manager = stopped();
    manager.apply(Report::Unmounted("v".to_owned()));
    assert_eq!(manager.reconcile(), [Action::StoreInUse(set(&[]))]);
    manager.apply(Report::Assigned(pod("q")));
    manager.reconcile();
    manager.apply(Report::Resolved("q".to_owned(), vec![volume("v")]));
    assert!(
        !manager.reconcile().contains(&Action::Mount(volume("v"))),
        "the write on its way says the volume is not in use"
    );
    manager.apply(Report::InUseStored(set(&[])));
    assert_eq!(manager.reconcile(), [Action::StoreInUse(set(&["v"]))]);
}

#[test]
fn a_shared_volume_stays_mounted_for_the_other_pod() {
    let mut manager = running();
    manager.apply(Report::Assigned(pod("q")));
    manager.reconcile();
    manager.apply(Report::Resolved("q".to_owned(), vec![volume("v")]));
    assert_eq!(manager.reconcile(), [Action::Start(pod("q"))]);
    manager.apply(Report::Deleting("p".to_owned()));
    manager.reconcile();
    manager.apply(Report::Stopped("p".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Finish(pod("p"))]);
}

#[test]
fn a_pod_deleted_while_its_volume_is_being_mounted_unmounts_it_afterwards() {
    let mut manager = VolumeManager::default();
    manager.apply(Report::Assigned(pod("p")));
    manager.apply(Report::Resolved("p".to_owned(), vec![volume("v")]));
    manager.apply(Report::Attached(set(&["v"])));
    manager.reconcile();
    manager.apply(Report::InUseStored(set(&["v"])));
    manager.reconcile();
    manager.apply(Report::Deleting("p".to_owned()));
    assert_eq!(manager.reconcile(), [], "the mount under way must end first");
    manager.apply(Report::Mounted("v".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Unmount(volume("v"))]);
}

#[test]
fn a_pod_that_vanishes_still_releases_its_volume() {
    let mut manager = running();
    manager.apply(Report::Gone("p".to_owned()));
    assert_eq!(manager.reconcile(), [Action::Unmount(volume("v"))]);
    manager.apply(Report::Unmounted("v".to_owned()));
    assert_eq!(manager.reconcile(), [Action::StoreInUse(set(&[]))]);
}

#[test]
fn a_volume_wanted_again_while_it_leaves_is_mounted_again() {
    let mut manager = stopped();
    manager.apply(Report::Assigned(pod("q")));
    manager.apply(Report::Resolved("q".to_owned(), vec![volume("v")]));
    manager.apply(Report::Unmounted("v".to_owned()));
    assert!(manager.reconcile().contains(&Action::Mount(volume("v"))));
}
