//! Every family of `/metrics`: the one list that the text is made from and the documentation is
//! compared with.

/// One family.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its labels, in the order in which they are written. The last one may be left out of a sample.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

// === impl Kind ===

impl Kind {
    /// As in a TYPE line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

macro_rules! families {
    ($($(#[$doc:meta])* $id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            $(#[$doc])*
            pub static $id: Family = Family {
                name: $name,
                kind: Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// All of them.
        pub static ALL: &[&Family] = &[$(&$id),*];
    };
}

// The first three groups have the names of the Go sidecar, so that dashboards and alerts go on
// working; the fourth is ours.
families! {
    OPERATIONS = Histogram "csi_sidecar_operations_seconds"
        ["driver_name", "grpc_status_code", "method_name", "migrated"]
        "Container Storage Interface operation duration with gRPC error code status total";

    WORKQUEUE_ADDS = Counter "workqueue_adds_total" ["name"]
        "Total number of adds handled by workqueue";
    WORKQUEUE_DEPTH = Gauge "workqueue_depth" ["name"]
        "Current depth of workqueue";
    WORKQUEUE_LONGEST = Gauge "workqueue_longest_running_processor_seconds" ["name"]
        "How many seconds has the longest running processor for workqueue been running";
    WORKQUEUE_WAITED = Histogram "workqueue_queue_duration_seconds" ["name"]
        "How long in seconds an item stays in workqueue before being requested";
    WORKQUEUE_RETRIES = Counter "workqueue_retries_total" ["name"]
        "Total number of retries handled by workqueue";
    WORKQUEUE_UNFINISHED = Gauge "workqueue_unfinished_work_seconds" ["name"]
        "How many seconds of work has been done that is in progress and hasn't been observed by work_duration. Large values indicate stuck items";
    WORKQUEUE_WORKED = Histogram "workqueue_work_duration_seconds" ["name"]
        "How long in seconds processing an item from workqueue takes";
    LEADER = Gauge "leader_election_master_status" ["name"]
        "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name";
    LEADER_SLOW = Counter "leader_election_slowpath_total" ["name"]
        "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name";

    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "Total user and system CPU time spent in seconds";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "Maximum number of open file descriptors";
    PROCESS_RECEIVED = Counter "process_network_receive_bytes_total" []
        "Number of bytes received over the network in the network namespace of the process";
    PROCESS_SENT = Counter "process_network_transmit_bytes_total" []
        "Number of bytes sent over the network in the network namespace of the process";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" []
        "Number of open file descriptors";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" []
        "Resident memory size in bytes";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "Start time of the process since unix epoch in seconds";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" []
        "Virtual memory size in bytes";
    PROCESS_VIRTUAL_MAX = Gauge "process_virtual_memory_max_bytes" []
        "Maximum amount of virtual memory available in bytes";

    BUILD = Gauge "csi_attacher_build_info" ["version"]
        "Always 1; the version is in the label";
    LOG_DROPPED = Counter "csi_attacher_log_dropped_lines_total" []
        "Log lines dropped because standard error or output was blocked";
    BACKLOG = Gauge "csi_attacher_backlog" ["lane", "state"]
        "Unfinished work items by lane (attach, detach, repair: requested by a reconcile or after a reconnect, release: PersistentVolume finalizers) and state (running, ready: queued for a worker, waiting: in backoff)";
    LIMIT = Gauge "csi_attacher_lane_limit" ["lane"]
        "Maximum number of work items of the lane that run concurrently";
    OLDEST = Gauge "csi_attacher_oldest_seconds" ["lane"]
        "Age of the oldest unfinished work item of the lane since the creation or deletion of its VolumeAttachment (of a repair: since its request); 0 if there is none";
    ATTACH_SECONDS = Histogram "csi_attacher_attach_duration_seconds" []
        "Time from the creation of a VolumeAttachment to its status attached=true";
    DETACH_SECONDS = Histogram "csi_attacher_detach_duration_seconds" []
        "Time from the deletion of a VolumeAttachment to the removal of the attacher's finalizer";
    OBJECTS = Gauge "csi_attacher_objects" ["resource"]
        "Number of objects in the caches";
    SYNCED = Gauge "csi_attacher_lists_complete" []
        "Whether all caches are synced; the workers start after that";
    CONNECTED = Gauge "csi_attacher_driver_connected" []
        "Whether the CSI driver is connected";
    RECONNECTS = Counter "csi_attacher_driver_reconnects_total" []
        "Total number of reconnects to the CSI driver after its connection was lost";
    API_REQUESTS = Counter "csi_attacher_api_requests_total" ["verb", "resource", "code"]
        "Total number of requests to the API server by verb, resource and HTTP status code (canceled: given up, error: connection failed)";
    API_SECONDS = Histogram "csi_attacher_api_request_duration_seconds" ["verb", "resource"]
        "Time from sending a request to the start of the API server's response";
    API_RETRIES = Counter "csi_attacher_api_retries_total" []
        "Total number of requests that were retried because the API server answered 429 or 5xx, or not at all";
    API_IN_FLIGHT = Gauge "csi_attacher_api_requests_in_flight" []
        "Number of requests without a response from the API server yet";
    RECONCILE_ROUNDS = Counter "csi_attacher_reconcile_rounds_total" ["result"]
        "Total number of reconciles of the VolumeAttachments with ListVolumes by result (completed, failed)";
    RECONCILE_SECONDS = Gauge "csi_attacher_reconcile_last_duration_seconds" []
        "Duration of the last reconcile, completed or failed; 0 before the first";
    LOST = Counter "csi_attacher_lost_attachments_total" []
        "Total number of attachments found lost: ListVolumes did not show the volume on its node";
    LEFTOVER = Counter "csi_attacher_leftover_attachments_total" []
        "Total number of volumes found published on a node after the attacher had removed its finalizer";
    REPAIRED = Counter "csi_attacher_repaired_attachments_total" []
        "Total number of lost attachments that were published again and of leftover ones that were unpublished";
    REFUSED = Counter "csi_attacher_refused_repairs_total" []
        "Total number of repairs that the attacher refused, for example because the volume is being deleted; each is parked until one of its objects changes";
}
