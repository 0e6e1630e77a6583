use super::super::desired_state_of_world::tests::mk_spec;
use super::*;

fn attached(handle: &str, node: &str) -> (ActualStateOfWorld, String) {
    let spec = mk_spec(handle, "ReadWriteOnce");
    let name = spec.unique_name();
    let mut actual = ActualStateOfWorld::default();
    actual.mark_volume_as_attached(&name, Some(spec), node, "");
    (actual, name)
}

#[test]
fn volume_without_spec_is_not_counted() {
    let (mut actual, _) = attached("v", "a");
    actual.mark_volume_as_attached("kubernetes.io/csi/d^other", None, "a", "");
    assert_eq!(actual.volumes_by_driver().into_values().sum::<usize>(), 1);
}

#[test]
fn volume_counts_as_mounted_until_the_node_reports_otherwise() {
    let (mut actual, name) = attached("v", "a");
    assert!(actual.get_attached_volumes()[0].mounted_by_node);
    actual.set_volumes_mounted_by_node(&[], "a");
    assert!(!actual.get_attached_volumes()[0].mounted_by_node);
    actual.set_volumes_mounted_by_node(std::slice::from_ref(&name), "a");
    assert!(actual.get_attached_volumes()[0].mounted_by_node);
}

#[test]
fn volume_is_reported_until_its_detach_begins() {
    let (mut actual, name) = attached("v", "a");
    assert_eq!(
        actual.get_volumes_to_report_attached(),
        [("a".to_owned(), vec![(name.clone(), String::new())])]
    );
    assert!(actual.get_volumes_to_report_attached().is_empty(), "written once");

    actual.remove_volume_from_report_as_attached(&name, "a");
    assert_eq!(actual.get_volumes_to_report_attached_for_node("a"), Some(vec![]));

    // After a failed detach the volume is uncertain and not reported.
    actual.mark_volume_as_uncertain(&name, None, "a");
    assert_eq!(actual.get_volumes_to_report_attached_for_node("a"), None);
    assert_eq!(actual.attach_state(&name, "a"), AttachState::Uncertain);
    assert!(actual.get_nodes_for_attached_volume(&name).is_empty());

    actual.mark_volume_as_attached(&name, None, "a", "");
    assert_eq!(
        actual.get_volumes_to_report_attached_for_node("a").unwrap().len(),
        1
    );
}

#[test]
fn uncertain_volume_whose_detach_does_not_begin_is_reported_again() {
    let mut actual = ActualStateOfWorld::default();
    actual.add_volume_to_report_as_attached("v", "a");
    assert!(actual.get_volumes_to_report_attached().is_empty(), "not attached");
    actual.mark_volume_as_uncertain("v", None, "a");
    actual.add_volume_to_report_as_attached("v", "a");
    assert_eq!(
        actual.get_volumes_to_report_attached(),
        [("a".to_owned(), vec![("v".to_owned(), String::new())])]
    );
}

#[test]
fn failed_status_update_is_retried() {
    let (mut actual, _) = attached("v", "a");
    actual.get_volumes_to_report_attached();
    actual.set_node_status_update_needed("a");
    assert_eq!(actual.get_volumes_to_report_attached().len(), 1);
}

#[test]
fn detach_request_time_runs_until_it_is_reset() {
    let (mut actual, name) = attached("v", "a");
    let start = Instant::now();
    let later = start + Duration::from_secs(5);
    assert_eq!(
        actual.set_detach_request_time(&name, "a", start),
        Some(Duration::ZERO)
    );
    assert_eq!(
        actual.set_detach_request_time(&name, "a", later),
        Some(Duration::from_secs(5))
    );
    assert!(actual.reset_detach_request_time(&name, "a"));
    assert_eq!(
        actual.set_detach_request_time(&name, "a", later),
        Some(Duration::ZERO)
    );
    actual.mark_volume_as_detached(&name, "a");
    assert_eq!(actual.set_detach_request_time(&name, "a", later), None);
    assert_eq!(actual.attach_state(&name, "a"), AttachState::Detached);
}
