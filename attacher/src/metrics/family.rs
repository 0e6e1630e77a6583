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
        "How many seconds the longest running piece of work of the workqueue has been running";
    WORKQUEUE_WAITED = Histogram "workqueue_queue_duration_seconds" ["name"]
        "How long in seconds an item stays in workqueue before being worked on";
    WORKQUEUE_RETRIES = Counter "workqueue_retries_total" ["name"]
        "Total number of retries handled by workqueue";
    WORKQUEUE_UNFINISHED = Gauge "workqueue_unfinished_work_seconds" ["name"]
        "How many seconds all unfinished work of the workqueue has been running, added up";
    WORKQUEUE_WORKED = Histogram "workqueue_work_duration_seconds" ["name"]
        "How long in seconds working on an item from workqueue takes";
    LEADER = Gauge "leader_election_master_status" ["name"]
        "Whether this process is the leader of the lease of this name: 1 if it is, 0 if it stands by";
    LEADER_SLOW = Counter "leader_election_slowpath_total" ["name"]
        "How often renewing the lease took more than its usual one request";

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
        "Unfinished work by lane (attach, detach, repair: what a survey or a driver's return asks for, release) and state (running, ready: waits for a free place, waiting: failed and will be tried again)";
    LIMIT = Gauge "csi_attacher_lane_limit" ["lane"]
        "How much work of the lane may run at once";
    OLDEST = Gauge "csi_attacher_oldest_seconds" ["lane"]
        "Age of the oldest unfinished work of the lane, from the creation or deletion of its VolumeAttachment (a repair's from when it was asked for); 0 if there is none";
    ATTACH_SECONDS = Histogram "csi_attacher_attach_duration_seconds" []
        "From the creation of VolumeAttachments to the status that says they are attached";
    DETACH_SECONDS = Histogram "csi_attacher_detach_duration_seconds" []
        "From the deletion of VolumeAttachments to the removal of our finalizer";
    OBJECTS = Gauge "csi_attacher_objects" ["resource"]
        "Objects held in memory";
    SYNCED = Gauge "csi_attacher_lists_complete" []
        "Whether the first lists of all watched resources are complete; no work starts before";
    CONNECTED = Gauge "csi_attacher_driver_connected" []
        "Whether the CSI driver is connected";
    RECONNECTS = Counter "csi_attacher_driver_reconnects_total" []
        "How often the CSI driver was connected again after its connection was lost";
    API_REQUESTS = Counter "csi_attacher_api_requests_total" ["verb", "resource", "code"]
        "Requests to the API server by verb, resource and HTTP status; canceled: given up, error: the connection failed";
    API_SECONDS = Histogram "csi_attacher_api_request_duration_seconds" ["verb", "resource"]
        "How long the answer of the API server took to begin";
    API_RETRIES = Counter "csi_attacher_api_retries_total" []
        "Requests that were sent once more because the API server said not now, or nothing";
    API_IN_FLIGHT = Gauge "csi_attacher_api_requests_in_flight" []
        "Requests that wait for the answer of the API server";
    RECONCILE_ROUNDS = Counter "csi_attacher_reconcile_rounds_total" ["result"]
        "Comparisons of all attachments with what the driver lists, by result (completed, failed)";
    RECONCILE_SECONDS = Gauge "csi_attacher_reconcile_last_duration_seconds" []
        "How long the last comparison took, be it completed or failed; 0 before the first";
    LOST = Counter "csi_attacher_lost_attachments_total" []
        "Attachments found lost: their volume was not on the node any more";
    LEFTOVER = Counter "csi_attacher_leftover_attachments_total" []
        "Volumes found on a node after their attachment had been let go of";
    REPAIRED = Counter "csi_attacher_repaired_attachments_total" []
        "Lost attachments that were published again, and leftovers that were unpublished";
    REFUSED = Counter "csi_attacher_refused_repairs_total" []
        "Repairs that could not be made as things stood, because the volume is being deleted, say; each rests until something changes";
}
