//! Properties of Go's types of the served kinds that the types of `k8s-openapi` lack.

use super::Presence;

/// Scalar fields that are pointers: their zero value is serialized.
const POINTERS: [(&str, &str); 68] = [
    ("AppArmorProfile", "localhostProfile"),
    ("AzureDiskVolumeSource", "cachingMode fsType readOnly kind"),
    ("AzureFilePersistentVolumeSource", "secretNamespace"),
    (
        "CSIDriverSpec",
        "attachRequired podInfoOnMount storageCapacity fsGroupPolicy requiresRepublish seLinuxMount nodeAllocatableUpdatePeriodSeconds serviceAccountTokenInSecrets preventPodSchedulingIfMissing",
    ),
    ("CSIVolumeSource", "readOnly fsType"),
    ("ClusterTrustBundleProjection", "name signerName optional"),
    ("ConfigMapEnvSource", "optional"),
    ("ConfigMapKeySelector", "optional"),
    ("ConfigMapProjection", "optional"),
    ("ConfigMapVolumeSource", "defaultMode optional"),
    ("Container", "restartPolicy"),
    ("ContainerStatus", "started stopSignal"),
    ("DownwardAPIVolumeFile", "mode"),
    ("DownwardAPIVolumeSource", "defaultMode"),
    (
        "DeleteOptions",
        "gracePeriodSeconds orphanDependents propagationPolicy",
    ),
    ("EphemeralContainer", "restartPolicy"),
    ("FCVolumeSource", "lun"),
    ("FileKeySelector", "optional"),
    ("GRPCAction", "service"),
    ("GlusterfsPersistentVolumeSource", "endpointsNamespace"),
    ("HostPathVolumeSource", "type"),
    ("ISCSIPersistentVolumeSource", "initiatorName"),
    ("ISCSIVolumeSource", "initiatorName"),
    ("KeyToPath", "mode"),
    (
        "LeaseSpec",
        "holderIdentity leaseDurationSeconds leaseTransitions strategy preferredHolder",
    ),
    ("Lifecycle", "stopSignal"),
    ("LocalVolumeSource", "fsType"),
    ("NodeFeatures", "supplementalGroupsPolicy"),
    (
        "NodeRuntimeHandlerFeatures",
        "recursiveReadOnlyMounts userNamespaces",
    ),
    ("NodeSwapStatus", "capacity"),
    ("ObjectMeta", "deletionGracePeriodSeconds"),
    ("OwnerReference", "controller blockOwnerDeletion"),
    (
        "PersistentVolumeClaimSpec",
        "storageClassName volumeMode volumeAttributesClassName",
    ),
    ("PersistentVolumeClaimStatus", "currentVolumeAttributesClassName"),
    ("PersistentVolumeSpec", "volumeMode volumeAttributesClassName"),
    ("PodCertificateProjection", "maxExpirationSeconds"),
    ("PodDNSConfigOption", "value"),
    ("PodResourceClaim", "resourceClaimName resourceClaimTemplateName"),
    ("PodResourceClaimStatus", "resourceClaimName"),
    ("PodSchedulingGroup", "podGroupName"),
    (
        "PodSecurityContext",
        "runAsUser runAsGroup runAsNonRoot supplementalGroupsPolicy fsGroup fsGroupChangePolicy seLinuxChangePolicy",
    ),
    (
        "PodSpec",
        "terminationGracePeriodSeconds activeDeadlineSeconds automountServiceAccountToken shareProcessNamespace priority runtimeClassName enableServiceLinks preemptionPolicy setHostnameAsFQDN hostUsers hostnameOverride",
    ),
    ("Preconditions", "uid resourceVersion"),
    ("Probe", "terminationGracePeriodSeconds"),
    ("ProjectedVolumeSource", "defaultMode"),
    ("ResourceHealth", "message"),
    ("SeccompProfile", "localhostProfile"),
    ("Secret", "immutable"),
    ("SecretEnvSource", "optional"),
    ("SecretKeySelector", "optional"),
    ("SecretProjection", "optional"),
    ("SecretVolumeSource", "defaultMode optional"),
    (
        "SecurityContext",
        "privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount",
    ),
    ("ServiceAccount", "automountServiceAccountToken"),
    ("ServiceAccountTokenProjection", "expirationSeconds"),
    (
        "StorageClass",
        "reclaimPolicy allowVolumeExpansion volumeBindingMode",
    ),
    ("TokenRequest", "expirationSeconds"),
    ("TokenRequestSpec", "expirationSeconds"),
    ("Toleration", "tolerationSeconds"),
    (
        "TopologySpreadConstraint",
        "minDomains nodeAffinityPolicy nodeTaintsPolicy",
    ),
    ("TypedLocalObjectReference", "apiGroup"),
    ("TypedObjectReference", "apiGroup namespace"),
    ("VolumeAttachmentSource", "persistentVolumeName"),
    ("VolumeError", "errorCode"),
    ("VolumeMount", "recursiveReadOnly mountPropagation"),
    ("VolumeMountStatus", "recursiveReadOnly"),
    ("VolumeNodeResources", "count"),
    (
        "WindowsSecurityContextOptions",
        "gmsaCredentialSpecName gmsaCredentialSpec runAsUserName hostProcess",
    ),
];

/// Fields without `omitempty`, and structs that are not pointers: they are always serialized.
const ALWAYS: [(&str, &str); 66] = [
    ("AttachedVolume", "name devicePath"),
    ("CSIDriver", "metadata spec"),
    ("CSINode", "metadata spec"),
    ("CSINodeDriver", "name nodeID topologyKeys"),
    ("CSINodeSpec", "drivers"),
    ("CSIPersistentVolumeSource", "driver volumeHandle"),
    ("CSIStorageCapacity", "metadata storageClassName"),
    ("CSIVolumeSource", "driver"),
    ("Container", "name resources"),
    ("ContainerImage", "names"),
    ("ContainerPort", "containerPort"),
    ("ContainerStateRunning", "startedAt"),
    ("ContainerStateTerminated", "exitCode startedAt finishedAt"),
    (
        "ContainerStatus",
        "name ready restartCount image imageID state lastState",
    ),
    ("DaemonEndpoint", "Port"),
    ("EnvVar", "name"),
    ("EphemeralContainer", "name resources"),
    (
        "Event",
        "metadata involvedObject source firstTimestamp lastTimestamp eventTime reportingComponent reportingInstance \
         regarding deprecatedSource deprecatedFirstTimestamp deprecatedLastTimestamp",
    ),
    ("EventSeries", "lastObservedTime"),
    ("HTTPHeader", "name value"),
    ("HostIP", "ip"),
    ("HostPathVolumeSource", "path"),
    ("LabelSelectorRequirement", "key operator"),
    ("Lease", "metadata spec"),
    ("Namespace", "metadata spec status"),
    ("NamespaceCondition", "type status lastTransitionTime"),
    ("Node", "metadata spec status"),
    ("NodeAddress", "type address"),
    (
        "NodeCondition",
        "type status lastHeartbeatTime lastTransitionTime",
    ),
    ("NodeDaemonEndpoints", "kubeletEndpoint"),
    ("NodeSelector", "nodeSelectorTerms"),
    ("NodeSelectorRequirement", "key operator"),
    ("NodeStatus", "daemonEndpoints nodeInfo"),
    (
        "NodeSystemInfo",
        "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion operatingSystem architecture",
    ),
    ("PersistentVolume", "metadata spec status"),
    ("PersistentVolumeClaim", "metadata spec status"),
    (
        "PersistentVolumeClaimCondition",
        "type status lastProbeTime lastTransitionTime",
    ),
    ("PersistentVolumeClaimSpec", "resources"),
    ("PersistentVolumeClaimTemplate", "metadata spec"),
    ("PersistentVolumeClaimVolumeSource", "claimName"),
    ("Pod", "metadata spec status"),
    ("PodAffinityTerm", "topologyKey"),
    ("PodCondition", "type status lastProbeTime lastTransitionTime"),
    ("PodIP", "ip"),
    ("PodReadinessGate", "conditionType"),
    ("PodSchedulingGate", "name"),
    ("PodSpec", "containers"),
    ("PreferredSchedulingTerm", "weight preference"),
    ("ProjectedVolumeSource", "sources"),
    ("Secret", "metadata"),
    ("ServiceAccount", "metadata"),
    ("ServiceAccountTokenProjection", "path"),
    ("StorageClass", "metadata provisioner"),
    ("Taint", "key effect"),
    ("TokenRequest", "audience"),
    ("TopologySelectorLabelRequirement", "key values"),
    ("TypedLocalObjectReference", "apiGroup kind name"),
    ("TypedObjectReference", "apiGroup kind name"),
    ("Volume", "name"),
    ("VolumeAttachment", "metadata spec status"),
    ("VolumeAttachmentSpec", "attacher nodeName source"),
    ("VolumeAttachmentStatus", "attached"),
    ("VolumeDevice", "name devicePath"),
    ("VolumeError", "time"),
    ("VolumeMount", "name mountPath"),
    ("WeightedPodAffinityTerm", "weight podAffinityTerm"),
];

/// Lists that a strategic merge patch merges: struct, field, merge key (empty for lists of scalars).
const MERGE_KEYS: [(&str, &str, &str); 32] = [
    ("CSINodeSpec", "drivers", "name"),
    ("Container", "env", "name"),
    ("Container", "ports", "containerPort"),
    ("Container", "volumeDevices", "devicePath"),
    ("Container", "volumeMounts", "mountPath"),
    ("ContainerStatus", "allocatedResourcesStatus", "name"),
    ("ContainerStatus", "volumeMounts", "mountPath"),
    ("EphemeralContainer", "env", "name"),
    ("EphemeralContainer", "ports", "containerPort"),
    ("EphemeralContainer", "volumeDevices", "devicePath"),
    ("EphemeralContainer", "volumeMounts", "mountPath"),
    ("NamespaceStatus", "conditions", "type"),
    ("NodeSpec", "podCIDRs", ""),
    ("NodeStatus", "addresses", "type"),
    ("NodeStatus", "conditions", "type"),
    ("ObjectMeta", "finalizers", ""),
    ("ObjectMeta", "ownerReferences", "uid"),
    ("PersistentVolumeClaimStatus", "conditions", "type"),
    ("PodSpec", "containers", "name"),
    ("PodSpec", "ephemeralContainers", "name"),
    ("PodSpec", "hostAliases", "ip"),
    ("PodSpec", "imagePullSecrets", "name"),
    ("PodSpec", "initContainers", "name"),
    ("PodSpec", "resourceClaims", "name"),
    ("PodSpec", "schedulingGates", "name"),
    ("PodSpec", "topologySpreadConstraints", "topologyKey"),
    ("PodSpec", "volumes", "name"),
    ("PodStatus", "conditions", "type"),
    ("PodStatus", "hostIPs", "ip"),
    ("PodStatus", "podIPs", "ip"),
    ("PodStatus", "resourceClaimStatuses", "name"),
    ("ServiceAccount", "secrets", "name"),
];

/// Merged lists with the patch strategy `retainKeys`: a patch's element lists the keys to retain.
const RETAIN_KEYS: [(&str, &str); 3] = [
    ("PodSpec", "resourceClaims"),
    ("PodSpec", "volumes"),
    ("PodStatus", "resourceClaimStatuses"),
];

/// The Go name of a struct of `k8s-openapi`.
pub(super) fn go_name(name: &'static str) -> &'static str {
    name.rsplit('.').next().unwrap_or(name)
}

pub(super) fn presence(name: &str, field: &str) -> Presence {
    let listed = |table: &[(&str, &str)]| {
        let fields = table.iter().filter(|(found, _)| *found == name);
        fields
            .flat_map(|(_, fields)| fields.split(' '))
            .any(|found| found == field)
    };
    match (listed(&POINTERS), listed(&ALWAYS)) {
        (true, true) => Presence::Nullable,
        (true, false) => Presence::Optional,
        (false, true) => Presence::Always,
        (false, false) => Presence::OmitEmpty,
    }
}

/// The merge key of a list that is merged.
pub(super) fn merge(name: &str, field: &str) -> Option<&'static str> {
    let found = MERGE_KEYS
        .iter()
        .find(|(struct_name, list, _)| *struct_name == name && *list == field);
    found.map(|(_, _, key)| *key)
}

/// The patch strategy of a list that is merged.
pub(crate) fn strategy(name: &str, field: &str) -> &'static str {
    if RETAIN_KEYS.contains(&(name, field)) {
        "merge,retainKeys"
    } else {
        "merge"
    }
}
