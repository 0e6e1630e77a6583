//! Go's named string and map types, which the errors of its JSON decoder show.

/// Structs and their fields with a named type; names are without the package.
const NAMED: &[(&str, &str)] = &[
    ("DeleteOptions", "propagationPolicy=DeletionPropagation"),
    ("Preconditions", "uid=types.UID"),
    ("AppArmorProfile", "type=AppArmorProfileType"),
    ("AttachedVolume", "name=UniqueVolumeName"),
    (
        "AzureDiskVolumeSource",
        "cachingMode=AzureDataDiskCachingMode kind=AzureDataDiskKind",
    ),
    (
        "CSIDriverSpec",
        "fsGroupPolicy=FSGroupPolicy volumeLifecycleModes=VolumeLifecycleMode",
    ),
    ("BoundObjectReference", "uid=types.UID"),
    ("Capabilities", "add=Capability drop=Capability"),
    ("ConfigMapNodeConfigSource", "uid=types.UID"),
    (
        "Container",
        "imagePullPolicy=PullPolicy restartPolicy=ContainerRestartPolicy terminationMessagePolicy=TerminationMessagePolicy",
    ),
    ("ContainerPort", "protocol=Protocol"),
    (
        "ContainerResizePolicy",
        "resourceName=ResourceName restartPolicy=ResourceResizeRestartPolicy",
    ),
    ("ContainerRestartRule", "action=ContainerRestartRuleAction"),
    (
        "ContainerRestartRuleOnExitCodes",
        "operator=ContainerRestartRuleOnExitCodesOperator",
    ),
    (
        "ContainerStatus",
        "allocatedResources=ResourceList stopSignal=Signal",
    ),
    ("EmptyDirVolumeSource", "medium=StorageMedium"),
    (
        "EphemeralContainer",
        "imagePullPolicy=PullPolicy restartPolicy=ContainerRestartPolicy terminationMessagePolicy=TerminationMessagePolicy",
    ),
    ("HTTPGetAction", "scheme=URIScheme"),
    ("HostPathVolumeSource", "type=HostPathType"),
    ("ImageVolumeSource", "pullPolicy=PullPolicy"),
    ("LabelSelectorRequirement", "operator=LabelSelectorOperator"),
    ("LeaseSpec", "strategy=CoordinatedLeaseStrategy"),
    ("Lifecycle", "stopSignal=Signal"),
    ("ManagedFieldsEntry", "operation=ManagedFieldsOperationType"),
    (
        "ModifyVolumeStatus",
        "status=PersistentVolumeClaimModifyVolumeStatus",
    ),
    (
        "NamespaceCondition",
        "status=ConditionStatus type=NamespaceConditionType",
    ),
    ("NamespaceSpec", "finalizers=FinalizerName"),
    ("NamespaceStatus", "phase=NamespacePhase"),
    ("NodeAddress", "type=NodeAddressType"),
    ("NodeCondition", "status=ConditionStatus type=NodeConditionType"),
    ("NodeSelectorRequirement", "operator=NodeSelectorOperator"),
    (
        "NodeStatus",
        "allocatable=ResourceList capacity=ResourceList phase=NodePhase volumesInUse=UniqueVolumeName",
    ),
    ("ObjectMeta", "uid=types.UID"),
    ("ObjectReference", "uid=types.UID"),
    ("OwnerReference", "uid=types.UID"),
    (
        "PersistentVolumeClaimCondition",
        "status=ConditionStatus type=PersistentVolumeClaimConditionType",
    ),
    (
        "PersistentVolumeClaimSpec",
        "accessModes=PersistentVolumeAccessMode volumeMode=PersistentVolumeMode",
    ),
    (
        "PersistentVolumeClaimStatus",
        "accessModes=PersistentVolumeAccessMode allocatedResourceStatuses=ClaimResourceStatus allocatedResources=ResourceList capacity=ResourceList phase=PersistentVolumeClaimPhase",
    ),
    (
        "PersistentVolumeSpec",
        "accessModes=PersistentVolumeAccessMode capacity=ResourceList persistentVolumeReclaimPolicy=PersistentVolumeReclaimPolicy volumeMode=PersistentVolumeMode",
    ),
    ("PersistentVolumeStatus", "phase=PersistentVolumePhase"),
    ("PodCondition", "status=ConditionStatus type=PodConditionType"),
    ("PodOS", "name=OSName"),
    ("PodReadinessGate", "conditionType=PodConditionType"),
    (
        "PodSecurityContext",
        "fsGroupChangePolicy=PodFSGroupChangePolicy seLinuxChangePolicy=PodSELinuxChangePolicy supplementalGroupsPolicy=SupplementalGroupsPolicy",
    ),
    (
        "PodSpec",
        "dnsPolicy=DNSPolicy overhead=ResourceList preemptionPolicy=PreemptionPolicy restartPolicy=RestartPolicy",
    ),
    (
        "PodStatus",
        "allocatedResources=ResourceList phase=PodPhase qosClass=PodQOSClass resize=PodResizeStatus",
    ),
    (
        "ResourceHealth",
        "health=ResourceHealthStatus resourceID=ResourceID",
    ),
    (
        "ResourceRequirements",
        "limits=ResourceList requests=ResourceList",
    ),
    ("ResourceStatus", "name=ResourceName"),
    ("SeccompProfile", "type=SeccompProfileType"),
    ("Secret", "type=SecretType"),
    ("SecurityContext", "procMount=ProcMountType"),
    (
        "StorageClass",
        "reclaimPolicy=PersistentVolumeReclaimPolicy volumeBindingMode=VolumeBindingMode",
    ),
    ("Taint", "effect=TaintEffect"),
    ("Toleration", "effect=TaintEffect operator=TolerationOperator"),
    (
        "TopologySpreadConstraint",
        "nodeAffinityPolicy=NodeInclusionPolicy nodeTaintsPolicy=NodeInclusionPolicy whenUnsatisfiable=UnsatisfiableConstraintAction",
    ),
    (
        "VolumeMount",
        "mountPropagation=MountPropagationMode recursiveReadOnly=RecursiveReadOnlyMode",
    ),
    ("VolumeMountStatus", "recursiveReadOnly=RecursiveReadOnlyMode"),
    (
        "VolumeResourceRequirements",
        "limits=ResourceList requests=ResourceList",
    ),
];

/// The name of the type of a field, or of its elements.
pub(super) fn name(struct_name: &str, field: &str) -> Option<String> {
    let fields = NAMED.iter().filter(|(found, _)| *found == struct_name);
    let mut names = fields.flat_map(|(_, fields)| fields.split(' '));
    let name = names.find_map(|entry| entry.strip_prefix(field)?.strip_prefix('='))?;
    Some(if name.contains('.') {
        name.to_owned()
    } else {
        format!("v1.{name}")
    })
}

/// The struct that is embedded in a struct and has the field.
pub(super) fn embedded(struct_name: &str, field: &str) -> Option<&'static str> {
    const OF_VOLUME: [&str; 9] = [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    ];
    match struct_name {
        "PersistentVolumeSpec" if !OF_VOLUME.contains(&field) => Some("PersistentVolumeSource"),
        "Volume" if field != "name" => Some("VolumeSource"),
        _ => None,
    }
}
