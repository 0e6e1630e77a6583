//! The table of served resources.

use std::any::TypeId;
use std::sync::LazyLock;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::events::v1::Event as EventsEvent;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::schema::{self, Struct};

/// A kind of stored objects; both event APIs share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    Event,
    Lease,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    ServiceAccount,
    StorageClass,
    VolumeAttachment,
}

/// A resource of one API group.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Kind of its objects.
    pub kind_name: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    pub(crate) kind: Kind,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) subresources: &'static [&'static str],
    /// Fields that a field selector may name, besides `metadata.name` (and `metadata.namespace`).
    pub(crate) selectable: &'static [&'static str],
    pub(crate) schema: &'static Struct,
}

/// Number of tables in the store.
const TABLES: usize = Kind::VolumeAttachment as usize + 1;

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];
const EVENTS_VIEW_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];
const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];

static RESOURCES: LazyLock<Vec<Resource>> = LazyLock::new(|| {
    vec![
        resource::<Event>(Kind::Event).short(&["ev"]).fields(EVENT_FIELDS),
        resource::<Namespace>(Kind::Namespace)
            .short(&["ns"])
            .subresources(&["status", "finalize"])
            .fields(&["status.phase"]),
        resource::<Node>(Kind::Node)
            .short(&["no"])
            .subresources(&["status"])
            .fields(&["spec.unschedulable"]),
        resource::<PersistentVolumeClaim>(Kind::PersistentVolumeClaim)
            .short(&["pvc"])
            .subresources(&["status"]),
        resource::<PersistentVolume>(Kind::PersistentVolume)
            .short(&["pv"])
            .subresources(&["status"]),
        resource::<Pod>(Kind::Pod)
            .short(&["po"])
            .categories(&["all"])
            .subresources(&["status", "binding", "eviction"])
            .fields(POD_FIELDS),
        resource::<Secret>(Kind::Secret).fields(&["type"]),
        resource::<ServiceAccount>(Kind::ServiceAccount)
            .short(&["sa"])
            .subresources(&["token"]),
        resource::<Lease>(Kind::Lease),
        resource::<EventsEvent>(Kind::Event)
            .short(&["ev"])
            .fields(EVENTS_VIEW_FIELDS),
        resource::<CSIDriver>(Kind::CsiDriver),
        resource::<CSINode>(Kind::CsiNode).subresources(&["status"]),
        resource::<CSIStorageCapacity>(Kind::CsiStorageCapacity),
        resource::<StorageClass>(Kind::StorageClass).short(&["sc"]),
        resource::<VolumeAttachment>(Kind::VolumeAttachment).subresources(&["status"]),
    ]
});

// === impl Resource ===

impl Resource {
    /// The only version of the API group that is served.
    pub const VERSION: &'static str = "v1";

    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        group_version(self.group)
    }

    /// Plural and group, such as `volumeattachments.storage.k8s.io`.
    pub fn group_resource(&self) -> String {
        qualified(self.plural, self.group)
    }

    pub(crate) fn singular(&self) -> String {
        self.kind_name.to_ascii_lowercase()
    }

    pub(crate) fn table(&self) -> usize {
        self.kind as usize
    }

    /// Whether this is the `events.k8s.io` view of events; the store holds core events.
    pub(crate) fn is_events_view(&self) -> bool {
        self.kind == Kind::Event && !self.group.is_empty()
    }

    /// Whether kube-apiserver has a watch cache for it; it reads events from etcd.
    pub(crate) fn is_cached(&self) -> bool {
        self.kind != Kind::Event
    }

    /// Whether PUT creates an object that does not exist.
    pub(crate) fn allows_create_on_update(&self) -> bool {
        matches!(self.kind, Kind::Event | Kind::Lease)
    }

    /// Whether an update may omit the resource version.
    pub(crate) fn allows_unconditional_update(&self) -> bool {
        match self.kind {
            Kind::CsiDriver
            | Kind::CsiNode
            | Kind::CsiStorageCapacity
            | Kind::Lease
            | Kind::VolumeAttachment => false,
            Kind::Event
            | Kind::Namespace
            | Kind::Node
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim
            | Kind::Pod
            | Kind::Secret
            | Kind::ServiceAccount
            | Kind::StorageClass => true,
        }
    }

    /// Whether a deletion returns the deleted object instead of a `Status`.
    pub(crate) fn returns_deleted_object(&self) -> bool {
        match self.kind {
            Kind::CsiStorageCapacity | Kind::Event | Kind::Lease | Kind::Node | Kind::Secret => false,
            Kind::CsiDriver
            | Kind::CsiNode
            | Kind::Namespace
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim
            | Kind::Pod
            | Kind::ServiceAccount
            | Kind::StorageClass
            | Kind::VolumeAttachment => true,
        }
    }

    /// Prefix of its keys in etcd, which some error texts contain.
    pub(crate) fn storage_prefix(&self) -> &'static str {
        if self.kind == Kind::Node {
            "minions"
        } else {
            self.plural
        }
    }

    fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }

    fn categories(mut self, names: &'static [&'static str]) -> Self {
        self.categories = names;
        self
    }

    fn subresources(mut self, names: &'static [&'static str]) -> Self {
        self.subresources = names;
        self
    }

    fn fields(mut self, names: &'static [&'static str]) -> Self {
        self.selectable = names;
        self
    }
}

fn resource<T: k8s_openapi::Resource<Scope: 'static>>(kind: Kind) -> Resource {
    Resource {
        group: T::GROUP,
        kind_name: T::KIND,
        plural: T::URL_PATH_SEGMENT,
        namespaced: TypeId::of::<T::Scope>() == TypeId::of::<NamespaceResourceScope>(),
        kind,
        short_names: &[],
        categories: &[],
        subresources: &[],
        selectable: &[],
        schema: schema::of(T::GROUP, T::KIND),
    }
}

/// The fields by which the store indexes the changes of each table: those of kube-apiserver's watch cache.
pub(crate) fn indexed_fields() -> [Option<&'static str>; TABLES] {
    let mut fields = [None; TABLES];
    fields[Kind::Pod as usize] = Some("spec.nodeName");
    fields[Kind::Node as usize] = Some("metadata.name");
    fields[Kind::Secret as usize] = Some("metadata.name");
    fields
}

/// All served resources.
pub(crate) fn all() -> &'static [Resource] {
    &RESOURCES
}

/// The resource of a group with this plural.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    let mut found = RESOURCES.iter();
    found.find(|resource| resource.group == group && resource.plural == plural)
}

/// The core resource of a kind.
pub(crate) fn of_kind(kind: Kind) -> &'static Resource {
    let mut found = RESOURCES.iter();
    found
        .find(|resource| resource.kind == kind)
        .expect("every kind must have a resource")
}

/// Names of the served groups besides the core group.
pub(crate) const GROUPS: [&str; 3] = ["coordination.k8s.io", "events.k8s.io", "storage.k8s.io"];

/// The `apiVersion` of a group's only version.
pub(crate) fn group_version(group: &str) -> String {
    if group.is_empty() {
        Resource::VERSION.to_owned()
    } else {
        format!("{group}/{}", Resource::VERSION)
    }
}

/// `name.group`, or `name` in the core group.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}
