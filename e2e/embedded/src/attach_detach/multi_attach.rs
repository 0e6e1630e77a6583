//! The texts of the event about a volume that is attached to another node.

use super::desired_state_of_world::{PodToAdd, VolumeToAttach};

const EXCLUSIVELY_ATTACHED: &str = "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node";

/// The event's message for each pod that waits for a volume attached to other nodes. A user must not see the
/// names of pods in other namespaces.
pub(crate) fn messages(volume: &VolumeToAttach, pods_on_other_nodes: &[PodToAdd]) -> Vec<(PodToAdd, String)> {
    let name = &volume.spec.name;
    let message = |pod: &PodToAdd| {
        if pods_on_other_nodes.is_empty() {
            return EXCLUSIVELY_ATTACHED.to_owned();
        }
        let (local, foreign): (Vec<_>, Vec<_>) = pods_on_other_nodes
            .iter()
            .partition(|other| other.namespace == pod.namespace);
        let names: Vec<&str> = local.iter().map(|pod| pod.name.as_str()).collect();
        match (names.is_empty(), foreign.len()) {
            (true, foreign) => format!("Volume is already used by {foreign} pod(s) in different namespaces"),
            (false, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
            (false, foreign) => format!(
                "Volume is already used by pod(s) {} and {foreign} pod(s) in different namespaces",
                names.join(", ")
            ),
        }
    };
    volume
        .scheduled_pods
        .iter()
        .map(|pod| {
            let text = format!("Waiting for detach for volume {name:?} {}", message(pod));
            (pod.clone(), text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::desired_state_of_world::tests::{mk_pod, mk_spec};
    use super::*;

    #[test]
    fn event_names_only_pods_of_the_same_namespace() {
        let volume = VolumeToAttach {
            volume_name: "v".to_owned(),
            node_name: "b".to_owned(),
            spec: mk_spec("v", "ReadWriteOnce"),
            scheduled_pods: vec![mk_pod("waiting")],
            multi_attach_error_reported: false,
        };
        let foreign = PodToAdd {
            namespace: "other".to_owned(),
            ..mk_pod("secret")
        };
        let cases = [
            (vec![], EXCLUSIVELY_ATTACHED),
            (
                vec![mk_pod("p"), mk_pod("q")],
                "Volume is already used by pod(s) p, q",
            ),
            (
                vec![mk_pod("p"), foreign.clone()],
                "Volume is already used by pod(s) p and 1 pod(s) in different namespaces",
            ),
            (
                vec![foreign],
                "Volume is already used by 1 pod(s) in different namespaces",
            ),
        ];
        for (pods, expected) in cases {
            let messages = messages(&volume, &pods);
            assert_eq!(messages.len(), 1);
            assert_eq!(
                messages[0].1,
                format!("Waiting for detach for volume \"pv-v\" {expected}")
            );
        }
    }
}
